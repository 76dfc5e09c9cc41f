"""Temperature scaling and calibration error against their definitions."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.train.labelled.calibration import (
    Calibration,
    fit_temperature,
    helpful_temperature,
    log_loss,
    softmax,
)


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


def test_calibration_error_by_hand():
    """Confidences 0.9 (right, wrong) and 0.6 (right, right): (2 * 0.4 + 2 * 0.4) / 4."""
    logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    found = Calibration.of(logits, np.array([0, 1, 1, 1]), temperature=1.0)
    assert found.counts == [2, 2]
    assert found.confidences == pytest.approx([0.6, 0.9])
    assert found.accuracies == [1.0, 0.5]
    assert found.error == found.error_before == pytest.approx(0.4)
    assert Calibration(**json.loads(json.dumps(asdict(found)))) == found


def test_the_right_temperature_lowers_the_error():
    logits, labels = drawn(2, 3.0)
    found = Calibration.of(logits, labels, temperature=3.0)
    assert found.error < 0.03 < 0.1 < found.error_before
    assert sum(found.counts) == len(labels)


def test_a_temperature_is_left_out_where_it_is_not_sure_to_help():
    logits, labels = drawn(3, 1.0, rows=500)  # calibrated as they are
    assert helpful_temperature(logits, labels) == 1
    assert helpful_temperature(logits[:1], labels[:1]) == 1
    logits, labels = drawn(3, 3.0, rows=500)
    assert helpful_temperature(logits, labels) == fit_temperature(logits, labels) > 2


def test_a_few_confident_mistakes_do_not_make_all_answers_modest():
    """Held out: 6 of 200 rows are wrong, all as sure as the right ones; test: 1 in 100."""
    margins = np.full(200, 6.0)
    margins[:6] = -6.0
    logits, labels = np.stack([-margins, margins], 1), np.ones(200, np.int64)
    assert fit_temperature(logits, labels) > 3
    assert helpful_temperature(logits, labels) == 1
    new = Calibration.of(logits[5:105], labels[5:105], temperature=fit_temperature(logits, labels))
    assert new.error_before < 0.011 < new.error
