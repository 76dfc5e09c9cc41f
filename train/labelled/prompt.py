"""A prompt before each text: a classifier reads the state at its [MASK].

    "overall it was [MASK] ."               ->  [CLS] overall it was [MASK] . a lovely lamp [SEP]
    {"0": ["bad", "awful"], "1": ["good"]}  ->  the ids of these words, [[2919, 9643], [2204]]

The masked-LM head knows which words fit there, so a classifier that starts with the words of its
classes needs few labels (Schick & Schuetze 2021, "Exploiting Cloze Questions for Few Shot Text
Classification and Natural Language Inference").
"""

from collections.abc import Mapping, Sequence

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.tokenizer import Tokenizer


def ids_of_prompt(prompt: str, tokenizer: Tokenizer, *, most: int) -> list[int]:
    """The ids of a prompt. Raises InputError unless it has one mask, and at most so many tokens."""
    ids, mask = ids_with_masks(prompt, tokenizer), tokenizer.mask_token
    if (count := ids.count(tokenizer.mask_id)) != 1:
        raise InputError(f"--prompt {prompt!r} has {count} {mask}; give it one, where a word fits.")
    if len(ids) > most:
        raise InputError(
            f"--prompt {prompt!r} has {len(ids)} tokens; give at most {most}, a quarter of "
            "--max-seq-length and no more than 32."
        )
    return ids


def ids_with_masks(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a text, without [CLS] and [SEP]; each "[MASK]" in it becomes the special token."""
    first, *rest = tokenizer.encode_batch(_around_masks(text, tokenizer))
    return first + [i for part in rest for i in (tokenizer.mask_id, *part)]


def word_ids(
    words: Mapping[str, Sequence[str]], names: Sequence[str], tokenizer: Tokenizer
) -> list[list[int]]:
    """The ids of the words of each class, in the order of `names`; none without `words`.

    Spaces around a name do not count. Raises InputError for other classes, and for words that are
    not one token of the vocabulary.
    """
    if not words:
        return []
    classes = [name.strip() for name in names]
    wrong = [f"no words for {name!r}" for name in classes if name not in words]
    wrong += [f"the unknown class {name!r}" for name in words if name not in classes]
    if wrong:
        raise InputError(
            f"--label-words has {', '.join(wrong[:5])}; give words for each class of the training "
            "rows."
        )
    return [[_word_id(word, tokenizer) for word in words[name]] for name in classes]


def _word_id(word: str, tokenizer: Tokenizer) -> int:
    [ids] = tokenizer.encode_batch([tokenizer.after_space(word)])
    if len(ids) != 1 or ids == [tokenizer.unk_id]:
        pieces = " ".join(tokenizer.shown_tokens[i] for i in ids) or "nothing"
        raise InputError(
            f"--label-words has {word!r}, which the vocabulary has only as {pieces}; give a word "
            "that is one token."
        )
    return ids[0]


def _around_masks(text: str, tokenizer: Tokenizer) -> list[str]:
    """The text before, between and after the masks, without the spaces that belong to a mask."""
    parts = text.split(tokenizer.mask_token)
    before, after = tokenizer.spec.mask_strips if tokenizer.spec else (False, False)
    if before:
        parts[:-1] = [part.rstrip() for part in parts[:-1]]
    if after:
        parts[1:] = [part.lstrip() for part in parts[1:]]
    return parts
