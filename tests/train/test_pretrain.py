"""What a run writes, what it resumes from, and what it refuses; all in this process."""

import json
import re
import shutil
from dataclasses import replace
from hashlib import sha256
from itertools import islice

import numpy as np
import pytest
import torch

from clozeline.model.config import preset
from clozeline.pipeline.common.errors import DivergedError, InputError
from clozeline.train.artifacts.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    load_moments,
    load_weights,
    read_state,
)
from clozeline.train.artifacts.run import load_run, read_run
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.engine.schedule import learning_rate_at
from clozeline.train.pretraining.initial_weights import with_positions
from tests.support.command import invoke
from tests.support.files import times
from tests.support.small import make_examples, small_tokenizer
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import SHORT, STILL, TINY, go_back, numbers, train, weights


def steps(run):
    return [read_state(folder).step for folder in list_checkpoints(run)]


def test_a_run_writes_its_configs_checkpoints_metrics_and_summary(finished):
    files = ["metrics.jsonl", "run.json", "summary.json"]
    names = ["checkpoints", *files, "tensorboard", "tokenizer"]
    assert sorted(path.name for path in finished.iterdir()) == names
    assert steps(finished) == [4, 8, 12]
    config, tokenizer, _ = load_run(finished)
    assert (config.model, config.training) == (TINY, replace(SHORT, eval_every=6, unpadded=False))
    assert tokenizer.digest == small_tokenizer().digest


def test_every_step_has_one_line_and_every_evaluation_another(finished):
    lines = numbers(finished)
    assert [line["step"] for line in lines if "mlm_loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "heldout/mlm_loss" in line] == [6, 12]
    summary = json.loads((finished / "summary.json").read_text())
    last = {f"heldout/{name}": value for name, value in summary["heldout"].items()}
    assert lines[-1] == {"step": 12, **last}
    assert [line["step"] for line in lines if "unigram_loss" in line] == [1]


def test_the_metrics_are_of_the_data_and_the_schedule(finished, small_folder):
    batches = islice(Loader(small_folder, batch_size=8, seed=0), 12)
    lines = [line for line in numbers(finished) if "mlm_loss" in line]
    assert [line["data_digest"] for line in lines] == [digest_text(b.digest) for b in batches]
    rates = [learning_rate_at(SHORT, step) for step in range(1, 13)]
    assert [line["learning_rate"] for line in lines] == rates


def test_the_state_has_the_position_in_the_data_and_the_held_out_loss(finished):
    states = [read_state(folder) for folder in list_checkpoints(finished)]
    assert [state.loader["next_position"] for state in states] == [32, 64, 96]
    heldout = {line["step"]: line for line in numbers(finished) if "heldout/mlm_loss" in line}
    last = heldout[12]["heldout/mlm_loss"] + heldout[12]["heldout/nsp_loss"]
    assert [state.heldout_loss for state in states] == [None, None, last]  # of its own weights


def test_without_held_out_shards_nothing_is_evaluated(tmp_path):
    shards = write_data_set(tmp_path / "shards", train=(20,))
    outcome = train(shards, tmp_path / "run", max_steps=2)
    assert outcome.is_complete
    assert outcome.heldout is None
    assert read_state(latest_checkpoint(tmp_path / "run")).heldout_loss is None


def test_a_finished_run_is_left_alone(run, small_folder):
    before = times(run)
    outcome = train(small_folder, run, eval_every=6)
    assert (outcome.step, outcome.is_new, outcome.is_complete) == (12, False, True)
    assert times(run) == before


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_size": 4}, "a run at step 12 with another config (batch_size 8 there, 4 now). "),
        ({"max_steps": 20}, "a run at step 12 with another config (max_steps 12 there, 20 now). "),
        ({"model": replace(TINY, hidden_size=64)}, "another model (hidden_size 32 there, 64 now)."),
    ],
)  # fmt: skip
def test_a_finished_run_of_another_config_is_refused(changes, complaint, run, small_folder):
    with pytest.raises(InputError) as refusal:
        train(small_folder, run, **{"eval_every": 6, **changes})
    assert complaint in str(refusal.value)
    assert "another --out" in str(refusal.value)


def test_another_data_set_is_refused_even_to_resume(run, tmp_path):
    shards = write_data_set(tmp_path / "shards", train=(20,))
    with pytest.raises(InputError, match=r"same order of examples: dataset_digest \w{12} there"):
        train(shards, go_back(run, 8), resume=True)


