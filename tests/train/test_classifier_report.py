"""Finished results of a fine-tuning: its report and advice, its page, the file of predictions."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import SUMS
from clozeline.train.artifacts.classifier_folder import (
    PREDICTIONS,
    Predicted,
    predictions_csv,
    read_predictions,
)
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.results import (
    FinetuneReport,
    doubts,
    label_efficiency_table,
    report_of,
)
from clozeline.train.labelled.scores import Scores
from clozeline.train.report.classifier_chapter import sections_of
from tests.support.command import invoke, refused
from tests.support.small_classifier import PREDICTED, report, write_small_classifier


def test_the_report_is_that_of_the_chosen_seed_and_means_are_over_all():
    found = report()
    assert found.finetuned.scores.accuracy == 0.84
    assert found.rows == 1000
    values = found.values
    assert values["seed"] == 1
    assert values["finetuned"]["accuracy"] == 0.84
    assert values["from_scratch"]["accuracy"] == 0.60  # of the first seed
    assert values["bag_of_words"]["accuracy"] == 0.70
    assert values["plan"] == {"learning_rate": 1e-3, "epochs": 6}
    points = values["label_efficiency"]
    assert [(point["start"], point["examples"]) for point in points] == [
        (start, n) for n in (100, 1000) for start in ("pretrained", "from_scratch", "bag_of_words")
    ]
    point = points[3]
    assert (point["mean"], point["deviation"]) == pytest.approx((0.82, 0.04 / 2**0.5))
    assert point["also"] == {"imdb": [0.79, 0.83]}


def test_the_table_has_mean_and_deviation_in_percent():
    assert label_efficiency_table(report().values["label_efficiency"]) == [
        "",
        "accuracy, %",
        "      rows      fine-tuned    from scratch    bag-of-words",
        "       100      82.0 ± 2.8      61.0 ± 1.4            70.0",
        "     1,000      82.0 ± 2.8      61.0 ± 1.4            70.0",
    ]
    of_one_size = report((1000,))  # there is no curve
    assert label_efficiency_table(of_one_size.values["label_efficiency"]) == []


def test_the_lines_say_what_was_chosen_and_measured():
    lines = report().lines()
    for expected in (
        "          fine-tuned  accuracy 0.8200 ± 0.0283 (2 seeds), 0.8100 on imdb",
        "        bag-of-words  accuracy 0.7000, 0.6900 on imdb",
        "chosen on training rows: learning rate 0.001, 6 epochs, 0.8000 on 200 held-out "
        "training rows",
        "note: something to know",
    ):
        assert expected in lines


CONFUSED = Scores(("bad", "good"), np.array([[300, 200], [70, 430]]))


def noted(ours=(0.73,), *, scores=CONFUSED, config=None, **others):
    """The notes on accuracies of 1,000 rows, beside those of another model."""
    compared = [("pretrained", 100, (0.5,)), ("pretrained", 1000, ours)]
    points = [
        {
            "start": start,
            "examples": rows,
            "accuracies": accuracies,
            "mean": np.mean(accuracies),
            "deviation": np.std(accuracies, ddof=1) if len(accuracies) > 1 else 0.0,
        }
        for start, rows, accuracies in (
            *compared, *((start, 1000, found) for start, found in others.items())
        )
    ]  # fmt: skip
    return doubts(scores, points, config or FinetuneConfig())


@pytest.mark.parametrize("start", ["from_scratch", "bag_of_words"])
def test_a_compared_model_that_is_better_by_the_mean_of_the_seeds_is_named(start):
    name = {"from_scratch": "from scratch", "bag_of_words": "bag-of-words"}[start]
    [line] = noted((0.82, 0.84), **{start: (0.80, 0.88)})
    assert line.startswith(f"{name} is better: accuracy 0.8300, {name} 0.8400; give more ")
    assert noted((0.82, 0.84), **{start: (0.78, 0.86)}) == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "; give more labelled rows, or pretrain on more text like that of the task."),
        ({"learning_rate": 1e-3}, "; leave --learning-rate out to have them chosen, give more"),
        ({"epochs": 1}, "; leave --epochs out to have them chosen, give more labelled rows"),
        ({"epochs": 1, "learning_rate": 1e-3}, "; leave --learning-rate and --epochs out to have"),
    ],
)
def test_a_classifier_worse_than_bag_of_words_says_so_and_what_to_try(options, advice):
    [line] = noted(bag_of_words=(0.742,), config=FinetuneConfig(**options))
    assert line.startswith("bag-of-words is better: accuracy 0.7300, bag-of-words 0.7420; ")
    assert advice in line


@pytest.mark.parametrize(
    ("confusion", "is_noted"),
    [
        ([[0, 400], [0, 600]], True),
        ([[999, 0], [1, 0]], True),
        ([[1, 399], [0, 600]], False),
        ([[0, 0], [0, 1000]], False),  # all rows are of the class
        ([[0, 0], [1000, 0]], False),
    ],
)
def test_a_classifier_that_predicts_one_class_says_so(confusion, is_noted):
    scores = Scores(("bad", "good"), np.array(confusion))
    notes = noted(scores=scores)
    assert len(notes) == is_noted
    if is_noted:
        name = scores.names[int(scores.confusion.sum(0).argmax())]
        assert notes[0].startswith(f"all 1,000 test rows are predicted as '{name}'; give more")


# --- The page, and the file of predictions --------------------------------------------------------


pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def test_the_page_has_every_section_and_escapes_texts(tmp_path):
    folder = write_small_classifier(tmp_path / "c")
    assert invoke("report", folder).stdout == f"{folder / 'report.html'}\n"
    html = (folder / "report.html").read_text()
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", html) == [
        *("Classes", "Confusion matrix", "Training", "Label efficiency", "Calibration"),
        "Mistakes",
    ]
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<svg") == 3  # loss, label efficiency, calibration
    write_small_classifier(tmp_path / "one", sizes=(1000,))
    invoke("report", tmp_path / "one")
    html = (tmp_path / "one" / "report.html").read_text()
    assert "Label efficiency" not in html
    assert html.count("<svg") == 2


#: What the page shows of PREDICTED.
ANSWERS = [
    Predicted("<b>good</b>", "<b>good</b>", 0.75, "the cat"),
    Predicted("bad", "<b>good</b>", 0.875, '<script>"a",\nb'),
    Predicted("<b>good</b>", "bad", 1.0, "long " * 300),
    *97 * [Predicted("<b>good</b>", "<b>good</b>", 0.75, "the cat")],
]


def sections(found):
    """The sections of the page by heading."""
    values = json.loads(json.dumps(found.values))
    scores = Scores.from_dict(values["finetuned"])
    return {section.heading: section for section in sections_of(values, scores, ANSWERS)}


def test_compared_models_have_their_means_over_the_seeds_on_each_test_set():
    [ours, imdb] = sections(report())["Label efficiency"].tables
    assert ours.heads == ("rows", "fine-tuned", "from scratch", "bag-of-words")
    assert ours.rows[1] == ("1,000", "0.8200 ± 0.0283", "0.6100 ± 0.0141", "0.7000")
    assert (imdb.title, imdb.rows[0][1]) == ("on imdb", "0.8100 ± 0.0283")


def test_the_most_confident_mistakes_come_first_with_their_whole_texts():
    section = sections(report((1000,)))["Mistakes"]
    assert section.sentence.startswith("2 of 100 test rows are wrong; the 2 most confident")
    assert section.tables[0].rows == [
        ("3", "<b>good</b>", "bad (100.0%)", "long " * 300),
        ("2", "bad", "<b>good</b> (87.5%)", '<script>"a",\nb'),
    ]


def test_a_matrix_of_too_many_classes_is_left_out():
    names = tuple(f"class {i}" for i in range(40))
    found = report((1000,))
    scores = Scores(names, 9 * np.eye(40, dtype=np.int64))
    results = [replace(x, scores=scores) for x in found.results]
    shown = sections(FinetuneReport(found.values | report_of(results, results[-1])))
    assert "Confusion matrix" not in shown
    assert len(shown["Classes"].tables[0].rows) == 40 + 2  # and their means


def test_calibration_error_by_hand():
    """Confidences 0.9 (right, wrong) and 0.6 (right, right): (2 * 0.4 + 2 * 0.4) / 4."""
    found = report((1000,)).values
    rows = [("a", "a", 0.9), ("b", "a", 0.9), ("a", "a", 0.6), ("b", "b", 0.6)]
    answers = [Predicted(*row, "x") for row in rows]
    shown = sections_of(found, Scores.from_dict(found["finetuned"]), answers)
    [section] = [section for section in shown if section.heading == "Calibration"]
    assert section.sentence == "The expected calibration error is 0.4000."


@pytest.mark.parametrize("rows", [0, 99])
def test_predictions_of_another_number_of_rows_are_refused(rows, tmp_path):
    folder = write_small_classifier(tmp_path / "c")
    rest = len(PREDICTED) if rows else PREDICTED.index("1,")
    (folder / PREDICTIONS).write_text(PREDICTED[:rest].rpartition("100,")[0] or PREDICTED[:rest])
    said = f"{folder / PREDICTIONS} has {rows} rows, but 100 test rows are in the report; restore"
    assert refused("report", folder).startswith(said)


def test_a_report_with_a_damaged_part_is_one_line(tmp_path):
    folder = write_small_classifier(tmp_path / "c")
    (folder / SUMS).unlink()
    values = report().values
    for damaged in ({"plan": {}}, {"finetuned": {}}, {"label_efficiency": []}):
        (folder / "report.json").write_text(json.dumps(values | damaged))
        said = refused("report", folder)
        assert said.startswith(f"{folder / 'report.json'} cannot be read (")
        assert said.endswith("; make it again with `clozeline finetune`.")


# --- The file of predictions ----------------------------------------------------------------------

NAMES = ("a,b", '"', "c")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_the_file_gives_back_every_text(tmp_path_factory, texts):
    draws, folder = np.random.default_rng(0), tmp_path_factory.getbasetemp()
    probabilities = draws.dirichlet([1, 1, 1], len(texts)).round(2)
    labels = draws.integers(0, 3, len(texts))
    written = predictions_csv(NAMES, labels, probabilities, texts)
    (folder / PREDICTIONS).write_bytes(written.encode())
    predicted = probabilities.argmax(1)
    assert read_predictions(folder) == [
        (NAMES[label], NAMES[best], row.max(), text)
        for label, best, row, text in zip(labels, predicted, probabilities, texts, strict=True)
    ]


def test_the_predicted_class_is_read_where_the_rounded_probabilities_are_equal(tmp_path):
    close = np.array([[0.49999999, 0.50000001]])
    written = predictions_csv(("neg", "pos"), np.array([0]), close, ["x"])
    (tmp_path / PREDICTIONS).write_text(written)
    assert "neg,pos,0.500000,0.500000,0.500000" in written
    assert read_predictions(tmp_path) == [("neg", "pos", 0.5, "x")]


def test_a_row_of_the_file(tmp_path):
    (tmp_path / PREDICTIONS).write_text(PREDICTED)
    assert read_predictions(tmp_path) == ANSWERS
    head, first, *_ = PREDICTED.splitlines()
    assert head == "row,label,predicted,confidence,P(bad),P(<b>good</b>),text"
    assert first == "1,<b>good</b>,<b>good</b>,0.750000,0.250000,0.750000,the cat"


@pytest.mark.parametrize(
    "text", ["row,label\n1,a\n", "row,label,predicted,confidence,text\n1,x", f"{PREDICTED}101,b"]
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / PREDICTIONS).write_text(text)
    with pytest.raises(InputError, match=r"predictions.csv cannot be read .*; make it again"):
        read_predictions(tmp_path)
