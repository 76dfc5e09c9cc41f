"""What tests compute from batches: the digest of one, and several joined into one."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import (
    GOLDEN,
    UInt64Array,
    mix64,
    random_bits,
    stream_key,
)
from clozeline.pipeline.common.ragged import offsets_of
from clozeline.train.data.batch import Batch
from clozeline.train.data.unpadded import UnpaddedBatch


def batch_digest(batch: Batch, start: int) -> int:
    """That of the content of rows at positions start, start + 1, ...; a signed 64-bit number."""
    hashes = example_hashes(batch, start + np.arange(len(batch)))
    return int(hashes.sum().view(np.int64))


def concatenate(parts: list[Batch]) -> Batch:
    """All rows of the parts, in order."""
    columns = [part.tensors() for part in parts]
    return Batch(**{name: torch.cat([column[name] for column in columns]) for name in columns[0]})


def concatenate_unpadded(parts: list[UnpaddedBatch]) -> UnpaddedBatch:
    """All rows of the parts, in order; a single part is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {
        name: torch.cat([part.tensors()[name] for part in parts]) for name in parts[0].tensors()
    }
    before = offsets_of([part.num_tokens for part in parts]).tolist()
    moved = [part.masked_lm_positions + n for part, n in zip(parts, before, strict=False)]
    joined["masked_lm_positions"] = torch.cat(moved)
    for name in ("token_offsets", "sequence_offsets", "masked_offsets"):
        lengths = [np.diff(getattr(part, name)) for part in parts]
        joined[name] = offsets_of(np.concatenate(lengths))
    joined["cu_seqlens"] = torch.from_numpy(joined["sequence_offsets"].astype(np.int32))
    if parts[0].row_starts is not None:
        joined["row_starts"] = torch.from_numpy(joined["token_offsets"].astype(np.int32))
    return replace(parts[0], **joined)


def example_hashes(batch: Batch, positions: NDArray[np.int64]) -> UInt64Array:
    """A 64-bit hash of each row and its position in the endless sequence, [B]; 0 for padding rows.

    It covers the whole row: masked ids, masked positions and labels, where B begins and ends, the
    next-sentence label. A sum modulo 2**64 with random weights takes one pass.
    """
    arrays = {name: tensor.numpy() for name, tensor in batch.tensors().items()}
    lengths_b = arrays["token_type_ids"].sum(axis=1)  # row lengths follow from the padding
    sums = np.zeros(len(batch), dtype=np.uint64)
    for name in ("input_ids", "masked_lm_positions", "masked_lm_labels"):
        column = arrays[name].view(np.uint64)
        sums += np.einsum("bs,s->b", column, digest_weights(name, column.shape[1]))
    rest = np.stack([lengths_b, arrays["next_sentence_labels"]], axis=1).view(np.uint64)
    sums += np.einsum("bs,s->b", rest, digest_weights("rest", rest.shape[1]))
    hashes = mix64(mix64(positions) + sums + GOLDEN)
    return np.where(arrays["example_weights"] > 0, hashes, np.uint64(0))


@lru_cache
def digest_weights(name: str, width: int) -> UInt64Array:
    """The random weight of each slot of a column in the row hash, [width]."""
    return random_bits(stream_key(0, f"digest/{name}"), np.arange(width))
