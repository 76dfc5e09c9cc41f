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


@dataclass(frozen=True)
class GlueTask:
    """The columns of a task in its files, the metrics it is scored by, and its test files."""

    name: str
    texts: tuple[str, ...]  # columns of a text, or of the two texts of a pair
    label: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    tests: tuple[str, ...] = ("dev.tsv",)  # the first decides the score
    header: tuple[str, ...] | None = None  # None: the first line


TRAIN = "train.tsv"
PAIR, F1_AND_ACCURACY = ("sentence1", "sentence2"), ("f1", "accuracy")
GLUE = (
    GlueTask("CoLA", ("sentence",), metrics=("matthews",), header=COLA),
    GlueTask("SST-2", ("sentence",)),
    GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", F1_AND_ACCURACY),
    GlueTask("STS-B", PAIR, "score", ("pearson", "spearman")),
    GlueTask("QQP", ("question1", "question2"), "is_duplicate", F1_AND_ACCURACY),
    GlueTask("MNLI", PAIR, "gold_label", tests=("dev_matched.tsv", "dev_mismatched.tsv")),
    GlueTask("QNLI", ("question", "sentence")),
    GlueTask("RTE", PAIR),
    GlueTask("WNLI", PAIR),
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
    columns = {**dict(zip(("text", "text_pair"), task.texts, strict=False)), "label": task.label}
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
