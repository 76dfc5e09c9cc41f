"""From a pretrained run and labelled texts to a classifier's folder, and what it answers."""

import gzip
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.job.context import excluded_blocks
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.artifacts.checkpoint import TrainState
from clozeline.train.artifacts.classifier_folder import read_report
from clozeline.train.artifacts.run import RunConfig, read_run, write_run
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import finetune
from clozeline.train.finetuning.hyperparameters import Selection
from clozeline.train.finetuning.job import read_job
from clozeline.train.finetuning.report import FinetuneReport
from clozeline.train.finetuning.results import ModelResult
from clozeline.train.finetuning.training_loop import Plan
from clozeline.train.inference.predict import Prediction, predict
from clozeline.train.labelled.rows import Texts
from clozeline.train.pretraining.initial_weights import ResumePoint
from clozeline.train.pretraining.start import Start, excluded_from_all
from tests.support.command import invoke
from tests.support.files import contents, no_file_longer_than, times
from tests.support.small_jobs import articles, python
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run
from tests.support.training_configs import training_config
from tests.test_curation_job import build as build_documents
from tests.test_curation_job import make as make_job

FILLERS = [f"w{i}" for i in range(30)]
GOOD, BAD = ["good", "fine"], ["bad", "poor"]
TOKENIZER = tokenizer_of(*FILLERS, *GOOD, *BAD)
MODEL = one_layer(TOKENIZER, positions=16)
#: What is not fixed is searched, which takes many times as long.
FIXED: dict[str, Any] = {"learning_rate": 3e-3, "baseline": False}
CONFIG = FinetuneConfig(**FIXED, epochs=4, batch_size=16)
QUICK = FinetuneConfig(**FIXED, epochs=1, max_examples=16)


def write_rows(path: Path, count: int, *, seed: int, shuffled: bool = False) -> str:
    """Texts of six words, one of which tells the class."""
    random = np.random.default_rng(seed)
    words = random.choice(FILLERS, (count, 6)).astype(object)
    labels = random.integers(0, 2, count)
    telling = np.array([BAD, GOOD])[labels, random.integers(0, 2, count)]
    words[np.arange(count), random.integers(0, 6, count)] = telling
    if shuffled:
        labels = random.permutation(labels)
    texts = [" ".join(row) for row in words]
    table = {"text": texts, "label": labels, "first": [t[:8] for t in texts], "second": texts}
    pq.write_table(pa.table(table), path)
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """It has not learned anything."""
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    return write_small_run(folder, BertForPretraining(MODEL, seed=7), TOKENIZER, max_seq_length=12)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return (
        write_rows(folder / "train.parquet", 500, seed=0),
        write_rows(folder / "test.parquet", 200, seed=1),
    )


