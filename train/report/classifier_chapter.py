"""The chapter of a classifier: scores, compared models, label efficiency, calibration, mistakes.

Read from report.json and predictions.csv alone, as `clozeline finetune` wrote them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import refuse_malformed
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.page import Chapter, Section, Table, table_of
from clozeline.train.artifacts.classifier_folder import (
    PREDICTIONS,
    REPORT,
    Predicted,
    read_predictions,
    read_report,
)
from clozeline.train.finetuning.results import TITLES, ModelName
from clozeline.train.labelled.scores import Scores, mean_in_words

MOST_IN_MATRIX = 30  # classes
MISTAKES = 12
BINS = 15  # of confidence, as in Guo et al. 2017, "On calibration of modern neural networks"
MARKERS: Final = ("o", "s", "^")  # of the models in TITLES


def classifier_chapter(folder: Path) -> Chapter:
    """Raises InputError if the folder is not a classifier, or its files do not fit together."""
    report, predictions = read_report(folder), read_predictions(folder)
    with refuse_malformed(folder / REPORT, "make it again with `clozeline finetune`"):
        scores = Scores.from_dict(report["finetuned"])
        if len(predictions) != scores.examples:
            raise InputError(
                f"{folder / PREDICTIONS} has {len(predictions):,} rows, but "
                f"{scores.examples:,} test rows are in the report; restore it, or make it again "
                "with `clozeline finetune`."
            )
        figures = [
            ("accuracy", f"{scores.accuracy:.4f}"),
            ("macro F1", f"{scores.macro_f1:.4f}"),
            ("training rows", f"{report['examples']:,}"),
            ("test rows", f"{scores.examples:,}"),
            ("learning rate", f"{report['plan']['learning_rate']:g}"),
            ("epochs", str(report["plan"]["epochs"])),
        ]
        sections = list(sections_of(report, scores, predictions))
    return Chapter(name="Classifier", figures=figures, sections=sections)


def sections_of(
    report: Mapping[str, Any], scores: Scores, predictions: Sequence[Predicted]
) -> Iterator[Section]:
    """In the order of the page, from report.json, the classifier's scores and its predictions."""
    yield _classes(scores)
    if len(scores.names) <= MOST_IN_MATRIX:  # more are too wide to read
        yield _confusion(scores)
    yield _training(report)
    yield _label_efficiency(report["label_efficiency"])
    yield _calibration(predictions, classes=len(scores.names))
    yield _mistakes(predictions)


def _classes(scores: Scores) -> Section:
    names, means = [*scores.names, *scores.means], scores.means.values()
    of_classes = np.transpose((scores.precision, scores.recall, scores.f1))
    support = [*scores.confusion.sum(1), scores.examples, scores.examples]
    rows = [
        (name, *(f"{score:.4f}" for score in of_row), f"{count:,}")
        for name, of_row, count in zip(names, [*of_classes, *means], support, strict=True)
    ]
    heads = ("class", "precision", "recall", "F1", "support")
    return Section(
        heading="Classes",
        sentence=f"On {scores.examples:,} test rows; support is the number of rows of a class.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _confusion(scores: Scores) -> Section:
    rows = [
        (name, *(f"{count:,}" for count in counts))
        for name, counts in zip(scores.names, scores.confusion, strict=True)
    ]
    return Section(
        heading="Confusion matrix",
        sentence="A row for each label, a column for each prediction.",
        tables=[Table(heads=("label", *scores.names), rows=rows)],
    )


def _line(start: ModelName, x: Sequence[int], y: Sequence[float], **deviation: Any) -> Line:
    number = list(TITLES).index(start)
    title, marker = TITLES[start], MARKERS[number]
    return Line(x=x, y=y, label=title, number=number, marker=marker, **deviation)


def _training(report: Mapping[str, Any]) -> Section:
    """The loss by epoch of the classifier, and of the same model from random weights."""
    chosen = (report["examples"], report["seed"])
    losses = {
        result["start"]: result["trial"]["training_losses"]
        for result in reversed(report["results"])  # the fine-tuned one comes last there
        if result["trial"] and (result["examples"], result["seed"]) == chosen
    }
    lines = [_line(start, range(1, len(y) + 1), y) for start, y in losses.items()]
    return Section(
        heading="Training",
        sentence="The mean loss of the training rows in each epoch, with dropout.",
        charts=[draw_lines("training", lines, caption="training loss in nats", x_label="epoch")],
    )


def _label_efficiency(points: Sequence[Mapping[str, Any]]) -> Section:
    """One table for each test set, and a curve where there are several numbers of rows."""
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
    columns: dict[str, dict[str, str]] = {}
    for point in points:
        accuracies = point["also"][source] if source else point["accuracies"]
        column = columns.setdefault(TITLES[point["start"]], {})
        column[f"{point['examples']:,}"] = mean_in_words(accuracies, ".4f")
    return replace(table_of("rows", columns), title=f"on {source or 'the test rows'}")


def _curves(points: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    lines = []
    for start in dict.fromkeys(point["start"] for point in points):
        of_model = [point for point in points if point["start"] == start]
        x, y, deviation = (
            [point[name] for point in of_model] for name in ("examples", "mean", "deviation")
        )
        lines.append(_line(start, x, y, deviation=deviation))
    return draw_lines(
        "label efficiency",
        lines,
        caption="accuracy on the test rows, mean and deviation over the seeds",
        x_label="labelled training rows",
        log_x=True,
        percent=True,
    )


def _calibration(predictions: Sequence[Predicted], *, classes: int) -> Section:
    """Confidence and accuracy in each bin of confidence that has rows, and how far they differ."""
    confidence = np.array([row.confidence for row in predictions])
    is_right = np.array([row.label == row.predicted for row in predictions])
    index = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    bins = [index == number for number in np.unique(index)]
    x, y = ([column[rows].mean() for rows in bins] for column in (confidence, is_right))
    shares, diagonal = [rows.mean() for rows in bins], [1 / classes, 1]
    lines = [
        Line(x=x, y=y, label="test rows", marker="o"),
        Line(x=diagonal, y=diagonal, label="perfectly calibrated", number=1, style="--"),
    ]
    caption = "accuracy of the predictions in each bin of confidence"
    chart = draw_lines("calibration", lines, caption=caption, x_label="confidence", percent=True)
    error = float(np.abs(np.subtract(x, y)) @ shares)
    sentence = f"The expected calibration error is {error:.4f}."
    return Section(heading="Calibration", sentence=sentence, charts=[chart])


def _mistakes(predictions: Sequence[Predicted]) -> Section:
    wrong = [(i, row) for i, row in enumerate(predictions, 1) if row.label != row.predicted]
    rows = [
        (f"{i:,}", row.label, f"{row.predicted} ({row.confidence:.1%})", row.text)
        for i, row in sorted(wrong, key=lambda pair: -pair[1].confidence)[:MISTAKES]
    ]
    heads = ("test row", "label", "predicted", "text")
    return Section(
        heading="Mistakes",
        sentence=f"{len(wrong):,} of {len(predictions):,} test rows are wrong; the {len(rows):,} "
        f"most confident ones are listed. {PREDICTIONS} has all predictions.",
        tables=[Table(heads=heads, rows=rows, is_numeric=False)],
    )
