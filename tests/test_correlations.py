"""Correlations against scipy, Matthews' coefficient against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.train.labelled.correlations import Correlations, pearson, ranks
from clozeline.train.labelled.scores import Scores

COLUMNS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-3, 3)), min_size=3, max_size=40).map(
    lambda rows: np.array(rows, dtype=np.float32).T
)


def test_equal_values_share_their_ranks():
    assert ranks(np.array([10, 30, 20, 20])).tolist() == [1, 4, 2.5, 2.5]


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