@pytest.fixture(scope="module")
def classifier(run, rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("classifier") / "out"
    finetune(run, rows[0], out=out, test=rows[1], config=CONFIG)
    return out


@pytest.fixture(scope="module")
def pairs(run, rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "out"
    config = replace(QUICK, text="first", text_pair="second", max_examples=40)
    finetune(run, rows[0], out=out, config=config)
    return out


def selection_of(result):
    assert result.selection is not None
    return result.selection


@pytest.fixture(scope="module")
def excluding(tmp_path_factory):
    """A test set, and the config of a run on shards without documents like its first two rows."""
    folder, texts = tmp_path_factory.mktemp("excluding"), articles(20)
    tests = [*(text[:400] for text in texts[:2]), "never seen " * 20]
    table = {"title": ["a\r\ntitle"] * 3, "content": tests, "label": ["1", "0", "1"]}
    pq.write_table(pa.table(table), folder / "test.parquet")
    source = str(folder / "test.parquet")
    config = DataConfig(num_shards=1, exclude=(f"{source}?text=title,content",))
    given = {"excluded": excluded_blocks(config)}
    manifest = build_documents(make_job(folder / "job", config, texts, **given))
    assert manifest.dropped["excluded"] == 2
    return source, RunConfig.of(MODEL, training_config(), manifest, folder)


def test_a_test_set_is_known_to_be_excluded(run, rows, excluding, tmp_path):
    test, config = excluding
    there = shutil.copytree(run, tmp_path / "run")
    write_run(there, replace(read_run(there), excluded=config.excluded), TOKENIZER)
    columns = replace(QUICK, text="title,content")
    also = f"{rows[1]}?text=text"
    for folder, found in ((there, 2), (run, None)):
        job = read_job(folder, test, test, [also], columns)
        assert job.excluded == {"test": found, also: None}


def test_weights_that_may_have_read_a_test_set_make_it_unknown(excluding, tmp_path):
    config = excluding[1]
    [[digest, found]] = config.excluded.items()
    without = replace(config, excluded={"of another": 1})
    new = ResumePoint(state=TrainState(step=0))
    other = replace(new, started_from="0" * 64)
    for point, start, expected in (
        (new, {}, {digest: found}),
        (other, {"other": config}, {digest: found}),
        (other, {"other": without}, {}),
        (other, {"existing": without}, {}),  # it was started from another run
        (other, {"existing": without, "other": config, "overwrite": True}, {digest: found}),
        (other, {"init": tmp_path}, {}),
    ):
        assert excluded_from_all(Start(out=tmp_path, **start), point, config) == expected


# Learning


def test_a_planted_signal_is_learned(classifier):
    report = json.loads((classifier / "report.json").read_text())
    assert report["finetuned"]["accuracy"] > 0.95
    assert report["finetuned"]["examples"] == 200
    assert report["finetuned"]["names"] == ["0", "1"]


def test_the_encoder_starts_from_the_run(run, rows, tmp_path):
    still = replace(QUICK, learning_rate=1e-12)
    finetune(run, rows[0], out=tmp_path / "out", config=still)
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in BertForPretraining(MODEL, seed=7).encoder.state_dict().items():
        if name.startswith("pooler."):
            continue  # the mean of the tokens needs none
        torch.testing.assert_close(found[f"encoder.{name}"], value, atol=1e-8, rtol=0)


def test_bag_of_words_reads_no_further_than_the_model(run, tmp_path):
    pytest.importorskip("sklearn")
    texts = ["w1 w2 w3 w4 w5 w6 good", "w1 w2 w3 w4 w5 w6 bad"] * 30
    source = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"text": texts, "label": ["+", "-"] * 30}), source)
    found = {}
    for length in (8, 9):
        config = replace(QUICK, max_examples=None, baseline=True, max_seq_length=length)
        out = tmp_path / str(length)
        report = finetune(run, source, out=out, test=source, config=config)
        found[length] = report.to_dict()["bag_of_words"]["accuracy"]
    assert found == {8: 0.5, 9: 1.0}


def test_without_a_test_file_a_share_is_held_out(run, rows, tmp_path):
    config = replace(QUICK, test_share=0.2, max_examples=None)
    report = finetune(run, rows[0], out=tmp_path / "out", config=config)
    assert report.rows == 400
    assert report.finetuned.scores.examples == 100


