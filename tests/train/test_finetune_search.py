"""How a classifier's rate is chosen, kept and continued, also by several processes."""

import json
import os
import re
import subprocess
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.classifier_folder import check_room, read_report
from clozeline.train.cli import main
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.results import ModelKey, Result, ResultFolder
from clozeline.train.finetuning.search import (
    FEW_ROWS,
    SEARCH_ROWS,
    Trial,
    best_of,
    candidate_rates,
    final_split,
    most_epochs,
    rate_note,
    search,
    selection_folds,
    stratified_folds,
)
from clozeline.train.labelled.rows import balanced_order
from clozeline.train.labelled.scores import Correlations, Scores
from tests.support.small_runs import write_small_run
from tests.support.two_processes import ROOT, TORCHRUN
from tests.train.test_finetune import MODEL, TOKENIZER, killed_after, rows_classified, write_rows

LABELS = st.lists(st.integers(0, 2), min_size=2, max_size=80).map(np.array)
RATES = (3e-4, 1e-3, 3e-3)
TWO_CLASSES = np.arange(400) % 2


def searched(rate, best=9, labels=TWO_CLASSES, **config):
    """What is chosen and tried for a model that is best at this rate and number of epochs."""

    def evaluate(trial):
        miss = abs(np.log(trial.learning_rate / rate)) + abs(trial.epochs - best) / 4
        noise = np.sin(np.arange(len(labels)) * 12.9898) * (1 + miss)
        margin = (2 * labels - 1) + noise
        return trial.with_results(np.stack([-margin, margin], 1).astype(np.float32), labels)

    return search(evaluate, len(labels), FinetuneConfig(**config), RATES)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("epochs", [6, 12])
def test_the_best_rate_wins_and_half_of_the_epochs_where_they_are_better(rate, epochs):
    best, tried = searched(rate, epochs)
    assert (best.learning_rate, best.epochs) == (rate, epochs)
    assert best.loss == min(trial.loss for trial in tried)
    assert [trial.epochs for trial in tried] == [12] * (len(tried) - 1) + [6]
    assert tried[-1].learning_rate == rate


def test_the_grid_grows_beyond_an_edge_that_is_best_but_not_for_ever():
    def rates(rate):
        return [trial.learning_rate for trial in searched(rate, best=12)[1]]

    assert rates(1e-3) == [*RATES, 1e-3]
    assert rates(1e-5) == pytest.approx([2.7e-5, 9e-5, *RATES, 2.7e-5])
    assert rates(9e-3) == pytest.approx([*RATES, 9e-3, 2.7e-2, 9e-3])
    assert searched(9e-3)[0].learning_rate == pytest.approx(9e-3)


def test_what_the_config_fixes_is_not_searched_and_a_sample_is_searched_for_the_rate_alone():
    def tried(**config):
        return [(trial.learning_rate, trial.epochs) for trial in searched(1e-3, **config)[1]]

    assert tried(learning_rate=7e-4) == [(7e-4, 12), (7e-4, 6)]
    assert tried(epochs=3) == [(rate, 3) for rate in RATES]
    sample = np.arange(SEARCH_ROWS + 1) % 2
    assert tried(labels=sample) == [(rate, 4) for rate in RATES]


def test_where_nothing_is_left_to_choose_nothing_is_searched():
    fixed, half = {"learning_rate": 5e-4, "epochs": 6}, {"learning_rate": 5e-4}
    assert searched(1e-3, **fixed) == (Trial(**fixed), [])
    sample = np.arange(SEARCH_ROWS + 1) % 2
    trial, tried = searched(1e-3, labels=sample, **half)  # of a sample only the rate is searched
    assert (trial, tried) == (Trial(learning_rate=5e-4, epochs=4), [])
    assert trial.line() == "learning rate 0.0005, 4 epochs"


