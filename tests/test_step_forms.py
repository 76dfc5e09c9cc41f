"""Each form of a step runs on meta tensors, where mixed devices and branches on values are errors.

On a GPU such a branch would wait for the values.
"""

import pytest
import torch

from clozeline.train.data.unpadded import UnpaddedBatch
from clozeline.train.engine.distributed import World
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
