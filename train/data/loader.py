"""Batches for training and evaluation, the same for any number of processes.

Step s reads the next *global* batch of the endless sequence (see `order.py`), and a rank takes its
contiguous slice of it. So world size, workers and accumulation decide who does the work, never what
is trained on, and progress through the data is a single number, `next_position`.

    for loaded in Loader(folder, batch_size=256, seed=0):
        train(loaded.batch)
        checkpoint(loader.state_dict(loaded.next_position))

A thread prefetches batches during the training step. Worker processes are possible
(`DataLoader(loader, batch_size=None, num_workers=2)`) but rarely worth it: each one reads all
shards, and its batches pass through shared memory.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from pipeline.common.differences import differences
from pipeline.common.errors import InputError
from train.data.batch import LoadedBatch
from train.data.batch_reader import BatchLayout, BatchReader, RankSlice
from train.data.device_copy import DeviceCopy, mark_in_use
from train.data.order import ORDER_VERSION, Order, pool_rows_for
from train.data.prefetch import prefetched
from train.data.shard_set import ShardSet

STATE_VERSION = 1  # of the values in `Loader.state_dict`


class Loader(IterableDataset[LoadedBatch[Any]]):
    """The endless training sequence of a data set folder, in batches.

    `batch_size` is the number of examples in a global batch. `seed` decides the order; masks depend
    on the data set's own seed. `remask=False` keeps the stored masks in every epoch. A thread makes
    `prefetch` slabs of about 2,048 examples (`SLAB_ROWS`) ahead; 0: no thread.

    `length_bins` sorts the rows of that many global batches by length (`length_bins.py`): the rows
    of a batch, over all ranks, have similar lengths, and it is as wide as the longest needs.
    `unpadded` yields batches without padding (`unpadded.py`). For `check_shards` and
    `skip_bad_shards` see `ShardSet`. With a CUDA `device`, batches are yielded on that device
    (`device_copy.py`).

    A new iteration continues where the last one stopped. Raises InputError if the folder is not a
    finished data set (`ShardSet`), if the number of processes does not divide the batch size, and,
    while reading, for a bad shard.
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
        remask: bool = True,
        length_bins: int = 0,
        unpadded: bool = False,
        check_shards: bool = False,
        skip_bad_shards: bool = False,
        device: torch.device | str = "cpu",
        prefetch: int = 2,
        pool_rows: int | None = None,
    ) -> None:
        self.shards = ShardSet(
            folder, split, check_shards=check_shards, skip_bad_shards=skip_bad_shards
        )
        self._slice = RankSlice(batch_size, rank, world_size)
        self._layout = BatchLayout(remask=remask, length_bins=length_bins, unpadded=unpadded)
        self._seed = seed
        self.next_position = 0
        self._device = torch.device(device)
        self._prefetch = prefetch
        self._pool_rows = pool_rows or pool_rows_for(self.shards.max_seq_length)

    def __iter__(self) -> Generator[LoadedBatch[Any]]:
        worker = get_worker_info()
        if worker:  # a separate process prefetches without a thread
            slabs = self._slabs(first=worker.id, step=worker.num_workers)
        else:
            slabs = self._slabs(first=0, step=1)
            slabs = prefetched(slabs, self._prefetch) if self._prefetch else slabs
        with closing(slabs):
            for slab in slabs:
                for loaded in slab:
                    self.next_position = loaded.next_position
                    yield mark_in_use(loaded)

    def set_batch_size(self, batch_size: int) -> None:
        """Set the global batch size of the next iteration.

        Raises InputError where the number of processes does not divide it, and with length bins
        where the position is not the beginning of such a batch.
        """
        self._slice = RankSlice(batch_size, self._slice.rank, self._slice.world_size)
        self.next_position = self._batch_start(self.next_position)

    def state_dict(self, next_position: int | None = None) -> dict[str, Any]:
        """The position after the last batch handed out, or `next_position`; plain JSON values.

        Pass the `next_position` of the last batch trained on wherever batches are fetched ahead, as
        a `DataLoader` with workers does.
        """
        return {
            "version": STATE_VERSION,
            "order_version": ORDER_VERSION,
            "pool_rows": self._pool_rows,
            "next_position": self.next_position if next_position is None else next_position,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the very next example; batch size, ranks and workers may have changed.

        The pool size comes from the state, so a new default does not reorder a run. Raises
        InputError, which names every difference, where the next example would be another one:
        other data, tokenizer, seed, skipped shards or length bins (with bins also the batch size).
        """
        _check_version("state", state.get("version"), STATE_VERSION)
        _check_version("order", state.get("order_version"), ORDER_VERSION)
        if differs := differences(state, self._identity()):
            raise InputError(
                f"{self.shards.folder}: cannot continue at position {state['next_position']:,} in "
                f"the same order of examples: {'; '.join(differs)}. Use the data set and the "
                "options that training began with, or start a new run."
            )
        self.next_position = self._batch_start(state["next_position"])
        self._pool_rows = state["pool_rows"]

    def _identity(self) -> dict[str, Any]:
        """What decides which example is at a position, besides version and pool size."""
        return {
            "tokenizer_digest": self.shards.manifest.tokenizer_digest,
            "dataset_digest": self.shards.manifest.dataset_digest,
            "split": self.shards.split,
            "seed": self._seed,
            "skipped_shards": sorted(self.shards.skipped),
            "length_bins": self._layout.length_bins,
            "batch_size": self._slice.batch_size if self._layout.length_bins else None,
        }

    def _batch_start(self, position: int) -> int:
        """The position, checked: with length bins it has to be the beginning of a batch."""
        if self._layout.length_bins and position % self._slice.batch_size:
            raise InputError(
                f"position {position} is not the beginning of a batch of {self._slice.batch_size}; "
                "with length bins the batch size cannot change during a run."
            )
        return position

    def _slabs(self, *, first: int, step: int) -> Generator[list[LoadedBatch[Any]]]:
        """Every `step`-th global batch from the `first` on, a slab at a time."""
        order = Order(
            self.shards.shard_rows,
            dataset_digest=self.shards.manifest.dataset_digest,
            seed=self._seed,
            pool_rows=self._pool_rows,
        )
        reader = BatchReader(self.shards, order, self._slice, self._layout)
        at_once = reader.batches_at_once
        begin = self.next_position
        to_device = DeviceCopy(self._device) if self._device.type == "cuda" else None
        for slab in count(0, at_once):
            numbers = first + step * np.arange(slab, slab + at_once)
            loaded = reader.read(begin + self._slice.batch_size * numbers)
            yield list(map(to_device.copy, loaded)) if to_device else loaded


def _check_version(what: str, found: object, known: int) -> None:
    if found != known:
        raise InputError(
            f"the saved loader state has {what} version {found}, this code reads {known}; continue "
            "with the version of Clozeline that wrote it."
        )


def evaluation_batches(
    folder: Path | str,
    *,
    split: str = "validation",
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    limit: int | None = None,
) -> Iterator[LoadedBatch[Any]]:
    """The first `limit` examples (or all), each once, in stored order and with their stored masks.

    The last batch is padded with rows of weight 0, so every rank gets the same number of batches of
    the same shape. Raises InputError as `Loader` does.
    """
    shards = ShardSet(folder, split)
    order = Order(shards.shard_rows, dataset_digest=shards.manifest.dataset_digest, seed=None)
    rank_slice = RankSlice(batch_size, rank, world_size)
    end = min(limit or order.epoch_rows, order.epoch_rows)
    reader = BatchReader(shards, order, rank_slice, BatchLayout(remask=False))
    return _evaluation(reader, batch_size, end)


def _evaluation(reader: BatchReader, batch_size: int, end: int) -> Iterator[LoadedBatch[Any]]:
    starts = np.arange(0, end, batch_size)
    for slab in range(0, len(starts), reader.batches_at_once):
        yield from reader.read(starts[slab : slab + reader.batches_at_once], end=end)
