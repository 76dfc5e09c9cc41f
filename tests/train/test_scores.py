"""Scores are scikit-learn's, from a matrix of counts alone."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.train.labelled.scores import Correlations, Scores, pearson, ranks

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


@settings(max_examples=50)
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
    macro = metrics.f1_score(labels, predicted, average="macro", zero_division=0)
    assert scores.macro_f1 == pytest.approx(macro)


def test_macro_f1_of_no_rows_is_zero():
    assert Scores(("a", "b"), np.zeros((2, 2), np.int64)).macro_f1 == 0


def test_of_many_classes_the_counts_that_are_not_zero_are_stored():
    confusion = np.zeros((101, 101), np.int64)
    confusion[7, 7], confusion[7, 100], confusion[3, 5] = 5, 1, 2
    scores = Scores(tuple(map(str, range(101))), confusion)
    values = json.loads(json.dumps(scores.to_dict()))
    assert values["confusion"] == [[3, 5, 2], [7, 7, 5], [7, 100, 1]]
    assert Scores.from_dict(values).confusion.tolist() == confusion.tolist()


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


def test_a_line_end_in_a_name_ends_no_line_of_the_table():
    for line in Scores(("very\nbad", "good\t"), np.eye(2, dtype=np.int64)).table():
        assert line.isprintable()


def test_many_classes_have_no_matrix_beside_their_scores():
    scores = Scores(tuple(f"class {i}" for i in range(150)), np.eye(150, dtype=np.int64))
    head, first, *others = scores.table()
    assert head.split() == ["class", "precision", "recall", "f1", "rows"]
    assert first.split() == ["class", "0", "1.0000", "1.0000", "1.0000", "1"]
    assert len(others) == 149


# Correlations against scipy, Matthews' coefficient against scikit-learn


COLUMNS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-3, 3)), min_size=3, max_size=40).map(
    lambda rows: np.array(rows, dtype=np.float32).T
)


@given(columns=COLUMNS)
def test_both_coefficients_equal_those_of_scipy(columns):
    from scipy.stats import pearsonr, rankdata, spearmanr

    targets, predicted = columns
    assert ranks(targets).tolist() == rankdata(targets).tolist()
    found = Correlations.of(targets, predicted)
    if np.ptp(targets) and np.ptp(predicted):
        assert found.pearson == pytest.approx(pearsonr(targets, predicted)[0], abs=1e-6)
        assert found.spearman == pytest.approx(spearmanr(targets, predicted)[0], abs=1e-6)
    else:
        assert (found.pearson, found.spearman) == (0, 0)


def test_a_straight_line_has_correlation_one():
    line = np.arange(5, dtype=np.float32)
    assert pearson(line, 3 * line + 7) == pytest.approx(1)
    assert Correlations.of(line, -np.exp(line)).spearman == pytest.approx(-1)
    assert Correlations.of(line, line).to_dict() == {
        "examples": 5,
        "pearson": pytest.approx(1),
        "spearman": pytest.approx(1),
    }


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60))
def test_matthews_equals_that_of_scikit_learn(rows):
    from sklearn.metrics import matthews_corrcoef

    # With one class alone scikit-learn warns; the coefficient is 0.
    labels, predicted = np.array([*rows, (0, 1), (2, 0)]).T
    found = Scores.of(("a", "b", "c"), labels, predicted).matthews
    assert found == pytest.approx(matthews_corrcoef(labels, predicted))
