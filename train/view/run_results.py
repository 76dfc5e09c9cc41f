"""What runs reached, in words and tables: key figures, comparison, differences, configuration.

A section function gets all runs of the page, one to four, and returns None to leave its section
out. It works for a run in any state: complete, still training or killed.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from clozeline.model.heads import count_parameters
from clozeline.pipeline.report.html import Section, Table
from clozeline.train.monitoring.run_history import UNIGRAM, RunHistory

LONGEST_NAME = 20  # characters
ROWS = 10  # of the table of losses

Runs = Sequence[RunHistory]


def read_histories(runs: Sequence[Path]) -> list[RunHistory]:
    """The runs of a page, with short names that distinguish them.

    Raises InputError if a folder is not a run.
    """
    return [RunHistory.of(run, name) for run, name in zip(runs, _names(runs), strict=True)]


def _names(runs: Sequence[Path]) -> list[str]:
    """The shortest path endings that distinguish the runs, cut to what fits beside a chart."""
    paths = [run.resolve().parts for run in runs]
    depths = range(1, 1 + max(map(len, paths)))
    choices = [["/".join(parts[-depth:]) for parts in paths] for depth in depths]
    names = next((names for names in choices if len({*names}) == len(names)), choices[0])
    end = slice(1 - LONGEST_NAME, None)
    short = [name if len(name) <= LONGEST_NAME else "…" + name[end] for name in names]
    is_unique = len({*short}) == len(short)
    return short if is_unique else [f"{i}: {name}" for i, name in enumerate(short, start=1)]


def key_figures(runs: Runs) -> list[tuple[str, str]]:
    """Name and value of what matters most; empty for several runs, which have a table."""
    if len(runs) > 1:
        return []
    [run] = runs
    training = run.config.training
    figures = results(run)
    figures["last logged step"] += f" of {training.for_ or f'{training.max_steps:,}'}"
    figures["dataset digest"] = run.config.dataset_digest
    figures["tokenizer digest"] = run.config.tokenizer_digest
    return [(name, value) for name, value in figures.items() if value != "-"]


def results(run: RunHistory) -> dict[str, str]:
    """How far the run got and what it reached; "-" for what was not measured."""
    speeds = run.points("tokens_per_second")[1]
    return {
        "state": "complete" if run.is_complete else "not complete",
        "last logged step": f"{run.step:,}",
        "parameters": f"{count_parameters(run.config.model):,}",
        "masked-LM loss": _number(run.last("mlm_loss")),
        "masked-LM loss, held out": _number(run.last("heldout/mlm_loss", 1)),
        "unigram loss, held out": _number(run.last(UNIGRAM, 1)),
        "masked-LM accuracy": _percent(run.last("mlm_accuracy")),
        "masked-LM accuracy, held out": _percent(run.last("heldout/mlm_accuracy", 1)),
        "NSP accuracy": _percent(run.last("nsp_accuracy")),
        "NSP accuracy, held out": _percent(run.last("heldout/nsp_accuracy", 1)),
        "tokens/s, median": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "MFU": _percent(run.last("mfu")),
    }


def _comparison(runs: Runs) -> Section | None:
    if len(runs) == 1:
        return None
    columns = [results(run) for run in runs]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Section(
        heading="Results",
        sentence="Training metrics are means over the last ten logged steps.",
        tables=[Table(heads=("", *(run.name for run in runs)), rows=rows), _losses_by_step(runs)],
    )


def _losses_by_step(runs: Runs) -> Table:
    """Mean loss in each tenth of the longest run."""
    ends = np.unique(np.linspace(0, max(run.step for run in runs), ROWS + 1).astype(int))
    rows = []
    for start, end in pairwise(ends):
        cells = []
        for run in runs:
            steps, losses = run.points("mlm_loss")
            inside = losses[(steps > start) & (steps <= end)]
            cells.append(_number(float(inside.mean()) if len(inside) else None))
        rows.append((f"{start + 1:,} to {end:,}", *cells))
    return Table(heads=("steps, mean loss", *(run.name for run in runs)), rows=rows)


def _differences(runs: Runs) -> Section | None:
    if len(runs) == 1:
        return None
    configs = [run.settings() for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    rows = [(name, *(config.get(name, "-") for config in configs)) for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    sentences = [
        "All other settings are equal." if rows else "The configs are equal.",
        *(f"{run.name}: {_data_against(runs[0], run)}." for run in runs[1:]),
    ]
    heads = ("setting", *(run.name for run in runs))
    return Section(
        heading="Differences",
        sentence=" ".join(sentences),
        tables=[Table(heads=heads, rows=rows, is_numeric=False)] if rows else [],
    )


def _data_against(first: RunHistory, other: RunHistory) -> str:
    """The step from which the runs read different batches, by the digests that both logged."""
    in_first, in_other = (
        {line["step"]: line["data_digest"] for line in run.lines if "data_digest" in line}
        for run in (first, other)
    )
    shared = sorted(in_first.keys() & in_other.keys())
    if not shared:
        return f"has no logged step in common with {first.name}, so the data cannot be compared"
    different = [step for step in shared if in_first[step] != in_other[step]]
    if not different:
        return (
            f"same data as {first.name} in all {len(shared):,} steps that both logged, up to "
            f"step {shared[-1]:,}"
        )
    same = [step for step in shared if step < different[0]]
    before = f"same up to step {same[-1]:,}" if same else "no earlier step in common"
    return f"different data from {first.name} from step {different[0]:,} on ({before})"


def _config(runs: Runs) -> Section:
    tables = [
        Table(heads=("setting", run.name), rows=list(run.settings().items()), is_numeric=False)
        for run in runs
    ]
    return Section(heading="Configuration", sentence="As recorded in run.json.", tables=tables)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[Runs], Section | None], ...]] = (
    _comparison,
    _differences,
    _config,
)
