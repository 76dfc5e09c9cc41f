"""From a pretrained run and labelled texts to a classifier's folder, and what it answers."""

import csv
import gzip
import json
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_pre_hook

from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.artifacts.classifier_folder import PREDICTIONS, read_report
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.compare import finetune, train_models
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.job import read_job
from clozeline.train.finetuning.results import ResultFolder
from clozeline.train.inference.predict import predict
from tests.support.files import contents, no_file_longer_than, times
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run

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
    sizes = (("train.parquet", 500), ("test.parquet", 200))
    return [write_rows(folder / name, size, seed=i) for i, (name, size) in enumerate(sizes)]


@pytest.fixture(scope="module")
def tuned(run, rows):
    def fine_tune(out, config=QUICK, *, train=rows[0], test=rows[1], **options):
        return finetune(run, train, out=out, test=test, config=config, **options)

    return fine_tune


@pytest.fixture(scope="module")
def classifier(tuned, tmp_path_factory):
    out = tmp_path_factory.mktemp("classifier") / "out"
    tuned(out, CONFIG)
    return out


def test_the_encoder_starts_from_the_run(tuned, tmp_path):
    tuned(tmp_path / "out", replace(QUICK, learning_rate=1e-12))
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in BertForPretraining(MODEL, seed=7).encoder.state_dict().items():
        if not name.startswith("pooler."):  # the mean of the tokens needs none
            np.testing.assert_allclose(found[f"encoder.{name}"], value, atol=1e-8, rtol=0)


def test_bag_of_words_reads_no_further_than_the_model(tuned, tmp_path):
    pytest.importorskip("sklearn")
    texts = ["w1 w2 w3 w4 w5 w6 good", "w1 w2 w3 w4 w5 w6 bad"] * 30
    source = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"text": texts, "label": ["+", "-"] * 30}), source)
    for length, accuracy in ((8, 0.5), (9, 1.0)):
        config = replace(QUICK, max_examples=None, baseline=True, max_seq_length=length)
        report = tuned(tmp_path / str(length), config, train=source, test=source)
        assert report.values["bag_of_words"]["accuracy"] == accuracy


def test_a_class_that_max_examples_leaves_out_is_named(run, rows, tmp_path):
    table = tmp_path / "rare.csv"
    table.write_text("text,label\n" + "w1 good,1\nw1 bad,0\n" * 50 + "w1 odd,rare\n")
    config = replace(QUICK, max_examples=8)
    assert read_job(run, str(table), rows[0], [], replace(config, max_examples=None)).names
    with pytest.raises(InputError, match="has the label 'rare', which no training row has"):
        read_job(run, str(table), str(table), [], config)
    table.write_text("text,label\n" + "w1 good,1\n" * 100 + "w1 bad,0\n")
    with pytest.raises(InputError, match="every row has the label '1', but a classifier needs two"):
        read_job(run, str(table), str(table), [], config)


