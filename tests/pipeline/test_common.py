"""What all rooms share: random numbers, ragged rows, locks, kinds of folders, checks of values."""

import errno
import fcntl
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common import ragged
from clozeline.pipeline.common.config_checks import (
    byte_size,
    check_at_least,
    check_between,
    check_choices,
    check_fraction,
    check_positive,
    differences,
    token_number,
)
from clozeline.pipeline.common.counter_rng import (
    mix64,
    permutation,
    random_bits,
    stream_key,
    uniform_below,
    with_probability,
)
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import LOCK, locked_folder
from clozeline.pipeline.common.folders import wrong_folder
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from tests.support.command import invoke
from tests.support.small_jobs import python

SEEDS = st.integers(0, 2**63 - 1)


def test_golden_numbers():
    # The first outputs of SplitMix64 from state 0, as its authors' C code prints them.
    assert mix64(np.array([0x9E3779B97F4A7C15], np.uint64))[0] == 0xE220A8397B1DCDAF
    key = stream_key(7, "masks/train", 3, 0)
    assert int(key) == 13021456694372175046
    assert random_bits(key, np.arange(2), 1).tolist() == [12647142142137616924, 1098827742514473261]
    assert permutation(key, 8).tolist() == [0, 4, 3, 1, 6, 7, 2, 5]


@given(SEEDS, st.integers(1, 200), st.integers(0, 200))
def test_a_number_does_not_depend_on_what_else_is_computed(seed, rows, first):
    key = stream_key(seed, "any", 1)
    many = random_bits(key, np.arange(first + rows), np.arange(3)[:, None])
    few = random_bits(key, np.arange(first, first + rows), 2)
    assert (many[2, first:] == few).all()


