"""The laws of the training order, proved on a user's own shards.

Every example once an epoch; the same global batches for any number of processes and forward passes;
and a run that is stopped anywhere goes on with the very next example.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.common.counter_rng import UInt64Array
from pipeline.common.errors import InputError
from train.data.batch import Batch, LoadedBatch, batch_digest, digest_text, example_hashes, split
from train.data.loader import Loader, evaluation_batches

BATCH = 48  # divides by all of the following
WORLD_SIZES = (1, 2, 3)
ACCUMULATIONS = (1, 2, 4)
STEPS = 4  # batches that are compared at each place
AT_ONCE = 2048  # examples of a batch where batches do not matter
SEED = 0


def check_loader(folder: Path) -> str:
    """One line about what was proved. Raises InputError with the law that was broken.

    Reads all training examples twice, and some batches at three places again and again.
    """
    examples = sum(_loader(folder).shards.shard_rows)
    _check_once_an_epoch(folder, examples)
    border = max(examples - 2 * BATCH, 0)  # the batches there lie in two epochs
    places = sorted({0, examples // 2, border})
    for place in places:
        _check_splits(folder, place)
        _check_states(folder, place)
    return (
        f"{examples:,} training examples are each read once an epoch; the global batches from "
        f"{_listed(places)} on are the same for {_listed(WORLD_SIZES)} processes with "
        f"{_listed(ACCUMULATIONS)} forward passes, and a stopped run goes on with the next example"
    )


def _loader(folder: Path, position: int = 0, **options: Any) -> Loader:
    # No prefetching: few batches are read, and the next pool may be expensive.
    loader = Loader(folder, **{"batch_size": BATCH, "seed": SEED, "prefetch": 0, **options})
    loader.load_state_dict(loader.state_dict(position))  # as a resumed run gets there
    return loader


def _check_once_an_epoch(folder: Path, examples: int) -> None:
    """Names of rows that do not tell their place: in both orders the same ones, equally often."""
    size = min(AT_ONCE, examples)
    trained = _names(islice(_loader(folder, batch_size=size), -(-examples // size)))[:examples]
    stored = _names(evaluation_batches(folder, split="train", batch_size=size))[:examples]
    if not np.array_equal(np.sort(trained), np.sort(stored)):
        raise InputError(f"{folder}: an epoch does not read each training example once.")


def _names(batches: Iterable[LoadedBatch[Batch]]) -> UInt64Array:
    of_batches = [example_hashes(x.batch, np.zeros(len(x.batch), np.int64)) for x in batches]
    return np.concatenate(of_batches)


def _check_splits(folder: Path, place: int) -> None:
    wanted: list[str] = []
    for world_size in WORLD_SIZES:  # one process comes first: the others are compared with it
        parts = [
            _read(_loader(folder, place, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        wanted = wanted or [digest_text(loaded.digest) for loaded in parts[0]]
        for passes in ACCUMULATIONS:
            found = [_digest(of_ranks, passes) for of_ranks in zip(*parts, strict=True)]
            if found != wanted:
                raise InputError(
                    f"{folder}: from position {place:,} on, {world_size} processes with {passes} "
                    "forward passes train on other batches than one process."
                )


def _digest(of_ranks: Iterable[LoadedBatch[Batch]], passes: int) -> str:
    """The data digest of a global batch, from every forward pass of every rank."""
    passes_of_all = [
        (loaded.next_position - BATCH, part)
        for loaded in of_ranks
        for part in split(loaded.batch, passes)
    ]
    return digest_text(
        *(
            batch_digest(part, start + number * len(part))
            for number, (start, part) in enumerate(passes_of_all)
        )
    )


def _check_states(folder: Path, place: int) -> None:
    """Another loader with another batch size goes on from the middle of what was read."""
    before = _loader(folder, place)
    batches = _read(before)
    stop = batches[STEPS // 2 - 1].next_position
    after = _loader(folder, batch_size=BATCH // 2)
    after.load_state_dict(before.state_dict(stop))
    found = _names(_read(after, steps=STEPS))
    if not np.array_equal(found, _names(batches[STEPS // 2 :])):
        raise InputError(
            f"{folder}: a run that is stopped at position {stop:,} does not go on with the next "
            "example."
        )


def _read(loader: Loader, steps: int = STEPS) -> list[LoadedBatch]:
    return list(islice(loader, steps))


def _listed(numbers: Iterable[int]) -> str:
    *others, last = (f"{number:,}" for number in numbers)
    return f"{', '.join(others)} and {last}" if others else last
