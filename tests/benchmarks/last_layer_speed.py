"""What a training step saves where the last layer ends with the tokens that are predicted.

    python tests/benchmarks/last_layer_speed.py [--rounds N] [PRESET:ROWSxTOKENS:PREDICTIONS ...]

The baseline computes all states and then takes those that are predicted, as `transformers` does.
Both sides are models in one process that take turns with the same random batch; printed are the
medians of CPU seconds per step, and of the ratios of turns.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clozeline.model.bert import states_at
from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.memory import disable_malloc_trim
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.engine.optim import build_optimizer
from tests.benchmarks.measuring import in_turns
from tests.benchmarks.training_speed import STILL, one_step
from tests.support.training_configs import training_config

CASES = ("nano:128x64:10", "micro:128x64:20", "micro:32x256:39", "bert-base:8x128:20")
STEPS = 3  # in a turn


def main() -> None:
    arguments = parsed(__doc__, CASES)
    disable_malloc_trim()
    print(f"CPU seconds of a step, bf16, AdamW, {torch.get_num_threads()} threads")
    for case in arguments.cases:
        name, shape, predictions = case.split(":")
        rows, tokens = map(int, shape.split("x"))
        config = preset(name, max_position_embeddings=tokens, **STILL)
        batch = random_batch(rows, tokens, int(predictions), config.vocab_size)
        models = [BertForPretraining(config).train() for _ in range(2)]
        compute_whole_last_layer(models[0].encoder)
        sides = (partial(steps, m, build_optimizer(m, training_config()), batch) for m in models)
        whole, part, ratio = in_turns(*sides, rounds=arguments.rounds)
        print(
            f"{case:24} whole layer {whole / STEPS:6.3f}   predicted {part / STEPS:6.3f}   "
            f"{ratio:.2f} times"
        )


def parsed(description: str, cases: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=cases)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def compute_whole_last_layer(encoder: nn.Module) -> None:
    """Let the encoder compute all states, and return those at the positions."""
    forward = encoder.forward

    def whole(*inputs: Any) -> tuple[Tensor, Tensor]:
        *inputs, positions = inputs
        hidden, pooled = forward(*inputs)
        return states_at(hidden, positions), pooled

    encoder.forward = whole


def random_batch(rows: int, tokens: int, predictions: int, vocabulary: int) -> LoadedBatch[Batch]:
    """Rows without padding, and without pairs."""
    slots = torch.rand(rows, tokens).argsort(1)[:, :predictions].sort(1).values
    ids = torch.randint(5, vocabulary, (rows, tokens))
    batch = Batch(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        attention_mask=torch.ones_like(ids, dtype=torch.bool),
        masked_lm_positions=slots,
        masked_lm_labels=ids.gather(1, slots),
        masked_lm_weights=torch.ones(rows, predictions),
        next_sentence_labels=torch.full((rows,), -1),
        example_weights=torch.ones(rows),
    )
    return LoadedBatch(
        batch=batch,
        next_position=rows,
        num_tokens=ids.numel(),
        num_predictions=slots.numel(),
        num_pairs=0,
        digest=0,
    )


def steps(model: nn.Module, optimizer: Any, batch: LoadedBatch[Batch]) -> None:
    for _ in range(STEPS):
        one_step(model, optimizer, batch, "bf16")


if __name__ == "__main__":
    main()
