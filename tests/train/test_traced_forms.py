"""What of each form is known without a GPU: eager and traced on fake CUDA tensors.

A graph break, a tensor on the wrong device, or a branch that depends on values is an error.
"""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.nn.functional import cross_entropy

from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.train.data.loader import Loader
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import autocast
from clozeline.train.evaluation.evaluate import evaluate_model
from clozeline.train.labelled.encoding import training_batches
from clozeline.train.pretraining.step import forward_losses, is_full
from tests.support.pretended_gpu import WithoutDevice, pretended_gpu
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_models import narrow
from tests.support.small_training import STILL
from tests.support.step_forms import FORMS
from tests.train.test_finetune_loop import some_rows
from tests.train.test_step import make_batch

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
NANO = replace(narrow("nano"), vocab_size=STILL.vocab_size)
#: The other forms take half a second to two seconds each.
SOME = [
    name if name == "modern unpadded" else pytest.param(name, marks=pytest.mark.slow)
    for name in FORMS
]
#: Graphs of ten steps: with the second number of tokens, the number becomes a symbol; packed rows
#: have one number.
LAYOUTS = [
    pytest.param("segments", {}, 1, marks=pytest.mark.slow),
    ("segments", {"unpadded": True}, 2),
    pytest.param("segments", {"length_bins": 3}, 1, marks=pytest.mark.slow),
    pytest.param("packed", {}, 1, marks=pytest.mark.slow),
    ("packed", {"unpadded": True}, 1),
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:CUDA is not available"),
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs torch's CUDA build"),
]


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests():
    torch._dynamo.reset()


def on_gpu(build, *arguments, **options):
    """A model there; without a device, torch cannot be asked whether a weight is drawn again."""
    with WithoutDevice(), CUDA:
        return build(*arguments, **options)


def losses_of(called, batch, *, is_full, precision="bf16", device=CUDA, sample=None):
    with autocast(precision, device):
        losses, _ = forward_losses(called, batch, is_full=is_full, count_hits=True, sample=sample)
    return losses


def losses_of_form(called, form, loaded, device):
    """Of the first pass of a step."""
    [part, *_] = loaded.batch.split(form.accumulation)
    options = {"is_full": form.is_full, "sample": form.sample(device)}
    return losses_of(called, part, precision=form.precision, device=device, **options)


@pytest.mark.parametrize("name", SOME)
def test_a_form_is_one_graph_on_a_gpu(name):
    form, counter = FORMS[name], CompileCounter()
    loaded = form.loaded
    with pretended_gpu():
        model = on_gpu(form.model)
        called = torch.compile(model, fullgraph=True, backend=counter)
        with WithoutDevice():
            loaded = loaded.to(CUDA)
        losses = losses_of_form(called, form, loaded, CUDA)
    assert (losses.device, counter.frame_count) == (CUDA, 1)


@pytest.mark.parametrize("name", SOME)
def test_the_backward_pass_of_a_form_is_traced_with_it(name):
    """On the CPU: autograd asks for CUDA's device, also under the tracer."""
    form = FORMS[name]
    model = form.model()
    called = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_backward(losses_of_form(called, form, form.loaded, CPU).sum(), model)


def assert_backward(loss, model):
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()


@pytest.mark.parametrize(("pairs", "options", "graphs"), LAYOUTS)
def test_ten_steps_of_a_real_loader_are_one_or_two_graphs(pairs, options, graphs, tmp_path):
    config = replace(SMALL, max_seq_length=32, max_predictions_per_seq=5, pairs=pairs)
    shards = write_data_set(tmp_path, train=(100,), config=config)
    batches = list(islice(Loader(shards, batch_size=8, seed=0, **options), 10))
    counter = CompileCounter()
    with pretended_gpu():
        called = torch.compile(on_gpu(BertForPretraining, NANO), fullgraph=True, backend=counter)
        for loaded in batches:
            with WithoutDevice():
                batch = loaded.to(CUDA).batch
            losses_of(called, batch, is_full=is_full(loaded))
    assert counter.frame_count == graphs


@pytest.mark.parametrize("pooling", ["mean", pytest.param("cls", marks=pytest.mark.slow)])
def test_ten_steps_of_fine_tuning_are_two_graphs(pooling):
    """With the second length of its batches, the length becomes a symbol."""
    rows, labels = some_rows(80)
    batches = list(training_batches(rows.input_ids.lengths, batch_size=8, seed=0, epoch=0))
    shapes = {rows.inputs(batch)[0].shape for batch in batches}
    counter = CompileCounterWithBackend("aot_eager")
    model = BertForClassification(replace(narrow("nano"), num_hidden_layers=1), 2, pooling=pooling)
    called = torch.compile(model, fullgraph=True, backend=counter)
    for batch in batches:
        with autocast("bf16", CPU):
            logits = called(*rows.inputs(batch))
        assert_backward(cross_entropy(logits.float(), torch.from_numpy(labels[batch])), model)
    assert (len(batches), len(shapes) > 1, counter.frame_count) == (10, True, 2)


def test_an_evaluation_of_a_compiled_model_compiles_nothing():
    """Its batches have other shapes than those of training."""
    counter, unigram = CompileCounter(), np.full(NANO.vocab_size, -1.0)
    model, loaded = BertForPretraining(NANO), make_batch()
    model.compile(backend=counter)
    alone = World(0, 1, CPU)
    evaluate_model(model, [loaded], log_unigram=unigram, world=alone, precision="fp32")
    assert counter.frame_count == 0
    losses_of(model, loaded.batch, is_full=False, precision="fp32", device=CPU)
    assert counter.frame_count == 1
