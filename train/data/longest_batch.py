"""A batch of full rows, for what must know how much a step takes."""

from typing import Any

import numpy as np

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, NO_PAIR, Examples
from clozeline.train.data.batch import LoadedBatch, collate
from clozeline.train.data.unpadded import collate_unpadded

TOKEN_ID = 5  # any would do


def longest_batch(rows: int, data: DataConfig, *, unpadded: bool) -> LoadedBatch[Any]:
    """A batch of `rows` as long as the data allows, with as many masked tokens; one piece each."""
    length, masks = data.max_seq_length, min(data.predictions, data.max_seq_length - 2)

    def repeated(row: Any, dtype: Any) -> Ragged:
        return Ragged(np.tile(np.asarray(row, dtype), rows), offsets_of([len(row)] * rows))

    number = np.arange(rows)
    documents = number.astype(np.uint64)
    pieces = offsets_of([1] * rows)
    examples = Examples(
        input_ids=repeated([TOKEN_ID] * length, np.uint32),
        masked_lm_positions=repeated(range(1, masks + 1), np.uint16),
        masked_lm_labels=repeated([TOKEN_ID] * masks, np.uint32),
        length_a=np.full(rows, length // 2 if data.has_pairs else length, np.uint16),
        next_sentence_label=np.full(rows, B_FOLLOWS_A if data.has_pairs else NO_PAIR, np.int8),
        document_a=documents,
        document_b=documents,
        piece_lengths=repeated([length], np.uint16) if data.is_packed else None,
        piece_documents=Ragged(documents, pieces) if data.is_packed else None,
    )
    if unpadded:
        batch: Any = collate_unpadded(examples, number, max_seq_length=length)
    else:
        how = {"max_seq_length": length, "max_predictions": data.predictions, "pad_id": 0}
        batch = collate(examples, number, **how)
    # With 0 tokens, as if most were padding, so that a step does not leave the mask out.
    return LoadedBatch(
        batch=batch, next_position=0, num_tokens=0, num_predictions=1, num_pairs=1, digest=0
    )
