"""`clozeline benchmark`: fine-tune and score one model on every task.

                      rows  metric          fine-tuned  from scratch  bag-of-words
    CoLA             8,551  matthews              31.2           8.4          10.1
    STS-B            5,749  pearson               ...
    mean                                          ...

Classification is `clozeline finetune`, into a folder per task; a regression keeps its scores only.
Finished tasks are kept when the command is rerun.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from clozeline.pipeline.common.counter_rng import permutation, stream_key
from clozeline.pipeline.common.differences import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_owner import check_kind
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.train.benchmark.tasks import CLASSIFICATION, REGRESSION, RESULTS, Task, is_benchmark
from clozeline.train.engine.distributed import join_world
from clozeline.train.finetuning.cells import SHOWN, Start
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import finetune, load_start, weights_digest
from clozeline.train.finetuning.regression import Regression, read_measured
from clozeline.train.labelled.baseline import has_sklearn
from clozeline.train.labelled.correlations import Correlations
from clozeline.train.labelled.scores import Scores

REGRESSION_RESULTS = "regression.json"

Score = TypeVar("Score", Scores, Correlations)
#: The scores of each compared model on each test table, by seed.
ByStart = dict[Start, list[dict[str, Score]]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One metric of one task on one of its test tables."""

    task: str
    test: str
    rows: int  # of training
    metric: str
    values: dict[Start, list[float]]  # in [-1, 1], one per seed

    def line(self, name: str) -> str:
        """As a row of the table."""
        shown = (_percent(self.values.get(start, [])) for start in SHOWN)
        return _row(name, f"{self.rows:,}", self.metric, *shown)


def benchmark(
    run: Path, tasks: Sequence[Task], *, out: Path, config: FinetuneConfig, overwrite: bool = False
) -> list[Result]:
    """Fine-tune and score the model on every task; write DIR/benchmark.json.

    Raises InputError as `finetune` does, and under torchrun.
    """
    with join_world() as world:
        if world.size > 1:
            raise InputError(
                "a benchmark runs in one process; start it without torchrun, or fine-tune on each "
                "task with `clozeline finetune`."
            )
    started = any((out / task.name).is_dir() for task in tasks)
    check_kind(out, "a benchmark", is_own=started or is_benchmark(out))
    results: list[Result] = []
    for task in tasks:
        print(f"{task.name}: {task.train}", file=sys.stderr)
        of_task = replace(config, text=task.text, text_pair=task.text_pair, label=task.label)
        run_task = _regression if task.is_regression else _classification
        results += run_task(run, task, out / task.name, of_task, overwrite)
    _write(out / RESULTS, {"run": str(run), "results": results})
    return results


def as_table(results: Sequence[Result]) -> Iterator[str]:
    """The results as lines of text, in percent; the last one is the mean over the tasks.

    A task with several metrics counts with their mean, on its first test table.
    """
    first_test = {result.task: result.test for result in reversed(results)}
    yield _row("", "rows", "metric", *SHOWN.values())
    for result in results:
        is_first = result.test == first_test[result.task]
        yield result.line(result.task if is_first else f"  {Path(result.test).stem}")
    means = []
    for start in SHOWN:
        by_task: dict[str, list[float]] = {}
        for result in results:
            if start in result.values and result.test == first_test[result.task]:
                by_task.setdefault(result.task, []).append(float(np.mean(result.values[start])))
        scores = [float(np.mean(values)) for values in by_task.values()]
        means.append(_percent([float(np.mean(scores))] if scores else []))
    yield _row("mean", "", "", *means)


def _classification(
    run: Path, task: Task, out: Path, config: FinetuneConfig, overwrite: bool
) -> list[Result]:
    first, *others = task.test
    report = finetune(
        run,
        task.train,
        out=out,
        test_source=first,
        also_test=others,
        config=config,
        resume=True,
        overwrite=overwrite,
    )
    by_start: dict[Start, list[dict[str, Scores]]] = {}
    for cell in report.cells:
        by_start.setdefault(cell.key.start, []).append({first: cell.scores, **cell.also})
    return _results(task, report.rows, by_start, CLASSIFICATION)


def _regression(
    run: Path, task: Task, out: Path, config: FinetuneConfig, overwrite: bool
) -> list[Result]:
    train, *tests = (
        read_measured(source, text=task.text, text_pair=task.text_pair, label=task.label)
        for source in (task.train, *task.test)
    )
    if config.max_examples is not None:
        order = permutation(stream_key(config.seed, "finetune/examples"), len(train.targets))
        train = train.take(order[: config.max_examples])
    start = load_start(run, config)
    job = {
        **config.to_dict(),
        "pretrained": weights_digest(start.weights),
        "tokenizer": start.tokenizer.digest,
        "rows": [part.digest() for part in (train, *tests)],
    }
    by_start = None if overwrite else _stored(out, job, task.test)
    if by_start is None:
        with join_world() as world:
            by_name = dict(zip(task.test, tests, strict=True))
            by_start = _compare(Regression(start, train, by_name, config, world.device), config)
        out.mkdir(parents=True, exist_ok=True)
        _write(out / REGRESSION_RESULTS, {"job": job, "scores": by_start})
    return _results(task, len(train.targets), by_start, REGRESSION)


def _compare(regression: Regression, config: FinetuneConfig) -> ByStart[Correlations]:
    by_start: ByStart[Correlations] = {}
    if config.baseline and has_sklearn():
        by_start["bag_of_words"] = [regression.bag_of_words()]
    if config.has_from_scratch:
        by_start["from_scratch"] = [
            regression.fine_tuned(is_pretrained=False, seed=seed) for seed in config.all_seeds
        ]
    by_start["pretrained"] = [
        regression.fine_tuned(is_pretrained=True, seed=seed) for seed in config.all_seeds
    ]
    return by_start


def _stored(out: Path, job: dict[str, Any], tests: Sequence[str]) -> ByStart[Correlations] | None:
    """The scores of a finished regression, matched to the tests by order, as paths may change.

    Raises InputError if it was another regression.
    """
    path = out / REGRESSION_RESULTS
    if not path.exists():
        return None
    with json_values(path, "give --overwrite") as stored:
        by_start: ByStart[Correlations] = {
            start: [
                {
                    test: Correlations(**scores)
                    for test, scores in zip(tests, of_seed.values(), strict=True)
                }
                for of_seed in of_start
            ]
            for start, of_start in stored["scores"].items()
        }
        differs = differences(stored["job"], job)
    if differs:
        raise InputError(
            f"{out} holds a regression of another config ({'; '.join(differs)}). Give another "
            "--out, or --overwrite."
        )
    return by_start


def _results(
    task: Task,
    rows: int,
    by_start: ByStart[Score],
    metrics: Mapping[str, Callable[[Score], float]],
) -> list[Result]:
    """A result per test table and metric."""
    return [
        Result(
            task=task.name,
            test=test,
            rows=rows,
            metric=metric,
            values={
                start: [metrics[metric](scores[test]) for scores in of_seeds]
                for start, of_seeds in by_start.items()
            },
        )
        for test in task.test
        for metric in task.metrics
    ]


def _write(path: Path, values: dict[str, Any]) -> None:
    write_json(path, values, default=asdict)


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, deviation = 100 * np.mean(values), 100 * np.std(values, ddof=len(values) > 1)
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if len(values) > 1 else "")


def _row(task: str, rows: str, metric: str, *columns: str) -> str:
    return f"{task:<24}{rows:>9}  {metric:<9}" + "".join(f"{column:>16}" for column in columns)