def test_without_scikit_learn_the_report_says_what_is_missing(run, rows, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    report = finetune(run, rows[0], out=tmp_path / "out", config=replace(QUICK, baseline=True))
    assert report.to_dict()["bag_of_words"] is None
    assert "pip install 'clozeline[baseline]'" in report.lines()[-1]


# The folder


def test_a_finished_folder_is_left_as_it_is(run, rows, classifier):
    before = times(classifier)
    report = finetune(run, rows[0], out=classifier, test=rows[1], config=CONFIG)
    assert not report.is_new
    assert report.finetuned.scores.accuracy > 0.95
    assert times(classifier) == before


def test_another_config_is_refused_naming_what_differs(run, rows, classifier):
    other = replace(CONFIG, epochs=5)
    with pytest.raises(InputError, match=r"another config \(epochs 4 there, 5 now\)"):
        finetune(run, rows[0], out=classifier, test=rows[1], config=other)
    with pytest.raises(InputError, match=r"\(training rows \w{12} there, \w{12} now\)"):
        finetune(run, rows[1], out=classifier, test=rows[1], config=CONFIG)


def test_overwrite_replaces_the_folder(run, rows, classifier, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(classifier, out)
    assert finetune(run, rows[0], out=out, config=QUICK, overwrite=True).is_new
    assert sorted(contents(out)) == [
        "SHA256SUMS",
        "classifier.json",
        "model.safetensors",
        "predictions.csv",
        "report.json",
        "tokenizer/SHA256SUMS",
        "tokenizer/special_tokens_map.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.txt",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_where_nothing_can_be_written_nothing_is_trained(run, rows, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file is not writable; give"):
        finetune(run, rows[0], out=tmp_path / "file" / "out", config=CONFIG)


def test_a_full_disk_leaves_no_half_of_a_classifier(run, rows, tmp_path):
    with (
        no_file_longer_than(20_000),
        pytest.raises(InputError, match=r"pretrained-16-0\.safetensors cannot be written .*; free"),
    ):
        finetune(run, rows[0], out=tmp_path / "out", config=QUICK)
    assert list(contents(tmp_path)) == ["out/results/job.json"]


def test_pooling_and_dropout_are_those_of_fine_tuning(run, rows, classifier, tmp_path):
    metadata = json.loads((classifier / "classifier.json").read_text())
    assert metadata["pooling"] == "mean"
    assert metadata["model"]["hidden_dropout_prob"] == 0.1  # pretraining had none
    assert metadata["model"]["attention_probs_dropout_prob"] == 0.1
    config = replace(QUICK, pooling="cls", dropout=0.0)
    finetune(run, rows[0], out=tmp_path / "out", config=config)
    metadata = json.loads((tmp_path / "out" / "classifier.json").read_text())
    assert metadata["pooling"] == "cls"
    assert metadata["model"]["hidden_dropout_prob"] == 0.0


# What is chosen, and on which rows


def test_files_of_others_in_the_results_stay(run, rows, tmp_path):
    out = tmp_path / "out"
    finetune(run, rows[0], out=out, test=rows[1], config=QUICK)
    (out / "results").mkdir(exist_ok=True)
    (out / "results" / "plot.png").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"files that are not part of .* \(results/plot.png\)"):
        finetune(run, rows[0], out=out, test=rows[1], config=QUICK, overwrite=True)
    assert (out / "results" / "plot.png").read_bytes() == b"mine"


def test_test_rows_decide_nothing(run, rows, tmp_path):
    """Other test rows with other labels: the same choices, the same bytes."""
    config = FinetuneConfig(baseline=False, epochs=1, max_examples=30, seeds=2)
    other = write_rows(tmp_path / "x.parquet", 20, seed=9, shuffled=True)
    reports = [
        finetune(run, rows[0], out=tmp_path / str(i), test=test, config=config)
        for i, test in enumerate((rows[1], other))
    ]
    one, two = ((tmp_path / str(i) / "model.safetensors").read_bytes() for i in (0, 1))
    assert one == two
    assert reports[0].chosen == reports[1].chosen
    selections = [[result.selection for result in report.results] for report in reports]
    assert selections[0] == selections[1]
    assert reports[0].finetuned.scores.examples != reports[1].finetuned.scores.examples


def test_the_classifier_is_that_of_the_seed_with_the_lowest_held_out_loss(run, rows, tmp_path):
    config = replace(QUICK, max_examples=60, seeds=3)
    report = finetune(run, rows[0], out=tmp_path / "all", test=rows[1], config=config)
    losses = {result.key.seed: selection_of(result).held_out.loss for result in report.results}
    assert len(set(losses.values())) == 3
    assert losses[report.chosen.seed] == min(losses.values())
    metadata = json.loads((tmp_path / "all" / "classifier.json").read_text())
    assert metadata["temperature"] == selection_of(report.finetuned).held_out.temperature
    (point,) = report.points()
    accuracies = [result.scores.accuracy for result in report.results]
    assert list(point.accuracies) == accuracies
    assert point.mean() == pytest.approx(np.mean(accuracies))
    assert point.deviation() == pytest.approx(np.std(accuracies, ddof=1))
    shown = f"accuracy {point.mean():.4f} ± {point.deviation():.4f} (3 seeds)"
    assert shown in "\n".join(report.lines())


def test_the_learning_rate_is_searched_and_stored(run, rows, tmp_path):
    config = FinetuneConfig(baseline=False, max_examples=40, epochs=2)
    report = finetune(run, rows[0], out=tmp_path / "out", test=rows[1], config=config)
    selection = selection_of(report.finetuned)
    rates = [plan.learning_rate for plan, _ in selection.tried]
    assert rates[:-1] == sorted(rates[:-1])  # the last one is tried with half the epochs
    assert {3e-4, 1e-3, 3e-3} <= set(rates)
    assert selection.held_out.rows == 40  # of few rows each is held out once
    assert selection.held_out.loss == min(held_out.loss for _, held_out in selection.tried)
    (stored,) = json.loads((tmp_path / "out" / "report.json").read_text())["results"]
    assert stored["selection"]["plan"]["learning_rate"] == selection.plan.learning_rate
    again = finetune(run, rows[0], out=tmp_path / "out", test=rows[1], config=config)
    assert not again.is_new
    assert again.lines() == report.lines()


def test_large_sets_hold_rows_out_of_the_final_training(run, tmp_path):
    source = write_rows(tmp_path / "x.parquet", 4_100, seed=0)
    test = write_rows(tmp_path / "y.parquet", 100, seed=1)
    config = FinetuneConfig(learning_rate=3e-3, baseline=False, batch_size=64)
    report = finetune(run, source, out=tmp_path / "out", test=test, config=config)
    selection = selection_of(report.finetuned)
    assert selection.held_out.rows == 205  # a twentieth
    assert selection.plan == Plan(learning_rate=3e-3, epochs=4)
    assert report.finetuned.scores.accuracy > 0.95


def test_mistakes_are_listed_with_the_most_confident_first(run, rows, tmp_path):
    report = finetune(run, rows[0], out=tmp_path / "o", test=rows[1], config=QUICK)
    wrong = report.finetuned.scores.examples * (1 - report.finetuned.scores.accuracy)
    assert len(report.mistakes) == min(10, round(wrong)) > 0
    confidences = [mistake.confidence for mistake in report.mistakes]
    assert confidences == sorted(confidences, reverse=True)
    table = pq.read_table(rows[1]).to_pylist()
    answers = list(predict(tmp_path / "o", [mistake.text for mistake in report.mistakes]))
    for mistake, answer in zip(report.mistakes, answers, strict=True):
        row = table[mistake.row - 1]
        assert mistake.text == row["text"]
        assert mistake.label == str(row["label"]) != mistake.predicted == answer.label
        assert mistake.confidence == pytest.approx(answer.probability, abs=0.02)


def test_imbalanced_classes_are_noted(run, tmp_path):
    texts, labels = ["w1 good", *["w2 bad"] * 9] * 4, ["+", *["-"] * 9] * 4
    source = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"text": texts, "label": labels}), source)
    report = finetune(
        run, source, out=tmp_path / "o", test=source,
        config=replace(QUICK, max_examples=None),
    )  # fmt: skip
    assert report.notes == (
        "classes are imbalanced: 36 training rows are '-', 4 are '+'; --class-weights balanced "
        "weighs them equally.",
    )
    assert report.near_copies == 40


