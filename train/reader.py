"""Global batches by position: found in the order, gathered from a pool, counted, cut into views.

Some thousand examples are collated at once, because numpy's cost is by call as long as batches are
small. Counts are of the global batch and known to every rank, so the loss can be divided by them
before any forward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.schema import NO_PAIR, Examples
from train.batch import Batch, LoadedBatch, collate, concatenate, example_hashes
from train.order import Order, Pool
from train.pools import ShardSet

FOREVER = 2**63 - 1
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


class BatchReader:
    """Makes global batches from where they start; keeps the pool that it read last."""

    def __init__(self, shards: ShardSet, order: Order, share: Share, *, remask: bool) -> None:
        self._shards = shards
        self._order = order
        self._share = share
        self._remask = remask
        self._pool: tuple[Pool, Examples, NDArray[np.int64]] | None = None

    @property
    def batches_at_once(self) -> int:
        """Global batches worth reading together: some thousand examples, but no second epoch."""
        share = self._share
        return max(1, min(SLAB_ROWS // share.rows, self._order.epoch_rows // share.batch_size))

    def read(self, starts: NDArray[np.int64], *, end: int = FOREVER) -> list[LoadedBatch]:
        """The rank's parts of the global batches at the given rising positions, [K].

        Positions from `end` on (in the last batch) become rows of padding.
        """
        share = self._share
        places = np.arange(share.batch_size)
        positions = (starts[:, None] + places).ravel()
        is_mine = np.tile(places // share.rows == share.rank, len(starts))
        counts = np.zeros((3, len(positions)), dtype=np.int64)
        parts = []
        done = 0
        for examples, rows in self._rows(positions[: np.searchsorted(positions, end)]):
            here = slice(done, done + len(rows))
            counts[:, here] = _counts(examples, rows)
            parts.append(self._collate(examples, rows[is_mine[here]]))
            done += len(rows)
        of_batches = counts.reshape(3, len(starts), share.batch_size).sum(axis=2)  # [3, K]
        return self._hand_out(concatenate(parts), starts, of_batches, end)

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
        self, slab: Batch, starts: NDArray[np.int64], counts: NDArray[np.int64], end: int
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
                next_position=min(stop, end),
                num_tokens=num_tokens,
                num_predictions=num_predictions,
                num_pairs=num_pairs,
                digest=digest,
            )
            for i, (stop, (num_tokens, num_predictions, num_pairs), digest) in enumerate(
                zip(stops, counts.T.tolist(), digests, strict=True)
            )
        ]


def _counts(examples: Examples, rows: NDArray[np.int64]) -> list[NDArray]:
    """Tokens, masked tokens, and whether there is a B, of each row: three times [R]."""
    tokens, masks = examples.input_ids.offsets, examples.masked_lm_positions.offsets
    return [
        tokens[rows + 1] - tokens[rows],
        masks[rows + 1] - masks[rows],
        examples.next_sentence_label[rows] != NO_PAIR,
    ]
