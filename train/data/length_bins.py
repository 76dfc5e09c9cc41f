"""Length bins: which rows of a window go into which of its batches.

A window is `length_bins` global batches long. Its rows are sorted by length and cut into one bin
for each batch, and the bins are put in random order:

    lengths in a window of 3 batches      bins               batches
    9 4 | 7 3 | 4 8                   ->  3 4 | 4 7 | 9 8 -> 4 7 | 9 8 | 4 3

Each stream of the order (`order.py`) is sorted by itself, so that a process needs no lengths of
rows that others read; the bins of all streams are put in the same order.

A row never leaves its epoch: every N positions still hold each example once. So a batch that spans
two epochs takes the longest rows of both.
"""

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, permutation


def assign_bins(
    lengths: NDArray[np.int64],
    *,
    start: int,
    epoch_rows: int,
    batch_size: int,
    key: UInt64Array,
    streams: int = 1,
    stream: int = 0,
) -> NDArray[np.int64]:
    """The rows of one stream in each batch of a window, [bins, batch_size / streams], ascending.

    `lengths` are those of the rows at positions stream, stream + streams, ... from `start` on, the
    beginning of a batch; `streams` divides the batch size. A row is the index of its length. The
    result is a pure function of the arguments.
    """
    in_batch = batch_size // streams
    slots = stream + streams * np.arange(len(lengths))  # in the window
    end = len(lengths) * streams
    assigned = np.empty(len(lengths), dtype=np.int64)
    first = -(-start // epoch_rows) * epoch_rows - start  # the first slot of the next epoch
    borders = range(first or epoch_rows, end, epoch_rows)
    for begin, stop in zip((0, *borders), (*borders, end), strict=True):
        # Batches that lie within the epoch, and the slots before them, of a batch begun earlier.
        first_batch, batches_end = -(-begin // batch_size), stop // batch_size
        low, head, high = np.searchsorted(
            slots, (begin, min(first_batch * batch_size, stop), stop)
        ).tolist()
        whole = max(batches_end - first_batch, 0)
        by_length = low + np.argsort(lengths[low:high], kind="stable")
        bins = by_length[: whole * in_batch].reshape(whole, in_batch)[permutation(key, whole)]
        longest = by_length[whole * in_batch :]
        parts = longest[: head - low], bins.ravel(), longest[head - low :]
        assigned[low:high] = np.concatenate(parts)
    return np.sort(assigned.reshape(-1, in_batch), axis=1)
