"""The two files with which `transformers` opens a tokenizer folder as intended.

    tokenizer_config.json      class, lower case, accents, special tokens, maximum length
    special_tokens_map.json    the special tokens again, for older versions

Without them, `AutoTokenizer` finds the ids in `tokenizer.json`, but no mask token and no limit.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clozeline.pipeline.tokenization.tokenizer_spec import SPECIAL_TOKENS

TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
#: Fields of `Normalization` -> options of BertTokenizer, which has none for `clean_text`.
FLAGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
ANY_TOKENIZER = "PreTrainedTokenizerFast"  # does what tokenizer.json says


def special_tokens_of(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The special tokens by role: as the first of these files that names one does, else BERT's."""
    found: list[str] = []
    for name, default in zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True):
        named = next((config[name] for config in configs if config.get(name)), default)
        content = named.get("content") if isinstance(named, dict) else named
        found.append(content if isinstance(content, str) else default)
    return tuple(found)


def transformers_files(
    special_tokens: Sequence[str],
    flags: Mapping[str, bool] | None,
    *,
    max_seq_length: int | None,
    has_segments: bool,
    cuts_start: bool = False,
) -> dict[str, str]:
    """The content of both files by name, for a tokenizer with these normalizer flags.

    `flags` None: it is not a WordPiece. `max_seq_length` None: not known. Without `has_segments`,
    `transformers` gives the model no token_type_ids. With `cuts_start` it truncates texts at their
    start. Text that spells [MASK] becomes the token
    there, unless the tokenizer is loaded with `split_special_tokens`.
    """
    special = dict(zip(SPECIAL_NAMES, special_tokens, strict=True))
    is_bert = flags is not None and flags["clean_text"]
    config: dict[str, object] = {"tokenizer_class": "BertTokenizer" if is_bert else ANY_TOKENIZER}
    if max_seq_length is not None:
        config["model_max_length"] = max_seq_length
    if cuts_start:
        config["truncation_side"] = "left"
    config["clean_up_tokenization_spaces"] = True
    if flags is not None and is_bert:
        config |= {name: flags[ours] for ours, name in FLAGS.items()}
    config |= special
    if not has_segments:
        config["model_input_names"] = ["input_ids", "attention_mask"]
    files = {TOKENIZER_CONFIG: config, SPECIAL_TOKENS_MAP: special}
    return {name: json.dumps(values, indent=2) + "\n" for name, values in files.items()}
