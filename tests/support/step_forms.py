"""Every form that a training step has: layout of the rows, architecture, precision."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining, WordSample
from clozeline.train.data.batch import LoadedBatch
from tests.support.small_models import narrow
from tests.support.small_training import STILL
from tests.train.test_step import make_batch, unpadded


@dataclass(frozen=True)
class StepForm:
    """A model of the vocabulary of `make_batch`, and how it trains on that batch."""

    config: BertConfig
    is_full: bool = False  # no row has padding
    is_unpadded: bool = False
    accumulation: int = 1
    precision: str = "bf16"
    is_packed: bool = False  # two pieces in each row
    is_sampled: bool = False  # a sample of words instead of the vocabulary

    def sample(self, device: torch.device | str) -> WordSample | None:
        if not self.is_sampled:
            return None
        words = torch.arange(1, self.config.vocab_size, 2, device=device)
        return WordSample(words, torch.full((len(words),), 0.7, device=device))

    def model(self) -> BertForPretraining:
        return BertForPretraining(self.config).train()

    @property
    def loaded(self) -> LoadedBatch[Any]:
        loaded = make_batch()
        if self.is_full:
            mask = torch.ones_like(loaded.batch.attention_mask)
            batch = replace(loaded.batch, attention_mask=mask)
            return replace(loaded, batch=batch, num_tokens=mask.numel())
        if self.is_packed:
            pieces = loaded.batch.attention_mask * (1 + (torch.arange(12) > 5).long())
            loaded = replace(loaded, batch=replace(loaded.batch, attention_mask=pieces))
        return replace(loaded, batch=unpadded(loaded.batch)) if self.is_unpadded else loaded


def _narrow(name: str) -> BertConfig:
    return replace(narrow(name), vocab_size=STILL.vocab_size)


FORMS = {
    "padded": StepForm(STILL),
    "full": StepForm(STILL, is_full=True),
    "unpadded": StepForm(STILL, is_unpadded=True),
    "accumulation": StepForm(STILL, accumulation=4),
    "packed": StepForm(STILL, is_packed=True),
    "fp32": StepForm(STILL, precision="fp32"),
    "sampled": StepForm(STILL, is_sampled=True),
    "sampled untied": StepForm(replace(STILL, tie_word_embeddings=False), is_sampled=True),
    "sampled fp32": StepForm(STILL, is_sampled=True, precision="fp32", accumulation=2),
    "nano": StepForm(_narrow("nano")),
    "modern": StepForm(_narrow("modern-nano")),
    "modern unpadded": StepForm(_narrow("modern-nano"), is_unpadded=True),
    "modern packed": StepForm(_narrow("modern-nano"), is_packed=True, is_unpadded=True),
    "bert-pytorch": StepForm(_narrow("bert-pytorch-base"), accumulation=2),
}
