"""The chapter of a classifier: scores, compared models, label efficiency, calibration, mistakes.

Read from report.json and predictions.csv alone, as `clozeline finetune` wrote them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import refuse_malformed
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.page import Chapter, Chart, Section, Table, make_sections
from clozeline.train.artifacts.classifier_folder import REPORT, read_report
from clozeline.train.finetuning.results import SHOWN
from clozeline.train.labelled.predictions import PREDICTIONS, Predictions
from clozeline.train.labelled.scores import Scores, mean_in_words

MOST_IN_MATRIX = 30  # classes
MISTAKES = 12  # as many as a page shows without a click
MARKERS: Final = ("o", "s", "^")  # of the models in SHOWN


class ClassifierSummary(NamedTuple):
    """What the chapter is about."""

    report: Mapping[str, Any]  # report.json
    predictions: Predictions

    @property
    def scores(self) -> Scores:
        """Those of the classifier on the test rows."""
        return Scores.from_dict(self.report["finetuned"])


def classifier_chapter(folder: Path) -> Chapter:
    """Raises InputError if the folder is not a classifier, or its files do not fit together."""
    summary = ClassifierSummary(read_report(folder), Predictions.read(folder / PREDICTIONS))
    with refuse_malformed(folder / REPORT, "make it again with `clozeline finetune`"):
        rows, tested = len(summary.predictions.texts), summary.scores.examples
        if rows != tested:
            raise InputError(
                f"{folder / PREDICTIONS} has {rows:,} rows, but {tested:,} test rows are in the "
                "report; restore it, or make it again with `clozeline finetune`."
            )
        return Chapter(
            name="Classifier",
            figures=list(_figures(summary)),
            sections=make_sections(SECTIONS, summary),
        )


def _figures(summary: ClassifierSummary) -> Iterator[tuple[str, str]]:
    scores, report = summary.scores, summary.report
    yield "accuracy", f"{scores.accuracy:.4f}"
    yield "macro F1", f"{scores.macro_f1:.4f}"
    yield "training rows", f"{report['examples']:,}"
    yield "test rows", f"{scores.examples:,}"
    yield "learning rate", f"{report['plan']['learning_rate']:g}"
    yield "epochs", str(report["plan"]["epochs"])


def _classes(summary: ClassifierSummary) -> Section:
    scores = summary.scores
    columns = (scores.names, scores.precision, scores.recall, scores.f1, scores.confusion.sum(1))
    rows = [
        (name, *(f"{score:.4f}" for score in of_class), f"{count:,}")
        for name, *of_class, count in zip(*columns, strict=True)
    ]
    heads = ("class", "precision", "recall", "F1", "rows")
    return Section(
        heading="Classes",
        sentence=f"On {scores.examples:,} test rows. Macro F1 is {scores.macro_f1:.4f}.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _confusion(summary: ClassifierSummary) -> Section | None:
    scores = summary.scores
    if len(scores.names) > MOST_IN_MATRIX:  # too wide to read
        return None
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


def _label_efficiency(summary: ClassifierSummary) -> Section:
    """One table for each test set, and a curve where there are several numbers of rows."""
    points = summary.report["label_efficiency"]
    sources = (None, *points[0]["also"])
    has_curve = len({point["examples"] for point in points}) > 1
    return Section(
        heading="Label efficiency" if has_curve else "Compared models",
        sentence="Accuracy on the same test rows, mean and deviation over the seeds. "
        + ("Smaller training sets are balanced and part of the larger ones." * has_curve),
        charts=[_curves(points)] if has_curve else [],
        tables=[_accuracies(points, source) for source in sources],
    )


def _accuracies(points: Sequence[Mapping[str, Any]], source: str | None) -> Table:
    starts = list(dict.fromkeys(point["start"] for point in points))
    cells = {
        (point["examples"], point["start"]): point["also"][source]
        if source
        else point["accuracies"]
        for point in points
    }
    rows = [
        (f"{size:,}", *(mean_in_words(cells[size, start], ".4f") for start in starts))
        for size in sorted({point["examples"] for point in points})
    ]
    heads = ("rows", *(SHOWN[start] for start in starts))
    return Table(title=f"on {source or 'the test rows'}", heads=heads, rows=rows)


def _curves(points: Sequence[Mapping[str, Any]]) -> Chart:
    lines = []
    for number, (start, title) in enumerate(SHOWN.items()):
        if of_model := [point for point in points if point["start"] == start]:
            line = Line(
                x=[point["examples"] for point in of_model],
                y=[point["mean"] for point in of_model],
                deviation=[point["deviation"] for point in of_model],
                label=title,
                number=number,
                marker=MARKERS[number],
            )
            lines.append(line)
    return draw_lines(
        "label efficiency",
        lines,
        caption="accuracy on the test rows",
        x_label="labelled training rows",
        y_label="accuracy",
        log_x=True,
        percent=True,
    )


def _calibration(summary: ClassifierSummary) -> Section:
    found = summary.report["calibration"]
    lowest = 1 / len(summary.scores.names)
    lines = [
        Line(x=found["confidences"], y=found["accuracies"], label="test rows", marker="o"),
        Line(x=[lowest, 1], y=[lowest, 1], label="perfectly calibrated", number=1, style="--"),
    ]
    chart = draw_lines(
        "calibration",
        lines,
        caption="accuracy of the predictions of each bin of confidence",
        x_label="confidence",
        y_label="accuracy",
        percent=True,
    )
    fitted = "no temperature lowers it reliably, so none is applied"
    if found["temperature"] != 1:
        without = f"without the temperature of {found['temperature']:.2f}"
        fitted = f"{without} it would be {found['error_before']:.4f}"
    return Section(
        heading="Calibration",
        sentence=f"The expected calibration error is {found['error']:.4f}; {fitted}.",
        charts=[chart],
    )


def _mistakes(summary: ClassifierSummary) -> Section:
    found = summary.predictions
    wrong = np.flatnonzero(found.predicted != found.labels)
    shown = wrong[np.argsort(-found.confidence[wrong], kind="stable")][:MISTAKES]
    rows = [
        (
            f"{row + 1:,}",
            found.names[found.labels[row]],
            f"{found.names[found.predicted[row]]} ({found.confidence[row]:.1%})",
            found.texts[row],
        )
        for row in shown
    ]
    heads = ("test row", "label", "predicted", "text")
    return Section(
        heading="Mistakes",
        sentence=f"{len(wrong):,} of {len(found.texts):,} test rows are wrong; the {len(rows):,} "
        f"most confident ones are listed. {PREDICTIONS} has all predictions.",
        tables=[Table(heads=heads, rows=rows, is_numeric=False)] if rows else [],
    )


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[ClassifierSummary], Section | None], ...]] = (
    _classes,
    _confusion,
    _label_efficiency,
    _calibration,
    _mistakes,
)
