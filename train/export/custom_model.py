"""A model that is neither the BERT nor the ModernBERT of `transformers`, as a folder it can open.

    config.json               the fields of `BertConfig`, "auto_map", class names
    model.safetensors         weights under their own names, without padding rows of the vocabulary
    modeling_clozeline.py     the classes that "auto_map" names, which import torch and transformers

`AutoModelForMaskedLM`, `AutoModelForSequenceClassification` and `AutoModel` read it with
`trust_remote_code=True`: the Hub's convention for architectures of one's own.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from clozeline.model.config import BertConfig, Pooling
from clozeline.model.huggingface.config import CONFIG
from clozeline.model.huggingface.convert import SavedModel, part_of
from clozeline.model.huggingface.weight_files import SAFETENSORS
from clozeline.pipeline.tokenization.tokenizer import TOKENIZER_JSON, Tokenizer
from clozeline.pipeline.tokenization.vocabulary import ANY_TOKENIZER, TOKENIZER_CONFIG

CODE: Final = "modeling_clozeline.py"
AUTO_MAP: Final = {
    "AutoConfig": "ClozelineConfig",
    "AutoModel": "ClozelineModel",
    "AutoModelForMaskedLM": "ClozelineForMaskedLM",
    "AutoModelForSequenceClassification": "ClozelineForSequenceClassification",
}
PER_TOKEN: Final = ("word_embeddings.weight", "decoder.weight")  # rows beyond the vocabulary go


def save_custom_model(
    folder: Path,
    config: BertConfig,
    weights: Mapping[str, Tensor],
    *,
    labels: tuple[str, ...] = (),
    pooling: Pooling = "mean",
    mask_position: int = 0,
    pad_id: int = 0,
) -> SavedModel:
    """Write the three files into an existing folder.

    `weights` are those of a `BertForPretraining`, whose next-sentence head is left out, or with
    class names in `labels` of a `BertForClassification`.
    """
    values: dict[str, Any] = config.to_dict()
    task = "AutoModelForSequenceClassification" if labels else "AutoModelForMaskedLM"
    values["tied_decoder"] = values.pop("tie_word_embeddings")
    del values["init"]  # says how new weights are drawn
    values |= {
        "model_type": "clozeline",
        "architectures": [AUTO_MAP[task]],
        "auto_map": {name: f"{Path(CODE).stem}.{kind}" for name, kind in AUTO_MAP.items()},
        "pooling": pooling,
        "mask_position": mask_position,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    tensors = {}
    for name, weight in weights.items():
        if part_of(name) != "nsp_head":
            rows = weight[: config.vocab_size] if name.endswith(PER_TOKEN) else weight
            tensors[name] = rows.detach().to("cpu", torch.float32, copy=True).contiguous()
    (folder / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", "utf-8")
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
    # safetensors makes the file readable by its owner alone, but exports are made to be shared.
    (folder / SAFETENSORS).chmod((folder / CONFIG).stat().st_mode)
    shutil.copyfile(Path(__file__).with_name(CODE), folder / CODE)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    left_out = tuple({part_of(name) for name in weights if part_of(name) == "nsp_head"})
    return SavedModel(AUTO_MAP[task], parameters, left_out)


def card_with_code(card: str) -> str:
    """The model card with a command that runs the code of the folder."""
    return re.sub(r'(model="[^"]*")', r"\1, trust_remote_code=True", card, count=1)


def add_prompt(folder: Path, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Make the folder's WordPiece tokenizer put the prompt before each text.

    [CLS] A [SEP]  ->  [CLS] overall it was [MASK] . A [SEP]

    The class becomes that of any tokenizer.json: BertTokenizer has a template of its own.
    """
    cls, sep = tokenizer.special_tokens[2:4]
    specials = {
        "prompt": (list(prompt_ids), [tokenizer.tokens[i] for i in prompt_ids]),
        cls: ([tokenizer.cls_id], [cls]),
        sep: ([tokenizer.sep_id], [sep]),
    }

    def special(name: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def sequence(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(cls, 0), special("prompt", 0), sequence("A", 0), special(sep, 0)]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special(sep, 1)],
        "special_tokens": {
            name: {"id": name, "ids": ids, "tokens": tokens}
            for name, (ids, tokens) in specials.items()
        },
    }
    changes: dict[str, dict[str, Any]] = {
        TOKENIZER_JSON: {"post_processor": template},
        TOKENIZER_CONFIG: {"tokenizer_class": ANY_TOKENIZER},
    }
    for name, values in changes.items():
        content = json.loads((folder / name).read_text("utf-8")) | values
        (folder / name).write_text(
            json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )
