"""The documents of one bucket, as columns: the input of `make_pairs`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Offsets


@dataclass(frozen=True)
class BucketDocuments:
    """The documents of a bucket: D documents, S sentences, T tokens."""

    ids: NDArray[Any]  # [T] uint16 or uint32
    sentence_offsets: Offsets  # [S + 1] in tokens
    document_offsets: Offsets  # [D + 1] in sentences
    paragraphs: NDArray[np.int64]  # [S] the number of the sentence's paragraph, ascending
    hashes: NDArray[np.uint64]  # [D] sorted

    def __len__(self) -> int:
        return len(self.hashes)