def test_large_sets_keep_the_rate_of_the_search_and_have_epochs_of_their_own():
    best, tried = searched(1e-3, labels=np.arange(20_001) % 2)
    assert best == replace(best_of(tried), epochs=3)
    assert [most_epochs(n, FinetuneConfig()) for n in (100, 1000, 10_000, 100_000)] == [12, 6, 4, 3]


def test_wider_models_get_lower_rates():
    rates = [candidate_rates(preset(name)) for name in ("nano", "bert-small", "bert-base")]
    assert rates[0] == RATES
    assert rates[2] == (2e-5, 3e-5, 5e-5)
    assert rates[0] > rates[1] > rates[2]


@pytest.mark.parametrize(
    ("name", "rate", "is_far"),
    [
        ("nano", 2e-5, True),
        ("nano", 3e-5, False),
        ("nano", 3e-2, False),
        ("nano", 1.0, True),
        ("bert-base", 1e-3, True),
        ("bert-base", 3e-4, False),
        ("bert-small", "auto", False),
    ],
)
def test_a_rate_far_outside_of_those_that_are_searched_is_noted(name, rate, is_far):
    notes = rate_note(preset(name), FinetuneConfig(learning_rate=rate))
    assert len(notes) == is_far
    if is_far:
        low, *_, high = candidate_rates(preset(name))
        assert notes[0].startswith(
            f"--learning-rate {rate:g} is far outside of the searched range, {low:g} to {high:g}"
        )


def test_a_diverged_model_has_the_worst_results_that_json_has_a_number_for():
    trial = Trial(learning_rate=1.0, epochs=1)
    worst = trial.with_results(np.array([[np.nan, 0]], np.float32), np.array([1]))
    text = json.dumps(asdict(worst), allow_nan=False)
    assert Trial(**json.loads(text)) == worst
    assert best_of([worst, *searched(1e-3)[1]]) != worst


@pytest.mark.parametrize("size", [2, 7, FEW_ROWS, FEW_ROWS + 1, SEARCH_ROWS, SEARCH_ROWS + 1, 9001])
def test_folds_are_disjoint_parts_of_the_training_rows(size):
    labels = np.arange(size) % 3 % 2
    folds = selection_folds(labels, seed=1)
    for train, held in folds:
        assert min(len(train), len(held)) > 0
        assert not set(train) & set(held)
        found = np.bincount(labels[[*train, *held]])
        if len(folds) == 1:  # as many rows as a search may have, every class in proportion
            assert found.sum() == min(size, SEARCH_ROWS)
            np.testing.assert_allclose(found / found.sum(), np.bincount(labels) / size, atol=1e-3)
    everything = np.concatenate([held for _, held in folds])
    assert len(everything) == len(set(everything))
    assert len(folds) == 1 if size > FEW_ROWS else sorted(everything) == list(range(size))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("size", [100, SEARCH_ROWS, SEARCH_ROWS + 200, 60_000])
