"""Batches for training and evaluation, the same ones for every number of processes.

Step s reads the next *global* batch of the endless sequence (see `order.py`), and a rank takes its
contiguous part of it. So world size, workers and accumulation decide who does the work and never
what is trained on, and where training stands is a single number, `next_position`.

    for loaded in Loader(folder, batch_size=256, seed=0):
        train(loaded.batch)
        checkpoint(loader.state_dict(loaded.next_position))

Some thousand examples are collated at once and handed out as views, because numpy's cost is by call
as long as batches are small; a thread does it ahead of the training step. Worker processes are
possible (`DataLoader(loader, batch_size=None, num_workers=2)`) and seldom worth it: each one reads
all shards, and its batches travel through shared memory.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from pipeline.errors import InputError
from pipeline.schema import NO_PAIR, Examples
from train.batch import Batch, LoadedBatch, collate, concatenate, example_hashes
from train.order import POOL_ROWS, Order, Pool
from train.pools import ShardSet
from train.prefetch import prefetched

SLAB_ROWS = 2048  # examples of a rank that are collated at once


@dataclass(frozen=True)
class Share:
    """Which part of each global batch a rank takes.

    Raises InputError where the batch does not divide.
    """

    batch_size: int  # of the global batch
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size
        if self.batch_size < 1 or self.batch_size % self.world_size:
            below = self.batch_size - self.batch_size % self.world_size
            fitting = f"{below} or {below + self.world_size}" if below > 0 else self.world_size
            raise InputError(
                f"a batch of {self.batch_size} examples does not divide among {self.world_size} "
                f"processes; {fitting} would."
            )

    @property
    def rows(self) -> int:
        """Examples of one rank's part."""
        return self.batch_size // self.world_size

    @property
    def start(self) -> int:
        """Where the part begins in the global batch."""
        return self.rank * self.rows

    @property
    def batches_at_once(self) -> int:
        """Global batches to a slab."""
        return max(1, SLAB_ROWS // self.rows)


class Loader(IterableDataset[LoadedBatch]):
    """The endless training sequence of a data set folder, in batches.

    `batch_size` counts the examples of the global batch. `seed` decides the order; masks are drawn
    from the data set's own seed. `remask=False` keeps the stored masks in every epoch. `prefetch`
    slabs of some 2,048 examples are made ahead; 0 makes them without a thread.

    Iterating goes on where the last iteration stopped. Raises InputError for a folder that is no
    finished data set (`ShardSet`), a batch that does not divide, and, while reading, a bad shard.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        split: str = "train",
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int,
        start_position: int = 0,
        remask: bool = True,
        prefetch: int = 2,
        pool_rows: int = POOL_ROWS,
    ) -> None:
        self.shards = ShardSet(folder, split)
        self.next_position = start_position
        self._share = Share(batch_size, rank, world_size)
        self._seed = seed
        self._remask = remask
        self._prefetch = prefetch
        self._pool_rows = pool_rows

    def __iter__(self) -> Generator[LoadedBatch]:
        worker = get_worker_info()
        if worker:  # a process of its own works ahead without a thread
            slabs = self._slabs(first=worker.id, step=worker.num_workers)
        else:
            slabs = self._slabs(first=0, step=1)
            slabs = prefetched(slabs, self._prefetch) if self._prefetch else slabs
        with closing(slabs):
            for slab in slabs:
                for loaded in slab:
                    self.next_position = loaded.next_position
                    yield loaded

    def state_dict(self, next_position: int | None = None) -> dict[str, Any]:
        """Where the sequence stands: after the last batch handed out, or at `next_position`.

        Give the `next_position` of the last batch trained on wherever batches are fetched ahead, as
        a `DataLoader` with workers does.
        """
        here = self.next_position if next_position is None else next_position
        return {"next_position": here, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the very next example; batch size, ranks and workers may be others than before.

        Raises InputError where the state is of another tokenizer, data set or order.
        """
        for name, ours in self._identity().items():
            if state[name] != ours:
                raise InputError(
                    f"{self.shards.folder} cannot go on with this checkpoint: its "
                    f"{name.replace('_', ' ')} is {ours}, the checkpoint's is {state[name]}; give "
                    "the shards and the seed that it was trained on."
                )
        self.next_position = state["next_position"]

    def _identity(self) -> dict[str, Any]:
        """What the sequence is a function of; the tokenizer first, being the clearest complaint."""
        return {
            "tokenizer_digest": self.shards.manifest.tokenizer_digest,
            "dataset_digest": self.shards.manifest.dataset_digest,
            "split": self.shards.split,
            "seed": self._seed,
            "pool_rows": self._pool_rows,
        }

    def _slabs(self, *, first: int, step: int) -> Generator[list[LoadedBatch]]:
        """Every `step`-th global batch from the `first` on, some at once."""
        order = Order(
            self.shards.shard_rows,
            dataset_digest=self.shards.manifest.dataset_digest,
            seed=self._seed,
            pool_rows=self._pool_rows,
        )
        reader = BatchReader(self.shards, order, self._share, remask=self._remask)
        at_once = self._share.batches_at_once
        begin = self.next_position
        for slab in count(0, at_once):
            numbers = first + step * np.arange(slab, slab + at_once)
            yield reader.read(begin + self._share.batch_size * numbers)


def evaluation_batches(
    folder: Path | str,
    *,
    split: str = "validation",
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    limit: int | None = None,
) -> Iterator[LoadedBatch]:
    """The first `limit` examples (or all), each once, in stored order and with their stored masks.

    The last batch is filled up with rows of weight 0, so every rank has the same number of batches
    of the same shape. Raises InputError as `Loader` does.
    """
    shards = ShardSet(folder, split)
    order = Order(shards.shard_rows, dataset_digest=shards.manifest.dataset_digest, seed=None)
    share = Share(batch_size, rank, world_size)
    end = min(limit or order.epoch_rows, order.epoch_rows)
    return _evaluation(BatchReader(shards, order, share, remask=False), share, end)


def _evaluation(reader: "BatchReader", share: Share, end: int) -> Iterator[LoadedBatch]:
    starts = np.arange(0, end, share.batch_size)
    for slab in range(0, len(starts), share.batches_at_once):
        yield from reader.read(starts[slab : slab + share.batches_at_once], end=end)


class BatchReader:
    """Makes global batches from where they start; keeps the pool that it read last."""

    def __init__(self, shards: ShardSet, order: Order, share: Share, *, remask: bool) -> None:
        self._shards = shards
        self._order = order
        self._share = share
        self._remask = remask
        self._pool: tuple[Pool, Examples, NDArray[np.int64]] | None = None

    def read(self, starts: NDArray[np.int64], *, end: int | None = None) -> list[LoadedBatch]:
        """The rank's parts of the global batches at the given rising positions, [K].

        Positions from `end` on (in the last batch) become rows of padding.
        """
        share = self._share
        places = np.arange(share.batch_size)
        positions = (starts[:, None] + places).ravel()
        is_mine = np.tile(places // share.rows == share.rank, len(starts))
        batch_of = np.repeat(np.arange(len(starts)), share.batch_size)
        if end is not None:
            inside = np.searchsorted(positions, end)
            positions, is_mine, batch_of = (x[:inside] for x in (positions, is_mine, batch_of))
        counts = np.zeros((len(starts), 3), dtype=np.int64)
        parts = []
        done = 0
        for examples, rows in self._rows(positions):
            here = slice(done, done + len(rows))
            np.add.at(counts, batch_of[here], _counts(examples, rows))
            parts.append(self._collate(examples, rows[is_mine[here]]))
            done += len(rows)
        return self._hand_out(concatenate(parts), starts, counts, end)

    def _rows(self, positions: NDArray[np.int64]) -> Iterator[tuple[Examples, NDArray[np.int64]]]:
        """Rising positions as rows of one pool after the other."""
        for pool, places in self._order.locate(positions):
            if self._pool is None or self._pool[0] != pool:
                self._pool = None  # let go of its memory first
                examples = self._shards.read(pool, remask=self._remask)
                self._pool = (pool, examples, self._order.rows(pool))
            _, examples, rows = self._pool
            yield examples, rows[places]

    def _collate(self, examples: Examples, rows: NDArray[np.int64]) -> Batch:
        config = self._shards.manifest.config
        return collate(
            examples,
            rows,
            max_seq_length=config.max_seq_length,
            max_predictions=config.predictions,
            pad_id=self._shards.pad_id,
        )

    def _hand_out(
        self, slab: Batch, starts: NDArray[np.int64], counts: NDArray[np.int64], end: int | None
    ) -> list[LoadedBatch]:
        """The slab cut into its batches, as views."""
        share = self._share
        slab = slab.padded(len(starts) * share.rows, pad_id=self._shards.pad_id)
        mine = (starts[:, None] + share.start + np.arange(share.rows)).ravel()
        hashes = example_hashes(slab, mine).reshape(len(starts), share.rows)
        digests = hashes.sum(axis=1).view(np.int64).tolist()
        stops = (starts + share.batch_size).tolist()
        return [
            LoadedBatch(
                batch=slab.slice(i * share.rows, (i + 1) * share.rows),
                next_position=stop if end is None else min(stop, end),
                num_tokens=num_tokens,
                num_predictions=num_predictions,
                num_pairs=num_pairs,
                digest=digest,
            )
            for i, (stop, (num_tokens, num_predictions, num_pairs), digest) in enumerate(
                zip(stops, counts.tolist(), digests, strict=True)
            )
        ]


def _counts(examples: Examples, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens, masked tokens, and whether there is a B, for each row: [R, 3]."""
    columns = (
        examples.input_ids.lengths[rows],
        examples.masked_lm_positions.lengths[rows],
        examples.next_sentence_label[rows] != NO_PAIR,
    )
    return np.stack(columns, axis=1).astype(np.int64)
