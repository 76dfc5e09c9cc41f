"""Length bins: which rows of a window go into which of its batches.

A window is `length_bins` global batches long. Its rows are sorted by length and cut into one bin
for each batch, and the bins are put in random order:

    lengths in a window of 3 batches      bins               batches
    9 4 | 7 3 | 4 8                   ->  3 4 | 4 7 | 9 8 -> 4 7 | 9 8 | 4 3

A row never leaves its epoch: every N positions still hold each example once. So a batch that spans
two epochs takes the longest rows of both.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import UInt64Array, permutation


def assign_bins(
    lengths: NDArray[np.int64], *, start: int, epoch_rows: int, batch_size: int, key: UInt64Array
) -> NDArray[np.int64]:
    """The rows of a window in each of its batches, [bins, batch_size], ascending in each batch.

    `lengths` are those of the rows from position `start` on, the beginning of a batch; their number
    is a multiple of `batch_size`. The result is a pure function of the arguments.
    """
    assigned = np.empty(len(lengths), dtype=np.int64)
    first = -(-start // epoch_rows) * epoch_rows - start  # the first row of the next epoch
    borders = range(first or epoch_rows, len(lengths), epoch_rows)
    for begin, end in zip((0, *borders), (*borders, len(lengths)), strict=True):
        by_length = begin + np.argsort(lengths[begin:end], kind="stable")
        assigned[begin:end] = _in_whole_batches(by_length, begin, batch_size, key)
    return np.sort(assigned.reshape(-1, batch_size), axis=1)


def _in_whole_batches(
    by_length: NDArray[np.int64], begin: int, batch_size: int, key: UInt64Array
) -> NDArray[np.int64]:
    """Rows of one epoch for the slots from `begin` on: full bins, the longest rows in the rest."""
    head = min(-begin % batch_size, len(by_length))  # slots of a batch that began earlier
    whole = (len(by_length) - head) // batch_size
    bins = by_length[: whole * batch_size].reshape(whole, batch_size)
    rest = by_length[whole * batch_size :]
    return np.concatenate([rest[:head], bins[permutation(key, whole)].ravel(), rest[head:]])
