"""An example as a page shows it: tokens as chips, in a colour for each kind of mask.

    [CLS] the [MASK] sat on the river . [SEP] it slept . [SEP]    labels cat, mat
    ->  A  [CLS]  the  [MASK] cat  sat  on  the  river (random) mat  .  [SEP]
        B  it  slept  .  [SEP]

Reports, `clozeline view` and its export draw it with the same macro, from parts.html.jinja.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from clozeline.pipeline.common.units import counted
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, NO_PAIR, Examples
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION

MaskKind = Literal["masked", "random", "kept"]


@dataclass(frozen=True, kw_only=True)
class ShownToken:
    """One token; `mask` and `original` only if it was masked."""

    text: str  # as the model sees it
    is_special: bool = False
    mask: MaskKind | None = None
    original: str = ""

    @property
    def classes(self) -> str:
        """CSS classes: its kind, and how it was masked."""
        continues = (self.original or self.text).startswith(CONTINUATION)
        names = ["token", "special" * self.is_special, "continues" * continues, self.mask or ""]
        return " ".join(filter(None, names))


@dataclass(frozen=True, kw_only=True)
class ShownExample:
    """One row: where it is, what it is, and its spans, named A and B or piece 1, piece 2, ..."""

    title: str
    notes: Sequence[str]  # "64 tokens", "B is random"
    spans: Sequence[tuple[str, Sequence[ShownToken]]]
    documents: Sequence[str] = ()  # hashes of its spans' documents, 16 hexadecimal digits each


def shown_example(
    examples: Examples,
    row: int,
    tokenizer: Tokenizer,
    *,
    title: str,
    negative_pairs: str = "random",
) -> ShownExample:
    """A row of a shard."""
    example = examples.slice(row, row + 1)
    kind, lengths = parts_of(example, negative_pairs)
    tokens = _tokens(example, tokenizer)
    return ShownExample(
        title=title,
        notes=[f"{len(example.input_ids.values)} tokens", kind],
        spans=[(name, list(islice(tokens, length))) for name, length in lengths.items()],
        documents=[f"{document:016x}" for document in documents_of(examples, row)],
    )


def documents_of(examples: Examples, row: int) -> list[int]:
    """The documents of a row, each once: that of A and that of B, or those of its pieces."""
    if (pieces := examples.piece_documents) is not None:
        found = pieces.slice(row, row + 1).values.tolist()
    else:
        has_b = bool(examples.next_sentence_label[row] != NO_PAIR)
        found = [int(examples.document_a[row]), *([int(examples.document_b[row])] * has_b)]
    return list(dict.fromkeys(found))


def parts_of(example: Examples, negative_pairs: str) -> tuple[str, dict[str, int]]:
    """What one row is, and the tokens of its parts: "B follows A", {"A": 12, "B": 8}."""
    if example.piece_lengths is not None:
        pieces = example.piece_lengths.values.tolist()
        return counted(len(pieces), "piece"), {f"piece {n}": x for n, x in enumerate(pieces, 1)}
    kinds = {NO_PAIR: "no B", B_FOLLOWS_A: "B follows A", B_IS_RANDOM: f"B is {negative_pairs}"}
    length_a = int(example.length_a[0])
    length_b = len(example.input_ids.values) - length_a
    parts = {"A": length_a} | ({"B": length_b} if length_b else {})
    return kinds[int(example.next_sentence_label[0])], parts


def _tokens(example: Examples, tokenizer: Tokenizer) -> Iterator[ShownToken]:
    ids = example.input_ids.values
    masks = np.full(len(ids), -1)
    masks[example.masked_lm_positions.values] = np.arange(len(example.masked_lm_labels.values))
    for shown, number in zip(ids.tolist(), masks.tolist(), strict=True):
        text = tokenizer.shown_tokens[shown]
        if number < 0:
            yield ShownToken(text=text, is_special=bool(tokenizer.is_special[shown]))
            continue
        label = int(example.masked_lm_labels.values[number])
        yield ShownToken(
            text=text,
            mask=mask_kind(shown, label, tokenizer),
            original=tokenizer.shown_tokens[label],
        )


def mask_kind(shown: int, label: int, tokenizer: Tokenizer) -> MaskKind:
    """How a masked token is shown: as [MASK], as a random token, or unchanged."""
    if shown == tokenizer.mask_id:
        return "masked"
    return "kept" if shown == label else "random"
