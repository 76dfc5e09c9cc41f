"""`clozeline benchmark`: fine-tune and score one model on the tasks of a .toml file.

    [CoLA]
    train = "cola/train.csv"    # as on the command line of `clozeline finetune`
    test = ["cola/dev.csv"]     # one or several; the first decides the score
    text = "sentence"           # text_pair and label are columns as well
    start = "MNLI"              # another task above, from whose classifier this one starts
    metrics = ["matthews"]      # or accuracy, f1, macro_f1; pearson and spearman: a regression
    ->                rows  metric          fine-tuned  from scratch  bag-of-words
    CoLA             8,551  matthews              31.2           8.4          10.1

`f1` is that of the last class, which in GLUE is "1". Classification is `clozeline finetune`, into a
folder per task; a regression keeps its results only. Finished tasks are kept.
"""

import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from clozeline.pipeline.commandline.config_options import typed_path
from clozeline.pipeline.common.config_checks import check_types
from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.folders import check_kind
from clozeline.pipeline.common.json_files import write_json
from clozeline.train.artifacts.classifier_folder import check_room
from clozeline.train.engine.distributed import join_world
from clozeline.train.finetuning.compare import finetune, train_models
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.job import FinetuneJob, read_job
from clozeline.train.finetuning.results import TITLES, ModelName, Result, ResultFolder
from clozeline.train.labelled.scores import mean_in_words

