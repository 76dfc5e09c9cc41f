"""Test rows of a classifier: the file, thresholds, and the page that filters them."""

import csv
import io
from dataclasses import replace
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_curve

from clozeline.pipeline.common.errors import InputError
from clozeline.train.labelled.predictions import PREDICTIONS, PrecisionRecall, Predictions
from clozeline.train.view.predictions import PredictionPages
from clozeline.train.view.view import make_site
from tests.support.http_clients import request, running
from tests.support.small_classifier import PREDICTED, write_small_classifier

NAMES = ("a,b", '"', "c")


def some(rows, seed=0):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([1, 1, 1], rows).round(2)
    texts = [f"text {i}" for i in range(rows)]
    return Predictions(
        NAMES, rng.integers(0, 3, rows), probabilities, texts, probabilities.argmax(1)
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_the_file_gives_back_every_text(tmp_path_factory, texts):
    rows = some(len(texts))
    path = tmp_path_factory.getbasetemp() / PREDICTIONS
    written = replace(rows, texts=texts)
    path.write_bytes(written.csv().encode())
    read = Predictions.read(path)
    assert (read.names, list(read.texts)) == (NAMES, texts)
    np.testing.assert_array_equal(read.labels, written.labels)
    np.testing.assert_allclose(read.probabilities.reshape(-1, 3), written.probabilities, atol=1e-6)


def test_the_predicted_class_is_read_where_the_rounded_probabilities_are_equal(tmp_path):
    written = Predictions(
        ("neg", "pos"), np.array([0]), np.array([[0.49999999, 0.50000001]]), ["x"], np.array([1])
    )
    (tmp_path / PREDICTIONS).write_text(written.csv())
    assert "neg,pos,0.500000,0.500000,0.500000" in (tmp_path / PREDICTIONS).read_text()
    assert Predictions.read(tmp_path / PREDICTIONS).predicted.tolist() == [1]


def test_a_row_of_the_file():
    head, first, *_ = csv.reader(io.StringIO(PREDICTED.csv()))
    assert " ".join(head) == "row label predicted confidence P(bad) P(<b>good</b>) text"
    assert " ".join(first) == "1 <b>good</b> <b>good</b> 0.750000 0.250000 0.750000 the cat"


@pytest.mark.parametrize(
    "text", ["", "row,label\n1,a\n", "row,label,predicted,confidence,text\n1,x"]
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / PREDICTIONS).write_text(text)
    with pytest.raises(InputError, match=r"predictions.csv cannot be read .*; make it again"):
        Predictions.read(tmp_path / PREDICTIONS)


def test_precision_and_recall_at_a_threshold():
    found = PrecisionRecall.of(np.array([0.8, 0.3, 0.9, 0.8]), np.array([1, 0, 1, 0], bool))
    for threshold, pair in {0.95: (0, 0), 0.9: (1, 0.5), 0.85: (1, 0.5), 0.1: (0.5, 1)}.items():
        assert found.at(threshold) == pytest.approx(pair)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_precision_and_recall_are_those_of_scikit_learn(rows):
    found = some(rows, seed=rows)
    p, is_class = found.probabilities[:, 0], found.labels == 0
    is_class[0] = True
    ours = PrecisionRecall.of(p, is_class)
    precision, recall, thresholds = precision_recall_curve(is_class, p)
    np.testing.assert_allclose(ours.thresholds[::-1], thresholds)
    np.testing.assert_allclose(ours.precision[::-1], precision[:-1])
    np.testing.assert_allclose(ours.recall[::-1], recall[:-1])
    assert ours.average_precision == pytest.approx(average_precision_score(is_class, p))
    thin = ours.thinned()
    assert len(thin.recall) <= 200
    assert (thin.recall[0], thin.recall[-1]) == (ours.recall[0], ours.recall[-1])


def titles(pages, **query):
    """Of all pages of a filter."""
    found = pages.values(query)
    rest = []
    if found["after"]:
        path, _, further = found["after"].partition("?")
        assert path == "/predictions"
        rest = titles(pages, **dict(parse_qsl(further)))
    return [row["title"] for row in found["rows"]] + rest


@pytest.mark.parametrize(
    ("query", "test"),
    [
        ({}, lambda label, guess, p: label != guess),
        ({"only": "all", "label": ""}, lambda label, guess, p: True),
        ({"only": "right", "least": "60"}, lambda label, guess, p: label == guess and p >= 0.6),
        ({"only": "all", "label": "2"}, lambda label, guess, p: label == 2),
        ({"predicted": 1, "most": "50"}, lambda label, guess, p: label != 1 == guess and p <= 0.5),
    ],
)
def test_a_filter_shows_the_rows_that_it_names_and_downloads_the_same(query, test):
    rows = some(90)
    pages = PredictionPages(rows)
    columns = zip(rows.labels, rows.predicted, rows.confidence, strict=True)
    expected = [i for i, values in enumerate(columns) if test(*values)]
    shown = titles(pages, **query)
    assert sorted(int(title.split(":")[0][4:]) for title in shown) == [i + 1 for i in expected]
    confidences = [float(title.split("(")[1][:-2]) for title in shown]
    assert confidences == sorted(confidences, reverse=True)
    _, *lines = csv.reader(io.StringIO(pages.csv(query)))
    assert [f"Row {line[0]}:" for line in lines] == [f"{title.split(':')[0]}:" for title in shown]
    assert pages.values(query)["note"].startswith(f"{len(shown)} of 90 test rows")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    classifier = write_small_classifier(tmp_path_factory.mktemp("classifier") / "c")
    with running(make_site([classifier]).server()) as server:
        yield server


def test_whole_texts_are_on_the_page_and_stay_text(server):
    html = request(server, "/predictions").text
    assert "long " * 300 in html
    assert "&lt;script&gt;&#34;a&#34;,\nb" in html
    assert "Row 3: &lt;b&gt;good&lt;/b&gt; ✗ predicted bad (100.0%)" in html
    assert "the cat" not in html  # it is right
    download = request(server, "/predictions.csv?only=all&label=1")
    assert download.headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = [line[0] for line in csv.reader(io.StringIO(download.text))]
    assert (rows[:4], len(rows)) == (["row", "3", "1", "4"], 100)


@pytest.mark.parametrize("query", ["only=x", "label=x", "least=-1"])
def test_a_wrong_filter_is_refused(server, query):
    assert request(server, f"/predictions?{query}").status == 400
