"""Are the probabilities of a classifier right? Temperature scaling and calibration error.

    confidence   0.5-0.6   0.6-0.7   ...   0.9-1.0
    rows              40        35             300
    mean conf.      0.55      0.65            0.97
    accuracy        0.53      0.60            0.89      <- overconfident: divide logits by T > 1

Guo et al. 2017, "On calibration of modern neural networks".
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clozeline.train.labelled.rows import Floats, Rows

PARTS, STANDARD_ERRORS = 5, 3  # how sure it must be that a temperature helps
BINS = 15  # of confidence, as in the paper
LOWEST, HIGHEST = 0.05, 20.0  # temperatures


def calibration(logits: ArrayLike, labels: Rows, *, temperature: float) -> dict[str, Any]:
    """Confidence against accuracy, in the bins of confidence that have rows, as plain values.

    From the logits [N, C] and labels [N] of rows that the temperature was not fitted on. `error` is
    the expected calibration error, in [0, 1], and `error_before` the same at temperature 1.
    """
    counts, confidences, accuracies = _bins(logits, labels, temperature)
    return {
        "temperature": temperature,
        "error": _error(counts, confidences, accuracies),
        "error_before": _error(*_bins(logits, labels, 1.0)),
        "counts": counts.tolist(),
        "confidences": confidences.tolist(),
        "accuracies": accuracies.tolist(),
    }


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """Probabilities [N, C] of logits [N, C] divided by a temperature."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    probabilities: Floats = powers / powers.sum(-1, keepdims=True)
    return probabilities


def log_loss(
    logits: ArrayLike, labels: Rows, temperature: float = 1.0, *, smoothing: float = 0.0
) -> float:
    """Mean cross-entropy in nats of logits [N, C] divided by a temperature.

    `smoothing` is the probability of the labels that goes to the other classes, in equal parts.
    """
    losses = -np.log(np.maximum(softmax(logits, temperature), 1e-300))  # [N, C]
    chosen = losses[np.arange(len(labels)), labels]
    others = (losses.sum(1) - chosen) / (losses.shape[1] - 1)
    return float(((1 - smoothing) * chosen + smoothing * others).mean())


def helpful_temperature(logits: ArrayLike, labels: Rows) -> float:
    """The temperature of `fit_temperature`, or 1 where that is not sure to help.

    It must lower the cross-entropy of rows that it was not fitted on, by more than three standard
    errors: fitted on four fifths of the rows, it is tried on the last, five times. A few confident
    mistakes among 200 rows ask for a temperature of 2, which makes all other answers too modest.
    """
    logits = np.asarray(logits)
    gains = np.zeros(len(labels))
    part = np.arange(len(labels)) % PARTS
    for held in (part == number for number in range(min(PARTS, len(labels)))):
        if held.all():
            return 1.0
        temperature = fit_temperature(logits[~held], labels[~held])
        rows = np.arange(held.sum()), labels[held]
        before, after = (softmax(logits[held], t)[rows] for t in (1.0, temperature))
        gains[held] = np.log(np.maximum(after, 1e-300)) - np.log(np.maximum(before, 1e-300))
    is_sure = gains.mean() > STANDARD_ERRORS * gains.std() / np.sqrt(len(labels))
    return fit_temperature(logits, labels) if is_sure else 1.0


def fit_temperature(logits: ArrayLike, labels: Rows) -> float:
    """The temperature at which the cross-entropy is lowest, in [0.05, 20].

    Labels are smoothed by 1 / (N + 2) as in Platt 1999, 2.2: where all of N rows are right, the
    confidence should be near (N + 1) / (N + 2), not 1. The loss is convex in 1 / T, so a
    golden-section search over log T finds the minimum.
    """
    smoothing = 1 / (len(labels) + 2)

    def loss(log_temperature: float) -> float:
        return log_loss(logits, labels, np.exp(log_temperature), smoothing=smoothing)

    ratio = (np.sqrt(5) - 1) / 2
    low, high = np.log(LOWEST), np.log(HIGHEST)
    while high - low > 1e-4:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def _bins(logits: ArrayLike, labels: Rows, temperature: float) -> tuple[Rows, Floats, Floats]:
    """Rows, mean confidence and accuracy of each bin of equal width that has rows."""
    probabilities = softmax(logits, temperature)
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == labels
    index = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    used = counts > 0
    confidences = np.bincount(index, confidence, minlength=BINS)[used] / counts[used]
    accuracies = np.bincount(index, is_right, minlength=BINS)[used] / counts[used]
    return counts[used], confidences, accuracies


def _error(counts: Rows, confidences: Floats, accuracies: Floats) -> float:
    return float((counts * np.abs(confidences - accuracies)).sum() / counts.sum())
