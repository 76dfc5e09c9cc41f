"""`clozeline report RUN...`: a page of how a run went, or of up to four beside each other.

RUN/report.html    pictures and tables, from run.json, metrics.jsonl and summary.json

A run that is under way, or was killed, is drawn as far as it got. Equal runs give equal bytes.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from model.heads import count_parameters
from pipeline.common.errors import InputError
from pipeline.common.paths import whole_file
from pipeline.report.charts import Series, draw_lines
from pipeline.report.html import Chart, Page, Section, Table, page_html
from train.monitoring.run_history import UNIGRAM, Points, RunHistory

REPORT = "report.html"
LIBRARIES = ("jinja2", "matplotlib")
MOST_RUNS = 4  # as many colours as a page has
MOST_POINTS = 200  # of a line; more lines of metrics than that are averaged
LONGEST_NAME = 20  # characters
ROWS = 10  # of the table of losses


def write_run_report(runs: Sequence[Path], *, out: Path | None) -> Path:
    """Write the page, to `out` or into the first run's folder; returns where.

    Raises InputError where a folder is no run, there are more than four, `out` cannot be a file,
    or a library is missing.
    """
    if missing := [name for name in LIBRARIES if find_spec(name) is None]:
        raise InputError(f"a report needs {', '.join(missing)}: pip install 'clozeline[pipeline]'.")
    if len(runs) > MOST_RUNS:
        raise InputError(f"{len(runs)} runs were given; a page has room for {MOST_RUNS}.")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        found = "is a folder" if out.is_dir() else f"lies in {out.parent}, which is no folder"
        raise InputError(f"{out} {found}; give --out the name of a file.")
    facts = [RunHistory.of(run, name) for run, name in zip(runs, _names(runs), strict=True)]
    page = out or runs[0] / REPORT
    with whole_file(page) as file:
        file.write(page_html(page_of(facts)).encode())
    return page


def page_of(runs: Sequence[RunHistory]) -> Page:
    """The whole report."""
    several = [_compared(runs), _differences(runs)] if len(runs) > 1 else []
    return Page(
        title="Pretraining: " + ", ".join(run.name for run in runs),
        facts=list(_head(runs[0])) if len(runs) == 1 else [],
        sections=[
            *several,
            _warnings(runs),
            _losses(runs),
            _accuracies(runs),
            _optimization(runs),
            _speed(runs),
            *(_choices(run) for run in runs),
        ],
    )


def _names(runs: Sequence[Path]) -> list[str]:
    """As many last parts of the paths as tell them apart, cut to what fits beside a picture."""
    paths = [run.resolve().parts for run in runs]
    depths = range(1, 1 + max(map(len, paths)))
    choices = [["/".join(parts[-depth:]) for parts in paths] for depth in depths]
    names = next((names for names in choices if len({*names}) == len(names)), choices[0])
    cut = slice(1 - LONGEST_NAME, None)
    short = [name if len(name) <= LONGEST_NAME else "…" + name[cut] for name in names]
    is_clear = len({*short}) == len(short)
    return short if is_clear else [f"{i}: {name}" for i, name in enumerate(short, start=1)]


def _head(run: RunHistory) -> Iterator[tuple[str, str]]:
    training = run.config.training
    total = training.for_ or f"{training.max_steps:,}"
    yield "state", "complete" if run.is_complete else "not complete"
    yield "last step logged", f"{run.step:,} of {total}"
    yield "parameters", f"{count_parameters(run.config.model):,}"
    yield from ((what, text) for what, text in _results(run).items() if text != "-")
    yield "dataset digest", run.config.dataset_digest
    yield "tokenizer digest", run.config.tokenizer_digest


def _results(run: RunHistory) -> dict[str, str]:
    speeds = run.points("tokens_per_second")[1]
    return {
        "masked-LM loss": _number(run.last("mlm_loss")),
        "held out": _number(run.last("heldout/mlm_loss", 1)),
        "unigram, held out": _number(run.last(UNIGRAM, 1)),
        "masked-LM accuracy": _percent(run.last("mlm_accuracy")),
        "accuracy, held out": _percent(run.last("heldout/mlm_accuracy", 1)),
        "NSP accuracy": _percent(run.last("nsp_accuracy")),
        "NSP, held out": _percent(run.last("heldout/nsp_accuracy", 1)),
        "tokens/s, median": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "MFU": _percent(run.last("mfu")),
    }


def _compared(runs: Sequence[RunHistory]) -> Section:
    columns = [
        {
            "state": "complete" if run.is_complete else "not complete",
            "last step logged": f"{run.step:,}",
            "parameters": f"{count_parameters(run.config.model):,}",
            **_results(run),
        }
        for run in runs
    ]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Section(
        heading="What they reached",
        sentence="Numbers of training are means over the last ten lines of metrics.",
        tables=[Table(heads=("", *(run.name for run in runs)), rows=rows), _losses_by_step(runs)],
    )


def _losses_by_step(runs: Sequence[RunHistory]) -> Table:
    """Means of the lines of each tenth of the longest run, up to the step."""
    ends = np.unique(np.linspace(0, max(run.step for run in runs), ROWS + 1).astype(int))
    rows = []
    for start, end in pairwise(ends):
        cells = []
        for run in runs:
            steps, losses = run.points("mlm_loss")
            inside = losses[(steps > start) & (steps <= end)]
            cells.append(_number(float(inside.mean()) if len(inside) else None))
        rows.append((f"{start + 1:,} to {end:,}", *cells))
    return Table(heads=("loss, mean of steps", *(run.name for run in runs)), rows=rows)


def _differences(runs: Sequence[RunHistory]) -> Section:
    choices = [run.choices() for run in runs]
    names = list(dict.fromkeys(name for of_run in choices for name in of_run))
    rows = [(name, *(of_run.get(name, "-") for of_run in choices)) for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    sentences = [
        "Their configs are the same." if not rows else "Whatever is not named is the same.",
        *(f"{run.name}: {_data_against(runs[0], run)}." for run in runs[1:]),
    ]
    heads = ("", *(run.name for run in runs))
    return Section(
        heading="What differs",
        sentence=" ".join(sentences),
        tables=[Table(heads=heads, rows=rows, of_numbers=False)] if rows else [],
    )


def _data_against(first: RunHistory, other: RunHistory) -> str:
    """From where on a run had other batches, by the digests of those that both logged."""
    ours, theirs = (
        {line["step"]: line["data_digest"] for line in run.lines if "data_digest" in line}
        for run in (first, other)
    )
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return f"no step was logged by {first.name} too, so the data cannot be compared"
    differing = [step for step in shared if ours[step] != theirs[step]]
    if not differing:
        return (
            f"the same data as {first.name} in all {len(shared):,} steps that both logged, the "
            f"last of them {shared[-1]:,}"
        )
    same = [step for step in shared if step < differing[0]]
    before = f"the same up to step {same[-1]:,}" if same else "no step before it is shared"
    return f"other data than {first.name} from step {differing[0]:,} on ({before})"


def _warnings(runs: Sequence[RunHistory]) -> Section:
    rows = [
        (f"{warning.step:,}", run.name, warning.words) for run in runs for warning in run.warnings
    ]
    cut = slice(None) if len(runs) > 1 else slice(0, None, 2)  # one run needs no name
    heads = ("step", "run", "what was seen")
    table = Table(heads=heads[cut], rows=[row[cut] for row in rows], of_numbers=False)
    return Section(
        heading="Warnings",
        sentence="Each cause stands where it was first seen." if rows else "None.",
        tables=[table] if rows else [],
    )


def _losses(runs: Sequence[RunHistory]) -> Section:
    return Section(
        heading="Loss",
        sentence="In nats. The unigram is what counting tokens gives on the held-out masks.",
        pictures=[
            *_pictures(runs, "mlm_loss", "masked-LM loss", unigram=UNIGRAM),
            *_pictures(runs, "nsp_loss", "NSP loss"),
        ],
    )


def _accuracies(runs: Sequence[RunHistory]) -> Section:
    return Section(
        heading="Accuracy",
        sentence="Of masked tokens, and of next sentences, where guessing gives 50%.",
        pictures=[
            *_pictures(runs, "mlm_accuracy", "masked-LM accuracy", percent=True),
            *_pictures(runs, "nsp_accuracy", "NSP accuracy", percent=True),
        ],
    )


def _optimization(runs: Sequence[RunHistory]) -> Section:
    return Section(
        heading="Learning rate and gradient",
        sentence="The norm is that of the whole gradient, before it is clipped.",
        pictures=[
            *_pictures(runs, "learning_rate", "learning rate"),
            *_pictures(runs, "gradient_norm", "gradient norm"),
        ],
    )


def _speed(runs: Sequence[RunHistory]) -> Section:
    return Section(
        heading="Speed",
        sentence="Real tokens, not padding; the time in which the model had no batch; and the "
        "share of the machine's floating point operations that went into the model (MFU), where "
        "the machine's peak is known.",
        pictures=[
            *_pictures(runs, "tokens_per_second", "tokens/s"),
            *_pictures(runs, "data_wait", "waiting for data", percent=True),
            *_pictures(runs, "mfu", "MFU", percent=True),
        ],
    )


def _pictures(
    runs: Sequence[RunHistory], name: str, label: str, *, percent: bool = False, unigram: str = ""
) -> Iterator[Chart]:
    """One run: training, held out and the unigram together; several: each kind for itself."""
    kinds = {"training": name, "held out": f"heldout/{name}"}
    if len(runs) == 1:
        kinds |= {"unigram": unigram} if unigram else {}
        series = {kind: runs[0].points(of) for kind, of in kinds.items()}
        yield from _picture(name, series, label, label, percent=percent)
        return
    for kind, of in kinds.items():
        caption = label if kind == "training" else f"{label}, {kind}"
        series = {run.name: run.points(of) for run in runs}
        yield from _picture(of, series, label, caption, percent=percent)


def _picture(
    name: str, series: dict[str, Points], label: str, caption: str, *, percent: bool
) -> Iterator[Chart]:
    lines: Series = {kind: _thinned(points) for kind, points in series.items() if len(points[0])}
    if lines:
        svg = draw_lines(
            name,
            lines,
            x_label="step",
            y_label=label,
            percent=percent,
            from_zero="loss" not in name,  # what a loss does is far from 0
        )
        number = max(len(steps) for steps, _ in series.values())
        per_point = -(-number // MOST_POINTS)
        means = f", means of {per_point} lines of metrics" if per_point > 1 else ""
        yield Chart(svg=svg, caption=caption + means)


def _thinned(points: Points) -> Points:
    """Means of neighbours, so that a long run fits on a page; a single point becomes visible."""
    steps, values = points
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5]), values.repeat(2)
    per_point = -(-len(steps) // MOST_POINTS)
    starts = np.arange(0, len(steps), per_point)
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _choices(run: RunHistory) -> Section:
    rows = list(run.choices().items())
    return Section(
        heading=f"What {run.name} was asked for",
        sentence="run.json has the same.",
        tables=[Table(heads=("choices", ""), rows=rows, of_numbers=False)],
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
