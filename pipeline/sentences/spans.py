"""Sentences as slices of one UTF-8 text, so that millions of them need no Python objects.

"It is. So there!\\nYes"  ->  data "It is. So there! Yes",  starts [0 7 17],  ends [6 16 20]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from clozeline.pipeline.common.ragged import Offsets, offsets_of, slice_indices

BLANK = 0x20
SLAB_BYTES = 1 << 20  # split at once: the working set stays in the processor's cache


@dataclass(frozen=True)
class Sentences:
    """S sentences; number i is data[starts[i] : ends[i]], and only spaces are between them."""

    data: bytes
    starts: Offsets  #: int64 [S], ascending
    ends: Offsets  #: int64 [S]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice) -> "Sentences":
        return Sentences(self.data, self.starts[rows], self.ends[rows])

    @classmethod
    def of(cls, sentences: Sequence[str]) -> "Sentences":
        """The sentences joined by spaces. Raises UnicodeEncodeError for a lone surrogate."""
        encoded = [sentence.encode() for sentence in sentences]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        starts = offsets_of(lengths + 1)[:-1]
        return cls(b" ".join(encoded), starts, starts + lengths)

    def to_list(self) -> list[str]:
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.data[start:end].decode() for start, end in spans]

    def slabs(self) -> Iterator["Sentences"]:
        """The sentences in parts of about SLAB_BYTES; at least one part."""
        total = int(self.ends[-1]) if len(self) else 0
        cuts = np.searchsorted(self.ends, np.arange(SLAB_BYTES, total, SLAB_BYTES)).tolist()
        for start, stop in pairwise([0, *cuts, len(self)]):
            starts, ends = self.starts[start:stop], self.ends[start:stop]
            first, last = (int(starts[0]), int(ends[-1])) if start < stop else (0, 0)
            yield Sentences(self.data[first:last], starts - first, ends - first)


def without_gaps(data: bytes, starts: Offsets, ends: Offsets) -> Sentences:
    """The sentences in a text that may have any bytes between them, which become spaces."""
    begins, stops = np.append(0, ends), np.append(starts, len(data))
    outside = slice_indices(begins, stops - begins)
    odd = outside[np.frombuffer(data, np.uint8)[outside] != BLANK]
    if len(odd):
        blanked = np.frombuffer(bytearray(data), np.uint8)
        blanked[odd] = BLANK
        data = blanked.tobytes()
    return Sentences(data, starts, ends)