def test_without_scikit_learn_the_report_says_what_is_missing(tuned, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    report = tuned(tmp_path / "out", replace(QUICK, baseline=True))
    assert report.values["bag_of_words"] is None
    assert any("pip install 'clozeline[baseline]'" in line for line in report.lines())


@pytest.mark.parametrize(("name", "labels"), [("x.csv", "1.0 00 1.0"), ("x.jsonl", "1.0 0.0 1")])
def test_test_labels_that_are_the_numbers_of_classes_are_read_as_those(
    tuned, tmp_path, name, labels
):
    """A label column of real numbers is that of a table whose classes are whole ones."""
    source, found = tmp_path / name, labels.split()
    lines = ["text,label", *(f"w1,{label}" for label in found)]
    if name.endswith("jsonl"):
        lines = [f'{{"text": "w1", "label": {label}}}' for label in found]
    source.write_text("\n".join(lines))
    report = tuned(tmp_path / "out", test=str(source), also_test=[str(source)])
    also = report.finetuned.also[str(source)]
    assert also.confusion.sum(1).tolist() == report.finetuned.scores.confusion.sum(1).tolist()
    assert also.confusion.sum(1).tolist() == [1, 2]


def test_a_planted_signal_is_learned_and_a_finished_folder_left_as_it_is(tuned, classifier):
    before = times(classifier)
    report = tuned(classifier, CONFIG)
    assert not report.is_new
    scores = report.finetuned.scores
    assert (scores.names, scores.examples) == (("0", "1"), 200)
    assert scores.accuracy > 0.95
    assert times(classifier) == before


def test_another_config_is_refused_naming_what_differs(tuned, rows, classifier, efficiency):
    with pytest.raises(InputError, match=r"another config \(epochs 4 there, 5 now\)"):
        tuned(classifier, replace(CONFIG, epochs=5))
    with pytest.raises(InputError, match=r"\(training rows \w{12} there, \w{12} now\)"):
        tuned(classifier, CONFIG, train=rows[1])
    with pytest.raises(InputError, match=r"another config \(tests .* there, 'test' now\)"):
        tuned(efficiency, EFFICIENCY)  # a test set is left out


def test_overwrite_replaces_the_folder(tuned, classifier, tmp_path):
    """Pooling and dropout are those of fine-tuning."""
    out = shutil.copytree(classifier, tmp_path / "out")
    metadata = json.loads((out / "classifier.json").read_text())
    assert metadata["pooling"] == "mean"
    assert metadata["model"]["hidden_dropout_prob"] == 0.1  # pretraining had none
    assert metadata["model"]["attention_probs_dropout_prob"] == 0.1
    other = replace(QUICK, pooling="cls", dropout=0.0)
    assert tuned(out, other, overwrite=True).is_new
    assert sorted(contents(out)) == [
        *("SHA256SUMS", "classifier.json", "model.safetensors", "predictions.csv", "report.json"),
        *("tokenizer/SHA256SUMS", "tokenizer/special_tokens_map.json", "tokenizer/tokenizer.json"),
        *("tokenizer/tokenizer_config.json", "tokenizer/vocab.txt"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    metadata = json.loads((out / "classifier.json").read_text())
    assert metadata["pooling"] == "cls"
    assert metadata["model"]["hidden_dropout_prob"] == 0.0


def test_where_nothing_can_be_written_nothing_is_trained(tuned, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file is not writable; give"):
        tuned(tmp_path / "file" / "out")


def test_a_full_disk_leaves_no_half_of_a_classifier(tuned, tmp_path):
    with no_file_longer_than(20_000), pytest.raises(OSError, match="File too large"):
        tuned(tmp_path / "out")
    assert not contents(tmp_path)


def test_the_learning_rate_is_searched_on_training_rows_alone(tuned, tmp_path):
    """Other test rows with other labels: the same choices, the same bytes."""
    config = FinetuneConfig(baseline=False, epochs=1, max_examples=20, seeds=2)
    other = write_rows(tmp_path / "x.parquet", 20, seed=9, shuffled=True)
    outs = tmp_path / "0", tmp_path / "1"
    one, two = tuned(outs[0], config), tuned(outs[1], config, test=other)
    weights = [(out / "model.safetensors").read_bytes() for out in outs]
    assert weights[0] == weights[1]
    assert one.finetuned.key == two.finetuned.key
    choices = [[(result.trial, result.tried) for result in found.results] for found in (one, two)]
    assert choices[0] == choices[1]
    assert one.finetuned.scores.examples != two.finetuned.scores.examples

    trial, tried = choices[0][0]
    rates = [found.learning_rate for found in tried]
    assert rates == sorted(rates)
    assert {3e-4, 1e-3, 3e-3} <= set(rates)
    assert trial.rows == 20  # of few rows each is held out once
    assert trial.loss == min(found.loss for found in tried)
    stored, _ = json.loads((outs[0] / "report.json").read_text())["results"]
    assert stored["trial"]["learning_rate"] == trial.learning_rate
    again = tuned(outs[0], config)
    assert not again.is_new
    assert again.lines() == one.lines()


def test_the_classifier_is_that_of_the_first_seed(tuned, tmp_path):
    one = replace(QUICK, max_examples=60, seed=1)
    report = tuned(tmp_path / "several", replace(one, seeds=2))
    assert len({result.scores.accuracy for result in report.results}) == 2
    alone = tuned(tmp_path / "one", one)
    assert report.finetuned == report.results[0]
    assert report.finetuned.to_dict() == alone.finetuned.to_dict()
    weights = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("several", "one")]
    assert weights[0] == weights[1]


def test_large_sets_hold_rows_out_of_the_final_training_and_may_be_compiled(
    tuned, tmp_path, monkeypatch, capfd
):
    """Here a warning says that there is no compiler; for the smaller set there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    source = write_rows(tmp_path / "x.parquet", 4_100, seed=0)
    config = FinetuneConfig(**FIXED, epochs=1, batch_size=128, compile=True, label_efficiency="200")
    trial = tuned(tmp_path / "out", config, train=source).finetuned.chosen
    assert trial.rows == 205  # a twentieth
    assert capfd.readouterr().err.count("--no-compile") == 2  # from scratch and pretrained


EFFICIENCY = FinetuneConfig(
    learning_rate=3e-3, epochs=1, max_examples=80, label_efficiency="20,all", seeds=2
)


@pytest.fixture(scope="module")
def efficiency(tuned, rows, tmp_path_factory):
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("efficiency") / "out"
    tuned(out, EFFICIENCY, also_test=[rows[1]])
    return out


def test_every_model_is_trained_on_every_size_with_every_seed(efficiency):
    values = json.loads((efficiency / "report.json").read_text())
    keys = [(result["examples"], result["start"], result["seed"]) for result in values["results"]]
    assert keys == [
        (size, start, seed)
        for size in (20, 80)
        for start in ("bag_of_words", "from_scratch", "pretrained")
        for seed in (0, 1)
        # Bag-of-words has no other randomness than the choice of rows.
        if (size, start, seed) != (80, "bag_of_words", 1)
    ]
    for result in values["results"]:  # the other test set is the same one
        assert result["scores"]["examples"] == 200
        assert [scores["confusion"] for scores in result["also"].values()] == [
            result["scores"]["confusion"]
        ]
    assert values["bag_of_words"]["accuracy"] > 0.8 > values["from_scratch"]["accuracy"]
    for result in values["results"]:
        assert (result["trial"] is None) == (result["start"] == "bag_of_words")
    assert not (efficiency / "finetuned.json").exists()


def test_of_long_texts_the_part_is_read_that_is_asked_for(tuned, tmp_path, capfd):
    """The last of 25 words decides; the model reads 10."""
    pytest.importorskip("sklearn")
    sources = []
    for seed, count in enumerate((500, 200)):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 2, count)
        words = random.choice(FILLERS, (count, 25)).astype(object)
        tellers = np.array([BAD, GOOD])[labels, random.integers(0, 2, count)]
        words[:, -1] = tellers
        sources.append(str(tmp_path / f"{seed}.parquet"))
        pq.write_table(pa.table({"text": list(map(" ".join, words)), "label": labels}), sources[-1])
    how = replace(CONFIG, truncate="start", baseline=True)
    report = tuned(tmp_path / "out", how, train=sources[0], test=sources[1])
    assert report.finetuned.scores.accuracy > 0.95
    assert report.values["bag_of_words"]["accuracy"] > 0.95  # it reads the same part
    said = "500 of 500 training rows have more than 12 tokens and lose their start"
    assert f"note: {said}; see --max-seq-length and --truncate.\n" in capfd.readouterr().err
    rows = pq.read_table(sources[1]).to_pylist()
    answers = predict(tmp_path / "out", [row["text"] for row in rows])
    right = [answer.label == str(row["label"]) for answer, row in zip(answers, rows, strict=True)]
    assert np.mean(right) == report.finetuned.scores.accuracy
    tokenizer = json.loads((tmp_path / "out" / "tokenizer" / "tokenizer_config.json").read_text())
    assert tokenizer["truncation_side"] == "left"


class Killed(BaseException):
    """Nothing of ours catches it."""


@contextmanager
def killed_after(key):
    """As if the process were killed when it had stored the result of this model."""
    write = ResultFolder.write

    def write_and_end(folder, result, *weights):
        write(folder, result, *weights)
        if result.key == key:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultFolder, "write", write_and_end)
        with pytest.raises(Killed):
            yield


def test_a_killed_comparison_continues_with_the_missing_models(
    tuned, rows, efficiency, tmp_path, monkeypatch
):
    """By `resume`, or if torchrun restarts the command."""
    out, refused = tmp_path / "out", tmp_path / "refused"
    again = partial(tuned, also_test=[rows[1]])
    with killed_after(("pretrained", 80, 0)):
        again(out, EFFICIENCY)
    finished = contents(out)
    results = json.loads(finished["finetuned.json"])["results"]
    assert len(results) == 10  # of all models but the last
    shutil.copytree(out, refused)
    with pytest.raises(InputError, match="of an earlier fine-tuning; add --resume"):
        again(refused, EFFICIENCY)
    with pytest.raises(InputError, match=r"with another config \(epochs 1 there, 2 now\)"):
        again(refused, replace(EFFICIENCY, epochs=2), resume=True)
    assert contents(refused) == finished
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert again(out, EFFICIENCY).is_new
    assert contents(out) == contents(efficiency)


@contextmanager
def rows_classified(*, training=False):
    """The number of rows of each forward pass of a classifier that is in training or is not."""
    found = []

    def count(module, inputs):
        if isinstance(module, BertForClassification) and module.training == training:
            found.append(len(inputs[0]))

    handle = register_module_forward_pre_hook(count)
    yield found
    handle.remove()


def test_the_test_rows_are_classified_once_also_if_another_process_writes_the_folder(
    tuned, run, rows, tmp_path
):
    with rows_classified() as found:
        tuned(tmp_path / "whole")
    assert sum(found) == 200
    job, alone = read_job(run, *rows, [], QUICK), World(0, 1, torch.device("cpu"))
    (tmp_path / "stopped").mkdir()
    folder = ResultFolder(tmp_path / "stopped", job.digests, resume=False, overwrite=False)
    train_models(job, folder, alone)
    with rows_classified() as found:
        tuned(tmp_path / "stopped", resume=True)
    assert sum(found) == 0
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({"max_seq_length": 17}, {}, "--max-seq-length is 17, but .* has only 16 positions"),
        ({"label_efficiency": "9999"}, {"test": None}, "asks for 9,999 rows, but there are 450"),
        ({}, {"test": ""}, "a source has an empty name; give the path"),
        ({}, {"also_test": ["test"]}, r"has the name of the --test rows; give \./test"),
    ],
)
def test_bad_input_is_one_clear_error(tuned, tmp_path, changes, given, message):
    with pytest.raises(InputError, match=message):
        tuned(tmp_path / "out", FinetuneConfig(**changes), **given)
    assert not (tmp_path / "out").exists()


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
        ({"label_efficiency": ","}, "label_efficiency is ','"),
        ({"seeds": 0}, "seeds is 0"),
        ({"epochs": "many"}, "epochs is 'many'"),
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
        ({"truncate": "nothing"}, "truncate is 'nothing'"),
    ],
)
def test_values_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FinetuneConfig(**changes)


def test_damaged_folders_are_named(classifier, tmp_path):
    with pytest.raises(InputError, match="is an empty folder; give a classifier"):
        load_classifier(tmp_path)
    out = shutil.copytree(classifier, tmp_path / "out")
    (out / "model.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read"):
        load_classifier(out)
    for name, key in (("classifier.json", "truncate"), ("report.json", "plan")):
        part = shutil.copytree(classifier, tmp_path / name)
        (part / "SHA256SUMS").unlink()
        values = json.loads((part / name).read_text())
        del values[key]
        (part / name).write_text(json.dumps(values))
        with pytest.raises(InputError, match=rf"{name} cannot be read \(.*has no {key}"):
            read_report(part) if name == "report.json" else load_classifier(part)
    (part / "classifier.json").write_text(
        json.dumps(json.loads((out / "classifier.json").read_text()) | {"temperature": 2.0})
    )
    for read in (load_classifier, read_report):
        with pytest.raises(InputError, match="has temperature, so another version of Clozeline"):
            read(part)
    shutil.rmtree(out / "tokenizer")
    Tokenizer([*TOKENIZER.tokens, "more"], TOKENIZER.normalization).save(out / "tokenizer")
    with pytest.raises(InputError, match="restore the original tokenizer"):
        load_classifier(out)


def test_a_prediction_is_that_of_the_report_whatever_the_precision_of_the_training(
    tuned, rows, tmp_path
):
    tuned(tmp_path / "out", replace(QUICK, precision="bf16"))
    with (tmp_path / "out" / PREDICTIONS).open(newline="") as file:
        reported = [[float(row["P(0)"]), float(row["P(1)"])] for row in csv.DictReader(file)]
    found = [list(p.probabilities.values()) for p in predict(tmp_path / "out", files=rows[1])]
    np.testing.assert_allclose(found, reported, atol=2e-6, rtol=0)  # six decimals


def test_a_batch_is_answered_before_the_next_is_read(classifier):
    read = []

    def endless():
        while True:
            read.append("w1 good")
            yield read[-1]

    assert next(predict(classifier, endless(), batch_size=4)).label == "1"
    assert len(read) == 4


def test_files_are_read_by_column_or_by_line_and_recognized_as_sources_are(classifier, tmp_path):
    def predicted(texts=(), *files, **columns):
        files = [str(tmp_path / name) for name in files]
        return list(predict(classifier, texts, files=files, batch_size=3, **columns))

    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n{"text": "bad"}\n')
    (tmp_path / "x.txt").write_bytes(b"good\r\n\nbad\xff\n")
    (tmp_path / "packed.txt").write_bytes(gzip.compress(b"good\nbad\n"))
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbfgood\n")
    (tmp_path / "x.csv").write_text("review,text\nbad,good\nbad,bad\n")
    found = predicted(["bad"], "x.jsonl", "x.txt", "packed.txt", "mark.txt", "x.csv?limit=1")
    texts = ["bad", "good", "bad", "good", "", "bad\ufffd", "good", "bad", "good", "good"]
    assert [p.text for p in found] == texts
    assert [p.label for p in found if p.text in ("good", "bad")] == list("01011011")  # in order
    assert all(0.5 <= p.probability <= 1 for p in found)
    assert [p.label for p in predicted((), "x.csv?limit=1", text="review")] == ["0"]


def test_a_tab_parts_a_pair(tuned, tmp_path):
    pairs = tmp_path / "pairs"
    tuned(pairs, replace(QUICK, text="first", text_pair="second"))
    (tmp_path / "x.csv").write_text("first,second\nw1 w2,good w3\n")
    files = [str(tmp_path / "x.csv")]
    line, alone, table = predict(pairs, ["w1 w2\tgood w3", "w1 w2"], files=files)
    assert line.text == table.text == "w1 w2\tgood w3"
    assert line.probability == pytest.approx(table.probability, abs=1e-6)
    assert alone.probability != line.probability
