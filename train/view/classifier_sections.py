"""The sections of the report of a classifier: one function each, listed in SECTIONS."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clozeline.pipeline.report.charts import SERIES, Series, draw_lines, drawing
from clozeline.pipeline.report.html import Chart, Section, Table
from clozeline.train.finetuning.job import TEST
from clozeline.train.finetuning.report import FinetuneReport, Point
from clozeline.train.finetuning.results import SHOWN
from clozeline.train.labelled.calibration import Calibration
from clozeline.train.labelled.predictions import PrecisionRecall, Predictions
from clozeline.train.labelled.scores import Scores, mean_in_words

MOST_IN_MATRIX, MOST_PAIRS = 30, 50  # classes; pairs of classes, where there are more
MOST_CLASSES = 4  # of which thresholds are drawn, the most frequent ones
THRESHOLDS = np.arange(1, 20) / 20


@dataclass(frozen=True, kw_only=True)
class ClassifierSummary:
    """What the page is about."""

    report: FinetuneReport
    job: dict[str, Any]  # config and digests, from classifier.json
    predictions: Predictions


def _classes(summary: ClassifierSummary) -> Section:
    scores = summary.report.finetuned.scores
    columns = (scores.names, scores.precision, scores.recall, scores.f1, scores.confusion.sum(1))
    rows = [
        (name, f"{p:.4f}", f"{r:.4f}", f"{f:.4f}", f"{n:,}")
        for name, p, r, f, n in zip(*columns, strict=True)
    ]
    heads = ("class", "precision", "recall", "F1", "rows")
    return Section(
        heading="Classes",
        sentence=f"On {scores.examples:,} test rows. Macro F1 is {scores.macro_f1:.4f}.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _confusion(summary: ClassifierSummary) -> Section:
    scores = summary.report.finetuned.scores
    if len(scores.names) > MOST_IN_MATRIX:
        return _confused_pairs(scores)
    rows = [
        (name, *(f"{count:,}" for count in counts))
        for name, counts in zip(scores.names, scores.confusion, strict=True)
    ]
    heads = ("label", *(f"predicted {name}" for name in scores.names))
    return Section(
        heading="Confusion matrix",
        sentence="A row for each label, a column for each prediction.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _confused_pairs(scores: Scores) -> Section:
    """The largest numbers of the matrix outside of its diagonal."""
    wrong = np.where(np.eye(len(scores.names), dtype=np.bool_), 0, scores.confusion)
    largest = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [np.unravel_index(place, wrong.shape) for place in largest if wrong.flat[place]]
    rows = [(scores.names[i], scores.names[j], f"{wrong[i, j]:,}") for i, j in pairs]
    return Section(
        heading="Confusion matrix",
        sentence=f"The mistakes that are made most often, with {len(scores.names):,} classes.",
        tables=[Table(heads=("label", "predicted", "rows"), rows=rows, is_numeric=False)],
    )


def _comparison(summary: ClassifierSummary) -> Section:
    report = summary.report
    points = [
        point for point in report.values["label_efficiency"] if point["examples"] == report.rows
    ]
    others = list(points[0]["also"])
    rows = [
        (SHOWN[p["start"]], *(_accuracy(p, source) for source in (None, *others))) for p in points
    ]
    heads = ("model", "accuracy", *(f"on {source}" for source in others))
    return Section(
        heading="Compared models",
        sentence=f"Trained on all {report.rows:,} training rows and tested on the same rows.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _label_efficiency(summary: ClassifierSummary) -> Section | None:
    points = summary.report.values["label_efficiency"]
    if len({point["examples"] for point in points}) == 1:
        return None
    return Section(
        heading="Label efficiency",
        sentence="Smaller training sets are balanced and part of the larger ones.",
        charts=list(_curves(points)),
        tables=[_curve_table(points, source) for source in (None, *points[0]["also"])],
    )


def _curves(points: Sequence[Point]) -> Iterator[Chart]:
    for number, source in enumerate((None, *points[0]["also"])):
        with drawing(f"label efficiency {number}", height=3.2) as (axes, svg):
            for start, colour in zip(SHOWN, SERIES, strict=False):
                line = [point for point in points if point["start"] == start]
                seeds = [100 * np.array(_seeds(point, source)) for point in line]
                means, bars = map(np.mean, seeds), [np.std(s, ddof=len(s) > 1) for s in seeds]
                style: dict[str, Any] = {"color": colour, "marker": "o", "label": SHOWN[start]}
                axes.errorbar([p["examples"] for p in line], list(means), bars, capsize=3, **style)
            axes.set_xscale("log")
            axes.set_xlabel("labelled training rows")
            axes.set_ylabel("accuracy, %")
            axes.legend(loc="lower right", frameon=False)
        yield Chart(svg=svg(), caption=f"accuracy on {source or 'the test rows'}")


def _curve_table(points: Sequence[Point], source: str | None) -> Table:
    starts = [start for start in SHOWN if any(point["start"] == start for point in points)]
    by_key = {(point["examples"], point["start"]): point for point in points}
    rows = [
        (f"{size:,}", *(_accuracy(by_key[size, start], source) for start in starts))
        for size in sorted({point["examples"] for point in points})
    ]
    heads = (f"rows, on {source}" if source else "rows", *(SHOWN[start] for start in starts))
    return Table(heads=heads, rows=rows)


def _calibration(summary: ClassifierSummary) -> Section:
    calibration = Calibration(**summary.report.values["calibration"])
    line = (np.array(calibration.confidences), np.array(calibration.accuracies))
    lowest = 1 / len(summary.report.finetuned.scores.names)
    svg = draw_lines(
        "calibration",
        {"test rows": line, "perfectly calibrated": (np.array([lowest, 1]), np.array([lowest, 1]))},
        x_label="confidence",
        y_label="accuracy",
        percent=True,
        from_zero=False,
    )
    temperature, before = calibration.temperature, calibration.error_before
    fitted = f"without the temperature of {temperature:.2f} it would be {before:.4f}"
    if temperature == 1:
        fitted = "no temperature was fitted that is sure to lower it"
    return Section(
        heading="Calibration",
        sentence=f"The expected calibration error is {calibration.error:.4f}; {fitted}.",
        charts=[Chart(svg=svg, caption="accuracy of the predictions of each bin of confidence")],
    )


def _selection(summary: ClassifierSummary) -> Section:
    result = summary.report.finetuned
    rows = [
        (
            f"{trial.learning_rate:g}",
            str(trial.epochs),
            f"{trial.loss:.4f}",
            f"{trial.accuracy:.4f}",
        )
        for trial in result.tried
    ]
    how = "Chosen on rows held out of the training rows" if rows else "As given"
    heads = ("learning rate", "epochs", "loss", "accuracy")
    return Section(
        heading="Learning rate and epochs",
        sentence=f"{how}: {result.chosen.line()}.",
        tables=[Table(heads=heads, rows=rows)] if rows else [],
    )


def _thresholds(summary: ClassifierSummary) -> Section:
    found = summary.predictions
    shown = np.argsort(-np.bincount(found.labels, minlength=len(found.names)), kind="stable")
    curves = {
        found.names[number]: PrecisionRecall.of(
            found.probabilities[:, number], found.labels == number
        )
        for number in sorted(shown[:MOST_CLASSES])
    }
    return Section(
        heading="Thresholds",
        sentence="If a row is called a class from a probability on: the fraction of such rows that "
        "belong to it (precision), and of the rows of the class that are found (recall). The "
        "average precision is the area under the first curve.",
        charts=[_precision_by_recall(curves), *_by_threshold(curves)],
        tables=[_threshold_table(name, curve) for name, curve in curves.items()],
    )


def _precision_by_recall(curves: Mapping[str, PrecisionRecall]) -> Chart:
    series: Series = {
        f"{curve.average_precision:.4f} {name}": (thin.recall, thin.precision)
        for name, curve in curves.items()
        for thin in (curve.thinned(),)
    }
    svg = draw_lines(
        "precision-recall", series, x_label="recall", y_label="precision", percent=True
    )
    return Chart(svg=svg, caption="precision by recall; average precision of each class")


def _by_threshold(curves: Mapping[str, PrecisionRecall]) -> Iterator[Chart]:
    for number, (name, curve) in enumerate(curves.items()):
        thin = curve.thinned()
        series: Series = {
            "precision": (thin.thresholds, thin.precision),
            "recall": (thin.thresholds, thin.recall),
        }
        svg = draw_lines(
            f"threshold {number}", series, x_label="threshold", y_label="fraction", percent=True
        )
        yield Chart(svg=svg, caption=f"precision and recall of {name} by threshold")


def _threshold_table(name: str, curve: PrecisionRecall) -> Table:
    rows = []
    for threshold in THRESHOLDS:
        precision, recall = curve.at(threshold)
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        rows.append((f"{threshold:.2f}", f"{precision:.4f}", f"{recall:.4f}", f"{f1:.4f}"))
    return Table(heads=(f"{name} from", "precision", "recall", "F1"), rows=rows)


def _config(summary: ClassifierSummary) -> Section:
    rows = [(name, str(value)) for name, value in summary.job.items()]
    return Section(
        heading="Config",
        sentence="As in classifier.json.",
        tables=[Table(heads=("name", "value"), rows=rows, is_numeric=False)],
    )


def results(report: FinetuneReport) -> Iterator[tuple[str, str]]:
    """The key figures at the top of the page."""
    scores = report.finetuned.scores
    yield "accuracy", f"{scores.accuracy:.4f}"
    yield "macro F1", f"{scores.macro_f1:.4f}"
    yield "training rows", f"{report.rows:,}"
    yield "test rows", f"{scores.examples:,}"
    found = report.values["excluded"][TEST]
    known = "not checked" if found is None else f"{found:,}, excluded from it"
    yield "test rows found in the pretraining corpus", known


def _accuracy(point: Point, source: str | None) -> str:
    return mean_in_words(_seeds(point, source), ".4f")


def _seeds(point: Point, source: str | None) -> Sequence[float]:
    found: Sequence[float] = point["also"][source] if source else point["accuracies"]
    return found


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[ClassifierSummary], Section | None], ...]] = (
    _classes,
    _confusion,
    _comparison,
    _label_efficiency,
    _thresholds,
    _calibration,
    _selection,
    _config,
)
