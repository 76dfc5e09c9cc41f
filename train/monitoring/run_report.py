"""`clozeline report RUN...`: a page about a training run, or about up to four runs compared.

RUN/report.html    charts and tables from run.json, metrics.jsonl and summary.json

It also works for a run that is still training or was killed. Equal runs give equal bytes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.common.errors import InputError
from pipeline.report.html import REPORT, Page, check_report, make_sections, write_page
from train.monitoring.run_history import RunHistory
from train.monitoring.run_sections import SECTIONS, results

MOST_RUNS = 4  # as many colours as a page has
LONGEST_NAME = 20  # characters


def write_run_report(runs: Sequence[Path], *, out: Path | None) -> Path:
    """Write the page to `out`, or into the folder of the first run; return its path.

    Raises InputError if a folder is not a run, there are more than four, `out` cannot be a file, or
    a library is missing.
    """
    check_report(out)
    histories = read_histories(runs)
    path = out or runs[0] / REPORT
    write_page(path, page_of(histories))
    return path


def read_histories(runs: Sequence[Path]) -> list[RunHistory]:
    """The runs of a page, with short names that distinguish them.

    Raises InputError if a folder is not a run, or there are more than four.
    """
    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs are too many for a page; give at most {MOST_RUNS}.")
    return [RunHistory.of(run, name) for run, name in zip(runs, _names(runs), strict=True)]


def page_of(runs: Sequence[RunHistory]) -> Page:
    """The whole report."""
    return Page(
        title="Pretraining: " + ", ".join(run.name for run in runs),
        figures=key_figures(runs),
        sections=make_sections(SECTIONS, runs),
    )


def key_figures(runs: Sequence[RunHistory]) -> list[tuple[str, str]]:
    """Name and value of what matters most; empty for several runs, which have a table."""
    return list(_figures(runs[0])) if len(runs) == 1 else []


def _figures(run: RunHistory) -> Iterator[tuple[str, str]]:
    training = run.config.training
    figures = results(run)
    figures["last logged step"] += f" of {training.for_ or f'{training.max_steps:,}'}"
    yield from ((name, value) for name, value in figures.items() if value != "-")
    yield "dataset digest", run.config.dataset_digest
    yield "tokenizer digest", run.config.tokenizer_digest


def _names(runs: Sequence[Path]) -> list[str]:
    """As many last parts of the paths as distinguish them, cut to what fits beside a chart."""
    paths = [run.resolve().parts for run in runs]
    depths = range(1, 1 + max(map(len, paths)))
    choices = [["/".join(parts[-depth:]) for parts in paths] for depth in depths]
    names = next((names for names in choices if len({*names}) == len(names)), choices[0])
    end = slice(1 - LONGEST_NAME, None)
    short = [name if len(name) <= LONGEST_NAME else "…" + name[end] for name in names]
    is_unique = len({*short}) == len(short)
    return short if is_unique else [f"{i}: {name}" for i, name in enumerate(short, start=1)]
