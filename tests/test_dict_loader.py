"""Batches for other trainers: what they hold, and training that resumes at the next example."""

import json

import pytest
import torch
from torch.utils.data import DataLoader

from clozeline.pipeline.common.errors import InputError
from clozeline.train.data.dict_loader import IGNORED, KEYS, DictLoader, as_dictionary
from clozeline.train.data.loader import Loader

transformers = pytest.importorskip("transformers", reason="pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the other trainers are their own
STEPS, BATCH = 6, 4


def loader(folder, **options):
    return Loader(folder, batch_size=BATCH, seed=3, prefetch=0, **options)


def ids_of(batches, number):
    return [inputs["input_ids"].tolist() for _, inputs in zip(range(number), batches, strict=False)]


@pytest.fixture(scope="module")
def wanted(small_folder):
    """The ids of the first batches."""
    return ids_of(DictLoader(loader(small_folder)), STEPS)


def small_bert(vocab_size):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=vocab_size, intermediate_size=16, **sizes)
    return transformers.BertForPreTraining(config)


def test_labels_are_the_masked_tokens_and_nothing_else(small_folder):
    for _, loaded in zip(range(STEPS), loader(small_folder), strict=False):
        batch, inputs = loaded.batch, as_dictionary(loaded.batch)
        assert [*inputs] == [*KEYS]
        assert {tensor.dtype for tensor in inputs.values()} == {torch.int64}
        for row in range(len(batch)):
            is_used = batch.masked_lm_weights[row] > 0
            positions = batch.masked_lm_positions[row][is_used]
            assert inputs["labels"][row][positions].tolist() == (
                batch.masked_lm_labels[row][is_used].tolist()
            )
            assert (inputs["labels"][row] != IGNORED).sum() == len(positions)
        assert inputs["next_sentence_label"].tolist() == [
            label if label >= 0 else IGNORED for label in batch.next_sentence_labels.tolist()
        ]


def test_only_the_keys_of_the_model(small_folder):
    inputs = next(iter(DictLoader(loader(small_folder), keys=["labels"])))
    assert [*inputs] == ["labels"]
    with pytest.raises(InputError, match="no batch has label; choose from input_ids,"):
        DictLoader(loader(small_folder), keys=["label"])


def test_it_ends_after_its_steps_also_after_a_stop(small_folder, wanted):
    source = DictLoader(loader(small_folder), steps=STEPS)
    assert len(source) == STEPS
    first = [next(batches)["input_ids"].tolist() for batches in [iter(source)]]
    rest = [inputs["input_ids"].tolist() for inputs in source]
    assert first + rest == wanted
    with pytest.raises(TypeError, match="has no end; give DictLoader `steps`"):
        len(DictLoader(loader(small_folder)))


@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_have_as_many_batches(small_folder, workers):
    source = DictLoader(loader(small_folder), steps=STEPS - 1)
    assert len([*DataLoader(source, batch_size=None, num_workers=workers)]) == STEPS - 1


def test_unpadded_batches_are_refused(small_folder):
    with pytest.raises(InputError, match="unpadded batches cannot be dictionaries"):
        DictLoader(loader(small_folder, unpadded=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_data_loader_resumes_at_the_next_example(small_folder, wanted, workers):
    data = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    batches = data.StatefulDataLoader(
        DictLoader(loader(small_folder)), batch_size=None, num_workers=workers
    )
    reading = iter(batches)
    assert ids_of(reading, 2) == wanted[:2]
    state = batches.state_dict()
    again = data.StatefulDataLoader(
        DictLoader(loader(small_folder)), batch_size=None, num_workers=workers
    )
    again.load_state_dict(state)
    assert ids_of(iter(again), STEPS - 2) == wanted[2:]


def test_several_workers_are_refused_where_a_state_is_saved(small_folder):
    data = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    batches = data.StatefulDataLoader(
        DictLoader(loader(small_folder)), batch_size=None, num_workers=2
    )
    with pytest.raises(InputError, match="2 workers have no common position to save"):
        next(iter(batches))


def test_a_trainer_of_transformers_resumes_at_the_next_example(small_folder, wanted, tmp_path):
    pytest.importorskip("accelerate", reason="pip install accelerate")
    seen = []

    class Trainer(transformers.Trainer):
        """Its batches are whole, and the loader's position is saved with each checkpoint."""

        def __init__(self, *args, source, **options):
            super().__init__(*args, **options)
            self.source = source

        def get_train_dataloader(self):
            return DataLoader(self.source, batch_size=None)

        def training_step(self, model, inputs, *rest):
            seen.append(inputs["input_ids"].tolist())
            return super().training_step(model, inputs, *rest)

    def train(steps, **resume):
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=steps,
            save_steps=2,
            report_to=[],
            use_cpu=True,
            ignore_data_skip=True,
            disable_tqdm=True,
        )
        source = DictLoader(loader(small_folder))
        if resume:
            source.load_state_dict(json.loads((tmp_path / "loader.json").read_text()))
        model = small_bert(source.loader.shards.manifest.vocab_size)
        Trainer(model, options, source=source).train(**resume)
        (tmp_path / "loader.json").write_text(json.dumps(source.state_dict()))

    train(2)
    assert seen == wanted[:2]
    train(STEPS, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert seen == wanted


def test_accelerate_saves_and_restores_the_position(small_folder, wanted, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")
    data = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")

    def prepared():
        source = DictLoader(loader(small_folder))
        batches = data.StatefulDataLoader(source, batch_size=None)
        model = small_bert(source.loader.shards.manifest.vocab_size)
        optimizer = torch.optim.AdamW(model.parameters())
        accelerator = accelerate.Accelerator(cpu=True)
        return accelerator, *accelerator.prepare(model, optimizer), batches

    def train(accelerator, model, optimizer, batches, steps):
        seen = []
        for _, inputs in zip(range(steps), batches, strict=False):
            seen.append(inputs["input_ids"].tolist())
            accelerator.backward(model(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()
        return seen

    accelerator, *parts, batches = prepared()
    accelerator.register_for_checkpointing(batches)
    assert train(accelerator, *parts, batches, 2) == wanted[:2]
    accelerator.save_state(str(tmp_path))
    accelerator, *parts, batches = prepared()
    accelerator.register_for_checkpointing(batches)
    accelerator.load_state(str(tmp_path))
    assert train(accelerator, *parts, batches, STEPS - 2) == wanted[2:]


def test_lightning_saves_and_restores_the_position(small_folder, wanted, tmp_path):
    lightning = pytest.importorskip("lightning", reason="pip install lightning")
    data = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    seen = []

    class Module(lightning.LightningModule):
        def __init__(self, vocab_size):
            super().__init__()
            self.bert = small_bert(vocab_size)

        def training_step(self, inputs):
            seen.append(inputs["input_ids"].tolist())
            return self.bert(**inputs).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    def train(steps, checkpoint=None):
        source = DictLoader(loader(small_folder), steps=STEPS)
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        batches = data.StatefulDataLoader(source, batch_size=None)
        module = Module(source.loader.shards.manifest.vocab_size)
        trainer.fit(module, batches, ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")

    train(2)
    train(STEPS, checkpoint=tmp_path / "last.ckpt")
    assert seen == wanted
