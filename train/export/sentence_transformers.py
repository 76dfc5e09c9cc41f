"""The files that turn a `transformers` folder into one for sentence-transformers.

    modules.json                  the encoder, then pooling
    sentence_bert_config.json     the maximum length
    1_Pooling/config.json         mean of the tokens, or [CLS]

Written as sentence-transformers 2 to 5 read them (its class `Pooling`).
"""

import json
from pathlib import Path

from clozeline.model.config import Pooling

MODULES, LENGTH, POOLING = "modules.json", "sentence_bert_config.json", "1_Pooling"
PACKAGE = "sentence_transformers.models"


def write_modules(folder: Path, *, hidden_size: int, max_seq_length: int, pooling: Pooling) -> None:
    """Write the three files into a folder with a bare encoder and its tokenizer."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}.Transformer"},
        {"idx": 1, "name": "1", "path": POOLING, "type": f"{PACKAGE}.Pooling"},
    ]
    settings = {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    (folder / POOLING).mkdir()
    lengths = {"max_seq_length": max_seq_length, "do_lower_case": False}
    for name, values in (
        (MODULES, modules),
        (LENGTH, lengths),
        (f"{POOLING}/config.json", settings),
    ):
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
