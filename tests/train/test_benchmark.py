"""One run on several tasks: each is fine-tuned and scored, in one table, and kept."""

import json
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.commandline.config_options import note_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.train.artifacts.pretrained import read_pretrained
from clozeline.train.benchmark.benchmark import Score, Task, as_table, benchmark, read_tasks
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.job import load_start, read_job, values_digest
from clozeline.train.labelled.scores import pearson
from tests.support.command import invoke, refused
from tests.support.files import times
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run
from tests.support.two_processes import ROOT

WORDS = [f"w{i}" for i in range(30)]
LEVELS = ["none", "few", "some", "many"]
TOKENIZER = tokenizer_of(*WORDS, *LEVELS)
MODEL = one_layer(TOKENIZER, positions=24)
CONFIG = FinetuneConfig(learning_rate=1e-2, epochs=4, batch_size=16, dropout=0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return write_small_run(folder, BertForPretraining(MODEL, seed=1), TOKENIZER, max_seq_length=24)


def sentences(rows, seed):
    """Texts of five words, one of which is a level; and the levels, 0 to 3."""
    random = np.random.default_rng(seed)
    words = random.choice(WORDS, (rows, 5)).astype(object)
    levels = random.integers(0, 4, rows)
    words[np.arange(rows), random.integers(0, 5, rows)] = np.array(LEVELS)[levels]
    return [" ".join(row) for row in words], levels


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Is it "some" or "many"?  How much of it is there in both texts?"""
    folder = tmp_path_factory.mktemp("tables")
    for name, rows, seed in (("train", 150, 1), ("dev", 100, 2)):
        texts, levels = sentences(rows, seed)
        others, more = sentences(rows, seed + 10)
        much = zip(texts, others, levels + more, levels > 1, strict=True)
        lines = [f"{first},{second},{n:.3f},{int(is_much)}" for first, second, n, is_much in much]
        lines.insert(0, "sentence,other,score,much")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    file = folder / "tasks.toml"
    file.write_text(
        f"""[MUCH]
        train = "{folder}/train.csv"
        test = "{folder}/dev.csv"
        text = "sentence"
        label = "much"
        metrics = "matthews"
        [BOTH]
        train = "{folder}/train.csv"
        test = ["{folder}/dev.csv"]
        text = "sentence"
        text_pair = "other"
        label = "score"
        metrics = ["pearson", "spearman"]
        """
    )
    return file


@pytest.fixture(scope="module")
def tasks(file):
    return read_tasks(file)


@pytest.fixture(scope="module")
def done(run, tasks, tmp_path_factory):
    out = tmp_path_factory.mktemp("done") / "out"
    config = replace(CONFIG, from_scratch=True, seeds=2)
    return out, config, benchmark(run, tasks, out=out, config=config)


@pytest.mark.parametrize("name", ["../a", "/tmp/x", "a/b", "", ".", "..", "benchmark.json", "a\0b"])
def test_a_task_is_named_by_a_folder_inside_the_benchmark(name):
    with pytest.raises(ValueError, match="is the name of a folder; give one without"):
        Task(name=name, train="train.csv", test=("test.csv",))


def test_a_folder_of_other_files_or_in_use_is_not_written(run, tasks, tmp_path):
    out = tmp_path / "out"
    with locked_folder(out), pytest.raises(InputError, match=f"{out} is in use by process"):
        benchmark(run, tasks, out=out, config=CONFIG)
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"not empty and not a benchmark \(thesis\.tex\)"):
        benchmark(run, tasks, out=tmp_path, config=CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_every_task_is_learned_and_scored_by_its_metrics(done):
    *_, results = done
    names = [(result.task, result.rows, result.metric) for result in results]
    assert names == [
        ("MUCH", 150, "matthews"), ("BOTH", 150, "pearson"), ("BOTH", 150, "spearman"),
    ]  # fmt: skip
    for result in results:
        assert {start: len(values) for start, values in result.values.items()} == {
            "bag_of_words": 1, "from_scratch": 2, "pretrained": 2,
        }  # fmt: skip
        assert min(result.values["pretrained"]) > 0.6
        assert min(result.values["bag_of_words"]) > 0.6


def test_results_are_kept_also_of_tables_that_have_moved(done, run, tasks, tmp_path):
    out, config, results = done
    assert load_classifier(out / "MUCH").names == ("0", "1")
    stored = json.loads((out / "benchmark.json").read_bytes())
    assert [Score(**values) for values in stored["results"]] == results
    kept = out / "BOTH" / "finetuned.json"
    values = json.loads(kept.read_bytes())
    lost = [one for one in values["results"] if one["seed"] == 1]  # these are trained again
    others = [one for one in values["results"] if one["seed"] == 0]
    kept.write_text(json.dumps(values | {"results": others}))
    before = times(out, "*/**/*")
    (tmp_path / "moved.csv").write_bytes(Path(tasks[0].test[0]).read_bytes())
    moved = [replace(task, test=(f"{tmp_path}/moved.csv",)) for task in tasks]
    with click.Context(click.Command("benchmark")):
        note_given(run, "s3://bucket/run")
        again = benchmark(run, moved, out=out, config=config)
    assert [found.values for found in again] == [found.values for found in results]
    assert json.loads((out / "benchmark.json").read_bytes())["run"] == "s3://bucket/run"
    after = times(out, "*/**/*")
    assert after.pop(str(kept)) != before.pop(str(kept))
    assert after == before
    assert json.loads(kept.read_bytes())["results"] == [*others, *lost]
    with pytest.raises(InputError, match=r"fine-tuning with another config \(seed 0 there, 3 now"):
        benchmark(run, tasks[1:], out=out, config=replace(config, seed=3))


def test_the_table_ends_with_the_mean_of_the_tasks():
    results = [
        Score(task="A", test="a", rows=10, metric="f1", values={"pretrained": [0.5, 0.7]}),
        Score(task="A", test="a", rows=10, metric="accuracy", values={"pretrained": [0.8]}),
        Score(task="A", test="b/c.tsv", rows=10, metric="f1", values={"pretrained": [0.1]}),
        Score(task="A", test="hf://b?split=odd&name=x", rows=10, metric="f1",
              values={"pretrained": [0.2]}),
        Score(task="B", test="d", rows=2000, metric="pearson",
              values={"pretrained": [0.3], "bag_of_words": [-0.25]}),
    ]  # fmt: skip
    assert [line.split() for line in as_table(results)] == [
        ["rows", "metric", "fine-tuned", "from", "scratch", "bag-of-words"],
        ["A", "10", "f1", "60.0", "±", "14.1", "-", "-"],
        ["A", "10", "accuracy", "80.0", "-", "-"],
        ["c", "10", "f1", "10.0", "-", "-"],
        ["odd", "10", "f1", "20.0", "-", "-"],
        ["B", "2,000", "pearson", "30.0", "-", "-25.0"],
        ["mean", "50.0", "-", "-25.0"],
    ]


def test_the_command_prints_one_table(done, run, file):
    """Of a benchmark that is complete; its options are those of the config."""
    out, _, results = done
    options = ["--epochs=4", "--batch-size=16", "--dropout=0", "--from-scratch", "--seeds=2"]
    printed = invoke("benchmark", run, file, "--out", out, "--learning-rate=1e-2", *options).stdout
    assert printed.splitlines() == [*as_table(results), f"2 tasks: {out}"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("sentence,much\nw1,2\n", r"bad\.csv: row 1 has the label '2', which no training row has"),
        ("sentence\nw1\n", r"bad\.csv has no column 'much'"),
    ],
)
def test_nothing_is_trained_where_a_later_task_is_refused(lines, message, run, tasks, tmp_path):
    (tmp_path / "bad.csv").write_text(lines)
    bad = replace(tasks[0], name="bad", test=(*tasks[0].test, str(tmp_path / "bad.csv")))
    with pytest.raises(InputError, match=message):
        benchmark(run, [*tasks, bad], out=tmp_path / "out", config=CONFIG)
    assert not (tmp_path / "out").exists()


def test_the_tasks_of_glue_are_in_the_examples():
    tasks = {task.name: task for task in read_tasks(ROOT / "examples" / "glue.toml")}
    assert len(tasks) == 9
    assert [name for name, task in tasks.items() if task.is_regression] == ["STS-B"]
    assert [name for name, task in tasks.items() if not task.text_pair] == ["CoLA", "SST-2"]
    assert len(tasks["MNLI"].test) == 2
    assert (tasks["SST-2"].metrics, tasks["QQP"].metrics) == (("accuracy",), ("f1", "accuracy"))
    assert [name for name, task in tasks.items() if task.start] == ["MRPC", "STS-B", "RTE"]


#: The texts of nyu-mll/glue, whose classes are numbers, too.
COLUMNS = {
    **dict.fromkeys(("CoLA", "SST-2"), ("sentence",)),
    **dict.fromkeys(("MRPC", "STS-B", "RTE", "WNLI"), ("sentence1", "sentence2")),
    "QQP": ("question1", "question2"),
    "MNLI": ("premise", "hypothesis"),
    "QNLI": ("question", "sentence"),
}


def test_every_task_of_glue_reads_five_hundred_rows_with_the_columns_of_the_hub(run, tmp_path):
    for task in read_tasks(ROOT / "examples" / "glue.toml"):
        columns = COLUMNS[task.name]
        texts = [sentences(500, seed)[0] for seed in range(len(columns))]
        numbers = np.arange(500) % 6 / 1.25 if task.is_regression else np.arange(500) % 2
        table = pa.table([*texts, numbers, np.arange(500)], [*columns, "label", "idx"])
        source = f"{tmp_path / task.name}.parquet"
        pq.write_table(table, source)
        config = replace(CONFIG, text=task.text, text_pair=task.text_pair, label=task.label)
        job = read_job(run, source, source, [], config, is_regression=task.is_regression)
        assert len(job.train) == 500
        assert bool(job.names) != task.is_regression


def test_a_task_starts_from_the_encoder_of_the_classifier_above_it(run, tasks, tmp_path):
    much, both = tasks
    after = [replace(much, name="AGAIN", start="MUCH"), replace(both, start="MUCH")]
    benchmark(run, [much, *after], out=tmp_path, config=replace(CONFIG, epochs=1))
    trained = load_classifier(tmp_path / "MUCH").model.encoder.state_dict()
    start = read_pretrained(tmp_path / "MUCH")
    assert all(torch.equal(start.weights[f"encoder.{name}"], x) for name, x in trained.items())
    assert {"mlm_head", "nsp_head"} <= set(start.absent)
    classification = json.loads((tmp_path / "AGAIN" / "classifier.json").read_text())["job"]
    regression = json.loads((tmp_path / "BOTH" / "finetuned.json").read_text())["job"]
    for job in (classification, regression):
        assert job["pretrained"] == values_digest(start.weights)


def test_a_classifier_has_no_masked_lm_head_to_prompt(done):
    out, *_ = done
    with pytest.raises(InputError, match="MUCH has no masked-LM head"):
        load_start(out / "MUCH", replace(CONFIG, prompt="it is [MASK] :"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[a]; train = 'x'", r"tasks.toml, \[a\]: give test tables, each once"),
        ("[a]; train = 'x'; test = 'y'; headline = 'z'", "headline is not a key of a task; g"),
        ("[a]; train = 'x'; test = 'y'; metrics = 'f2'", r"\[a\]: .* metrics out of accuracy"),
        ("[a]; train = 'x'; test = 'y'; metrics = ['f1', 'pearson']", "two are not mixed"),
        ("[a]; train = 'x'; test = 'y'; start = 'b'", "start is 'b'; name a classification"),
        ("[a]; train = 'x'; test = []", "give test tables, each once, and metrics"),
        ("[a]; train = 'x'; test = ['y', 'y']", "give test tables, each once, and m"),
        ("[a]; train = 5; test = 'y'", "train is 5; it is of another type"),
        ("[a]; train = 'x'; test = 'y'; text = ['t', 'c']", r"text is \['t', 'c'\]; it is of an"),
        ("a = 1", r"\[a\]: .*; give a table for each"),
        ("[a", "tasks.toml: .*; give a table for each"),
        ("# none", "has no tasks; give a table for each"),
    ],
)
def test_a_bad_description_is_one_clear_error(tmp_path, lines, message):
    (tmp_path / "tasks.toml").write_text(lines.replace("; ", "\n"))
    with pytest.raises(InputError, match=message):
        read_tasks(tmp_path / "tasks.toml")


def test_a_folder_is_no_file_of_tasks(run, tmp_path):
    said = refused("benchmark", run, tmp_path, "--out", tmp_path / "out")
    assert said.startswith(f"{tmp_path}: [Errno 21] Is a directory: '{tmp_path}'; give a table")


def test_targets_keep_digits_that_float32_does_not_have(run, tmp_path):
    seconds = [1_700_000_000 + n for n in range(20)]
    lines = ["text,label", *(f"w{n},{label}" for n, label in enumerate(seconds))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    source = str(tmp_path / "rows.csv")
    job = read_job(run, source, source, [], CONFIG, is_regression=True)
    assert job.tests["test"].labels.tolist() == seconds
    assert pearson(job.train.labels, np.arange(20)) == pytest.approx(1)
    assert job.train.labels.std() == pytest.approx(1)
