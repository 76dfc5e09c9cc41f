"""The shard that a document belongs to, as a function of its text alone.

The BLAKE2b-128 hash of the extracted text decides: its high half whether the document is held out
for validation, its low half the shard; documents with equal hashes are duplicates. So a document
always goes to the same shard, whatever file, block or worker it comes from.

    "It was old."  ->  (0x51c2..., 0x0c4a...)  ->  bucket 3: train-00003-of-00064
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, uniform_below, with_probability
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.shards import shard_name

TEXT_BYTES_PER_SHARD = 64_000_000

TRAIN = "train"
VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The shards of a data set: training shards first, then validation shards."""

    num_train: int
    num_validation: int
    validation: float

    @classmethod
    def plan(cls, config: DataConfig, text_bytes: int) -> Self:
        """`num_shards` of the config, or one shard per 64 MB of text; validation in proportion."""
        num_train = config.num_shards or max(1, math.ceil(text_bytes / TEXT_BYTES_PER_SHARD))
        num_validation = math.ceil(num_train * config.validation)
        return cls(num_train=num_train, num_validation=num_validation, validation=config.validation)

    def __len__(self) -> int:
        return self.num_train + self.num_validation

    def split_of(self, bucket: int) -> tuple[str, int]:
        """The split of a bucket, and its index inside the split."""
        if bucket < self.num_train:
            return TRAIN, bucket
        return VALIDATION, bucket - self.num_train

    def shard_name(self, bucket: int, format: str) -> str:
        split, index = self.split_of(bucket)
        count = self.num_train if split == TRAIN else self.num_validation
        return shard_name(split, index, count, format)

    def of(self, high: UInt64Array, low: UInt64Array) -> NDArray[np.int64]:
        """The bucket of each document, [D], from the halves of its hash."""
        held_out = with_probability(high, self.validation)
        in_train = uniform_below(low, self.num_train)
        in_validation = self.num_train + uniform_below(low, self.num_validation)
        return np.where(held_out, in_validation, in_train)


def hash_documents(texts: Sequence[str]) -> tuple[UInt64Array, UInt64Array]:
    """The high and low halves of each text's BLAKE2b-128 hash, uint64 [D] each."""
    return hash_encoded(text.encode() for text in texts)


def hash_encoded(texts: Iterable[bytes]) -> tuple[UInt64Array, UInt64Array]:
    """As `hash_documents`, of texts in UTF-8."""
    digests = b"".join([hashlib.blake2b(text, digest_size=16).digest() for text in texts])
    halves = np.frombuffer(digests, dtype=">u8").reshape(-1, 2).astype(np.uint64)
    return halves[:, 0], halves[:, 1]
