"""The page of a classifier from finished results, and the file of its predictions."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.classifier_folder import (
    PREDICTIONS,
    Predicted,
    predictions_csv,
    read_predictions,
)
from clozeline.train.finetuning.results import FinetuneReport, report_of
from clozeline.train.labelled.scores import Scores
from clozeline.train.report.classifier_chapter import sections_of
from tests.support.command import invoke, refused
from tests.support.small_classifier import PREDICTED, report

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def write_folder(folder, found):
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(found.values))
    (folder / PREDICTIONS).write_text(PREDICTED)
    metadata = {"model": {}, "names": [], "max_seq_length": 8, "job": {"epochs": "auto"}}
    metadata |= {"pooling": "mean", "temperature": 1.0, "text": "text", "text_pair": None}
    metadata |= {"tokenizer_digest": "0" * 64, "truncate": "end", "prompt": None}
    metadata |= {"mask_position": 0}
    (folder / "classifier.json").write_text(json.dumps(metadata))
    return folder


def test_the_page_has_every_section_and_escapes_texts(tmp_path):
    folder = write_folder(tmp_path / "c", report())
    assert invoke("report", folder).stdout == f"{folder / 'report.html'}\n"
    html = (folder / "report.html").read_text()
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", html) == [
        *("Classes", "Confusion matrix", "Training", "Label efficiency", "Calibration"),
        "Mistakes",
    ]
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<svg") == 3  # loss, label efficiency, calibration
    write_folder(tmp_path / "one", report((1000,)))
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


def test_a_temperature_that_was_not_fitted_is_not_named():
    found = report((1000,))
    fitted = sections(found)["Calibration"].sentence
    assert "without the temperature of 1.50 it would be " in fitted
    calibration = found.values["calibration"] | {"temperature": 1.0}
    plain = FinetuneReport(found.values | {"calibration": calibration})
    said = "; no temperature lowers it reliably, so none is applied."
    assert sections(plain)["Calibration"].sentence.endswith(said)


@pytest.mark.parametrize("rows", [0, 99])
def test_predictions_of_another_number_of_rows_are_refused(rows, tmp_path):
    folder = write_folder(tmp_path / "c", report())
    rest = len(PREDICTED) if rows else PREDICTED.index("1,")
    (folder / PREDICTIONS).write_text(PREDICTED[:rest].rpartition("100,")[0] or PREDICTED[:rest])
    said = f"{folder / PREDICTIONS} has {rows} rows, but 100 test rows are in the report; restore"
    assert refused("report", folder).startswith(said)


def test_a_report_with_a_damaged_part_is_one_line(tmp_path):
    folder = write_folder(tmp_path / "c", report())
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
