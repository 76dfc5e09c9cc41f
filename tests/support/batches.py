"""Several batches joined into one."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from clozeline.pipeline.common.ragged import offsets_of
from clozeline.train.data.batch import Batch
from clozeline.train.data.unpadded import UnpaddedBatch


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