def test_held_out_rows_are_not_in_the_final_training_which_has_every_class(size, seed):
    """Also those of one row, of which one in 20 would be held out."""
    labels = np.arange(size)
    labels[: min(size, SEARCH_ROWS)] %= 2
    labels[SEARCH_ROWS + 200 :] %= 2
    kept, held = final_split(labels, seed=seed)
    assert sorted([*kept, *held]) == list(range(size))
    assert set(labels[kept]) == set(labels)
    assert set(labels[held]) <= {0, 1}
    numbers = final_split(labels.astype(np.float32), seed=seed)[1]  # not classes
    assert len(numbers) == (0 if size <= SEARCH_ROWS else min(-(-size // 20), 2000))


@given(LABELS, st.integers(2, 6), st.integers(0, 3))
def test_folds_have_an_equal_part_of_every_class(labels, folds, seed):
    fold = stratified_folds(labels, folds, seed=seed)
    for rows in (labels >= 0, *(labels == name for name in np.unique(labels))):
        counts = np.bincount(fold[rows], minlength=folds)
        assert counts.max() - counts.min() <= 1


@given(LABELS, st.integers(0, 3))
def test_the_first_rows_are_balanced_while_there_are_rows_of_each_class(labels, seed):
    order = balanced_order(labels, seed=seed)
    assert sorted(order) == list(range(len(labels)))
    totals = np.bincount(labels, minlength=3)
    for size in range(1, len(order) + 1):
        counts = np.bincount(labels[order[:size]], minlength=3)
        for name in range(3):  # behind another class only where it has run out
            assert counts[name] == totals[name] or counts[name] >= counts.max() - 1


def test_another_seed_takes_other_rows():
    orders = [balanced_order(TWO_CLASSES, seed=seed)[:50] for seed in (0, 0, 1)]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()
    folds = [stratified_folds(TWO_CLASSES, 5, seed=seed) for seed in (0, 0, 1)]
    assert folds[0].tolist() == folds[1].tolist() != folds[2].tolist()


# --- Results of an unfinished comparison: whose they are, and that they are what was written ------
KEY = ModelKey("pretrained", 4, 0)
TRIAL = Trial(learning_rate=1e-3, epochs=6, rows=4, loss=0.5)
SCORES = Scores.of(("a", "b"), np.array([0, 1]), np.array([0, 1]))
RESULT = Result(key=KEY, scores=SCORES, also={"x": SCORES}, trial=TRIAL, tried=(TRIAL, TRIAL))
WEIGHTS = {"w": torch.arange(4.0)}
JOB = {"epochs": 1}


def store(out, job=JOB, **how):
    return ResultFolder(out, job, **{"resume": False, "overwrite": False, **how})


def written(out):
    store(out).write(RESULT, WEIGHTS)
    return out / "finetuned.json"


@pytest.mark.parametrize(
    ("job", "how", "is_kept"),
    [
        (JOB, {"resume": True}, True),
        (JOB, {"resume": True, "overwrite": True}, True),  # it is the same comparison
        ({"epochs": 2}, {"resume": True, "overwrite": True}, False),
        (JOB, {"overwrite": True}, False),
    ],
)
def test_results_are_kept_as_they_were_for_the_same_comparison(tmp_path, job, how, is_kept):
    written(tmp_path)
    again = store(tmp_path, job, **how)
    assert again.results.keys() == ({KEY} if is_kept else set())
    if is_kept:
        assert again.results[KEY].to_dict() == RESULT.to_dict()
        assert torch.equal(again.read_tensors()["w"], WEIGHTS["w"])
        (tmp_path / "finetuned.safetensors").write_bytes(b"damaged")
        assert store(tmp_path, job, **how).results == {}


def test_results_of_a_regression_stay(tmp_path):
    """They are all that `clozeline benchmark` leaves of one, and it finds them there again."""
    numbers = np.array([1.0, 2.0, 4.0])
    correlations = Correlations.of(numbers, numbers[::-1].copy())
    store(tmp_path).write(replace(RESULT, scores=correlations, also={}))
    with pytest.raises(InputError, match="holds results of an earlier fine-tuning; add --resume"):
        store(tmp_path)
    assert store(tmp_path, resume=True).results[KEY].scores == correlations


def test_weights_alone_count_for_nothing(tmp_path):
    """A kill just before the first result is written leaves them."""
    written(tmp_path).unlink()
    check_room(tmp_path, overwrite=False)
    assert store(tmp_path).results == {}


def test_files_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "plot.png").touch()
    with pytest.raises(InputError, match=r"is not empty and not a classifier \(plot.png\)"):
        check_room(tmp_path, overwrite=True)
    written(tmp_path)
    (tmp_path / f".finetuned.json.{'0' * 32}.partial").touch()  # of a killed process of ours
    with pytest.raises(InputError, match=r"files that are not part of .* \(plot.png\)"):
        check_room(tmp_path, overwrite=True)


def test_a_file_that_is_no_result_is_refused_in_one_line(tmp_path):
    path = written(tmp_path)
    path.write_text(json.dumps({"job": JOB, "results": [{"start": "pretrained"}]}))
    with pytest.raises(InputError, match=r"cannot be read \(it has no 'examples'\); start again"):
        store(tmp_path, resume=True)


# --- Fine-tuning under torchrun: the processes share the rows of each step, and agree with one ----


#: An epoch has two batches of seven rows and one of a single row; there is no dropout.
TOGETHER = (
    *("--max-examples", "15", "--no-baseline", "--dropout", "0"),
    *("--epochs", "2", "--batch-size", "7", "--precision", "fp32"),
)

#: Several commands; how many rows each of them trained on in this process is written to a file.
#: After each, no thread of the processes' group is left.
COMMANDS = """
import json, os, sys
from pathlib import Path
from clozeline.train.cli import main
from tests.train.test_finetune import rows_classified

for number, line in enumerate(json.loads(sys.argv[2])):
    with rows_classified(training=True) as rows:
        main(line, standalone_mode=False)
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in threads if "gloo" in name]
    Path(sys.argv[1], f"rows.{number}.{os.environ['RANK']}").write_text(str(sum(rows)))
"""


def test_two_processes_train_each_model_as_one_does(tmp_path):
    """From the beginning, and after a process was killed."""
    model = BertForPretraining(MODEL, seed=7)
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=12)
    train, test = (
        write_rows(tmp_path / f"{name}.parquet", rows, seed=seed)
        for seed, (name, rows) in enumerate((("train", 60), ("test", 50)))
    )
    line = ["finetune", str(run), train, "--test", test, *TOGETHER]
    compared = {
        "one": line,
        "two": [*line, "--from-scratch", "--seeds", "2", "--learning-rate", "1e-3", "--baseline"],
    }
    rows = []
    for name, options in compared.items():
        with rows_classified(training=True) as counted:
            alone = CliRunner().invoke(main, [*options, "--out", str(tmp_path / name)])
        assert alone.exit_code == 0, alone.output
        rows.append(sum(counted))
    kept = [*compared["two"], "--out", str(tmp_path / "two-killed")]
    with killed_after(("bag_of_words", 15, 0)):
        CliRunner().invoke(main, kept)
    lines = [[*options, "--out", str(tmp_path / f"{n}-2")] for n, options in compared.items()]
    (tmp_path / "commands.py").write_text(COMMANDS)
    given = [str(tmp_path), json.dumps([*lines, [*kept, "--resume"]])]
    both = subprocess.run(
        [*TORCHRUN, str(tmp_path / "commands.py"), *given],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert both.returncode == 0, both.stderr
    trained = re.findall(r"[-a-z ]+, 15 rows, seed \d: accuracy", both.stderr)
    assert len(trained) == 1 + 5 + 4
    for number, wanted in enumerate(rows):  # each row once, by one of them; each has some
        shares = [int((tmp_path / f"rows.{number}.{rank}").read_text()) for rank in range(2)]
        assert sum(shares) == wanted
        assert min(shares) > 0
    for name, wanted in (("one-2", "one"), ("two-2", "two"), ("two-killed", "two")):
        found, others = load_classifier(tmp_path / name), load_classifier(tmp_path / wanted)
        weights = dict(others.model.named_parameters())
        for key, value in found.model.named_parameters():
            assert (value - weights[key]).norm() <= 1e-3 * weights[key].norm() + 1e-6, key
        reports = [read_report(tmp_path / n) for n in (name, wanted)]
        assert reports[0]["label_efficiency"] == reports[1]["label_efficiency"]
        losses = [[r["trial"]["loss"] for r in x["results"] if r["trial"]] for x in reports]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        assert (max(losses[0]) > 0) == (wanted == "one")  # whose rate is searched
