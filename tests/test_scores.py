"""Scores are scikit-learn's, from a matrix of counts alone."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.train.labelled.scores import Scores

COUNTS = st.integers(2, 5).flatmap(
    lambda c: st.lists(
        st.lists(st.integers(0, 6), min_size=c, max_size=c), min_size=c, max_size=c
    ).filter(lambda rows: sum(map(sum, rows)) > 0)
)


def rows_of(counts):
    """The label and the prediction of each row that the matrix counts."""
    matrix = np.array(counts)
    cells = np.repeat(np.arange(matrix.size), matrix.ravel())
    return cells // len(matrix), cells % len(matrix)


@given(COUNTS)
def test_scores_are_those_of_scikit_learn(counts):
    metrics = pytest.importorskip("sklearn.metrics")
    labels, predicted = rows_of(counts)
    classes = list(range(len(counts)))
    scores = Scores.of([str(c) for c in classes], labels, predicted)
    assert scores.confusion.tolist() == counts
    assert scores.examples == len(labels)
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(labels, predicted))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        labels, predicted, labels=classes, zero_division=0
    )
    np.testing.assert_allclose(scores.precision, precision)
    np.testing.assert_allclose(scores.recall, recall)
    np.testing.assert_allclose(scores.f1, f1)
    macro = metrics.f1_score(labels, predicted, labels=classes, average="macro", zero_division=0)
    assert scores.macro_f1 == pytest.approx(macro)


def test_rows_are_labels_and_columns_predictions():
    scores = Scores.of(["no", "yes"], np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 1]))
    assert scores.confusion.tolist() == [[1, 1], [0, 3]]
    assert scores.recall.tolist() == [0.5, 1.0]
    assert scores.precision.tolist() == [1.0, 0.75]


@given(COUNTS)
def test_scores_survive_json(counts):
    names = tuple(f"class {i}" for i in range(len(counts)))
    scores = Scores(names, np.array(counts))
    again = Scores.from_dict(json.loads(json.dumps(scores.to_dict())))
    assert again.names == names
    assert again.confusion.tolist() == counts


def test_the_table_has_a_line_for_each_class():
    scores = Scores(("bad", "a name that is very long"), np.array([[8, 2], [1, 9]]))
    assert scores.table() == [
        "       class  precision  recall      f1   rows   predicted    bad  a name that…",
        "         bad     0.8889  0.8000  0.8421     10                  8             2",
        "a name that…     0.8182  0.9000  0.8571     10                  1             9",
    ]
