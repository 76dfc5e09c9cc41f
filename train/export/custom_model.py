"""A model that is neither the BERT nor the ModernBERT of `transformers`, as a folder it can open.

    config.json               the fields of `BertConfig`, "auto_map", class names
    model.safetensors         weights under their own names, without padding rows of the vocabulary
    modeling_clozeline.py     the classes that "auto_map" names, which import torch and transformers

`AutoModelForMaskedLM`, `AutoModelForSequenceClassification` and `AutoModel` read it with
`trust_remote_code=True`: the Hub's convention for architectures of one's own.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import processors
from torch import Tensor

from clozeline.model.config import BertConfig, Pooling
from clozeline.model.huggingface.convert import SavedModel, part_of, write_model
from clozeline.pipeline.common.json_files import write_json
from clozeline.pipeline.tokenization.tokenizer import ANY_TOKENIZER, TOKENIZER_JSON, Tokenizer
from clozeline.pipeline.tokenization.vocabulary import TOKENIZER_CONFIG

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
    tensors = {
        name: weight[: config.vocab_size] if name.endswith(PER_TOKEN) else weight
        for name, weight in weights.items()
        if part_of(name) != "nsp_head"
    }
    parameters = write_model(folder, values, tensors, labels=labels)
    shutil.copyfile(Path(__file__).with_name(CODE), folder / CODE)
    left_out = ("nsp_head",) if any(part_of(name) == "nsp_head" for name in weights) else ()
    return SavedModel(AUTO_MAP[task], parameters, left_out)


def add_prompt(folder: Path, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Make the folder's WordPiece tokenizer put the prompt before each text.

    [CLS] A [SEP]  ->  [CLS] overall it was [MASK] . A [SEP]

    The class becomes that of any tokenizer.json: BertTokenizer has a template of its own.
    """
    cls, sep = tokenizer.special_tokens[2:4]
    tokens = [tokenizer.tokens[i] for i in prompt_ids]
    library = LibraryTokenizer.from_file(str(folder / TOKENIZER_JSON))
    library.post_processor = processors.TemplateProcessing(
        single=[cls, "prompt", "$A", sep],
        pair=[cls, "prompt", "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[
            (cls, tokenizer.cls_id),
            (sep, tokenizer.sep_id),
            {"id": "prompt", "ids": list(prompt_ids), "tokens": tokens},
        ],
    )
    library.save(str(folder / TOKENIZER_JSON))
    path = folder / TOKENIZER_CONFIG
    write_json(path, json.loads(path.read_text("utf-8")) | {"tokenizer_class": ANY_TOKENIZER})
