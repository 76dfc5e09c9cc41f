"""The guarantees of the training order, checked on a user's own shards.

Every example is read once an epoch; the global batches are the same for any number of processes and
forward passes; and a run stopped anywhere continues with the very next example.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.common.errors import CheckFailedError
from clozeline.train.data.batch import Batch, LoadedBatch, digest_text, example_hashes
from clozeline.train.data.batch_reader import RankSlice
from clozeline.train.data.loader import Loader, evaluation_batches

BATCH = 48  # divisible by all of the following
WORLD_SIZES = (1, 2, 3)
ACCUMULATIONS = (1, 2, 4)
STEPS = 4  # batches that are compared at each position
AT_ONCE = 2048  # batch size where the split into batches does not matter
SEED = 0


def check_loader(folder: Path) -> str:
    """One line about what was checked. Raises CheckFailedError naming the guarantee that is broken.

    Reads all training examples twice, and a few batches at three positions several times.
    """
    examples = sum(_loader(folder).shards.shard_rows)
    _check_once_an_epoch(folder, examples)
    near_end = max(examples - 2 * BATCH, 0)  # the batches there span two epochs
    positions = sorted({0, examples // 2, near_end})
    for position in positions:
        _check_splits(folder, position)
        _check_states(folder, position)
    return (
        f"{examples:,} training examples are each read once an epoch; the global batches from "
        f"positions {_listed(positions)} on are the same for {_listed(WORLD_SIZES)} processes with "
        f"{_listed(ACCUMULATIONS)} forward passes, and a stopped run continues with the next one"
    )


def _loader(folder: Path, position: int = 0, **options: Any) -> Loader:
    # No prefetching: few batches are read, and the next pool may be expensive.
    loader = Loader(folder, **{"batch_size": BATCH, "seed": SEED, "prefetch": 0, **options})
    loader.load_state_dict(loader.state_dict(position))  # as a resumed run gets there
    return loader


def _check_once_an_epoch(folder: Path, examples: int) -> None:
    """Training order and stored order must give the same row hashes, equally often."""
    size = min(AT_ONCE, examples)
    trained = _hashes(islice(_loader(folder, batch_size=size), -(-examples // size)))[:examples]
    stored = _hashes(evaluation_batches(folder, split="train", batch_size=size))[:examples]
    if not np.array_equal(np.sort(trained), np.sort(stored)):
        raise CheckFailedError(f"{folder}: an epoch does not read each training example once.")


def _hashes(batches: Iterable[LoadedBatch[Batch]]) -> UInt64Array:
    """Hashes of the rows, which do not depend on their positions."""
    of_batches = [example_hashes(x.batch, np.zeros(len(x.batch), np.int64)) for x in batches]
    return np.concatenate(of_batches)


def _check_splits(folder: Path, position: int) -> None:
    wanted: list[str] = []
    for world_size in WORLD_SIZES:  # one process comes first, as the reference
        parts = [
            _read(_loader(folder, position, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        wanted = wanted or [_digest([loaded], 1) for loaded in parts[0]]
        for passes in ACCUMULATIONS:
            digests = [_digest(of_ranks, passes) for of_ranks in zip(*parts, strict=True)]
            if digests != wanted:
                raise CheckFailedError(
                    f"{folder}: from position {position:,} on, {world_size} processes with "
                    f"{passes} forward passes train on other batches than one process does."
                )


def _digest(of_ranks: Sequence[LoadedBatch[Batch]], passes: int) -> str:
    """The digest of the content of a global batch, from every forward pass of every rank."""
    terms = []
    for rank, loaded in enumerate(of_ranks):
        start = np.array([loaded.next_position - BATCH])
        [positions] = RankSlice(BATCH, rank, len(of_ranks)).positions(start)
        parts = zip(loaded.batch.split(passes), np.split(positions, passes), strict=True)
        terms += [int(example_hashes(part, here).sum()) for part, here in parts]
    return digest_text(*terms)


def _check_states(folder: Path, position: int) -> None:
    """A second loader with another batch size continues from the state of the first."""
    before = _loader(folder, position)
    batches = _read(before)
    stop = batches[STEPS // 2 - 1].next_position
    after = _loader(folder, batch_size=BATCH // 2)
    after.load_state_dict(before.state_dict(stop))
    continued = _hashes(_read(after))
    if not np.array_equal(continued, _hashes(batches[STEPS // 2 :])):
        raise CheckFailedError(
            f"{folder}: a run stopped at position {stop:,} does not continue with the next example."
        )


def _read(loader: Loader) -> list[LoadedBatch[Any]]:
    return list(islice(loader, STEPS))


def _listed(numbers: Iterable[int]) -> str:
    *others, last = (f"{number:,}" for number in numbers)
    return f"{', '.join(others)} and {last}" if others else last
