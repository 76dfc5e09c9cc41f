"""The words that a step's masked-LM loss compares with, instead of the whole vocabulary.

    the most frequent words    always, a tenth of the sample
    others                     drawn anew in each step; each counts as (V - F) / (K - F) words

    V vocabulary   K words of the sample   F frequent ones of them

The output layer is most of a small model's arithmetic; with a sample it costs K / V as much. Seed,
step and word counts alone decide on a sample: all processes and passes of a step share it, and a
resumed run continues with the same ones.
"""

import math

import numpy as np
import torch
from numpy.typing import ArrayLike

from clozeline.model.heads import WordSample
from clozeline.pipeline.common.counter_rng import random_bits, stream_key

FREQUENT = 0.1  # of a sample
CPU = torch.device("cpu")


class WordSampler:
    """Samples of `size` words of a vocabulary; without a size, or with a larger one, none."""

    def __init__(
        self, token_counts: ArrayLike, size: int, *, seed: int, device: torch.device = CPU
    ) -> None:
        """`token_counts` [V]: how often each word occurs in training."""
        counts = np.asarray(token_counts)
        self.size = size if size < len(counts) else 0
        self.seed = seed
        by_frequency = np.argsort(-counts, kind="stable")
        self.frequent, self.others = np.split(by_frequency, [int(FREQUENT * self.size)])
        log_weights = np.zeros(self.size, np.float32)
        if self.size:
            others = self.size - len(self.frequent)
            log_weights[len(self.frequent) :] = math.log(len(self.others) / others)
        self._log_weights = torch.from_numpy(log_weights).to(device)

    def at(self, step: int) -> WordSample | None:
        """The sample of a step; None stands for the whole vocabulary. A GPU is not waited for."""
        if not self.size:
            return None
        drawn = self.size - len(self.frequent)
        bits = random_bits(stream_key(self.seed, "words", step), self.others.astype(np.uint64))
        others = self.others[np.argpartition(bits, drawn - 1)[:drawn]]
        words = torch.from_numpy(np.concatenate([self.frequent, others]))
        device = self._log_weights.device
        if device.type == "cuda":
            words = words.pin_memory()
        return WordSample(words.to(device, non_blocking=True), self._log_weights)
