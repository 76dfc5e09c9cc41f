"""Each form of a step runs on tensors of another device, which have no values.

A tensor that is made on the wrong device, or a branch that depends on values (on a GPU it would
wait for them), is an error on meta tensors.
"""

import pytest
import torch

from clozeline.train.data.unpadded import UnpaddedBatch
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import autocast
from clozeline.train.pretraining.step import clip_gradients, forward_losses
from tests.support.step_forms import FORMS

META = World(0, 1, torch.device("meta"))


@pytest.mark.parametrize("name", FORMS)
def test_a_step_neither_mixes_devices_nor_depends_on_values(name):
    form = FORMS[name]
    with torch.device("meta"):
        model = form.model(form.precision)
    if form.precision == "bf16":  # autocast does not know this device
        model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaded = form.loaded.to("meta")
    parts = loaded.batch.split(form.accumulation)
    assert len(parts) == form.accumulation
    assert isinstance(loaded.batch, UnpaddedBatch) == form.is_unpadded
    for part in parts:
        losses, hits = forward_losses(
            model, part, is_full=form.is_full, count_hits=True, sample=form.sample("meta")
        )
        (losses[0] / loaded.num_predictions + losses[1] / loaded.num_pairs).backward()
        assert (losses.device, hits.device) == (META.device, META.device)
    assert clip_gradients(model, 1.0).device == META.device
    optimizer.step()
    assert all(p.grad.device == META.device for p in model.parameters())


@pytest.mark.parametrize("name", ["padded", "bf16 residual"])
def test_sums_pass_between_layers_in_the_format_of_the_form(name):
    form = FORMS[name]
    model, found = form.model("bf16"), []
    model.encoder.layers[-1].register_forward_pre_hook(lambda _, args: found.append(args[0].dtype))
    with autocast("bf16", torch.device("cpu")):
        forward_losses(model, form.loaded.batch, is_full=False, count_hits=False)
    assert found == [form.residual or torch.float32]


def test_a_branch_on_values_or_another_device_would_be_noticed():
    """So the test above can tell."""
    x = torch.ones(2, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        bool(x.sum() > 0)
    with pytest.raises(RuntimeError, match="expected device meta"):
        x @ torch.ones(2)
