"""Learning rate and epochs are chosen by held-out rows; folds are disjoint and stratified."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.config import preset
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.search import (
    FEW_ROWS,
    SEARCH_ROWS,
    Trial,
    best_of,
    candidate_rates,
    final_split,
    fixed_trial,
    for_all_rows,
    most_epochs,
    search,
    selection_folds,
    stratified_folds,
)
from clozeline.train.labelled.rows import balanced_order

LABELS = st.lists(st.integers(0, 2), min_size=2, max_size=80).map(np.array)
RATES = (3e-4, 1e-3, 3e-3)
TWO_CLASSES = np.arange(400) % 2


def searched(rate, best=9, labels=TWO_CLASSES, **config):
    """The trials of a model that is the better the nearer rate and epochs are to the best ones."""

    def evaluate(trial):
        miss = abs(np.log(trial.learning_rate / rate)) + abs(trial.epochs - best) / 4
        noise = np.sin(np.arange(len(labels)) * 12.9898) * (1 + miss)
        margin = (2 * labels - 1) + noise
        return trial.with_results(np.stack([-margin, margin], 1).astype(np.float32), labels)

    return search(evaluate, len(labels), FinetuneConfig(**config), RATES)


# The choice


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("epochs", [6, 12])
def test_the_best_rate_wins_and_half_of_the_epochs_where_they_are_better(rate, epochs):
    tried = searched(rate, epochs)
    best = best_of(tried)
    assert (best.learning_rate, best.epochs) == (rate, epochs)
    assert best.loss == min(trial.loss for trial in tried)
    assert [trial.epochs for trial in tried] == [12] * (len(tried) - 1) + [6]
    assert tried[-1].learning_rate == rate


def test_the_grid_grows_beyond_an_edge_that_is_best_but_not_for_ever():
    def rates(rate):
        return [trial.learning_rate for trial in searched(rate, best=12)]

    assert rates(1e-3) == [*RATES, 1e-3]
    assert rates(1e-5) == pytest.approx([2.7e-5, 9e-5, *RATES, 2.7e-5])
    assert rates(9e-3) == pytest.approx([*RATES, 9e-3, 2.7e-2, 9e-3])
    assert best_of(searched(9e-3)).learning_rate == pytest.approx(9e-3)


def test_what_the_config_fixes_is_not_searched_and_a_sample_is_searched_for_the_rate_alone():
    def tried(**config):
        return [(trial.learning_rate, trial.epochs) for trial in searched(1e-3, **config)]

    assert tried(learning_rate=7e-4) == [(7e-4, 12), (7e-4, 6)]
    assert tried(epochs=3) == [(rate, 3) for rate in RATES]
    sample = np.arange(SEARCH_ROWS + 1) % 2
    assert tried(labels=sample) == [(rate, 4) for rate in RATES]


def test_where_nothing_is_left_to_choose_nothing_is_searched():
    rows = SEARCH_ROWS
    fixed = FinetuneConfig(learning_rate=5e-4, epochs=6)
    half = FinetuneConfig(learning_rate=5e-4)
    assert fixed_trial(fixed, rows) == Trial(learning_rate=5e-4, epochs=6)
    assert [fixed_trial(config, rows) for config in (half, FinetuneConfig())] == [None, None]
    trial = fixed_trial(half, rows + 1)  # of a sample only the rate is searched
    assert trial == for_all_rows(trial, rows + 1, half) == Trial(learning_rate=5e-4, epochs=4)
    assert trial.line() == "learning rate 0.0005, 4 epochs"


def test_large_sets_keep_the_rate_of_the_search_and_have_epochs_of_their_own():
    config, trial = FinetuneConfig(), Trial(learning_rate=1e-3, epochs=4)
    assert for_all_rows(trial, 1000, config) == trial
    assert for_all_rows(trial, 60_000, config) == replace(trial, epochs=3)
    assert [most_epochs(n, config) for n in (100, 1000, 10_000, 100_000)] == [12, 6, 4, 3]


def test_wider_models_get_lower_rates():
    rates = [candidate_rates(preset(name)) for name in ("nano", "bert-small", "bert-base")]
    assert rates[0] == RATES
    assert rates[2] == (2e-5, 3e-5, 5e-5)
    assert rates[0] > rates[1] > rates[2]


def test_a_diverged_model_has_the_worst_results_that_json_has_a_number_for():
    trial = Trial(learning_rate=1.0, epochs=1)
    worst = trial.with_results(np.array([[np.nan, 0]], np.float32), np.array([1]))
    text = json.dumps(asdict(worst), allow_nan=False)
    assert Trial(**json.loads(text)) == worst
    assert best_of([worst, *searched(1e-3)]) != worst
    assert worst.without_results() == trial


# The rows


@pytest.mark.parametrize("size", [2, 7, FEW_ROWS, FEW_ROWS + 1, SEARCH_ROWS, SEARCH_ROWS + 1, 9001])
def test_folds_are_disjoint_parts_of_the_training_rows(size):
    labels = np.arange(size) % 3 % 2
    folds = selection_folds(labels, seed=1)
    for train, held in folds:
        assert min(len(train), len(held)) > 0
        assert not set(train) & set(held)
        found = np.bincount(labels[[*train, *held]])
        if len(folds) == 1:  # as many rows as a search may have, every class in proportion
            assert found.sum() == min(size, SEARCH_ROWS)
            np.testing.assert_allclose(found / found.sum(), np.bincount(labels) / size, atol=1e-3)
    everything = np.concatenate([held for _, held in folds])
    assert len(everything) == len(set(everything))
    assert len(folds) == 1 if size > FEW_ROWS else sorted(everything) == list(range(size))


@pytest.mark.parametrize("size", [100, SEARCH_ROWS, SEARCH_ROWS + 1, 60_000])
def test_held_out_rows_are_not_in_the_final_training(size):
    kept, held = final_split(np.arange(size) % 2, seed=0)
    assert sorted([*kept, *held]) == list(range(size))
    assert len(held) == (0 if size <= SEARCH_ROWS else min(-(-size // 20), 2000))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_final_training_has_every_class(seed):
    """Also those of one row, of which one in 20 would be held out."""
    labels = np.arange(SEARCH_ROWS + 200)
    labels[:SEARCH_ROWS] %= 2
    kept, held = final_split(labels, seed=seed)
    assert set(labels[kept]) == set(labels)
    assert set(labels[held]) == {0, 1}
    assert len(final_split(labels.astype(np.float32), seed=seed)[1]) == 210  # numbers, not classes


@given(LABELS, st.integers(2, 6), st.integers(0, 3))
def test_folds_have_an_equal_part_of_every_class(labels, folds, seed):
    fold = stratified_folds(labels, folds, seed=seed)
    for rows in (labels >= 0, *(labels == name for name in np.unique(labels))):
        counts = np.bincount(fold[rows], minlength=folds)
        assert counts.max() - counts.min() <= 1


@given(LABELS, st.integers(0, 3))
def test_the_first_rows_are_balanced_while_there_are_rows_of_each_class(labels, seed):
    order = balanced_order(labels, seed=seed)
    assert sorted(order) == list(range(len(labels)))
    totals = np.bincount(labels, minlength=3)
    for size in range(1, len(order) + 1):
        counts = np.bincount(labels[order[:size]], minlength=3)
        for name in range(3):  # behind another class only where it has run out
            assert counts[name] == totals[name] or counts[name] >= counts.max() - 1


def test_another_seed_takes_other_rows():
    orders = [balanced_order(TWO_CLASSES, seed=seed)[:50] for seed in (0, 0, 1)]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()
    folds = [stratified_folds(TWO_CLASSES, 5, seed=seed) for seed in (0, 0, 1)]
    assert folds[0].tolist() == folds[1].tolist() != folds[2].tolist()
