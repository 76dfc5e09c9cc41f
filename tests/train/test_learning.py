"""The held-out rows that a run answers at every evaluation, in RUN/learning.jsonl."""

import math
import shutil

import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.artifacts.run import LEARNING, remove_run
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.engine.distributed import join_world
from clozeline.train.evaluation.evaluate import evaluate_model
from clozeline.train.evaluation.guesses import guess, held_out_rows
from clozeline.train.monitoring.learning import ROWS, Guesses, Learning, LearningLog
from tests.support.files import no_file_longer_than
from tests.support.small_data import packed_examples, write_data_set
from tests.support.small_training import TINY, assert_same_run, go_back, numbers, train, weights


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_data_set(
        tmp_path_factory.mktemp("data") / "shards", train=(60,), validation=(20, 30)
    )


@pytest.fixture(scope="module")
def run(shards, tmp_path_factory):
    """A run of 12 steps, evaluated at 4, 8 and 12."""
    out = tmp_path_factory.mktemp("run") / "run"
    train(shards, out, eval_every=4)
    return out


def test_the_rows_are_the_first_held_out_ones_as_they_are_stored(run, shards):
    learning = Learning.of(run)
    assert len(learning.rows) == ROWS
    examples = read_shard(shards / "validation-00000-of-00002.arrow")
    for row, shown in enumerate(learning.rows[: len(examples)]):
        of_row = examples.slice(row, row + 1)
        assert shown.input_ids == of_row.input_ids.values.tolist()
        assert shown.positions == of_row.masked_lm_positions.values.tolist()
        assert shown.answers == of_row.masked_lm_labels.values.tolist()
        assert shown.length_a == of_row.length_a[0]
        assert shown.next_sentence_label == of_row.next_sentence_label[0]


def test_each_evaluation_has_an_answer_for_every_mask(run):
    learning = Learning.of(run)
    assert list(learning.guesses) == [4, 8, 12]
    for guesses in learning.guesses.values():
        columns = guesses.guesses, guesses.probabilities, guesses.of_answers
        masked = [len(row.positions) for row in learning.rows]
        assert all([len(of_row) for of_row in column] == masked for column in columns)
        found = [label is None for label in guesses.label_1]
        assert found == [row.next_sentence_label < 0 for row in learning.rows]


def test_packed_rows_keep_their_pieces(tmp_path):
    """And the answers are those of attention inside the pieces, as in an evaluation."""
    config = DataConfig(max_seq_length=16, num_shards=1, pairs="packed")
    shards = write_data_set(
        tmp_path, train=(20,), validation=(12,), config=config, make=packed_examples
    )
    examples = read_shard(shards / "validation-00000-of-00001.arrow")
    batches = [loaded.batch for loaded in evaluation_batches(shards, batch_size=5)]
    for row, shown in enumerate(held_out_rows(batches)):
        of_row = examples.slice(row, row + 1)
        assert shown.input_ids == of_row.input_ids.values.tolist()
        assert shown.piece_lengths == of_row.piece_lengths.values.tolist()
        assert shown.length_a == of_row.length_a[0]
    model = BertForPretraining(TINY, seed=1)
    found = guess(model, batches, precision="fp32")
    losses = [-math.log(p) for row in found.of_answers for p in row]
    log_unigram = read_manifest(shards).log_unigram
    loaded = evaluation_batches(shards, batch_size=5)
    with join_world() as world:
        measured = evaluate_model(
            model, loaded, log_unigram=log_unigram, world=world, precision="fp32"
        )
    assert sum(losses) / len(losses) == pytest.approx(measured.mlm_loss, rel=1e-5)


