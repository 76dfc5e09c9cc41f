"""Activation checkpointing: the same gradients, from less memory."""

from dataclasses import replace

import pytest
import torch

from clozeline.model.heads import BertForPretraining, masked_lm_loss_sum
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_models import answers, batch_of, gradients, narrow, packed, shaken
from tests.support.small_training import TINY, assert_same_run, train

LAYOUTS = ["padded", "full", "pieces", "unpadded"]


def inputs(layout):
    batch, (_, weights, _) = batch_of(), answers()
    if layout == "unpadded":
        return packed(batch, weights)
    if layout == "full":
        return batch | {"attention_mask": None}
    if layout == "pieces":
        return batch | {"attention_mask": batch["attention_mask"].cumsum(1) // 7}
    return batch


def gradients_of(config, layout, *, recomputes, precision=torch.float32):
    """The gradients of one loss; the generator is left where the next step would find it."""
    model = shaken(config).train()
    if recomputes:
        model.encoder.checkpoint_activations()
    torch.manual_seed(5)
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        logits, nsp = model(**inputs(layout))
    labels, weights, _ = answers()
    if layout == "unpadded":
        labels, weights = labels[weights > 0], weights[weights > 0]
    loss = masked_lm_loss_sum(logits, labels, weights) + nsp.float().square().sum()
    loss.backward()
    return gradients(model), torch.rand(3)


@pytest.mark.parametrize(
    ("name", "layout", "precision"),
    [
        *((name, x, torch.float32) for name in ("bert-mini", "modern-mini") for x in LAYOUTS),
        ("modern-mini", "padded", torch.bfloat16),
    ],
)
def test_the_gradients_are_bitwise_those_of_kept_activations(name, layout, precision):
    """With the same dropout."""
    dropout = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    config = replace(narrow(name), **dropout)
    (kept, after), (found, after_too) = (
        gradients_of(config, layout, recomputes=x, precision=precision) for x in (False, True)
    )
    assert found.keys() == kept.keys()
    for parameter, gradient in kept.items():
        assert torch.equal(found[parameter], gradient), parameter
    assert torch.equal(after, after_too)  # the backward pass draws nothing


def saved_bytes(model, batch):
    """What autograd keeps for the backward pass, each storage once."""
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(**batch)
    del outputs
    return sum(storages.values())


def test_each_layer_keeps_its_input_alone():
    """Between one layer and three the difference is two inputs [B, S, H]."""

    def kept(layers, *, recomputes):
        config = replace(narrow("modern-mini"), num_hidden_layers=layers)
        model = BertForPretraining(config).train()
        if recomputes:
            model.encoder.checkpoint_activations()
        parameters = sum(p.nbytes for p in model.parameters())
        return saved_bytes(model, batch_of()) - parameters

    one, three = (kept(layers, recomputes=True) for layers in (1, 3))
    row = 4 * 24 * narrow("modern-mini").hidden_size * 4  # [B, S, H] in float32
    assert three - one <= 2 * row
    assert kept(3, recomputes=False) - kept(1, recomputes=False) > 20 * row


def test_a_run_is_the_same_with_and_without(tmp_path):
    folder = write_data_set(tmp_path / "shards", train=(40,), validation=(8,), config=SMALL)
    assert TINY.hidden_dropout_prob
    for name, checkpointing in (("kept", False), ("again", True)):
        options = {"micro_batch_size": 4, "activation_checkpointing": checkpointing}
        train(folder, tmp_path / name, max_steps=4, **options)
    assert_same_run(tmp_path / "again", tmp_path / "kept")
