"""GLUE's files as they are distributed: no quoting, no header in CoLA, here and there a bad row."""

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.benchmark.glue import GLUE, glue_task, read_glue
from clozeline.train.benchmark.tasks import Task, read_tasks

COLA = 'gj04\t1\t\tThe "pub" was drunk.\ngj04\t0\t*\tThey drank the pub.\n'
QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "1\t2\t3\tWhat is \"art?\tWhat's art?\t1\n"
    "4\t5\t6\tbroken row\n"
    "7\t8\t9\tWhy?\tWho?\t0\n"
)
STS = (
    "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\r\n"
    "0\tnews\tf\t2012\t1\tnone\tnone\tA plane takes off.\tAn air plane takes off.\t5.000\r\n"
)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.tsv").write_text(text)
    return folder


def test_quotation_marks_are_text_and_cola_has_no_header(tmp_path):
    folder = write(tmp_path / "CoLA", train=COLA)
    table, skipped = read_glue(folder / "train.tsv", glue_task(folder))
    assert table.to_pydict() == {
        "text": ['The "pub" was drunk.', "They drank the pub."],
        "label": ["1", "0"],
    }
    assert skipped == 0


def test_a_row_without_all_columns_is_skipped_and_counted(tmp_path):
    folder = write(tmp_path / "QQP", train=QQP)
    table, skipped = read_glue(folder / "train.tsv", glue_task(folder))
    assert table["text"].to_pylist() == ['What is "art?', "Why?"]
    assert table["text_pair"].to_pylist() == ["What's art?", "Who?"]
    assert skipped == 1


def test_line_ends_and_byte_order_marks_are_no_text(tmp_path):
    folder = write(tmp_path / "sts-b", train=STS)
    (folder / "dev.tsv").write_text("\ufeff" + STS, "utf-8")
    for name in ("train.tsv", "dev.tsv"):
        table, _ = read_glue(folder / name, glue_task(folder))
        assert table["label"].to_pylist() == ["5.000"]


def test_a_folder_of_tasks_is_all_of_them(tmp_path):
    write(tmp_path / "glue" / "CoLA", train=COLA, dev=COLA)
    write(tmp_path / "glue" / "STS-B", train=STS, dev=STS)
    write(tmp_path / "glue" / "other", train="")
    cola, sts = read_tasks([tmp_path / "glue"], out=tmp_path / "out")
    assert (cola.name, cola.text_pair, cola.metrics) == ("CoLA", None, ("matthews",))
    assert (sts.name, sts.text_pair, sts.metrics) == ("STS-B", "text_pair", ("pearson", "spearman"))
    assert sts.is_regression
    assert not cola.is_regression


def test_tables_of_ones_own_are_described_in_toml(tmp_path):
    file = tmp_path / "tasks.toml"
    file.write_text(
        '[hotels]\ntrain = "a.csv"\ntest = ["b.csv", "c.csv"]\nlabel = "stars"\n'
        'metrics = ["spearman"]\n[films]\ntrain = "d.csv"\ntest = "e.csv"\n'
        '[songs]\ntrain = "f.csv"\ntest = "g.csv"\nmetrics = "f1"\n'
    )
    assert read_tasks([file], out=tmp_path) == [
        Task(name="hotels", train="a.csv", test=("b.csv", "c.csv"), label="stars",
             metrics=("spearman",)),
        Task(name="films", train="d.csv", test=("e.csv",)),
        Task(name="songs", train="f.csv", test=("g.csv",), metrics=("f1",)),
    ]  # fmt: skip


def test_every_task_of_glue_has_its_own_name_and_known_metrics():
    assert len({task.name for task in GLUE}) == 9
    for task in GLUE:
        Task(name=task.name, train="", test=task.tests, metrics=task.metrics)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[a]; train = 'x'", r"\[a\] needs train and test"),
        ("[a]; train = 'x'; test = 'y'; headline = 'z'", "nothing else is known .*headline"),
        ("[a]; train = 'x'; test = 'y'; metrics = 'f2'", "task a: .* metrics out of accuracy"),
        ("[a]; train = 'x'; test = 'y'; metrics = ['f1', 'pearson']", "task a: give"),
        ("[a]; train = 'x'; test = []", "task a: give test tables, each once, and metrics"),
        ("[a]; train = 'x'; test = ['y', 'y']", "task a: give test tables, each once, and m"),
        ("[a]; train = 5; test = 'y'", "train is 5; it is of another type"),
        ("[a]; train = 'x'; test = 'y'; text = ['t', 'c']", r"text is \['t', 'c'\]; it is of an"),
        ("a = 1", r"\[a\] needs train and test"),
        ("[a", "is not TOML"),
    ],
)
def test_a_bad_description_is_one_clear_error(tmp_path, lines, message):
    (tmp_path / "tasks.toml").write_text(lines.replace("; ", "\n"))
    with pytest.raises(InputError, match=message):
        read_tasks([tmp_path / "tasks.toml"], out=tmp_path)


def test_a_bad_folder_is_one_clear_error(tmp_path):
    cola = write(tmp_path / "CoLA", train=COLA, dev="one\tcolumn\n")
    for path, message in (
        (
            write(tmp_path / "x" / "glu"),
            "is not the folder of a GLUE task; its name must be one of",
        ),
        (tmp_path / "none", "is neither a folder nor a .toml file"),
        (cola, r"dev.tsv has no rows of 4 columns"),
        (write(tmp_path / "RTE", train=COLA), "has no column 'sentence1'; the RTE file has"),
        (write(tmp_path / "QNLI"), "train.tsv cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_tasks([path], out=tmp_path / "out")
    both = write(tmp_path / "b" / "CoLA", train=COLA, dev=COLA)
    (cola / "dev.tsv").write_text(COLA)
    with pytest.raises(InputError, match="two tasks are named CoLA"):
        read_tasks([cola, both], out=tmp_path / "out")
