"""Weights by name out of a folder, whatever file they are in: BERT's names of 2018 and of today.

    model.safetensors            or parts of it, with model.safetensors.index.json
    pytorch_model.bin            or its parts; unpickled as weights only, so no code of it is run

What goes wrong is a ValueError of one line.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

SAFETENSORS, PICKLE, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
TENSORFLOW = ("*.ckpt*", "tf_model.h5")

WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
# Stored by some versions and computed by others; no weights.
BUFFERS = re.compile(r"(bert\.)?embeddings\.(position_ids|token_type_ids)")
TODAY = (  # names that went out of use, and what they became
    (re.compile(r"\.gamma$"), ".weight"),
    (re.compile(r"\.beta$"), ".bias"),
    (re.compile(r"^cls\.predictions\.decoder\.bias$"), "cls.predictions.bias"),
    (re.compile(r"^(embeddings|encoder|pooler)\."), r"bert.\1."),  # of a bare encoder
)


def has_weights(folder: Path) -> bool:
    """Whether there is a file of weights, readable here or by way of a conversion."""
    patterns = (f"{SAFETENSORS}*", f"{PICKLE}*", *TENSORFLOW)
    return any(chain.from_iterable(folder.glob(pattern) for pattern in patterns))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights under the names that BERT of `transformers` has today, each of them once.

    Raises ValueError where there are none, or a file is missing or damaged.
    """
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for name, weight in _read_file(path).items():
            if BUFFERS.fullmatch(name):
                continue
            if not isinstance(weight, Tensor) or not weight.is_floating_point():
                raise ValueError(f"{path}: {name} is no tensor of floats; give plain weights.")
            today = _today(name)
            if today in found and not torch.equal(found[today], weight):
                raise ValueError(f"{path} has two different values of {today}; remove one.")
            found[today] = weight
    decoder = found.pop(DECODER, None)
    if decoder is not None and not torch.equal(decoder, found.get(WORDS, decoder)):
        raise ValueError(
            f"{folder}: {DECODER} is not the table of word embeddings, as it is in plain BERT, "
            "which is what is read here."
        )
    return found


def weights_sha256(folder: Path) -> str:
    """The sha256 of the file of weights, hex; of its parts one after another where it has some."""
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The file of weights, or its parts by name. Raises ValueError where there is none."""
    refuse_tensorflow(folder)
    for name in (SAFETENSORS, PICKLE):
        if (folder / name).exists():
            return [folder / name]
        if (folder / (name + INDEX)).exists():
            return _parts(folder / (name + INDEX))
    raise ValueError(f"{folder} has no weights (no {SAFETENSORS} or {PICKLE} in it).")


def refuse_tensorflow(folder: Path) -> None:
    """Raises ValueError, with the way to convert it, where all there is is a TensorFlow model."""
    if any(chain.from_iterable(folder.glob(f"{name}*") for name in (SAFETENSORS, PICKLE))):
        return
    found = sorted(chain.from_iterable(folder.glob(pattern) for pattern in TENSORFLOW))
    if not found:
        return
    way = (
        "`python -m transformers.models.bert.convert_bert_original_tf_checkpoint_to_pytorch "
        f"--tf_checkpoint_path {folder}/bert_model.ckpt --bert_config_file "
        f"{folder}/bert_config.json --pytorch_dump_path DIR/{PICKLE}`, copy bert_config.json to "
        "DIR/config.json and vocab.txt to DIR"
    )
    if found[0].suffix == ".h5":
        way = (
            f"`BertForPreTraining.from_pretrained('{folder}', from_tf=True)"
            ".save_pretrained('DIR')` in Python"
        )
    raise ValueError(
        f"{folder} holds a TensorFlow model ({found[0].name}), which is not read here. With "
        f"transformers 4 and TensorFlow installed, run {way}; then give DIR."
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises ValueError where it holds none."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}); fetch it again.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a JSON {type(values).__name__}, not an object.")
    return values


def _parts(index: Path) -> list[Path]:
    named = read_json(index).get("weight_map")
    names = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise ValueError(f"{index} has no weight_map to files beside it; fetch it again.")
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        raise ValueError(f"{index} names {', '.join(missing)}, which is not there; fetch it, too.")
    return [index.parent / name for name in names]


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read ({reason}); fetch it again.") from error
    except Exception as error:  # what unpickling raises has no end, and its advice is a bad one
        raise ValueError(
            f"{path} cannot be read: it is cut, or a pickle of more than weights, which is never "
            "opened here; fetch it again, or as model.safetensors."
        ) from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} holds a {type(found).__name__}, not weights by name.")
    return found


def _today(name: str) -> str:
    for old, new in TODAY:
        name = old.sub(new, name)
    return name
