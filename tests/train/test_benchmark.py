"""One run on several tasks: each is fine-tuned and scored, in one table, and kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.commandline.given_paths import note_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.train.benchmark.benchmark import Result, as_table, benchmark
from clozeline.train.benchmark.tasks import Task, read_tasks
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.compared_models import ComparedModels
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.job import read_job
from clozeline.train.labelled.rows import read_labelled
from clozeline.train.labelled.scores import pearson
from tests.support.command import invoke, refused
from tests.support.files import times
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run

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
def glue(tmp_path_factory):
    """CoLA: is it "some" or "many"?  STS-B: how much of it is there in both texts?"""
    folder = tmp_path_factory.mktemp("glue")
    for name, rows, seed in (("train", 150, 1), ("dev", 100, 2)):
        texts, levels = sentences(rows, seed)
        others, more = sentences(rows, seed + 10)
        cola = [f"x\t{int(n > 1)}\t\t{text}" for text, n in zip(texts, levels, strict=True)]
        pairs = zip(texts, others, levels + more, strict=True)
        sts = [f"0\t{first}\t{second}\t{much:.3f}" for first, second, much in pairs]
        sts.insert(0, "a\tsentence1\tsentence2\tscore")
        for task, lines in (("CoLA", cola), ("STS-B", sts)):
            (folder / task).mkdir(exist_ok=True)
            (folder / task / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def done(run, glue, tmp_path_factory):
    out = tmp_path_factory.mktemp("done") / "out"
    config = replace(CONFIG, from_scratch=True, seeds=2)
    tasks = read_tasks([glue], out=out)
    return out, tasks, config, benchmark(run, tasks, out=out, config=config)


@pytest.mark.parametrize("name", ["../escape", "/tmp/x", "a/b", "", ".", "..", "tables", "a\0b"])
def test_a_task_is_named_by_a_folder_inside_the_benchmark(name):
    with pytest.raises(InputError, match="is written to a folder of that name; give"):
        Task(name=name, train="train.csv", test=("test.csv",))


def test_tables_are_not_written_into_a_folder_of_other_files(glue, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"not empty and not a benchmark \(thesis\.tex\)"):
        read_tasks([glue], out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["benchmark.json", "tables/of-a-thesis.tex"])
def test_files_of_the_same_name_do_not_make_a_folder_a_benchmark(name, run, glue, tmp_path):
    found = name.partition("/")[0]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"context": {}, "benchmarks": []}')
    with pytest.raises(InputError, match=rf"not empty and not a benchmark \({found}\)"):
        read_tasks([glue], out=tmp_path)
    task = Task(name="hotels", train="train.csv", test=("test.csv",))
    with pytest.raises(InputError, match="not empty and not a benchmark"):
        benchmark(run, [task], out=tmp_path, config=CONFIG)
    assert (tmp_path / name).read_text() == '{"context": {}, "benchmarks": []}'


def test_without_a_model_no_table_is_written(glue, tmp_path):
    said = refused("benchmark", tmp_path / "nowhere", glue, "--out", tmp_path / "out")
    assert said == f"{tmp_path}/nowhere does not exist; check the path."
    assert not (tmp_path / "out").exists()


def test_every_task_is_learned_and_scored_by_its_metrics(done):
    *_, results = done
    names = [(result.task, result.rows, result.metric) for result in results]
    assert names == [
        ("CoLA", 150, "matthews"), ("STS-B", 150, "pearson"), ("STS-B", 150, "spearman"),
    ]  # fmt: skip
    for result in results:
        assert {start: len(values) for start, values in result.values.items()} == {
            "bag_of_words": 1, "from_scratch": 2, "pretrained": 2,
        }  # fmt: skip
        assert min(result.values["pretrained"]) > 0.6
        assert min(result.values["bag_of_words"]) > 0.6


def test_results_are_kept_and_written(done, run):
    out, tasks, config, results = done
    assert load_classifier(out / "CoLA").names == ("0", "1")
    stored = json.loads((out / "benchmark.json").read_bytes())
    assert [Result(**values) for values in stored["results"]] == results
    before = (out / "STS-B" / "results" / "pretrained-150-0.json").stat().st_mtime_ns
    with click.Context(click.Command("benchmark")):
        note_given(run, "s3://bucket/run")
        assert benchmark(run, tasks, out=out, config=config) == results
    assert json.loads((out / "benchmark.json").read_bytes())["run"] == "s3://bucket/run"
    assert (out / "STS-B" / "results" / "pretrained-150-0.json").stat().st_mtime_ns == before
    [sts] = [task for task in tasks if task.name == "STS-B"]
    moved = Path(shutil.copy(sts.test[0], out / "moved.parquet"))
    of_moved = benchmark(run, [replace(sts, test=(str(moved),))], out=out, config=config)
    assert [found.values for found in of_moved] == [
        found.values for found in results if found.task == "STS-B"
    ]
    other = replace(config, seed=3)
    with pytest.raises(InputError, match=r"fine-tuning with another config \(seed 0 there, 3 now"):
        benchmark(run, tasks[1:], out=out, config=other)


def test_the_same_tables_in_another_folder_are_the_same_benchmark(run, glue, tmp_path):
    config = replace(CONFIG, from_scratch=True, epochs=1, max_examples=32, baseline=False)
    out, tables, moved = tmp_path / "out", tmp_path / "tables", tmp_path / "moved"
    found = read_tasks([glue], out=tables)
    tasks = [replace(task, test=(*task.test, task.train)) for task in found]
    first = benchmark(run, tasks, out=out, config=config)
    shutil.move(tables, moved)
    lost = out / "STS-B" / "results" / "from_scratch-32-0.json"  # a part of it is trained again
    lost.unlink()
    before = times(out, "*/**/*")

    def there(source):
        return source.replace(str(tables), str(moved))

    tasks = [replace(t, train=there(t.train), test=tuple(map(there, t.test))) for t in tasks]
    again = benchmark(run, tasks, out=out, config=config)
    assert again == [replace(result, test=there(result.test)) for result in first]
    assert {
        path: time for path, time in times(out, "*/**/*").items() if path != str(lost)
    } == before
    tasks = [replace(task, test=task.test[::-1]) for task in tasks]
    with pytest.raises(InputError, match=r"\(the same test sets in another order\)"):
        benchmark(run, tasks, out=out, config=config)


def test_a_prompt_belongs_to_one_task(run, glue, tmp_path):
    tasks = read_tasks([glue], out=tmp_path / "out")
    config = replace(CONFIG, prompt="It was [MASK]. TEXT")
    with pytest.raises(InputError, match="are those of one task"):
        benchmark(run, tasks, out=tmp_path / "out", config=config)
    assert not (tmp_path / "out" / "CoLA").exists()


def test_pairs_are_not_read_in_windows(run, glue, tmp_path):
    tasks = read_tasks([glue], out=tmp_path / "out")
    pairs = next(task.name for task in tasks if task.text_pair)
    with pytest.raises(InputError, match=f"^task {pairs}: truncate nothing is for one text"):
        benchmark(run, tasks, out=tmp_path / "out", config=replace(CONFIG, truncate="nothing"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tables"]


def test_one_process_at_a_time_writes_a_benchmark(run, glue, tmp_path):
    out = tmp_path / "out"
    tasks = read_tasks([glue], out=out)
    with locked_folder(out), pytest.raises(InputError, match=f"{out} is in use by process"):
        benchmark(run, tasks, out=out, config=CONFIG)
    assert [path.name for path in out.iterdir()] == ["tables"]


def test_the_table_ends_with_the_mean_of_the_tasks():
    results = [
        Result(task="A", test="a", rows=10, metric="f1", values={"pretrained": [0.5, 0.7]}),
        Result(task="A", test="a", rows=10, metric="accuracy", values={"pretrained": [0.8]}),
        Result(task="A", test="b/c.tsv", rows=10, metric="f1", values={"pretrained": [0.1]}),
        Result(task="B", test="d", rows=2000, metric="pearson",
               values={"pretrained": [0.3], "bag_of_words": [-0.25]}, excluded=0),
    ]  # fmt: skip
    *lines, excluded = as_table(results)
    assert excluded.startswith("1 of 3 test sets were excluded from the pretraining corpus")
    assert [line.split() for line in lines] == [
        ["rows", "metric", "fine-tuned", "from", "scratch", "bag-of-words"],
        ["A", "10", "f1", "60.0", "±", "14.1", "-", "-"],
        ["A", "10", "accuracy", "80.0", "-", "-"],
        ["c", "10", "f1", "10.0", "-", "-"],
        ["B", "2,000", "pearson", "30.0", "-", "-25.0"],
        ["mean", "50.0", "-", "-25.0"],
    ]


def test_the_command_takes_tables_of_ones_own(run, glue, tmp_path):
    texts, levels = sentences(60, 5)
    rows = [f"{text},{n / 2}" for text, n in zip(texts, levels, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
    (tmp_path / "tasks.toml").write_text(
        f'[hotels]\ntrain = "{tmp_path}/rows.csv"\ntest = "{tmp_path}/rows.csv"\n'
        'text = "review"\nlabel = "stars"\nmetrics = ["spearman"]\n'
    )
    words = ("benchmark", run, tmp_path / "tasks.toml", "--out", tmp_path / "out")
    options = (
        "--no-baseline",
        "--epochs=2",
        "--learning-rate=1e-3",
        "--max-examples=40",
        "--class-weights=balanced",
    )
    done = invoke(*words, *options)
    assert done.exit_code == 0, done.output
    *_, hotels, mean, checked, last = done.stdout.splitlines()
    assert hotels.split()[:3] == ["hotels", "40", "spearman"]
    assert mean.split()[1] == hotels.split()[3]
    assert checked.startswith("0 of 1 test sets were excluded")
    assert last == f"1 task: {tmp_path}/out"
    assert "note: hotels has no classes, so no --class-weights." in done.stderr


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("text,label\nw1,2\n", r"bad\.csv: row 1 has the label '2', which no training row has"),
        ("text\nw1\n", r"bad\.csv has no column 'label'"),
    ],
)
def test_nothing_is_trained_where_a_later_task_is_refused(lines, message, run, glue, tmp_path):
    (tmp_path / "bad.csv").write_text(lines)
    tasks = read_tasks([glue], out=tmp_path / "out")
    bad = replace(tasks[0], name="bad", test=(*tasks[0].test, str(tmp_path / "bad.csv")))
    with pytest.raises(InputError, match=message):
        benchmark(run, [*tasks, bad], out=tmp_path / "out", config=CONFIG)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tables"]


def test_a_file_without_tasks_is_named(run, tmp_path):
    (tmp_path / "none.toml").write_text("# none\n")
    words = ("benchmark", run, tmp_path / "none.toml", "--out", tmp_path / "out")
    assert refused(*words).startswith(f"{tmp_path}/none.toml has no tasks; give a table for each")


def test_targets_keep_digits_that_float32_does_not_have(run, tmp_path):
    seconds = [1_700_000_000 + n for n in range(20)]
    lines = ["text,label", *(f"w{n},{label}" for n, label in enumerate(seconds))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    source = str(tmp_path / "rows.csv")
    job = read_job(run, source, source, [], CONFIG, is_regression=True)
    compared = ComparedModels(job, torch.device("cpu"))
    assert compared.test_labels["test"].tolist() == seconds
    assert pearson(compared.labels, np.arange(20)) == pytest.approx(1)
    assert compared.labels.std() == pytest.approx(1)


def test_targets_must_be_finite_numbers(tmp_path):
    for value, message in (("much", "does not hold numbers"), ("nan", "row 2 is not a finite")):
        (tmp_path / "rows.csv").write_text(f"text,label\na,1\nb,{value}\n")
        with pytest.raises(InputError, match=message):
            read_labelled(str(tmp_path / "rows.csv"), text="text", text_pair=None, label="label",
                          is_regression=True)  # fmt: skip
