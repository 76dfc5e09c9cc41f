"""Reads the weights of a Hugging Face folder from any of its file formats, by name.

    model.safetensors            or its parts, with model.safetensors.index.json
    pytorch_model.bin            or its parts; unpickled as weights only, so none of its code is run

Weight names of 2018 become today's. Errors are ValueErrors of one line.
"""

import hashlib
import json
import re
import warnings
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
CONVERSION = (
    " Convert a TensorFlow model with `BertForPreTraining.from_pretrained(..., from_tf=True)"
    ".save_pretrained('DIR')` of transformers 4."
)

TIED = {  # decoders, which some versions store, and the word embeddings that they are
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "decoder.weight": "model.embeddings.tok_embeddings.weight",
}
# Stored by some versions and computed by others; not weights.
BUFFERS = re.compile(r"(bert\.)?embeddings\.(position_ids|token_type_ids)")
RENAMED = (  # old names, and today's
    (re.compile(r"\.gamma$"), ".weight"),
    (re.compile(r"\.beta$"), ".bias"),
    (re.compile(r"^cls\.predictions\.decoder\.bias$"), "cls.predictions.bias"),
    # A bare encoder has no prefix.
    (re.compile(r"^(embeddings\.(?:tok_embeddings|norm)|layers|final_norm)\."), r"model.\1."),
    (re.compile(r"^(embeddings|encoder|pooler)\."), r"bert.\1."),
)


def has_weights(folder: Path) -> bool:
    """Whether there is a weight file, readable here or after a conversion."""
    patterns = (f"{SAFETENSORS}*", f"{PICKLE}*", *TENSORFLOW)
    return any(chain.from_iterable(folder.glob(pattern) for pattern in patterns))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights under the current names of `transformers`, without duplicates.

    Raises ValueError if there are none, or a file is missing or damaged.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for name, weight in _read_file(path).items():
            if BUFFERS.fullmatch(name):
                continue
            if not isinstance(weight, Tensor) or not weight.is_floating_point():
                raise ValueError(f"{path}: {name} is not a tensor of floats; give plain weights.")
            current = _current_name(name)
            if current in tensors and not torch.equal(tensors[current], weight):
                raise ValueError(f"{path} has two different values of {current}; remove one.")
            tensors[current] = weight
    for name, embeddings in TIED.items():
        decoder = tensors.pop(name, None)
        if decoder is not None and not torch.equal(decoder, tensors.get(embeddings, decoder)):
            raise ValueError(
                f"{folder}: {name} differs from the word embeddings; only models where they are "
                "the same are supported."
            )
    return tensors


def weights_sha256(folder: Path) -> str:
    """The sha256, in hex, of the weight file, or of the concatenation of its parts."""
    digest = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The weight file, or its parts by name. Raises ValueError if there is none."""
    for name in (SAFETENSORS, PICKLE):
        if (folder / name).exists():
            return [_regular(folder / name)]
        if (folder / (name + INDEX)).exists():
            return _parts(folder / (name + INDEX))
    raise ValueError(f"{folder} has no weights (no {SAFETENSORS} or {PICKLE}).{conversion(folder)}")


def conversion(folder: Path) -> str:
    """Advice for a folder that has weights of TensorFlow, after a full stop; else nothing."""
    return CONVERSION if any(any(folder.glob(pattern)) for pattern in TENSORFLOW) else ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError if there is none."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); correct it, or download it again."
        ) from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a JSON {type(values).__name__}, not an object.")
    return values


def _parts(index: Path) -> list[Path]:
    named = read_json(index).get("weight_map")
    names = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise ValueError(f"{index} has no weight_map to files beside it; download it again.")
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        raise ValueError(f"{index} names {', '.join(missing)}, which is missing; download it too.")
    return [_regular(index.parent / name) for name in names]


def _regular(path: Path) -> Path:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path} is not a regular file; download it again.")
    return path


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # torch's, about what is refused here anyway
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read ({reason}); download it again.") from error
    except Exception as error:  # unpickling can raise anything, and torch's advice is unsafe
        raise ValueError(
            f"{path} cannot be read: it is truncated, or it holds more than weights, and code is "
            "never run here. Download it again, or as model.safetensors."
        ) from error
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not weights by name.")
    return loaded


def _current_name(name: str) -> str:
    for old, new in RENAMED:
        name = old.sub(new, name)
    return name
