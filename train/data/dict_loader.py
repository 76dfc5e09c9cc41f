"""Batches as dictionaries, for other training loops: Trainer, Accelerate, Lightning.

    loader = DictLoader(Loader("work/shards", batch_size=256, seed=0))
    for inputs in loader:
        loss = model(**inputs).loss  # a BertForPreTraining of transformers

Give it to a `DataLoader` or `StatefulDataLoader` with `batch_size=None`: its batches are whole.
"""

from collections.abc import Collection, Iterator
from contextlib import closing
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from clozeline.pipeline.common.errors import InputError
from clozeline.train.data.batch import Batch
from clozeline.train.data.loader import Loader

IGNORED = -100  #: the label that transformers' losses ignore
KEYS = ("input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label")


class DictLoader(IterableDataset[dict[str, Tensor]]):
    """The batches of a loader, each a dictionary of int64 tensors of B rows.

        >>> batches = DictLoader(Loader("work/shards", batch_size=8, seed=0), steps=3)
        >>> [inputs["labels"].shape[0] for inputs in batches]
        [8, 8, 8]

    input_ids, token_type_ids, attention_mask [B, S]; labels [B, S], -100 where nothing is masked;
    next_sentence_label [B], 1 for a random pair and -100 for a row without one. `keys` names those
    that the model takes, such as ("input_ids", "attention_mask", "labels") of a ModernBERT.

    It ends after `steps` batches, counting those before a resumed position; without `steps`, never.
    Then Lightning, which fetches one batch ahead to find the end, saves one batch ahead.

    `state_dict` and `load_state_dict` are the loader's. Raises InputError for unknown keys, and for
    packed or unpadded rows, which only this project's models read.
    """

    def __init__(
        self, loader: Loader, *, steps: int | None = None, keys: Collection[str] = KEYS
    ) -> None:
        if unknown := sorted({*keys} - {*KEYS}):
            raise InputError(f"no batch has {', '.join(unknown)}; choose from {', '.join(KEYS)}.")
        if loader.shards.manifest.config.is_packed:
            raise InputError(
                f"{loader.shards.folder} has packed rows, whose attention other models do not "
                "have; build shards with --pairs none."
            )
        if loader.is_unpadded:
            raise InputError("unpadded batches cannot be dictionaries of rows; leave unpadded out.")
        self.loader, self.keys, self.steps = loader, tuple(keys), steps

    def __len__(self) -> int:
        """The number of batches. Raises TypeError where there is no end."""
        if self.steps is None:
            raise TypeError("the sequence has no end; give DictLoader `steps`.")
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        end = inf if self.steps is None else self.steps * self.loader.batch_size
        with closing(iter(self.loader)) as batches:
            while self.loader.next_position < end:
                loaded = next(batches)
                if loaded.next_position > end:
                    return  # the end is among the batches of other workers
                inputs = as_dictionary(loaded.batch)
                yield {key: inputs[key] for key in self.keys}

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed out.

        Raises InputError in one of several worker processes, which take turns with the batches.
        """
        worker = get_worker_info()
        if worker and worker.num_workers > 1:
            raise InputError(
                f"{worker.num_workers} workers have no common position to save; give the "
                "DataLoader num_workers=0 (the loader has threads of its own) or 1."
            )
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the next example. Raises InputError as `Loader.load_state_dict` does."""
        self.loader.load_state_dict(state)


def as_dictionary(batch: Batch) -> dict[str, Tensor]:
    """The inputs and labels that BertForPreTraining of transformers takes."""
    rows = torch.arange(len(batch), device=batch.input_ids.device)[:, None]
    is_masked = batch.masked_lm_weights > 0
    labels = torch.full_like(batch.input_ids, IGNORED)
    # Unused slots point at position 0, which is never masked: [CLS] is there.
    labels[rows, batch.masked_lm_positions] = batch.masked_lm_labels.where(is_masked, IGNORED)
    pairs = batch.next_sentence_labels
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "attention_mask": batch.attention_mask.long(),
        "labels": labels,
        "next_sentence_label": pairs.where(pairs >= 0, IGNORED),
    }
