"""Test rows of a classifier: the file, thresholds, and the page that filters them."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.train.labelled.predictions import PREDICTIONS, Predictions
from tests.support.small_classifier import PREDICTED

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