# Label efficiency

EFFICIENCY = FinetuneConfig(
    learning_rate=3e-3, epochs=1, max_examples=120, label_efficiency="20,50,all", seeds=2
)


@pytest.fixture(scope="module")
def efficiency(run, rows, tmp_path_factory):
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("efficiency") / "out"
    finetune(
        run, rows[0], out=out, test=rows[1], also_test=[f"{rows[1]}?text=second"],
        config=EFFICIENCY,
    )  # fmt: skip
    return out


def test_every_model_is_trained_on_every_size_with_every_seed(efficiency):
    values = json.loads((efficiency / "report.json").read_text())
    keys = [(result["examples"], result["start"], result["seed"]) for result in values["results"]]
    neural = [
        (size, start, seed)
        for size in (20, 50, 120)
        for start in ("from_scratch", "pretrained")
        for seed in (0, 1)
    ]
    # Bag-of-words has no other randomness than the choice of rows.
    counts = [(size, "bag_of_words", seed) for size in (20, 50) for seed in (0, 1)]
    assert sorted(keys) == sorted([*neural, *counts, (120, "bag_of_words", 0)])
    for result in values["results"]:  # the other test set is the same one, by another column
        assert [scores["confusion"] for scores in result["also"].values()] == [
            result["scores"]["confusion"]
        ]
    # Nothing was searched; only what may become the classifier has results of its own seed.
    held_out = {
        (result["examples"], result["start"]): result["selection"]["held_out"]["rows"]
        for result in values["results"]
        if result["selection"]
    }
    assert held_out == {key[:2]: 120 * (key[:2] == (120, "pretrained")) for key in neural}
    points = [(point["examples"], point["start"]) for point in values["label_efficiency"]]
    assert points[:3] == [(20, "pretrained"), (20, "from_scratch"), (20, "bag_of_words")]


