"""Rows of unequal length as two arrays: row i is values[offsets[i] : offsets[i + 1]].

offsets_of([2, 0, 3])               ->  [0, 2, 2, 5]
slice_indices([7, 0], [2, 3])       ->  [7, 8, 0, 1, 2]
take_rows("aabccc", [0,2,3,6], [2,0])  ->  "cccaa", [0, 3, 5]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """`values` [T] of any dtype and `offsets` [R + 1] int64, from 0 to T."""

    values: NDArray[Any]
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Offsets:
        """The number of values in each row, int64 [R]."""
        return np.diff(self.offsets)

    @property
    def sums(self) -> NDArray[np.int64]:
        """The sum of the values of each row, int64 [R]."""
        return np.diff(offsets_of(self.values)[self.offsets])

    def take(self, rows: ArrayLike) -> "Ragged":
        """The given rows, in the given order; the values are read-only."""
        data, ends = self.taken_bytes(pa.array(rows, pa.int64()))
        return Ragged(data, ends // self.values.itemsize)

    def taken_bytes(self, rows: pa.Array) -> tuple[NDArray[Any], Offsets]:
        """The values of the given rows, and where each row begins in them, in bytes."""
        _, ends, data = self._strings.take(rows).buffers()
        return np.frombuffer(data, self.values.dtype), np.frombuffer(ends, np.int64)

    @cached_property  # the loader takes rows of a shard again and again
    def _strings(self) -> pa.LargeBinaryArray:
        """The rows as binary strings, which Arrow copies whole, without an index for each value."""
        values = np.ascontiguousarray(self.values)
        bounds = pa.py_buffer(self.offsets * values.itemsize)
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, bounds, pa.py_buffer(values)]
        )

    def slice(self, start: int, stop: int) -> "Ragged":
        """Rows start to stop; the values are a view."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def offsets_of(lengths: ArrayLike) -> Offsets:
    """The start of each row and the end of the last one, int64 [R + 1]."""
    lengths = np.asarray(lengths)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def slice_indices(starts: ArrayLike, lengths: ArrayLike) -> NDArray[np.int64]:
    """The indices of the slices [start, start + length), concatenated."""
    starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def ordinals(lengths: ArrayLike) -> NDArray[np.int64]:
    """0, 1, 2, ... within each row of these lengths."""
    return slice_indices(np.zeros_like(lengths, dtype=np.int64), lengths)


def concatenate(parts: list[Ragged]) -> Ragged:
    """All rows of the parts (at least one), in order."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.values for part in parts]), offsets_of(lengths))


def take_from_each(parts: list[Ragged], rows: list[pa.Array]) -> Ragged:
    """The given rows of each part (at least one), one part after the other.

    Values of different dtypes are promoted to the widest one.
    """
    taken = [part.taken_bytes(here) for part, here in zip(parts, rows, strict=True)]
    values = np.concatenate([data for data, _ in taken])
    offsets, at, before = np.zeros(sum(map(len, rows)) + 1, np.int64), 1, 0
    for data, ends in taken:  # thousands of parts, of few rows each: as few calls as possible
        here = offsets[at : at + len(ends) - 1]
        np.floor_divide(ends[1:], data.itemsize, out=here)
        here += before
        at, before = at + len(here), before + len(data)
    return Ragged(values, offsets)


def from_arrow(column: pa.ListArray) -> Ragged:
    """A view of a list column without nulls."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values.to_numpy()[offsets[0] : offsets[-1]]
    return Ragged(values, offsets - offsets[0])


def to_arrow(rows: Ragged, value_type: pa.DataType) -> pa.ListArray:
    """A list column with non-nullable items."""
    item = pa.field("item", value_type, nullable=False)
    offsets = pa.array(rows.offsets.astype(np.int32))
    values = pa.array(rows.values, value_type)
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(item))


def text_slabs(texts: Sequence[str], characters: int) -> Iterator[Sequence[str]]:
    """The texts in lists of about so many characters; at least one list."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    total = int(ends[-1]) if texts else 0
    cuts = np.searchsorted(ends, np.arange(characters, total, characters))
    for start, stop in pairwise([0, *np.unique(cuts[cuts > 0]).tolist(), len(texts)]):
        yield texts[start:stop]


def to_record_batch(columns: object, schema: pa.Schema) -> pa.RecordBatch:
    """The attributes of `columns` named by the schema (arrays or `Ragged`), as Arrow arrays.

    Each begins at its own start, because Arrow writes slices and chunks differently: equal rows
    must give equal bytes.
    """
    arrays = []
    for field in schema:
        column = getattr(columns, field.name)
        if isinstance(column, Ragged):
            arrays.append(to_arrow(column, field.type.value_type))
        else:
            arrays.append(pa.array(column, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
