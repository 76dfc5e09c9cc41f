"""Training that resumes at the next example: in other trainers, and in any number of processes."""

import runpy
from dataclasses import replace
from functools import cache
from itertools import islice, product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from clozeline.pipeline.common.errors import InputError
from clozeline.train.data.loader import Loader
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_jobs import ROOT
from tests.train.test_loader import ORDER, joined, load, rows_of

transformers = pytest.importorskip("transformers", reason="pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the other trainers are their own
STEPS, BATCH = 6, 4


@cache
def example():
    """Not imported to list the tests: it takes seconds."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "other_trainers.py")))


def loader(folder, **options):
    return Loader(folder, batch_size=BATCH, seed=0, prefetch=0, **options)


def ids_of(batches, number):
    return [inputs["input_ids"].tolist() for _, inputs in zip(range(number), batches, strict=False)]


@pytest.fixture(scope="module")
def wanted(small_folder):
    """The ids of the first batches."""
    return ids_of(example().Batches(loader(small_folder)), STEPS)


def test_labels_are_the_masked_tokens_and_nothing_else(small_folder):
    for _, loaded in zip(range(STEPS), loader(small_folder), strict=False):
        batch, inputs = loaded.batch, example().inputs_of(loaded.batch)
        assert {tensor.dtype for tensor in inputs.values()} == {torch.int64}
        rows, slots = batch.masked_lm_weights.nonzero(as_tuple=True)
        labels = torch.full_like(batch.input_ids, -100)
        labels[rows, batch.masked_lm_positions[rows, slots]] = batch.masked_lm_labels[rows, slots]
        assert torch.equal(inputs["labels"], labels)
        pairs = batch.next_sentence_labels
        assert torch.equal(inputs["next_sentence_label"], pairs.where(pairs >= 0, -100))
    with pytest.raises(InputError, match="other models do not read packed or unpadded rows"):
        example().Batches(loader(small_folder, unpadded=True))


def test_it_ends_after_its_steps_also_after_a_stop(small_folder, wanted):
    source = example().Batches(loader(small_folder), steps=STEPS)
    assert len(source) == STEPS
    first = [next(batches)["input_ids"].tolist() for batches in [iter(source)]]
    rest = [inputs["input_ids"].tolist() for inputs in source]
    assert first + rest == wanted
    with pytest.raises(TypeError, match="has no end; give Batches `steps`"):
        len(example().Batches(loader(small_folder)))


def test_several_workers_have_as_many_batches(small_folder):
    source = example().Batches(loader(small_folder), steps=STEPS - 1)
    assert len([*DataLoader(source, batch_size=None, num_workers=3)]) == STEPS - 1


def stateful(source, **options):
    """torchdata's loader of a source's batches."""
    data = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    return data.StatefulDataLoader(source, batch_size=None, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_data_loader_resumes_at_the_next_example(small_folder, wanted, workers):
    batches, again = (
        stateful(example().Batches(loader(small_folder)), num_workers=workers) for _ in range(2)
    )
    assert ids_of(iter(batches), 2) == wanted[:2]
    again.load_state_dict(batches.state_dict())
    assert ids_of(iter(again), STEPS - 2) == wanted[2:]


def test_several_workers_are_refused_where_a_state_is_saved(small_folder):
    with pytest.raises(InputError, match="give the DataLoader num_workers=0 or 1"):
        next(iter(stateful(example().Batches(loader(small_folder)), num_workers=2)))


def test_a_trainer_of_transformers_resumes_at_the_next_example(
    small_folder, wanted, tmp_path, monkeypatch
):
    pytest.importorskip("accelerate", reason="pip install accelerate")
    seen, step = [], transformers.Trainer.training_step

    def training_step(self, model, inputs, *rest):
        seen.append(inputs["input_ids"].tolist())
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(transformers.Trainer, "training_step", training_step)
    example().main(small_folder, tmp_path, 2, BATCH, save_steps=2)
    assert seen == wanted[:2]
    example().main(small_folder, tmp_path, STEPS, BATCH, save_steps=2)
    assert seen == wanted


def small_bert(source):
    """A model of transformers for a source's vocabulary."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocab_size = source.loader.shards.manifest.vocab_size
    config = transformers.BertConfig(vocab_size=vocab_size, intermediate_size=16, **sizes)
    return transformers.BertForPreTraining(config)


def test_lightning_saves_and_restores_the_position(small_folder, wanted, tmp_path):
    lightning = pytest.importorskip("lightning", reason="pip install lightning")
    seen = []

    class Module(lightning.LightningModule):
        def __init__(self, source):
            super().__init__()
            self.bert = small_bert(source)

        def training_step(self, inputs):
            seen.append(inputs["input_ids"].tolist())
            return self.bert(**inputs).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    def train(steps, checkpoint=None):
        source = example().Batches(loader(small_folder), steps=STEPS)
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", default_root_dir=tmp_path, logger=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(source), stateful(source), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")

    train(2)
    train(STEPS, checkpoint=tmp_path / "last.ckpt")
    assert seen == wanted