def test_the_curve_is_a_table_and_a_figure(efficiency):
    lines = FinetuneReport.from_dict(read_report(efficiency)).lines()
    heads = [line.split() for line in lines if line.lstrip().startswith("rows ")]
    assert heads == [["rows", "fine-tuned", "from", "scratch", "bag-of-words"]] * 2
    start = lines.index("accuracy, %") + 2
    assert [line.split()[0] for line in lines[start : start + 3]] == ["20", "50", "120"]
    assert all(line.count("±") >= 2 for line in lines[start : start + 3])
    assert (efficiency / "label_efficiency.svg").read_bytes().startswith(b"<?xml")
    assert (efficiency / "label_efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert not (efficiency / "results").exists()


def test_a_killed_comparison_continues_with_the_missing_models(run, rows, efficiency, tmp_path):
    out, others = tmp_path / "out", [f"{rows[1]}?text=second"]
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tests.test_finetune import EFFICIENCY\n"
        "from clozeline.train.finetuning.results import ResultStore\n"
        "from clozeline.train.finetuning.finetune import finetune\n"
        "run, train, test, out = sys.argv[1:]\n"
        "write = ResultStore.write\n"
        "def write_or_die(store, result, weights=None):\n"
        "    write(store, result, weights)\n"
        "    if result.key.name == 'pretrained-120-0': os._exit(9)\n"
        "ResultStore.write = write_or_die\n"
        "finetune(Path(run), train, out=Path(out), test=test,\n"
        "         also_test=[f'{test}?text=second'], config=EFFICIENCY)\n"
    )
    args = [sys.executable, "-c", code, str(run), *rows, str(out)]
    assert subprocess.run(args, capture_output=True).returncode == 9
    finished = times(out / "results")
    assert len(finished) == 1 + 16 + 1  # the job, all but the last, a candidate's weights

    def again(config: FinetuneConfig = EFFICIENCY, *, resume: bool) -> FinetuneReport:
        return finetune(
            run, rows[0], out=out, test=rows[1], also_test=others, config=config,
            resume=resume,
        )  # fmt: skip

    with pytest.raises(InputError, match="unfinished fine-tuning; add --resume"):
        again(resume=False)
    with pytest.raises(InputError, match=r"with another config \(epochs 1 there, 2 now\)"):
        again(replace(EFFICIENCY, epochs=2), resume=True)
    assert times(out / "results") == finished
    assert again(resume=True).is_new
    assert contents(out) == contents(efficiency)


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 17}, "max_seq_length is 17, but the model of .* has only 16 posit"),
        ({"label_efficiency": "9999"}, "asks for 9,999 rows, but there are 450"),
    ],
)
def test_bad_input_is_one_clear_error(run, rows, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        finetune(run, rows[0], out=tmp_path / "out", config=FinetuneConfig(**changes))
    assert not (tmp_path / "out").exists()


def test_other_test_rows_do_not_take_the_name_of_the_test_rows(run, rows, tmp_path, monkeypatch):
    (tmp_path / "test").write_bytes(Path(rows[1]).read_bytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"has the name of the --test rows; give \./test"):
        finetune(run, rows[0], out=tmp_path / "out", also_test=["test"], config=CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"max_seq_length": 4}, "max_seq_length is 4"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"label_efficiency": "10,1"}, "give numbers of rows from 2"),
        ({"label_efficiency": "few"}, "label_efficiency is 'few'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"epochs": "many"}, "epochs is 'many'"),
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"class_weights": "heavy"}, "class_weights is 'heavy'"),
        ({"layer_decay": 0.0}, "layer_decay is 0"),
    ],
)
def test_values_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FinetuneConfig(**changes)


