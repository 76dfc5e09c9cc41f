"""What a training step saves where masked words are compared with a sample of the vocabulary.

    python tests/benchmarks/sampled_words_speed.py [--rounds N]
        [PRESET:ROWSxTOKENS:PREDICTIONS:VOCABULARY:WORDS ...]

Both sides are models in one process that take turns with the same random batch; printed are the
medians of CPU seconds per step, and of the ratios of turns.
"""

import statistics
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import nn

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.malloc import disable_malloc_trim
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.pretraining.step import train_step
from clozeline.train.pretraining.word_sampler import WordSampler
from tests.benchmarks.last_layer_speed import parsed, random_batch
from tests.benchmarks.training_speed import STILL
from tests.support.training_configs import training_config

CASES = (
    "nano:128x64:10:16384:4096",
    "nano:128x64:20:16384:4096",
    "micro:128x64:20:16384:4096",
    "bert-base:8x128:20:30522:4096",
)
STEPS = 3  # in a turn
ALONE = World(0, 1, torch.device("cpu"))


def main() -> None:
    """A line for each case."""
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
            sides.append((model, optimizer, WordSampler(np.ones(vocabulary), size, seed=0)))
        turns = [[seconds(*side, batch) for side in sides] for _ in range(1 + arguments.rounds)][1:]
        every, some = (statistics.median(side) for side in zip(*turns, strict=True))
        ratio = statistics.median(before / after for before, after in turns)
        print(f"{case:32} all words {every:6.3f}   sample {some:6.3f}   {ratio:.2f} times")


def seconds(
    model: nn.Module, optimizer: Any, sampler: WordSampler, batch: LoadedBatch[Batch]
) -> float:
    """CPU seconds of a step that is not logged, of all threads."""
    start = process_time()
    for step in range(STEPS):
        train_step(
            model,
            optimizer,
            batch,
            world=ALONE,
            accumulation=1,
            precision="bf16",
            clip=1.0,
            count_hits=False,
            sample=sampler.at(step),
        )
    return (process_time() - start) / STEPS


if __name__ == "__main__":
    main()
