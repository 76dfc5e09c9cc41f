"""A model of the Hugging Face Hub by its name, where a folder is asked for.

bert-base-uncased  ->  ~/.cache/huggingface/hub/models--bert-base-uncased/snapshots/86b5...

A path that exists is a path, and so is what begins with a folder that exists.
"""

import re
from pathlib import Path

from clozeline.pipeline.common.errors import InputError

#: "bert-base-uncased", or "answerdotai/ModernBERT-base"; without "bert" it is a path that is wrong.
NAME = re.compile(r"(?=.*bert)[a-z0-9][\w.-]{0,95}(/[\w.-]{1,95})?", re.IGNORECASE | re.ASCII)
FILES = ("*.json", "*.txt")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # the second where the first are not there


def is_hub_name(given: object) -> bool:
    """Whether this names a model of the Hub: nothing on this machine has the name."""
    if NAME.fullmatch(str(given)) is None:
        return False
    path = Path(str(given))
    is_path = path.exists() or (len(path.parts) > 1 and Path(path.parts[0]).exists())
    return not is_path and not path.suffix


def hub_folder(name: str, *, weights: bool) -> Path:
    """The local copy of a model, downloaded if it is not there yet, with its `weights` or without.

    Raises InputError, with the command that downloads it elsewhere.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*FILES, *WEIGHTS[: int(weights)]]))
        if weights and not any(folder.glob(WEIGHTS[0])):
            snapshot_download(name, allow_patterns=WEIGHTS[1])
    except Exception as error:  # the library's errors have no common class
        reason = str(error).partition("\n")[0]  # the other lines are advice
        raise InputError(
            f"{name} does not exist; check the path. If it is a model of the Hub, which could not "
            f"be loaded ({reason}), run `hf download {name} --local-dir DIR` where "
            "there is a network, and give DIR."
        ) from error
    return folder
