"""What a training step saves where masked words are compared with a sample of the vocabulary.

    python tests/benchmarks/sampled_words_speed.py [--rounds N]
        [PRESET:ROWSxTOKENS:PREDICTIONS:VOCABULARY:WORDS ...]

Both sides are models in one process that take turns with the same random batch; printed are the
medians of CPU seconds per step, and of the ratios of turns.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.memory import disable_malloc_trim
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.pretraining.step import WordSampler
from tests.benchmarks.last_layer_speed import STEPS, parsed, random_batch
from tests.benchmarks.measuring import in_turns
from tests.benchmarks.training_speed import STILL, one_step
from tests.support.training_configs import training_config

CASES = (
    "nano:128x64:10:16384:4096",
    "nano:128x64:20:16384:4096",
    "micro:128x64:20:16384:4096",
    "bert-base:8x128:20:30522:4096",
)


def main() -> None:
    arguments = parsed(__doc__, CASES)
    disable_malloc_trim()
    print(f"CPU seconds of a step, bf16, Muon, {torch.get_num_threads()} threads")
    for case in arguments.cases:
        name, shape, *numbers = case.split(":")
        predictions, vocabulary, words = map(int, numbers)
        rows, tokens = map(int, shape.split("x"))
        config = preset(name, max_position_embeddings=tokens, vocab_size=vocabulary, **STILL)
        batch = random_batch(rows, tokens, predictions, vocabulary)
        sides = []
        for size in (0, words):
            model = BertForPretraining(config).train()
            optimizer = build_optimizer(model, training_config(optimizer="muon"))
            sampler = WordSampler(np.ones(vocabulary), size, seed=0)
            sides.append(partial(steps, model, optimizer, sampler, batch))
        every, some, ratio = in_turns(*sides, rounds=arguments.rounds)
        print(
            f"{case:32} all words {every / STEPS:6.3f}   sample {some / STEPS:6.3f}   "
            f"{ratio:.2f} times"
        )


def steps(
    model: nn.Module, optimizer: Any, sampler: WordSampler, batch: LoadedBatch[Batch]
) -> None:
    for step in range(STEPS):
        one_step(model, optimizer, batch, "bf16", sample=sampler.at(step))


if __name__ == "__main__":
    main()