def test_damaged_folders_are_named(classifier, tmp_path):
    with pytest.raises(InputError, match="is an empty folder; give a classifier"):
        load_classifier(tmp_path)
    out = tmp_path / "out"
    shutil.copytree(classifier, out)
    (out / "model.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        load_classifier(out)
    shutil.rmtree(out / "tokenizer")
    Tokenizer([*TOKENIZER.tokens, "more"], TOKENIZER.normalization).save(out / "tokenizer")
    with pytest.raises(InputError, match="restore the original tokenizer"):
        load_classifier(out)


# Predicting


def labels_of(found):
    return [prediction.label for prediction in found]


def test_texts_are_classified_in_order(classifier):
    texts = ["w1 w2 good", "bad", "w3 poor w3 w4 w5 w6", "fine w1"]
    found = list(predict(classifier, texts, batch_size=3))
    assert [prediction.text for prediction in found] == texts
    assert labels_of(iter(found)) == ["1", "0", "0", "1"]
    assert all(0.5 <= prediction.probability <= 1 for prediction in found)


def test_a_batch_is_answered_before_the_next_is_read(classifier):
    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append("w1 good")
            yield read[-1]

    found = predict(classifier, endless(), batch_size=4)
    assert next(found).label == "1"
    assert len(read) == 4


def test_the_size_of_a_batch_changes_no_answer(classifier, rows):
    texts = pq.read_table(rows[1])["text"].to_pylist()[:50]
    one, many = (list(predict(classifier, texts, batch_size=size)) for size in (1, 50))
    assert labels_of(iter(one)) == labels_of(iter(many))
    assert [p.probability for p in one] == pytest.approx([p.probability for p in many], abs=1e-5)


def test_files_are_read_by_column_or_by_line(classifier, tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n{"text": "bad"}\n')
    (tmp_path / "x.csv").write_text("review,text\nbad,good\n")
    (tmp_path / "x.txt").write_bytes(b"good\r\n\nbad\xff\n")
    files = [str(tmp_path / name) for name in ("x.jsonl", "x.txt")]
    found = list(predict(classifier, ["bad"], files=files))
    assert [p.text for p in found] == ["bad", "good", "bad", "good", "", "bad\ufffd"]
    assert labels_of(iter(found))[:4] == ["0", "1", "0", "1"]
    assert labels_of(predict(classifier, files=[str(tmp_path / "x.csv")], text="review")) == ["0"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good\nbad")))
    assert labels_of(predict(classifier, files=["-"])) == ["1", "0"]


def test_files_to_predict_are_recognized_as_sources_are(classifier, tmp_path, monkeypatch):
    (tmp_path / "packed.txt").write_bytes(gzip.compress(b"good\nbad\n"))
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbfgood\n")
    (tmp_path / "x.csv").write_text("text\ngood\nbad\n")
    files = [str(tmp_path / name) for name in ("packed.txt", "mark.txt", "x.csv?limit=1")]
    found = list(predict(classifier, files=files))
    assert [p.text for p in found] == ["good", "bad", "good", "good"]
    utf16 = "good\n".encode("utf-16")
    (tmp_path / "wide.txt").write_bytes(utf16)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(utf16)))
    for file in (str(tmp_path / "wide.txt"), "-"):
        with pytest.raises(InputError, match="is UTF-16; convert it: iconv"):
            list(predict(classifier, files=[file]))
    (tmp_path / "binary.txt").write_bytes(bytes(100))
    with pytest.raises(InputError, match="or binary data, not text in UTF-8"):
        list(predict(classifier, files=[str(tmp_path / "binary.txt")]))


def test_a_tab_parts_a_pair(pairs, tmp_path):
    (tmp_path / "x.csv").write_text("first,second\nw1 w2,good w3\n")
    files = [str(tmp_path / "x.csv")]
    line, alone, table = predict(pairs, ["w1 w2\tgood w3", "w1 w2"], files=files)
    assert line.text == table.text == "w1 w2\tgood w3"
    assert line.probability == pytest.approx(table.probability, abs=1e-6)
    assert alone.probability != line.probability


def test_what_cannot_be_predicted_is_an_error(classifier, tmp_path):
    with pytest.raises(InputError, match="give a run"):
        predict(tmp_path, ["good"])
    with pytest.raises(InputError, match="trained on single texts"):
        predict(classifier, ["good"], text_pair="more")
    with pytest.raises(InputError, match="missing"):
        list(predict(classifier, files=[str(tmp_path / "missing.txt")]))
