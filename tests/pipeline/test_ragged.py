"""Ragged rows behave as lists of lists do."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common import ragged
from clozeline.pipeline.common.ragged import Ragged, offsets_of, slice_indices

ROWS = st.lists(st.lists(st.integers(0, 60_000), max_size=6), max_size=8)


def of(rows):
    values = np.array([value for row in rows for value in row], dtype=np.uint16)
    return Ragged(values, offsets_of([len(row) for row in rows]))


def lists(rows):
    return [part.tolist() for part in np.split(rows.values, rows.offsets[1:-1])][: len(rows)]


@given(ROWS, st.data())
def test_rows_are_taken_in_any_order(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    taken = of(rows).take(np.array(chosen, dtype=np.int64))
    assert lists(taken) == [rows[i] for i in chosen]


@given(ROWS, st.data())
def test_a_slice_is_a_range_of_rows(rows, data):
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert lists(of(rows).slice(start, stop)) == rows[start:stop]


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_concatenated_parts_keep_their_rows(parts):
    whole = ragged.concatenate([of(part) for part in parts])
    assert lists(whole) == [row for part in parts for row in part]


def test_rows_of_parts_of_other_types_are_those_of_each_part():
    narrow = Ragged(np.array([2, 7, 8, 3, 2, 9, 3], np.uint16), offsets_of([4, 3]))
    wide = Ragged(np.array([5, 6], np.uint32), offsets_of([1, 1]))
    parts, rows = [narrow, wide, narrow], [[1, 0], [0, 1], [0]]
    found = ragged.take_from_each(parts, [pa.array(here, pa.int64()) for here in rows])
    assert lists(found) == [[2, 9, 3], [2, 7, 8, 3], [5], [6], [2, 7, 8, 3]]
    assert found.values.dtype == np.uint32


@given(ROWS, st.data())
def test_rows_survive_arrow_also_from_slices(rows, data):
    start = data.draw(st.integers(0, len(rows)))
    column = ragged.to_arrow(of(rows), pa.uint16())
    assert column.to_pylist() == rows
    assert lists(ragged.from_arrow(column)) == rows
    assert lists(ragged.from_arrow(column.slice(0, start))) == rows[:start]
    assert lists(ragged.from_arrow(column.slice(start))) == rows[start:]


def test_slice_indices_are_concatenated():
    assert slice_indices([7, 0, 3], [2, 3, 0]).tolist() == [7, 8, 0, 1, 2]
    assert offsets_of([2, 0, 3]).tolist() == [0, 2, 2, 5]
