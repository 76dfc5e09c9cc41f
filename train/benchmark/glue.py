"""The tasks of GLUE (Wang et al. 2019), from the files as they are distributed.

    CoLA/train.tsv    "gj04\\t1\\t\\tThey drank the pub."   ->  text, label   (no header)
    STS-B/dev.tsv     "index\\t...\\tsentence1\\t..."       ->  text, text_pair, label

The files are tab-separated without quoting: a quotation mark is text. Test files have no labels, so
tasks are scored on their development sets. Rows without all columns are skipped and counted.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from clozeline.pipeline.common.errors import InputError

#: CoLA has no header; these are its columns.
COLA = ("source", "label", "original_label", "sentence")


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Files and columns of a task, and the metrics it is scored by."""

    name: str
    text: str
    text_pair: str | None = None
    label: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    train: str = "train.tsv"
    tests: tuple[str, ...] = ("dev.tsv",)  # the first decides the score
    header: tuple[str, ...] | None = None  # None: the first line


GLUE = (
    GlueTask(name="CoLA", text="sentence", metrics=("matthews",), header=COLA),
    GlueTask(name="SST-2", text="sentence"),
    GlueTask(
        name="MRPC",
        text="#1 String",
        text_pair="#2 String",
        label="Quality",
        metrics=("f1", "accuracy"),
    ),
    GlueTask(
        name="STS-B",
        text="sentence1",
        text_pair="sentence2",
        label="score",
        metrics=("pearson", "spearman"),
    ),
    GlueTask(
        name="QQP",
        text="question1",
        text_pair="question2",
        label="is_duplicate",
        metrics=("f1", "accuracy"),
    ),
    GlueTask(
        name="MNLI",
        text="sentence1",
        text_pair="sentence2",
        label="gold_label",
        tests=("dev_matched.tsv", "dev_mismatched.tsv"),
    ),
    GlueTask(name="QNLI", text="question", text_pair="sentence"),
    GlueTask(name="RTE", text="sentence1", text_pair="sentence2"),
    GlueTask(name="WNLI", text="sentence1", text_pair="sentence2"),
)


def glue_task(folder: Path) -> GlueTask:
    """The task of a folder, by its name. Raises InputError for an unknown one."""
    for task in GLUE:
        if task.name.lower() == folder.name.lower():
            return task
    known = ", ".join(task.name for task in GLUE)
    raise InputError(
        f"{folder} is not the folder of a GLUE task; its name must be one of {known}. Describe "
        "other tables in a .toml file."
    )


def read_glue(path: Path, task: GlueTask) -> tuple[pa.Table, int]:
    """The columns `text`, `text_pair` (of pairs) and `label` of a file; the number of rows skipped.

    Raises InputError for a missing file or column, and for a file without rows.
    """
    try:
        lines = path.read_text("utf-8-sig", errors="replace").split("\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
    header = list(task.header) if task.header else rows.pop(0) if rows else []
    wanted = {"text": task.text, "text_pair": task.text_pair, "label": task.label}
    columns = {name: column for name, column in wanted.items() if column is not None}
    missing = [column for column in columns.values() if column not in header]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r}; the {task.name} file has {', '.join(header)}."
        )
    whole = [row for row in rows if len(row) == len(header)]
    if not whole:
        raise InputError(f"{path} has no rows of {len(header)} columns.")
    table = {name: [row[header.index(at)] for row in whole] for name, at in columns.items()}
    return pa.table(table), len(rows) - len(whole)