# A run may change processes, workers, accumulation and batch size: the sequence of examples stays
WORLDS, WORKERS, ACCUMULATIONS = (1, 2, 3, 4), (0, 1, 2, 3), (1, 2, 4)  # and 8, in legs

#: Positions; more than all legs of a test read together.
FAR = 1200


@pytest.fixture(scope="module", params=[(13, 20, 0, 7, 17), (5,), (2, 0, 1)], ids=str)
def any_folder(request, tmp_path_factory):
    """Data sets of several pools, and ones smaller than a pool, a batch, and a row per stream."""
    config = SMALL if len(request.param) > 1 else replace(SMALL, format="webdataset")
    return write_data_set(tmp_path_factory.mktemp("data"), train=request.param, config=config)


@pytest.fixture(scope="module")
def sequence(any_folder):
    """The examples, with their masks, as one process reads them."""
    return rows_of(load(any_folder, 1, batch_size=FAR))


def leg(any_folder, state, *, world_size, steps, workers=0, accumulation=1, micro_batch_size=1):
    """The examples of a few steps, in the order of their positions, and the state after them."""
    batch_size = world_size * accumulation * micro_batch_size
    parts = []
    for rank in range(world_size):
        options = {"batch_size": batch_size, "rank": rank, "world_size": world_size}
        loader = Loader(any_folder, **options, **ORDER, prefetch=rank % 2)
        if state:
            loader.load_state_dict(state)
        batches = DataLoader(loader, batch_size=None, num_workers=workers) if workers else loader
        parts.append(list(islice(batches, steps)))
    state = loader.state_dict(parts[0][-1].next_position)
    rows = []
    for of_ranks in zip(*parts, strict=True):
        for loaded in of_ranks:
            assert loaded.next_position == of_ranks[0].next_position
            micro_batches = loaded.batch.split(accumulation)
            assert [len(micro) for micro in micro_batches] == [micro_batch_size] * accumulation
        rows += rows_of([joined(of_ranks)])
    return rows, state


LEGS = st.fixed_dictionaries(
    {
        "world_size": st.sampled_from((*WORLDS, 8)),
        "accumulation": st.sampled_from(ACCUMULATIONS),
        "micro_batch_size": st.integers(1, 3),
        "steps": st.integers(1, 3),
    }
)


@settings(max_examples=6)
@given(st.lists(LEGS, min_size=2, max_size=4))
def test_stopped_at_any_step_it_continues_in_any_setting_with_the_next_example(
    any_folder, sequence, legs
):
    found, state = [], None
    for setting in legs:
        rows, state = leg(any_folder, state, **setting)
        found += rows
    assert found == sequence[: len(found)]
    assert state["next_position"] == len(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on few cores
def test_all_settings_in_turn_with_real_workers_read_the_sequence(any_folder, sequence):
    """Each of the 48 settings continues where the one before it stopped."""
    found, state = [], None
    for world_size, workers, accumulation in product(WORLDS, WORKERS, ACCUMULATIONS):
        sizes = {"world_size": world_size, "workers": workers, "accumulation": accumulation}
        rows, state = leg(any_folder, state, **sizes, steps=2)
        found += rows
    assert len(found) == 2 * 10 * 4 * 7 <= FAR
    assert found == sequence[: len(found)]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on few cores
@pytest.mark.parametrize(("place", "format"), [("{}", "arrow"), ("file://{}", "webdataset")])
@pytest.mark.parametrize(
    ("world_size", "workers"), [(2, 2), pytest.param(8, 3, marks=pytest.mark.slow)]
)
def test_ranks_with_real_workers_read_an_epoch_of_any_format_from_anywhere(
    world_size, workers, format, place, tmp_path
):
    rows = (13, 20, 0, 7, 16)
    any_folder = write_data_set(tmp_path, train=rows, config=replace(SMALL, format=format))
    whole = rows_of(load(any_folder, 1, batch_size=sum(rows)))
    processes = {"world_size": world_size, "workers": workers, "steps": sum(rows) // world_size}
    found, state = leg(place.format(any_folder), None, **processes)
    assert found == whole
    assert state["next_position"] == sum(rows)
