"""The optimizer's groups and the steps of a fine-tuning."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from tqdm import tqdm

from clozeline.model.config import preset
from clozeline.model.heads import BertForClassification
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import (
    loss_sum,
    predict_logits,
    rows_per_step,
    train_classifier,
)
from clozeline.train.finetuning.search import Trial
from clozeline.train.labelled.encoding import Encoded
from tests.support.small_models import SMALL

ALONE = World(0, 1, torch.device("cpu"))
TRIAL = Trial(learning_rate=3e-3, epochs=8)


@contextmanager
def fake_world(size, rank):
    """This process as one rank of many: torch's process group "fake" sends nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield World(rank, size, ALONE.device)
    finally:
        torch.distributed.destroy_process_group()


def small_model(**changes):
    return BertForClassification(preset("nano", **{**SMALL, **changes}), 2, pooling="mean")


def some_rows(count):
    """Rows of 2 to 9 tokens, whose second token names the class."""
    random = np.random.default_rng(0)
    lengths, labels = random.integers(2, 10, count), random.integers(0, 2, count)
    values = random.integers(10, 90, lengths.sum()).astype(np.uint32)
    offsets = offsets_of(lengths)
    values[offsets[:-1] + 1] = 5 + labels
    return Encoded(Ragged(values, offsets), lengths, np.zeros(count, bool), 12, 0), labels


def test_few_rows_have_small_batches():
    auto = [rows_per_step(rows, "auto") for rows in (10, 64, 100, 200, 256, 60_000)]
    assert auto == [8, 8, 12, 25, 32, 32]
    assert rows_per_step(10, 16) == 16


@pytest.mark.parametrize(
    ("precision", "is_compiled"),
    [("fp32", False), ("bf16", False), pytest.param("fp32", True, marks=pytest.mark.slow)],
)
def test_a_telling_token_is_learned_in_either_precision(precision, is_compiled):
    rows, labels = some_rows(50)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model = small_model(**sizes, hidden_dropout_prob=0.1)
    config = FinetuneConfig(batch_size=8, precision=precision)
    with tqdm(disable=True) as progress:
        how = {"seed": 3, "progress": progress, "world": ALONE, "trial": TRIAL}
        losses = train_classifier(model, rows, labels, config, is_compiled=is_compiled, **how)
    assert len(losses) == 8
    assert progress.total == 8 * 7
    assert losses[-1] < losses[0] / 2
    found = predict_logits(model, rows, precision=precision)
    assert found.dtype == np.float32
    assert (found.argmax(1) == labels).mean() > 0.9
    assert model.training  # as it was


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_the_loss_of_an_epoch_is_the_mean_over_its_rows(kind):
    """Of a model that learns nothing, in batches of 8, 8 and 4 rows."""
    rows, labels = some_rows(20)
    labels = labels.astype(kind)
    model = small_model()
    config = FinetuneConfig(batch_size=8, precision="fp32")
    with tqdm(disable=True) as progress:
        trial = Trial(learning_rate=0.0, epochs=2)
        how = {"seed": 3, "progress": progress, "world": ALONE, "trial": trial}
        losses = train_classifier(model, rows, labels, config, **how)
    logits = torch.from_numpy(predict_logits(model, rows))
    expected = float(loss_sum(logits, torch.from_numpy(labels))) / 20
    assert losses == pytest.approx([expected, expected], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "count", "pooling"),
    [(np.int64, 1, "mean"), (np.int64, 2, "mask"), (np.int64, 7, "mask"), (np.float32, 7, "mean")],
)
def test_the_gradients_of_the_processes_add_up_to_that_of_one(kind, count, pooling):
    """The mean over the rows of all, in one step: of classes, and of a regression."""
    rows, labels = some_rows(count)
    labels = labels.astype(kind)
    alone = step_gradients(ALONE, rows, labels, pooling)
    found = {}
    for rank in range(3):
        with fake_world(3, rank) as world:
            found[rank] = step_gradients(world, rows, labels, pooling)
    assert [bool(found[rank]) for rank in range(3)] == [rank < count for rank in range(3)]
    for name, gradient in alone.items():
        summed = sum(gradients[name] for gradients in found.values() if gradients)
        torch.testing.assert_close(summed, gradient, rtol=1e-4, atol=1e-6)


def test_each_process_draws_dropout_of_its_own():
    row, labels = some_rows(1)
    alike = row.take(np.array([0, 0]))
    drawn = []
    for rank in range(2):
        with fake_world(2, rank) as world:
            drawn.append(step_gradients(world, alike, labels[[0, 0]], dropout=0.5))
    name = "encoder.layers.0.feed_forward.up.weight"
    assert not torch.equal(drawn[0][name], drawn[1][name])


def step_gradients(world, rows, labels, pooling="mean", dropout=0.0):
    """A process's own gradients of a step; none where it has no row."""
    config = preset("nano", **{**SMALL, "hidden_dropout_prob": dropout})
    outputs = 1 if labels.dtype.kind == "f" else 2
    model = BertForClassification(config, outputs, pooling=pooling, mask_position=1)
    found = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: found.update({name: p.grad.clone()})
        )
    how = FinetuneConfig(batch_size=8, precision="fp32")
    with tqdm(disable=True) as progress:
        fixed = {"trial": Trial(learning_rate=1e-3, epochs=1), "seed": 3, "progress": progress}
        train_classifier(model, rows, labels, how, world=world, **fixed)
    return found
