"""Which rows of a shard match a search: a token, words or a document, and a filter.

"river"             rows with that token, before or after masking
"united states"     rows with these tokens, one after the other
"##ing"             rows with this token of the vocabulary
"51c2a0b9f0e1d2c3"  rows with this document's hash
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.schema import B_IS_RANDOM, NO_PAIR, Examples
from clozeline.pipeline.report.row_statistics import unknown_in_rows
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

Rows = NDArray[np.int64]

HASH = re.compile(r"(?:0x)?([0-9a-f]{16})")
SHORT: Final = 0.5  # of max_seq_length
ALL, RANDOM, UNKNOWN, SHORT_ROWS = "all", "random", "unknown", "short"


@dataclass(frozen=True, kw_only=True)
class RowSearch:
    """What is searched for; nothing by default."""

    ids: tuple[int, ...] = ()  # consecutive tokens
    document: int | None = None
    only: str = ALL

    @classmethod
    def of(cls, text: str, only: str, tokenizer: Tokenizer) -> "RowSearch":
        """The search for a user's text. Raises InputError for text that the vocabulary lacks."""
        text = text.strip()
        if found := HASH.fullmatch(text):
            return cls(document=int(found[1], 16), only=only)
        return cls(ids=tuple(token_ids(text, tokenizer)) if text else (), only=only)

    @property
    def is_everything(self) -> bool:
        """Whether all rows match, so that none need be read."""
        return not self.ids and self.document is None and self.only == ALL

    def rows(self, examples: Examples, tokenizer: Tokenizer, *, max_seq_length: int) -> Rows:
        """The matching rows of a shard, ascending, int64."""
        matches = np.ones(len(examples), np.bool_)
        original = examples.unmasked().input_ids
        if self.ids:
            matches &= has_sequence(original, self.ids) | has_sequence(examples.input_ids, self.ids)
        if self.document is not None:
            matches &= has_document(examples, self.document)
        if self.only == RANDOM:
            matches &= examples.next_sentence_label == B_IS_RANDOM
        if self.only == UNKNOWN:
            matches &= unknown_in_rows(examples, tokenizer) > 0
        if self.only == SHORT_ROWS:
            matches &= examples.input_ids.lengths < SHORT * max_seq_length
        return np.flatnonzero(matches)


def token_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a search: one of the vocabulary as it is written, or those of the text."""
    if text in tokenizer.shown_tokens:
        return [tokenizer.shown_tokens.index(text)]
    (ids,) = tokenizer.encode_batch([tokenizer.after_space(text)])
    if not ids or tokenizer.unk_id in ids:
        raise InputError(
            f"the vocabulary does not have {text!r}, so no row does; search for other words, a "
            "token such as ##ing, or a document's hash of 16 digits."
        )
    return ids


def has_document(examples: Examples, document: int) -> NDArray[np.bool_]:
    """Whether each row has text of the document, in A, B or a piece, bool [R]."""
    wanted = np.uint64(document)
    if examples.piece_documents is not None:
        return has_sequence(examples.piece_documents, (wanted,))
    found: NDArray[np.bool_] = examples.document_a == wanted
    found |= (examples.document_b == wanted) & (examples.next_sentence_label != NO_PAIR)
    return found


def has_sequence(column: Ragged, ids: Sequence[Any]) -> NDArray[np.bool_]:
    """Whether each row has these values consecutively, bool [R]."""
    values: NDArray[Any] = column.values
    starts = max(len(values) - len(ids) + 1, 0)
    hits = np.ones(starts, np.bool_)
    for offset, value in enumerate(ids):
        hits &= values[offset : offset + starts] == value
    positions = np.flatnonzero(hits)
    first = np.searchsorted(column.offsets, positions, side="right") - 1
    last = np.searchsorted(column.offsets, positions + len(ids) - 1, side="right") - 1
    found = np.zeros(len(column), np.bool_)
    found[first[first == last]] = True
    return found