METRICS: dict[str, Callable[[Any], float]] = {
    "accuracy": lambda scores: scores.accuracy,
    "f1": lambda scores: float(scores.f1[-1]),
    "macro_f1": lambda scores: scores.macro_f1,
    "matthews": lambda scores: scores.matthews,
    "pearson": lambda correlations: correlations.pearson,
    "spearman": lambda correlations: correlations.spearman,
}
REGRESSION = {"pearson", "spearman"}
RESULTS = "benchmark.json"
ADVICE = "give a table for each: [name], train, test, maybe text, text_pair, label, metrics, start"


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
    start: str | None = None  # a classification before it in the file; None: the model itself

    def __post_init__(self) -> None:
        is_name = Path(self.name).name == self.name and self.name.isprintable()
        if not is_name or self.name in ("", "..", RESULTS):
            raise ValueError(
                f"{self.name!r} is the name of a folder; give one without / and control "
                f"characters, other than {RESULTS}"
            )
        known = REGRESSION if self.is_regression else METRICS.keys() - REGRESSION
        if not self.test or len(set(self.test)) < len(self.test) or set(self.metrics) - known:
            raise ValueError(
                f"give test tables, each once, and metrics out of {', '.join(METRICS)}; the last "
                "two are not mixed with the others"
            )
        check_types(self)

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers to predict."""
        return bool(REGRESSION.intersection(self.metrics))


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one task on one of its test tables."""

    task: str
    test: str
    rows: int  # of training
    metric: str
    values: dict[ModelName, list[float]]  # in [-1, 1], one per seed


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a .toml file. Raises InputError for whatever is wrong in it."""
    tasks: list[Task] = []
    where = str(path)
    try:
        for name, values in tomllib.loads(path.read_text("utf-8")).items():
            where = f"{path}, [{name}]"
            table = {"test": [], "metrics": "accuracy", **values}
            for key in ("test", "metrics"):  # a single one, or a list
                table[key] = tuple(table[key]) if isinstance(table[key], list) else (table[key],)
            if others := values.keys() - {field.name for field in fields(Task)[1:]}:
                raise ValueError(f"{min(others)} is not a key of a task")
            task = Task(name=name, **table)
            if task.start not in {None, *(one.name for one in tasks if not one.is_regression)}:
                raise ValueError(f"start is {task.start!r}; name a classification above it")
            tasks.append(task)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {one_line(error)}; {ADVICE}.") from error
    if not tasks:
        raise InputError(f"{path} has no tasks; {ADVICE}.")
    return tasks


def benchmark(
    run: Path, tasks: Sequence[Task], *, out: Path, config: FinetuneConfig, overwrite: bool = False
) -> list[Score]:
    """Fine-tune and score the model on every task; write benchmark.json into `out`.

    Raises InputError as `finetune` does, and under torchrun.
    """
    with join_world() as world:
        if world.size > 1:
            raise InputError("a benchmark runs in one process; start it without torchrun.")
    is_started = any((out / task.name).is_dir() for task in tasks)
    check_kind(out, "a benchmark", is_own=is_started or (out / RESULTS).exists())
    scores: list[Score] = []
    with locked_folder(out):
        for task in tasks:
            _read(run, task, config)  # what is refused is refused before hours of training
        for task in tasks:
            print(f"{task.name}: {task.train}", file=sys.stderr)
            origin = out / task.start if task.start else run
            scores += _run(origin, task, out / task.name, config, overwrite=overwrite)
        write_json(out / RESULTS, {"run": typed_path(run), "results": list(map(asdict, scores))})
    return scores


def as_table(scores: Sequence[Score]) -> Iterator[str]:
    """The scores as lines of text, in percent, and their mean over the tasks.

    A task with several metrics counts with their mean, on its first test table.
    """
    first_test = {score.task: score.test for score in reversed(scores)}
    by_task: dict[ModelName, dict[str, list[float]]] = {start: {} for start in TITLES}
    yield _row("", "rows", "metric", *TITLES.values())
    for score in scores:
        is_first = score.test == first_test[score.task]
        split, *_ = parse_qs(score.test.partition("?")[2]).get("split", [Path(score.test).stem])
        name = score.task if is_first else f"  {split}"
        shown = (_percent(score.values.get(start, [])) for start in TITLES)
        yield _row(name, f"{score.rows:,}", score.metric, *shown)
        for start, values in score.values.items() if is_first else ():
            by_task[start].setdefault(score.task, []).append(float(np.mean(values)))
    means = ([np.mean(list(map(np.mean, of.values())))] if of else [] for of in by_task.values())
    yield _row("mean", "", "", *map(_percent, means))


def _read(run: Path, task: Task, config: FinetuneConfig) -> FinetuneJob:
    """The model and the rows of a task. Raises InputError for whatever the user can fix."""
    config = replace(config, text=task.text, text_pair=task.text_pair, label=task.label)
    first, *others = task.test
    return read_job(run, task.train, first, others, config, is_regression=task.is_regression)


def _run(
    run: Path, task: Task, out: Path, config: FinetuneConfig, *, overwrite: bool
) -> Iterator[Score]:
    """Fine-tune on a task, of which a regression leaves OUT/finetuned.json; its scores."""
    job = _read(run, task, config)
    if task.is_regression:
        check_room(out, overwrite=overwrite)
        with join_world() as world, locked_folder(out):
            folder = ResultFolder(out, job.digests, resume=not overwrite, overwrite=overwrite)
            results: Sequence[Result] = train_models(job, folder, world)
    else:
        tests: dict[str, Any] = {"test": task.test[0], "also_test": task.test[1:], "resume": True}
        report = finetune(run, task.train, out=out, config=job.config, overwrite=overwrite, **tests)
        results = report.results
    for (number, test), metric in product(enumerate(task.test), task.metrics):
        values: dict[ModelName, list[float]] = {}
        for result in results:
            scores = (result.scores, *result.also.values())[number]  # its source may have moved
            values.setdefault(result.key.start, []).append(METRICS[metric](scores))
        yield Score(task=task.name, test=test, rows=len(job.train), metric=metric, values=values)


def _percent(values: Sequence[Any]) -> str:
    return mean_in_words([100 * value for value in values], ".1f") if values else "-"


def _row(task: str, rows: str, metric: str, *columns: str) -> str:
    return f"{task:<24}{rows:>9}  {metric:<9}" + "".join(f"{column:>16}" for column in columns)