def test_another_run_is_overwritten_on_request_and_nothing_of_it_is_left(
    run, small_folder, tmp_path
):
    train(small_folder, run, overwrite=True, max_steps=3, batch_size=4)
    train(small_folder, tmp_path / "new", max_steps=3, batch_size=4)
    assert numbers(run) == numbers(tmp_path / "new")
    assert steps(run) == [3]
    assert weights(run) == weights(tmp_path / "new")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({}, "Give --resume to continue it, --overwrite"),
        ({"overwrite": True}, "torchrun restarted this command, .* again with --resume instead"),
    ],
)
def test_a_restart_without_resume_neither_continues_nor_replaces_a_run(
    how, reason, run, small_folder, monkeypatch
):
    """Whether it is its own or an older one, it cannot tell."""
    saved = steps(run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(InputError, match=reason):
        train(small_folder, run, max_steps=20, **how)
    assert steps(run) == saved


def test_a_new_run_that_is_refused_leaves_the_old_one(run, finished, small_folder, tmp_path):
    before = weights(run)
    narrow = replace(TINY, max_position_embeddings=12)
    cased = replace(small_tokenizer().normalization, lowercase=False)
    other = type(small_tokenizer())(small_tokenizer().tokens, cased, None)
    config = replace(SMALL, max_seq_length=12)
    short = write_data_set(tmp_path / "short", train=(20,), config=config)
    foreign = write_data_set(tmp_path / "foreign", train=(20,), tokenizer=other)
    damaged = shutil.copytree(small_folder, tmp_path / "damaged")
    last = max(damaged.glob("train-*"))
    last.write_bytes(bytes(last.stat().st_size))
    for shards, how, reason in (
        (small_folder, {"from_": run}, "both"),
        (small_folder, {"from_": tmp_path}, "give a run"),
        (small_folder, {"from_": finished, "model": replace(TINY, num_hidden_layers=2)}, "another"),
        (short, {"from_": finished, "model": narrow}, "max_position_embeddings 16 there, 12 now"),
        (foreign, {"from_": finished}, r"\(tokenizer_digest \w{12} there, \w{12} now\)"),
        (damaged, {"word_vectors": True}, "train-"),  # in the counts for the word vectors
    ):
        with pytest.raises(InputError, match=reason):
            train(shards, run, overwrite=True, **how)
    assert weights(run) == before


def test_a_run_without_a_checkpoint_starts_again(run, small_folder):
    go_back(run, 0)
    assert train(small_folder, run, max_steps=3).is_complete
    assert [line["step"] for line in numbers(run)] == [1, 2, 3, 3]


def test_old_checkpoints_are_removed_but_not_a_copy_of_one(run, small_folder):
    copy = run / "checkpoints" / "step-00000012-good"
    shutil.copytree(latest_checkpoint(run), copy)
    spoiling = {"learning_rate": 10.0, "warmup": 0.99, "clip": 0.0}  # step 12 stays the best
    train(small_folder, run, resume=True, max_steps=20, keep=1, eval_every=0, **spoiling)
    losses = {
        line["step"]: line["heldout/mlm_loss"] + line["heldout/nsp_loss"]
        for line in numbers(run)
        if "heldout/mlm_loss" in line
    }
    assert losses[12] < losses[20]
    assert steps(run) == [12, 20]  # the best and the newest
    assert (copy / "state.json").exists()


def test_a_run_with_a_time_budget_trains_until_it_is_spent(small_folder, tmp_path):
    """Nothing here depends on how fast the machine is: one step may take all of the budget."""

    def rates():
        return [line["learning_rate"] for line in numbers(tmp_path) if "mlm_loss" in line]

    options = {"max_steps": 1, "save_every": 0}
    outcome = train(small_folder, tmp_path, for_="1s", **options)
    before = read_state(latest_checkpoint(tmp_path))
    assert outcome.is_complete
    assert before.step == outcome.step == len(rates())
    assert min(rates()) == 0
    assert before.elapsed >= 1
    peak = rates().index(max(rates()))
    assert rates() == sorted(rates()[:peak]) + sorted(rates()[peak:], reverse=True)
    assert not train(small_folder, tmp_path, for_="1s", **options).is_new
    for name, value in {"learning_rate": 0.5, "for_": "0.5s"}.items():
        said = f"{tmp_path} is finished, so these options would have no effect: {name.strip('_')} "
        with pytest.raises(InputError, match=re.escape(said)):
            train(small_folder, tmp_path, resume=True, **{"for_": "1s", **options, name: value})

    longer = replace(SHORT, for_=f"{1.5 * before.elapsed}s")
    train(small_folder, tmp_path, for_=longer.for_, resume=True, **options)  # what is left of it
    after = read_state(latest_checkpoint(tmp_path))
    assert after.step > before.step
    assert before.elapsed < longer.budget <= after.elapsed
    continued = learning_rate_at(longer, before.step + 1, before.elapsed)
    assert rates()[before.step] == pytest.approx(continued)
    assert continued == pytest.approx(SHORT.learning_rate / 3 / (1 - SHORT.warmup))


def test_another_run_gives_weights_and_moments_and_nothing_else(tmp_path, capsys):
    """The second phase: longer examples, its own schedule, the data from their beginning."""
    wide = replace(TINY, max_position_embeddings=32)
    short = write_data_set(tmp_path / "short", train=(20,))
    first, second = tmp_path / "first", tmp_path / "second"
    train(short, first, model=wide)
    config = replace(SMALL, max_seq_length=32, max_predictions_per_seq=5)
    long = write_data_set(tmp_path / "long", train=(30,), validation=(9,), config=config)
    still = replace(wide, hidden_dropout_prob=0.0)
    train(long, second, model=still, from_=first, max_steps=1, learning_rate=1e-30,
          weight_decay=0.0)  # fmt: skip
    [state] = [read_state(folder) for folder in list_checkpoints(second)]
    assert (state.step, state.loader["next_position"]) == (1, 8)
    before, after = (load_weights(latest_checkpoint(run)) for run in (first, second))
    name = "encoder.embeddings.position_embeddings.weight"  # of which 16 were trained
    assert torch.equal(after.pop(name), before.pop(name)[:16].repeat(2, 1))
    assert all(torch.equal(after[other], before[other]) for other in before)  # at this rate
    assert "up to 16 tokens; positions from 16 on continue" in capsys.readouterr().err
    moments = load_moments(latest_checkpoint(second))
    assert moments["nsp_head.weight/step"] == 13
    digest = sha256(weights(first)).hexdigest()
    assert read_run(second).started_from == digest

    train(long, second, model=still, from_=first, resume=True, max_steps=3)  # its own now
    assert read_state(latest_checkpoint(second)).step == 3
    assert load_moments(latest_checkpoint(second))["nsp_head.weight/step"] == 15
    assert read_run(second).started_from == digest


def test_a_run_that_begins_with_moments_of_its_own_says_so(
    finished, small_folder, tmp_path, capsys
):
    for optimizer, said in (("muon", True), ("adamw", False)):
        out = tmp_path / optimizer
        train(small_folder, out, from_=finished, max_steps=1, optimizer=optimizer)
        note = f"note: {finished} was trained with --optimizer adamw; only its weights are taken"
        assert (note in capsys.readouterr().err) is said
        steps_of_moments = load_moments(latest_checkpoint(out))["nsp_head.weight/step"]
        assert steps_of_moments == (1 if said else 13)


def test_a_run_that_diverges_at_once_says_what_to_do(small_folder, tmp_path):
    reason = "after step .* It had no checkpoint yet: start again with a smaller --learning-rate"
    with pytest.raises(DivergedError, match=reason):
        train(small_folder, tmp_path / "run", learning_rate=1e30, warmup=0.0, save_every=0)


def test_rotary_positions_get_a_larger_base_in_global_layers():
    """Warner et al. 2024 (2.2.2): from 1,024 tokens to 8,192, from 10,000 to 160,000."""
    short = preset("modern-base", max_position_embeddings=1024)
    longer = with_positions(short, 8192)
    assert (longer.max_position_embeddings, longer.global_rope_theta) == (8192, 160_000)
    assert longer.local_rope_theta == short.local_rope_theta
    assert with_positions(short, 512) == short


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--warmup", "1"), "--warmup is 1.0; it must be at least 0 and below 1."),
        (("--for", "1m", "--max-steps", "9"), "--for and --max-steps each end the run; give one."),
        (("--preset", "bert-mini"), "with another model (hidden_size 32 there"),
        (("--resume", "--word-vectors"), "this one starts from {out}; give --no-word-vectors"),
        (("--resume", "--overwrite"), "--resume and --overwrite exclude each other; give one"),
        (("--resume", "--max-steps", "5"), "a run at step 12, beyond --max-steps 5; give at least"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_code_2(
    options, complaint, finished, small_folder
):
    result = invoke("pretrain", small_folder, "--out", finished, *options)
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    assert complaint.format(out=finished) in line
    assert "Traceback" not in result.stderr


def counting_examples(rows, *, split, shard, config, of):
    """A counts up in one of two circles of 12 tokens; a B that follows stays in that circle."""
    rng = np.random.default_rng([shard, len(split)])
    half = (config.max_seq_length - 3) // 2
    labels, circles = rng.integers(0, 2, (2, rows))

    def count_up(circle):
        places = (rng.integers(0, 12, (rows, 1)) + np.arange(half)) % 12
        return of.replacement_ids[12 * circle[:, None] + places]

    parts = zip(count_up(circles), count_up(circles ^ labels), strict=True)
    ids = [[of.cls_id, *a, of.sep_id, *b, of.sep_id] for a, b in parts]
    return make_examples(ids, length_a=[half + 2] * rows, labels=labels.tolist())


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_tiny_model_learns_to_count(optimizer, tmp_path):
    """The unigram knows a 24th of it; the neighbours of a masked word tell all."""
    shards = write_data_set(
        tmp_path / "shards", train=(300, 300), validation=(64,), make=counting_examples
    )
    model = replace(STILL, positions="learned-from-sinusoids")
    outcome = train(
        shards, tmp_path / "run", model=model, batch_size=32, max_steps=300, learning_rate=1e-2,
        log_every=50, optimizer=optimizer,
    )  # fmt: skip
    heldout = outcome.heldout
    assert heldout.unigram_loss == pytest.approx(np.log(24), abs=0.1)
    assert heldout.mlm_loss < heldout.unigram_loss - 1.2
    assert heldout.mlm_accuracy > 0.4 > 5 * heldout.most_frequent_share
    if optimizer == "adamw":  # Muon knows the words sooner and the pairs later
        assert heldout.nsp_accuracy > 0.9
