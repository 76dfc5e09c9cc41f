"""The tasks of a benchmark: labelled tables, their columns, and how they are scored.

A task is a GLUE folder (`glue.py`), or a table of a .toml file:

    [hotels]
    train = "hotels/train.csv"      # as on the command line of `clozeline finetune`
    test = ["hotels/test.csv"]      # one or several; the first decides the score
    text = "review"                 # text_pair and label are columns as well
    metrics = ["f1", "accuracy"]    # or macro_f1, matthews; pearson and spearman: a regression

`f1` is that of the last class, which in GLUE is "1".
"""

import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from clozeline.pipeline.common.config_checks import check_types
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_owner import check_kind
from clozeline.pipeline.common.json_files import json_values
from clozeline.pipeline.common.paths import names_in, whole_file
from clozeline.pipeline.common.units import counted
from clozeline.train.benchmark.glue import GLUE, TRAIN, GlueTask, glue_task, read_glue
from clozeline.train.labelled.scores import Correlations, Scores

CLASSIFICATION: dict[str, Callable[[Scores], float]] = {
    "accuracy": lambda scores: scores.accuracy,
    "f1": lambda scores: float(scores.f1[-1]),
    "macro_f1": lambda scores: scores.macro_f1,
    "matthews": lambda scores: scores.matthews,
}
REGRESSION: dict[str, Callable[[Correlations], float]] = {
    "pearson": lambda scores: scores.pearson,
    "spearman": lambda scores: scores.spearman,
}
TABLES, RESULTS = "tables", "benchmark.json"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Labelled tables, their columns, and the metrics of the task."""

    name: str
    train: str
    test: tuple[str, ...]  # the first decides the score
    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)

    def __post_init__(self) -> None:
        is_name = Path(self.name).name == self.name and self.name.isprintable()
        if not is_name or self.name in ("", "..", TABLES, RESULTS):
            raise InputError(
                f"task {self.name!r}: its classifier is written to a folder of that name; give a "
                f"name without / and control characters, other than {TABLES} and {RESULTS}."
            )
        known = REGRESSION if self.is_regression else CLASSIFICATION
        unknown = [metric for metric in self.metrics if metric not in known]
        if unknown or not self.metrics or not self.test or len(set(self.test)) < len(self.test):
            raise InputError(
                f"task {self.name}: give test tables, each once, and metrics out of "
                f"{', '.join(CLASSIFICATION)}, or out of {', '.join(REGRESSION)}."
            )

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers to predict."""
        return bool(self.metrics) and self.metrics[0] in REGRESSION


def read_tasks(paths: Sequence[Path], *, out: Path) -> list[Task]:
    """The tasks of .toml files and of GLUE folders, or of a folder of such folders.

    GLUE's tables are rewritten below `out`, with columns named as in training. Raises InputError
    for a path that is neither, if two tasks have the same name, and if `out` has other files.
    """
    if any(path.suffix != ".toml" for path in paths):
        check_kind(out, "a benchmark", is_own=is_benchmark(out))
    tasks: list[Task] = []
    for path in paths:
        if path.suffix == ".toml":
            tasks += _toml_tasks(path)
        else:
            tasks += [_glue_task(folder, out / TABLES) for folder in _glue_folders(path)]
    names = [task.name for task in tasks]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two tasks are named {repeated[0]}; rename one.")
    return tasks


def is_benchmark(out: Path) -> bool:
    """Whether the folder holds results, or GLUE tables written for results to come."""
    if (out / RESULTS).exists():  # a file of this name may be somebody else's
        try:
            with json_values(out / RESULTS, "delete it") as values:
                return {"run", "results"} <= values.keys()
        except InputError:
            return False
    tables = {_table_name(task, name) for task in GLUE for name in (TRAIN, *task.tests)}
    found = {name for name in names_in(out / TABLES) if not name.startswith(".")}
    return (out / TABLES).is_dir() and found <= tables


def _table_name(task: GlueTask, file: str) -> str:
    return f"{task.name}-{Path(file).stem}.parquet"


def _toml_tasks(path: Path) -> Iterator[Task]:
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML ({error}).") from error
    if not tables:
        raise InputError(f"{path} has no tasks; give a table for each: [name], train, test.")
    for name, values in tables.items():
        try:
            test, metrics = values.pop("test"), values.pop("metrics", "accuracy")
            task = Task(name=name, test=_words(test), metrics=_words(metrics), **values)
            check_types(task)
            yield task
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: [{name}] needs train and test; text, text_pair, label and metrics are "
                f"optional, and nothing else is known ({error})."
            ) from error


def _words(value: Any) -> tuple[Any, ...]:
    """A single value, or a list, as a tuple."""
    return tuple(value) if isinstance(value, list) else (value,)


def _glue_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise InputError(f"{path} is neither a folder nor a .toml file.")
    inside = [path / task.name for task in GLUE if (path / task.name).is_dir()]
    return inside or [path]


def _glue_task(folder: Path, tables: Path) -> Task:
    """The task with its tables as Parquet files."""
    glue = glue_task(folder)
    tables.mkdir(parents=True, exist_ok=True)
    written = []
    for name in (TRAIN, *glue.tests):
        table, skipped = read_glue(folder / name, glue)
        if skipped:
            rows = counted(skipped, "row")
            print(f"{folder / name}: {rows} without all columns skipped", file=sys.stderr)
        path = tables / _table_name(glue, name)
        with whole_file(path) as file:
            pq.write_table(table, file)
        written.append(str(path))
    return Task(
        name=glue.name,
        train=written[0],
        test=tuple(written[1:]),
        text_pair="text_pair" if len(glue.texts) > 1 else None,
        metrics=glue.metrics,
    )
