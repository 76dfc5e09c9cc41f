"""Scores, correlations and temperatures against scikit-learn, scipy and their definitions."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.train.labelled.baseline import baseline, fit_bag_of_words
from clozeline.train.labelled.scores import (
    Correlations,
    Scores,
    fit_temperature,
    log_loss,
    ranks,
    softmax,
)

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
    found = metrics.classification_report(labels, predicted, output_dict=True, zero_division=0)
    for name in ("macro", "weighted"):
        *expected, _ = found[f"{name} avg"].values()
        np.testing.assert_allclose(scores.means[f"{name} mean"], expected)
    assert scores.macro_f1 == pytest.approx(found["macro avg"]["f1-score"])


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


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60))
def test_matthews_equals_that_of_scikit_learn(rows):
    from sklearn.metrics import matthews_corrcoef

    # With one class alone scikit-learn warns; the coefficient is 0.
    labels, predicted = np.array([*rows, (0, 1), (2, 0)]).T
    found = Scores.of(("a", "b", "c"), labels, predicted).matthews
    assert found == pytest.approx(matthews_corrcoef(labels, predicted))


# --- The temperature of the lowest loss -----------------------------------------------------------


def drawn(seed, scale, rows=4000):
    """Logits whose labels were drawn from their softmax, then multiplied by a scale."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, 3))
    labels = (softmax(logits).cumsum(1) < random.random((rows, 1))).sum(1)
    return logits * scale, labels


@given(st.integers(0, 20), st.floats(0.2, 5))
def test_no_other_temperature_has_a_lower_loss(seed, scale):
    logits, labels = drawn(seed, scale, rows=60)
    best, smoothing = fit_temperature(logits, labels), 1 / 62
    for factor in (0.8, 0.97, 1.03, 1.25):
        other = np.clip(best * factor, 0.05, 20)
        lowest, loss = (log_loss(logits, labels, t, smoothing=smoothing) for t in (best, other))
        assert lowest <= loss + 1e-6


def test_who_is_always_right_on_few_rows_is_not_certain():
    logits, labels = np.array([[9.0, -9.0], [-9.0, 9.0]] * 4), np.array([0, 1] * 4)
    confidence = softmax(logits, fit_temperature(logits, labels)).max(1)
    assert confidence == pytest.approx(9 / 10, abs=1e-3)
    assert fit_temperature(logits, 1 - labels) == pytest.approx(20, rel=0.01)


def test_the_loss_is_torchs_cross_entropy():
    logits, labels = drawn(1, 2.0, rows=50)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits) / 1.7, torch.from_numpy(labels)
    )
    assert log_loss(logits, labels, 1.7) == pytest.approx(expected.item())
    smoothed = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(labels), label_smoothing=0.3
    )  # torch smooths over all three classes, the label's own included
    assert log_loss(logits, labels, smoothing=0.2) == pytest.approx(smoothed.item())


# --- Bag-of-words learns what words tell ----------------------------------------------------------


pytest.importorskip("sklearn")

GOOD, BAD = "the food was good", "the food was bad"


def write(path, texts, labels, pairs=None):
    columns = {"text": texts, "label": labels} | ({"more": pairs} if pairs else {})
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(
    ("texts", "labels", "accuracy"),
    [
        ([GOOD, BAD], ["+", "-"], 1.0),
        (["not good but bad", "not bad but good"], ["-", "+"], 1.0),  # two words in a row tell
        ([GOOD, BAD, GOOD, BAD], ["+", "+", "-", "-"], 0.5),  # no word does
    ],
)
def test_what_words_tell_is_learned(texts, labels, accuracy, tmp_path):
    source = write(tmp_path / "x.parquet", texts * 20, labels * 20)
    scores = baseline(source, source)
    assert (scores.names, scores.accuracy) == (("+", "-"), accuracy)
    assert scores.examples == 20 * len(texts)


def test_the_baseline_names_labels_that_may_be_one_class(tmp_path, capsys):
    source = write(tmp_path / "x.parquet", [GOOD, BAD] * 20, ["+", "+ "] * 20)
    baseline(source, source)
    assert "'+' (20 rows) and '+ ' (20 rows) differ only" in capsys.readouterr().err


def test_both_texts_of_a_pair_are_read(tmp_path):
    labels = ["+", "-"] * 20
    source = write(tmp_path / "x.parquet", ["the food"] * 40, labels, pairs=[GOOD, BAD] * 20)
    assert baseline(source, source).accuracy == 0.5
    assert baseline(source, source, text_pair="more").accuracy == 1.0


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["", "!"], ["a", "b"], r"somewhere: no row has a word .* --no-baseline` does without"),
        ([GOOD, BAD], ["a", "a"], "all have the same class"),
    ],
)
def test_rows_from_which_nothing_can_be_learned_are_an_error_that_says_so(texts, labels, message):
    classes = np.unique(labels, return_inverse=True)[1]
    with pytest.raises(InputError, match=message):
        fit_bag_of_words(texts, classes, source="somewhere")


@pytest.mark.slow
@pytest.mark.skipif("CLOZELINE_DATA" not in os.environ, reason="CLOZELINE_DATA is not set")
def test_amazon_reviews_reach_the_known_accuracy():
    data = os.environ["CLOZELINE_DATA"] + "/amazon_polarity"
    sources = f"{data}/train-*.parquet", f"{data}/test-*.parquet"
    scores = baseline(*sources, text="title", text_pair="content")
    assert 0.92 < scores.accuracy < 0.94