def test_answers_are_those_of_the_models_softmax(shards):
    model = BertForPretraining(TINY, seed=1)
    batches = [loaded.batch for loaded in evaluation_batches(shards, batch_size=8, limit=12)]
    found = guess(model, batches, precision="fp32")
    assert len(found.guesses) == len(held_out_rows(batches)) == 12
    assert model.training
    model.eval()
    first = batches[0]
    with torch.no_grad():
        mlm, nsp = model(
            first.input_ids, first.token_type_ids, first.attention_mask, first.masked_lm_positions
        )
    best, tokens = mlm.softmax(-1).max(-1)
    of_answers = mlm.softmax(-1).gather(-1, first.masked_lm_labels[..., None])[..., 0]
    for row, masked in enumerate(first.masked_lm_weights > 0):
        assert found.guesses[row] == tokens[row, masked].tolist()
        assert found.probabilities[row] == pytest.approx(best[row, masked].tolist())
        wanted = of_answers[row, masked].tolist()
        assert found.of_answers[row] == pytest.approx(wanted, rel=1e-4)
        if found.label_1[row] is not None:
            assert found.label_1[row] == pytest.approx(nsp.softmax(-1)[row, 1].item())


def test_recording_changes_no_number_of_the_run(run, shards, tmp_path):
    """With dropout: an evaluation draws nothing and leaves the weights alone."""
    train(shards, tmp_path / "run", eval_every=0)
    assert list(Learning.of(tmp_path / "run").guesses) == [12]
    often, once = numbers(run), numbers(tmp_path / "run")
    assert [line for line in often if "mlm_loss" in line] == once[:12]
    assert weights(run) == weights(tmp_path / "run")


def test_a_resumed_run_has_the_same_lines(run, shards, tmp_path):
    """Lines after the checkpoint, and a line that was cut, are written again."""
    killed = go_back(shutil.copytree(run, tmp_path / "run"), 4)
    (killed / "summary.json").unlink()
    with (killed / LEARNING).open("a") as file:
        file.write('{"step": 99, "gue')
    train(shards, killed, eval_every=4, resume=True)
    assert (killed / LEARNING).read_bytes() == (run / LEARNING).read_bytes()
    assert_same_run(killed, run)


def test_a_run_that_begins_again_begins_with_its_rows(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    LearningLog(copy, start_step=0)
    assert not (copy / LEARNING).exists()
    assert Learning.of(copy).guesses == {}
    removed = shutil.copytree(run, tmp_path / "removed")
    (removed / "report.html").touch()  # that of `clozeline report` tells of the removed run, too
    remove_run(removed)
    assert not removed.exists() or not any(removed.iterdir())


def test_other_held_out_rows_begin_the_file_anew(run, shards, tmp_path):
    """As after a resumption that skips a bad shard: answers do not stand beside other rows."""
    lacking = shutil.copytree(shards, tmp_path / "shards")
    (lacking / "validation-00000-of-00002.arrow").unlink()
    resumed = go_back(shutil.copytree(run, tmp_path / "run"), 8)
    train(lacking, resumed, eval_every=4, resume=True, skip_bad_shards=True)
    learning = Learning.of(resumed)
    assert list(learning.guesses) == [12]
    assert len(learning.rows) == len(learning.guesses[12].guesses) == 30


def test_a_full_disk_is_one_line(tmp_path):
    guesses = Guesses(guesses=[[1]], probabilities=[[0.5]], of_answers=[[0.5]], label_1=[None])
    complaint = r"learning\.jsonl of .* cannot be written \(File too large\); its checkpoints are"
    with pytest.raises(JobFailedError, match=complaint), no_file_longer_than(10):
        LearningLog(tmp_path, start_step=0).write(4, [], guesses)


def test_a_file_that_is_not_ours_is_named(tmp_path):
    for text in ("[]\n", "{}\n", '{"rows": []}\n{}\n', '{"rows": [1]}\n', '{"rows": []}\nx\n'):
        (tmp_path / LEARNING).write_text(text)
        with pytest.raises(InputError, match=r"line \d of .*learning.jsonl cannot be read"):
            Learning.of(tmp_path)


def test_the_file_has_four_decimals():
    found = Guesses(
        guesses=[[1]], probabilities=[[0.123456]], of_answers=[[1e-9]], label_1=[None]
    ).rounded()
    assert (found.probabilities, found.of_answers, found.label_1) == ([[0.1235]], [[0.0]], [None])
