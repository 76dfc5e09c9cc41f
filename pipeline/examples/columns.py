"""The documents of one bucket, and their pairs, as columns."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Offsets


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


def fit_lengths(length_a: Offsets, length_b: Offsets, max_tokens: int) -> tuple[Offsets, Offsets]:
    """Lengths that sum to at most `max_tokens`: the longer part is cut, then both (a tie cuts B).

    max_tokens 10:  (3, 9) -> (3, 7)    (8, 9) -> (5, 5)    (4, 4) -> (4, 4)
    """
    half_b = max_tokens // 2
    half_a = max_tokens - half_b
    keep_a = np.minimum(length_a, np.maximum(half_a, max_tokens - length_b))
    keep_b = np.minimum(length_b, np.maximum(half_b, max_tokens - length_a))
    return keep_a, keep_b
