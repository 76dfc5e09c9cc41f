"""The documents of one bucket as columns, and what fills its rows: pairs, or packed pieces.

Packed rows, in which pieces of several documents fill a row (`--pairs packed`):

    max_seq_length 10      documents  a (11 tokens)   b (4)   c (3)
    pieces   [CLS] a1 .. a8 [SEP]   [CLS] a9 a10 a11 [SEP]   [CLS] b [SEP]   [CLS] c [SEP]
    tokens   10                     5                        6               5
    rows     10 | 5 5 | 6

A document is cut only if it is longer than a row: into full rows and a remainder. Remainders go
into rows by best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"):
the longest first, each into the fullest row that has room for it. Nothing is drawn at random.
"""

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Offsets, offsets_of, ordinals

SPECIAL = 2  # [CLS] and [SEP] of each piece
SHORTEST = SPECIAL + 1  # tokens of the shortest piece


@dataclass(frozen=True)
class BucketDocuments:
    """D documents, S sentences, T tokens."""

    ids: NDArray[Any]  # [T] uint16 or uint32
    sentence_offsets: Offsets  # [S + 1] in tokens
    document_offsets: Offsets  # [D + 1] in sentences
    paragraphs: NDArray[np.int64]  # [S] the number of the sentence's paragraph, ascending
    hashes: NDArray[np.uint64]  # [D] sorted

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True)
class Pairs:
    """R pairs: A and B are spans [start, stop) of the bucket's tokens."""

    a_start: Offsets
    a_stop: Offsets
    b_start: Offsets
    b_stop: Offsets
    next_sentence_label: NDArray[np.int8]
    document_a: Offsets  # index into BucketDocuments
    document_b: Offsets

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """The given rows, in the given order (indices, a boolean mask or a slice)."""
        return type(self)(*(getattr(self, column.name)[rows] for column in fields(self)))

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        """All rows of the parts (at least one), in order."""
        columns = [[getattr(part, column.name) for part in parts] for column in fields(cls)]
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True)
class PackedRows:
    """R rows of P pieces; piece p is the span [start, stop) of the bucket's tokens."""

    start: Offsets  # [P]
    stop: Offsets  # [P]
    document: Offsets  # [P] index into BucketDocuments
    row_offsets: Offsets  # [R + 1] in pieces

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def take(self, rows: slice) -> Self:
        first, last, _ = rows.indices(len(self))
        offsets = self.row_offsets[first : last + 1]
        pieces = slice(offsets[0], offsets[-1])
        return type(self)(
            self.start[pieces], self.stop[pieces], self.document[pieces], offsets - offsets[0]
        )


def fit_lengths(length_a: Offsets, length_b: Offsets, max_tokens: int) -> tuple[Offsets, Offsets]:
    """Lengths that sum to at most `max_tokens`: the longer part is cut, then both (a tie cuts B).

    max_tokens 10:  (3, 9) -> (3, 7)    (8, 9) -> (5, 5)    (4, 4) -> (4, 4)
    """
    half_b = max_tokens // 2
    half_a = max_tokens - half_b
    keep_a = np.minimum(length_a, np.maximum(half_a, max_tokens - length_b))
    keep_b = np.minimum(length_b, np.maximum(half_b, max_tokens - length_a))
    return keep_a, keep_b


def full_spans(documents: BucketDocuments, max_tokens: int) -> tuple[Offsets, Offsets, Offsets]:
    """Each document's spans of `max_tokens`, and the remainder: start, stop, document, [P] each."""
    starts = documents.sentence_offsets[documents.document_offsets]
    counts = -(-np.diff(starts) // max_tokens)  # rounded up
    document = np.repeat(np.arange(len(documents)), counts)
    ordinal = ordinals(counts)
    start = starts[document] + ordinal * max_tokens
    return start, np.minimum(start + max_tokens, starts[document + 1]), document


def pack_documents(documents: BucketDocuments, *, max_seq_length: int) -> PackedRows:
    """All tokens of a bucket, each once, in rows of at most `max_seq_length` tokens.

    Pieces within a row, and rows by their first piece, are in text order.
    """
    start, stop, document = full_spans(documents, max_seq_length - SPECIAL)
    row = best_fit(stop - start + SPECIAL, max_seq_length)
    first_piece = np.full(int(row.max(initial=-1)) + 1, len(row))
    np.minimum.at(first_piece, row, np.arange(len(row)))
    order = np.argsort(first_piece[row], kind="stable")
    per_row = np.bincount(row)[np.argsort(first_piece)]
    return PackedRows(start[order], stop[order], document[order], offsets_of(per_row))


def best_fit(lengths: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """The row of each piece, [P], for rows of at most `room` tokens.

    best_fit([7, 2, 3, 5], 10)  ->  [0, 1, 0, 1]
    """
    rows = np.arange(len(lengths))
    is_alone = lengths > room - SHORTEST  # nothing fits beside it
    rest = np.flatnonzero(~is_alone)
    rest = rest[np.argsort(-lengths[rest], kind="stable")]
    open_rows: dict[int, list[int]] = defaultdict(list)  # by the room that they have left
    rooms = 0  # bit n is set where a row has room for n tokens
    for piece, length in zip(rest.tolist(), lengths[rest].tolist(), strict=True):
        fitting = rooms >> length
        row, left = piece, room - length  # a new row, named after its first piece
        if fitting:
            left = (fitting & -fitting).bit_length() - 1  # the lowest bit
            row = open_rows[left + length].pop()
            if not open_rows[left + length]:
                rooms ^= 1 << (left + length)
        rows[piece] = row
        if left >= SHORTEST:
            open_rows[left].append(row)
            rooms |= 1 << left
    return np.unique(rows, return_inverse=True)[1]
