"""`clozeline benchmark`: fine-tune and score one model on every task.

                      rows  metric          fine-tuned  from scratch  bag-of-words
    CoLA             8,551  matthews              31.2           8.4          10.1
    STS-B            5,749  pearson               ...
    mean                                          ...

Classification is `clozeline finetune`, into a folder per task; a regression keeps its results only.
Finished tasks are kept when the command is rerun.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.folder_owner import check_kind
from clozeline.pipeline.common.json_files import write_json
from clozeline.train.benchmark.tasks import CLASSIFICATION, REGRESSION, RESULTS, Task, is_benchmark
from clozeline.train.engine.distributed import join_world
from clozeline.train.finetuning.compared_models import ComparedModels, train_all
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import finetune, own_folder
from clozeline.train.finetuning.job import Job, read_job
from clozeline.train.finetuning.results import SHOWN, ModelResult, ResultStore, Start
from clozeline.train.labelled.scores import mean_in_words


@dataclass(frozen=True, kw_only=True)
class Result:
    """One metric of one task on one of its test tables."""

    task: str
    test: str
    rows: int  # of training
    metric: str
    values: dict[Start, list[float]]  # in [-1, 1], one per seed
    excluded: int | None = None  # documents that the corpus left out for this test; None: unknown


def benchmark(
    run: Path, tasks: Sequence[Task], *, out: Path, config: FinetuneConfig, overwrite: bool = False
) -> list[Result]:
    """Fine-tune and score the model on every task; write benchmark.json into `out`.

    Raises InputError as `finetune` does, under torchrun, and for a config with a prompt.
    """
    with join_world() as world:
        if world.size > 1:
            raise InputError(
                "a benchmark runs in one process; start it without torchrun, or fine-tune on each "
                "task with `clozeline finetune`."
            )
    if config.prompt or config.label_words:
        raise InputError(
            "a prompt and its label_words are those of one task; fine-tune on it with `clozeline "
            "finetune --prompt`."
        )
    started = not (out / RESULTS).exists() and any((out / task.name).is_dir() for task in tasks)
    check_kind(out, "a benchmark", is_own=started or is_benchmark(out))
    results: list[Result] = []
    with locked_folder(out):
        for task in tasks:
            _read(run, task, config)  # what is refused is refused before hours of training
        for task in tasks:
            print(f"{task.name}: {task.train}", file=sys.stderr)
            results += _run(run, task, out / task.name, config, overwrite=overwrite)
        write_json(out / RESULTS, {"run": as_given(run), "results": list(map(asdict, results))})
    return results


def as_table(results: Sequence[Result]) -> Iterator[str]:
    """The results as lines of text, in percent, and their mean over the tasks.

    A task with several metrics counts with their mean, on its first test table.
    """
    first_test = {result.task: result.test for result in reversed(results)}
    yield _row("", "rows", "metric", *SHOWN.values())
    for result in results:
        is_first = result.test == first_test[result.task]
        name = result.task if is_first else f"  {Path(result.test).stem}"
        shown = (_percent(result.values.get(start, [])) for start in SHOWN)
        yield _row(name, f"{result.rows:,}", result.metric, *shown)
    means = []
    for start in SHOWN:
        by_task: dict[str, list[float]] = {}
        for result in results:
            if start in result.values and result.test == first_test[result.task]:
                by_task.setdefault(result.task, []).append(float(np.mean(result.values[start])))
        scores = [float(np.mean(values)) for values in by_task.values()]
        means.append(_percent([float(np.mean(scores))] if scores else []))
    yield _row("mean", "", "", *means)
    is_checked = {(r.task, r.test): r.excluded is not None for r in results}
    yield (
        f"{sum(is_checked.values())} of {len(is_checked)} test sets were excluded from the "
        "pretraining corpus; others are not checked"
    )


def _run(
    run: Path, task: Task, out: Path, config: FinetuneConfig, *, overwrite: bool
) -> Iterator[Result]:
    """Fine-tune on a task; a result per test table and metric."""
    if task.is_regression:
        found, excluded = _regression(run, task, out, config, overwrite=overwrite)
    else:
        first, *others = task.test
        report = finetune(
            run,
            task.train,
            out=out,
            test=first,
            also_test=others,
            config=_config_of(task, config),
            resume=True,
            overwrite=overwrite,
        )
        found, excluded = report.results, report.excluded
    metrics: dict[str, Callable[[Any], float]] = {**CLASSIFICATION, **REGRESSION}
    for number, test in enumerate(task.test):  # by number: a kept result may have another source
        for metric in task.metrics:
            values: dict[Start, list[float]] = {}
            for result in found:
                scores = (result.scores, *result.also.values())[number]
                values.setdefault(result.key.start, []).append(metrics[metric](scores))
            rows = found[0].key.examples
            yield Result(
                task=task.name,
                test=test,
                rows=rows,
                metric=metric,
                values=values,
                excluded=list(excluded.values())[number],
            )


def _regression(
    run: Path, task: Task, out: Path, config: FinetuneConfig, *, overwrite: bool
) -> tuple[Sequence[ModelResult[Any]], dict[str, int | None]]:
    """The results of the compared models, which OUT/results keeps, and Job.excluded."""
    if config.class_weights != "none":
        print(f"note: {task.name} has no classes, so no --class-weights.", file=sys.stderr)
    job = _read(run, task, config)
    with join_world() as world, own_folder(out, overwrite):
        store = ResultStore(out, job.digests(), resume=not overwrite, overwrite=overwrite)
        return train_all(ComparedModels(job, world.device), store, world), job.excluded


def _read(run: Path, task: Task, config: FinetuneConfig) -> Job:
    """The model and the rows of a task. Raises InputError for whatever the user can fix."""
    (first, *others), of_task = task.test, _config_of(task, config)
    return read_job(run, task.train, first, others, of_task, is_regression=task.is_regression)


def _config_of(task: Task, config: FinetuneConfig) -> FinetuneConfig:
    try:
        return replace(config, text=task.text, text_pair=task.text_pair, label=task.label)
    except ValueError as error:  # not all options go with pairs
        raise InputError(f"task {task.name}: {error}") from error


def _percent(values: Sequence[float]) -> str:
    return mean_in_words([100 * value for value in values], ".1f") if values else "-"


def _row(task: str, rows: str, metric: str, *columns: str) -> str:
    return f"{task:<24}{rows:>9}  {metric:<9}" + "".join(f"{column:>16}" for column in columns)
