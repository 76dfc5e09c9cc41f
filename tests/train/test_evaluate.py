"""The numbers of a look, against numpy one word at a time and against numbers made by hand."""

import json
import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.engine.distributed import World
from clozeline.train.evaluation.evaluate import Evaluation, as_table, evaluate, evaluate_model
from tests.support.command import output_of
from tests.support.small import small_tokenizer
from tests.support.small_data import write_data_set
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

ALONE = World(0, 1, torch.device("cpu"))
COUNTS = list(range(TINY.vocab_size))


def evaluated(batches, *, counts=COUNTS, model=None):
    model = model or BertForPretraining(TINY, seed=1)
    smoothed = np.array(counts, dtype=np.float64) + 1
    log_unigram = np.log(smoothed / smoothed.sum())
    return evaluate_model(model, batches, log_unigram=log_unigram, world=ALONE, precision="fp32")


def held_out(folder, **options):
    return evaluation_batches(folder, **{"batch_size": 8, **options})


def reference(model, batches, counts):
    """The same numbers in numpy, an example and a word at a time."""
    log_unigram = np.log((np.array(counts) + 1) / (np.array(counts) + 1).sum())
    words, pairs, examples = [], [], 0
    for batch in (loaded.batch for loaded in batches):
        with torch.no_grad():
            outputs = model(batch.input_ids, batch.token_type_ids, batch.attention_mask,
                            batch.masked_lm_positions)  # fmt: skip
        mlm, nsp = (logits.double().log_softmax(-1).numpy() for logits in outputs)
        for row in np.flatnonzero(batch.example_weights.numpy()):
            examples += 1
            for slot in np.flatnonzero(batch.masked_lm_weights[row].numpy()):
                label = int(batch.masked_lm_labels[row, slot])
                words.append((-mlm[row, slot, label], mlm[row, slot].argmax() == label,
                              -log_unigram[label], label == np.argmax(counts)))  # fmt: skip
            label = int(batch.next_sentence_labels[row])
            if label >= 0:
                pairs.append((-nsp[row, label], nsp[row].argmax() == label))
    return examples, np.mean(words, axis=0).tolist(), np.mean(pairs, axis=0).tolist()


def test_the_numbers_are_those_of_a_straight_line(small_folder):
    model = BertForPretraining(TINY, seed=1).eval()
    examples, words, pairs = reference(model, held_out(small_folder), COUNTS)
    found = evaluated(held_out(small_folder), model=model)
    assert found.examples == examples == 23
    mlm = [found.mlm_loss, found.mlm_accuracy, found.unigram_loss, found.most_frequent_share]
    assert mlm == pytest.approx(words, rel=1e-5)
    assert [found.nsp_loss, found.nsp_accuracy] == pytest.approx(pairs, rel=1e-5)
    assert found.loss == pytest.approx(words[0] + pairs[0], rel=1e-5)


@pytest.mark.parametrize(
    ("batch_size", "processes"), [(1, 1), (7, 1), (23, 1), (64, 1), (8, 4)]
)  # 64: most rows are padding
def test_neither_the_batch_size_nor_the_processes_matter(batch_size, processes, small_folder):
    how = {"batch_size": batch_size, "world_size": processes}
    parts = (held_out(small_folder, rank=rank, **how) for rank in range(processes))
    found, wanted = evaluated(chain(*parts)), evaluated(held_out(small_folder))
    assert found.examples == 23
    assert found.to_dict() == pytest.approx(wanted.to_dict(), rel=1e-5)


def test_a_limit_looks_at_the_first_examples_only(small_folder):
    first = [next(iter(held_out(small_folder, batch_size=10)))]
    found = evaluated(held_out(small_folder, limit=10))
    assert found.examples == 10
    assert found.to_dict() == pytest.approx(evaluated(first).to_dict(), rel=1e-5)


def test_without_pairs_there_is_nothing_to_say_of_them(small_folder):
    [loaded] = held_out(small_folder, batch_size=23)
    alone = replace(loaded.batch, next_sentence_labels=torch.full((23,), -1))
    found = evaluated([replace(loaded, batch=alone)])
    assert math.isnan(found.nsp_loss)
    assert found.to_dict().keys() & {"nsp_loss", "nsp_accuracy"} == set()
    assert found.loss == found.mlm_loss
    assert not any("NSP" in line for line in as_table(found))


def test_an_evaluation_drops_nothing_out_and_leaves_the_model_as_it_was(small_folder):
    model = BertForPretraining(TINY).train()
    one, two = (evaluated(held_out(small_folder), model=model) for _ in range(2))
    assert one == two
    assert model.training
    evaluated(held_out(small_folder), model=model.eval())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_table_sets_each_number_beside_its_yardstick():
    losses = {"mlm_loss": 5.5, "nsp_loss": 0.5, "unigram_loss": 6.75}
    shares = {"mlm_accuracy": 0.25, "nsp_accuracy": 0.75, "most_frequent_share": 0.0625}
    assert list(as_table(Evaluation(examples=2048, **losses, **shares))) == [
        "2,048 held-out examples",
        "masked-LM loss       5.500   unigram 6.750: 1.250 nats better",
        "masked-LM accuracy   25.0%   always the most frequent token 6.2%",
        "NSP loss             0.500",
        "NSP accuracy         75.0%   chance 50 %",
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model = BertForPretraining(TINY, seed=1)
    folder = tmp_path_factory.mktemp("run")
    return write_small_run(folder, model, small_tokenizer(), max_seq_length=16)


def test_a_run_is_measured_on_the_split_that_was_asked_for(run, small_folder):
    counts = read_manifest(small_folder).token_counts
    found = evaluate(run, small_folder, batch_size=8)
    assert found == evaluated(held_out(small_folder), counts=counts)
    assert evaluate(run, small_folder, split="train").examples == 57
    assert evaluate(run, small_folder, split="train", limit=9).examples == 9


def test_shards_that_do_not_fit_are_refused(run, small_folder, tmp_path):
    cased = replace(small_tokenizer().normalization, lowercase=False)
    other = {"tokenizer": type(small_tokenizer())(small_tokenizer().tokens, cased, None)}
    long = {"config": DataConfig(max_seq_length=24)}
    for name, changes, message in (
        ("other", other, r"other was made with another tokenizer"),
        ("long", long, r"examples of 24 tokens, the model of .* reads 16"),
    ):
        shards = write_data_set(tmp_path / name, train=(3,), validation=(3,), **changes)
        with pytest.raises(InputError, match=message):
            evaluate(run, shards)
    with pytest.raises(ValueError, match="split is 'test'; it must be one of validation, train"):
        evaluate(run, small_folder, split="test")


def test_the_results_are_printed_as_json(run, small_folder):
    printed = json.loads(output_of("evaluate", run, small_folder, "--json"))
    assert printed == evaluate(run, small_folder).to_dict()
