"""Batches for training and evaluation, the same for any number of processes.

Step s reads the next *global* batch of the endless sequence (see `order.py`), of which rank r of
W takes every W-th row; without padding, rows are dealt by length (`order.py`). So world size,
workers and accumulation decide who does the work, never what is trained on, and progress through
the data is a single number, `next_position`. A rank reads, decodes and masks 1/W of the data where
W divides the number of streams; where rows are dealt, it opens the shards of other ranks, too.

Memory of a rank: the shards (of about 40 MB) that its C/W streams are in, those of its next pool
(at least two more), and 50 MB of rows. With 1,000 shards (C = 64) this is 3 GB for one process and
350 MB for each of 8, and twice as much where an epoch ends. For uncompressed shards on a local
disk, this memory is the operating system's cache.

    loader = Loader(folder, batch_size=256, seed=0)
    for loaded in loader:
        train(loaded.batch)
        checkpoint(loader.state_dict(loaded.next_position))

A thread prefetches batches during the training step. Worker processes are possible
(`DataLoader(loader, batch_size=None, num_workers=2)`) but rarely worth it: each one opens all of
the rank's shards, and its batches pass through shared memory.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from clozeline.pipeline.common.config_checks import differences, takes_keywords
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import GivenPath
from clozeline.pipeline.examples.masks import OwnMasking
from clozeline.train.data.batch import LoadedBatch
from clozeline.train.data.batch_reader import BatchLayout, BatchReader
from clozeline.train.data.order import ORDER_VERSION, Order, RankSlice, pool_rows_for, streams_for
from clozeline.train.data.prefetch import DeviceCopy, fetches_for, mark_in_use, prefetched
from clozeline.train.data.shard_set import ShardSet

#: The versions of the values in `Loader.state_dict`, and of the order.
VERSIONS = {"version": 1, "order_version": ORDER_VERSION}


class Loader(IterableDataset[LoadedBatch[Any]]):
    """The endless training sequence of a data set folder, in batches.

        >>> loader = Loader("work/shards", batch_size=8, seed=0)
        >>> next(iter(loader)).batch.input_ids.shape
        torch.Size([8, 64])

    `batch_size` is the number of examples in a global batch. `seed` decides the order; masks depend
    on the data set's own seed, and are drawn anew from the second epoch on; with `masked_lm_prob`
    in the first, too, at that rate. A thread makes `prefetch` slabs of about 2,048 examples
    (`SLAB_ROWS`) ahead, and others fetch the shards of the next pool; 0: no threads.

    `masking` chooses what is masked instead of the data set's scheme: a function of the rows' ids
    (uint16 or uint32 [T], one row after another), their offsets (int64 [R + 1]) and a random number
    for each token (float64 [T], in [0, 1)), which returns bool [T]. Special tokens stay, and
    of more than `max_predictions_per_seq` in a row, those with the lowest numbers are masked.

        >>> def masking(input_ids, offsets, random):
        ...     return random < 0.1
        >>> own = Loader("work/shards", batch_size=8, seed=0, masking=masking)
        >>> next(iter(own)).num_predictions
        52

    `length_bins` sorts the rows of that many global batches by length (`order.py`): the rows
    of a batch, over all ranks, have similar lengths, and a rank's part is as wide as its longest
    row needs. `unpadded` yields batches without padding (`unpadded.py`). With a CUDA `device`,
    batches are yielded on that device (`prefetch.py`). `streams` and `pool_rows` are those of the
    order (`order.py`), by default those of `streams_for` and `pool_rows_for`.

    A new iteration continues where the last one stopped. Raises InputError if the folder is not a
    finished data set (`ShardSet`), if the number of processes does not divide the batch size, and,
    while reading, for a bad shard.
    """

    @takes_keywords
    def __init__(
        self,
        folder: GivenPath,
        *,
        split: str = "train",
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int,
        masked_lm_prob: float | None = None,
        masking: OwnMasking | None = None,
        length_bins: int = 0,
        unpadded: bool = False,
        device: torch.device | str = "cpu",
        prefetch: int = 2,
        streams: int | None = None,
        pool_rows: int | None = None,
    ) -> None:
        self.shards = ShardSet(folder, split)
        self._slice = RankSlice(batch_size, rank, world_size)
        self._layout = BatchLayout(
            masked_lm_prob=masked_lm_prob,
            masking=masking,
            length_bins=length_bins,
            unpadded=unpadded,
        )
        self._seed = seed
        self.next_position = 0
        self._device = torch.device(device)
        self._prefetch = prefetch
        with_rows = int(np.count_nonzero(self.shards.shard_rows))
        binned_batch = batch_size if length_bins else None
        self._order_state = {
            "streams": streams or streams_for(with_rows, binned_batch=binned_batch),
            "pool_rows": pool_rows or pool_rows_for(self.shards.max_seq_length),
        }

    def __repr__(self) -> str:
        shards, part = self.shards, self._slice
        return (
            f"Loader({shards.folder}: {sum(shards.shard_rows):,} examples, batches of "
            f"{self.batch_size}, rank {part.rank} of {part.world_size}, "
            f"next_position={self.next_position})"
        )

    def __iter__(self) -> Generator[LoadedBatch[Any]]:
        """Batches without end, from the next position on."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        slabs = self._slabs(first, step)
        if self._prefetch and not worker:  # a separate process prefetches without a thread
            slabs = prefetched(slabs, self._prefetch)
        with closing(slabs):
            for slab in slabs:
                for loaded in slab:
                    self.next_position = loaded.next_position
                    yield mark_in_use(loaded)

    @property
    def batch_size(self) -> int:
        """Examples of a global batch."""
        return self._slice.batch_size

    @property
    def is_unpadded(self) -> bool:
        """Whether its batches are without padding."""
        return self._layout.unpadded

    def state_dict(self, next_position: int | None = None) -> dict[str, Any]:
        """The position after the last batch handed out, or `next_position`; plain JSON values.

        Pass the `next_position` of the last batch trained on wherever batches are fetched ahead, as
        a `DataLoader` with workers does.
        """
        return {
            **VERSIONS,
            **self._order_state,
            "next_position": self.next_position if next_position is None else next_position,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the very next example; batch size, ranks and workers may have changed.

        The streams and the pool size come from the state, so a new default does not reorder a
        run. Raises InputError, naming every difference, where the next example would be a
        different one: other data, tokenizer, seed or length bins (with bins also the batch size).
        """
        for name, known in VERSIONS.items():
            if (value := state.get(name)) != known:
                raise InputError(
                    f"the saved loader state has {name} {value}, this code reads {known}; continue "
                    "with the version of Clozeline that wrote it."
                )
        if differs := differences(state, self._identity()):
            raise InputError(
                f"{self.shards.folder}: cannot continue at position {state['next_position']:,} in "
                f"the same order of examples: {'; '.join(differs)}. Use the data set and the "
                "options that training began with, or start a new run."
            )
        self.next_position = self._batch_start(state["next_position"])
        self._order_state = {name: state[name] for name in self._order_state}

    def _identity(self) -> dict[str, Any]:
        """What decides which example is at a position, besides the numbers of the order."""
        masking: Any = self._layout.masking
        named = masking if hasattr(masking, "__qualname__") else type(masking)
        return {
            "tokenizer_digest": self.shards.manifest.tokenizer_digest,
            "dataset_digest": self.shards.manifest.dataset_digest,
            "split": self.shards.split,
            "seed": self._seed,
            "masking": masking and f"{named.__module__}.{named.__qualname__}",
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

    def reader(self) -> BatchReader:
        """What reads this rank's part of a batch from its position."""
        order = Order(
            self.shards.shard_rows,
            dataset_digest=self.shards.manifest.dataset_digest,
            seed=self._seed,
            **self._order_state,
        )
        return BatchReader(
            self.shards,
            order,
            self._slice,
            self._layout,
            fetches=fetches_for(self.shards.folder) if self._prefetch else 0,
        )

    def _slabs(self, first: int, step: int) -> Generator[list[LoadedBatch[Any]]]:
        """Every `step`-th global batch from the `first` on, a slab at a time."""
        size = self._slice.batch_size
        starts = count(self.next_position + first * size, step * size)
        to_device = DeviceCopy(self._device) if self._device.type == "cuda" else None
        with closing(self.reader().slabs(starts)) as slabs:
            for slab in slabs:
                yield list(map(to_device.copy, slab)) if to_device else slab


def evaluation_batches(
    folder: GivenPath | ShardSet,
    *,
    split: str = "validation",
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    limit: int | None = None,
) -> Iterator[LoadedBatch[Any]]:
    """The first `limit` examples (or all), each once, in stored order and with their stored masks.

    `folder` is a data set with a `split`, or an open split. The last batch is padded with rows of
    weight 0, so every rank gets the same number of batches of the same shape. Raises InputError as
    `Loader` does.
    """
    shards = folder if isinstance(folder, ShardSet) else ShardSet(folder, split)
    order = Order(shards.shard_rows, dataset_digest=shards.manifest.dataset_digest, seed=None)
    rank_slice = RankSlice(batch_size, rank, world_size)
    end = min(limit or order.epoch_rows, order.epoch_rows)
    layout = BatchLayout()
    fetches = fetches_for(shards.folder)
    reader = BatchReader(shards, order, rank_slice, layout, fetches=fetches)
    return chain.from_iterable(reader.slabs(range(0, end, batch_size), end=end))