@given(SEEDS, st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_an_array_of_scopes_gives_one_key_each(seed, shards):
    keys = stream_key(seed, "masks", np.array(shards), 5)
    assert keys.tolist() == [int(stream_key(seed, "masks", shard, 5)) for shard in shards]


def test_streams_with_different_names_differ():
    names = [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a"), (0, "a", 0)]
    names += [(0, "a", 1, 2), (0, "a", 2, 1)]
    assert len({int(stream_key(*name)) for name in names}) == len(names)


def test_rows_and_counters_cannot_be_exchanged():
    bits = random_bits(stream_key(0, "grid"), np.arange(300)[:, None], np.arange(300))
    assert len(np.unique(bits)) == 300 * 300


@given(SEEDS, st.integers(1, 2**32 - 1))
def test_an_integer_is_below_its_limit(seed, limit):
    numbers = uniform_below(random_bits(stream_key(seed, "c"), np.arange(50)), limit)
    assert numbers.min() >= 0
    assert numbers.max() < limit


def test_integers_are_uniform():
    numbers = uniform_below(random_bits(stream_key(0, "u"), np.arange(60_000)), 6)
    counts = np.bincount(numbers)
    # Six cells of 10,000: the standard deviation of one is 91.
    assert (abs(counts - 10_000) < 5 * 91).all()


def test_probabilities_of_zero_one_and_in_between():
    bits = np.append(random_bits(stream_key(0, "p"), np.arange(40_000)), np.uint64(2**64 - 1))
    assert not with_probability(bits, 0.0).any()
    assert with_probability(bits, 1.0).all()
    assert abs(with_probability(bits, 0.3).mean() - 0.3) < 5 * np.sqrt(0.21 / 40_000)


@given(SEEDS, st.integers(0, 300))
def test_a_permutation_contains_every_index_once(seed, size):
    assert sorted(permutation(stream_key(seed, "o"), size)) == list(range(size))


def test_all_orders_are_equally_likely():
    orders = [tuple(permutation(stream_key(seed, "o"), 3)) for seed in range(6000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert (abs(counts - 1000) < 5 * 29).all()


# --- Ragged rows behave as lists of lists do ------------------------------------------------------
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


# --- One writer per folder: the second is refused, and a killed one leaves nothing behind ---------
HOLD = """
import sys
from pathlib import Path
from clozeline.pipeline.common.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_holder_is_gone_even_if_it_was_killed(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLD, out]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:
        assert holder.stdout.readline() == "locked\n"
        expected = rf"out is in use by process {holder.pid} on .+ since \d{{4}}-"
        with pytest.raises(InputError, match=expected), locked_folder(out):
            pass
        holder.kill()
    with locked_folder(out):
        assert f'"pid": {os.getpid()}' in (out / LOCK).read_text()


def test_the_lock_and_a_folder_that_was_made_for_nothing_are_removed(tmp_path):
    for folder in (tmp_path, tmp_path, tmp_path / "deep" / "out"):
        with locked_folder(folder):
            pass
    assert [path.name for path in tmp_path.rglob("*")] in ([], ["deep"])
    with locked_folder(tmp_path / "out"):
        (tmp_path / "out" / "a").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("of", "call", "code", "message", "left"),
    [
        (fcntl, "flock", errno.ENOLCK, "has no locks", []),
        (fcntl, "flock", errno.ENOTSUP, "has no locks", []),
        (Path, "write_bytes", errno.ENOSPC, "out: No space left", []),
    ],
)
def test_a_disk_without_locks_or_space_is_one_line(
    of, call, code, message, left, tmp_path, monkeypatch
):
    monkeypatch.setattr(of, call, Mock(side_effect=OSError(code, os.strerror(code))))
    with pytest.raises(InputError, match=message), locked_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == left


@pytest.mark.parametrize("is_new", [False, True])
def test_a_preparation_that_fails_leaves_nothing(tmp_path, is_new):
    def prepare():
        raise KeyError

    folder = tmp_path / "out" if is_new else tmp_path
    with pytest.raises(KeyError), locked_folder(folder, "job", prepare):
        pass
    assert list(tmp_path.iterdir()) == []


# --- A wrong path is one line: what it is and what is wanted --------------------------------------


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.txt", "b.csv", ".hidden"], "a folder of a.txt, b.csv"),
        (["a", "b.csv", "c.txt", "d.jsonl"], "a folder of a, b.csv, c.txt, ..."),
        ([], "an empty folder"),
        (["run.json", "a.txt"], "a run of `clozeline pretrain`"),
        (["classifier.json", "tokenizer.json"], "a classifier of `clozeline finetune`"),
        (["tokenizer.json", "vocab.txt"], "a tokenizer folder"),
    ],
)
def test_a_folder_is_named_after_what_is_in_it(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).touch()
    assert str(wrong_folder(tmp_path, "a run")) == f"{tmp_path} is {kind}; give a run."


@pytest.mark.parametrize(
    "line",
    [
        ("inspect", "{}"), ("verify", "{}"), ("report", "{}"), ("view", "{}"), ("fill", "{}", "a"),
        ("pretrain", "{}", "--out", "{}/run"), ("evaluate", "{}", "{}"), ("predict", "{}", "a"),
        ("export", "{}", "--out", "{}/e"), ("finetune", "{}", "a.csv", "--out", "{}-c"),
    ],
)  # fmt: skip
def test_every_command_has_the_same_line(tmp_path, line):
    def said(folder):
        result = invoke(*(word.format(folder) for word in line))
        assert result.exit_code == 2, result.output
        return result.output

    nowhere = tmp_path / "nowhere"
    assert said(nowhere) == f"Error: {nowhere} does not exist; check the path.\n"
    (tmp_path / "a.parquet").touch()
    assert said(tmp_path).startswith(f"Error: {tmp_path} is a folder of a.parquet; give ")


# --- Freed memory stays in the process: measured in a separate process ------------------------
MALLOC = """
import re, resource
from pathlib import Path
import numpy as np
from clozeline.pipeline.common.counts import disable_malloc_trim, release_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        b"x" * 40_000_000  # written, then freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
given_back, is_glibc, _, kept = faults(), disable_malloc_trim(), faults(), faults()
arrays, last = [np.ones(300_000) for _ in range(60)], np.ones(1000)
full = resident()
arrays.clear()
freed = resident()
release_memory()
print(given_back, is_glibc, kept, full - freed, full - resident())
"""


def test_freed_memory_is_used_again_without_page_faults_until_it_is_released():
    given_back, is_glibc, kept, at_once, released = python("-c", MALLOC).split()
    if is_glibc == "False":
        pytest.skip("needs glibc")
    assert int(kept) < int(given_back) / 10
    assert int(at_once) < 20 < 100 < int(released)  # of 137 MB


# --- Checks of config values: what passes, and what the error says --------------------------------


@dataclass(frozen=True)
class Meal:
    dish: Literal["soup", "salad"] = "soup"
    guests: int = 2
    spice: Literal["mild", "hot"] | None = None
    minutes: float | Literal["auto"] = "auto"


@pytest.mark.parametrize(
    ("check", "bounds", "good", "bad", "message"),
    [
        (check_between, (1, 3), (1, 2, 3), (0, 4, math.nan), "it must be 1 to 3"),
        (check_at_least, (1,), (1, 1 << 70), (0, -math.inf), "it must be 1 or more"),
        (check_at_least, (0,), (0, 2.5), (math.nan, math.inf), "it must be 0 or more and finite"),
        (check_positive, (), (1e-9, 3), (0, -1), "it must be more than 0"),
        (check_positive, (), (), (math.nan, math.inf), "it must be more than 0 and finite"),
        (check_fraction, (), (0, 0.999), (1, -0.1, math.nan), "it must be at least 0 and below 1"),
    ],
)
def test_numbers_outside_the_bounds_are_refused(check, bounds, good, bad, message):
    for value in good:
        check("size", value, *bounds)
    for value in bad:
        with pytest.raises(ValueError, match=rf"^size is {value}; {message}"):
            check("size", value, *bounds)


def test_a_choice_must_be_in_the_literal():
    check_choices(Meal("salad"))
    check_choices(Meal(spice="hot", minutes=5))
    for meal, message in [
        (Meal("pie"), "dish is 'pie'; it must be one of soup, salad."),
        (Meal(None), "dish is None; it must be one of soup, salad."),
        (Meal(spice="icy"), "spice is 'icy'; it must be one of mild, hot."),
        (Meal(minutes="long"), "minutes is 'long'; it must be one of auto."),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_choices(meal)


# What differs between two configs is said in one way
@pytest.mark.parametrize(
    ("there", "now", "expected"),
    [
        ({"seed": 0}, {"seed": 0}, []),
        ({"seed": 0, "a": 1}, {"seed": 3, "a": 1}, ["seed 0 there, 3 now"]),
        ({"b": "x", "a": 1}, {"a": 2, "b": "y"}, ["a 1 there, 2 now", "b 'x' there, 'y' now"]),
        ({}, {"new": 0.5}, ["new None there, 0.5 now"]),
        ({"old": 1}, {}, []),  # an option that is gone decides nothing
        ({"quality": ("a=1", "b=2")}, {"quality": ()}, ["quality 'a=1', 'b=2' there, none now"]),
        ({"for_": None}, {"for_": "1m"}, ["for None there, '1m' now"]),
        ({"d": "0" * 64}, {"d": "1" * 64}, ["d 000000000000 there, 111111111111 now"]),
    ],
)
def test_each_difference_is_a_phrase_with_both_values(there, now, expected):
    assert differences(there, now) == expected


@pytest.mark.parametrize(("text", "size"), [("4.1MB", 4_100_000), ("1.001K", 1001), ("0.4", 0)])
def test_sizes_are_exact(text, size):
    assert byte_size(text, "size") == size
    if size:
        assert token_number(text.removesuffix("B"), "tokens") == size
