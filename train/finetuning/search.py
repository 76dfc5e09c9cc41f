"""Learning rate and number of epochs, chosen on rows held out of the training rows.

Test rows are never used here. For each learning rate of a small grid:

    training rows   held out                          trained on
    up to 300       all of them, in 5 folds           4/5, five times (Stone 1974)
    up to 4,000     a fifth                           4/5
    more            a fifth of a sample of 4,000      3,200 of the sample

Then, for up to 4,000 rows, half as many epochs are tried at the best rate. The classifier is
trained again on all rows, or, for more than 4,000, on all but a twentieth (at most 2,000 rows), on
which it is measured. The search tries 3 rates, and up to 2 more where the best is at the edge. With
few labels, a single fifth would be too noisy, hence the folds. Every training completes its
schedule: one that is stopped at a high rate depends on its last steps, and was 2 points worse.

The criterion is the cross-entropy on held-out rows at the best temperature. It is smoother than
accuracy, and unlike the plain cross-entropy it does not favour a model for being less confident.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.counter_rng import permutation, stream_key
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.labelled.rows import Labels, Logits, Rows
from clozeline.train.labelled.scores import fit_temperature, log_loss, pearson

FOLDS = 5
FEW_ROWS = 300  # up to this many, every row is held out once
SEARCH_ROWS = 4_000  # larger training sets are searched on a sample of at most this size
FEWEST_RATES, MOST_RATES = 3, 5
FAR = 10  # times outside of the rates searched at first: worth a note
WORST_LOSS = sys.float_info.max  # JSON has no infinity
#: (rows, epochs): how many epochs up to that many rows get; smaller sets are read more often.
EPOCHS = ((500, 12), (2_000, 6), (20_000, 4), (math.inf, 3))
SEARCH_EPOCHS = 4  # of the search on a sample
#: Larger sets also hold one row in 20, at most 2,000, out of the final training.
HELD_OUT_PARTS, MOST_HELD_OUT = 20, 2_000


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A learning rate and a number of epochs, and what a model trained so is worth on other rows.

    >>> Trial(learning_rate=1e-3, epochs=6).line()
    'learning rate 0.001, 6 epochs'
    """

    learning_rate: float  # peak
    epochs: int  # over which the rate warms up and decays to 0
    rows: int = 0  # held out of the training; 0: it was not tried
    accuracy: float = 0.0  # for a regression: Pearson's correlation
    loss: float = 0.0  # cross-entropy in nats, at the best temperature; or the squared error
    #: Mean loss of the training rows in each epoch of the final training, with dropout.
    training_losses: list[float] = field(default_factory=list)

    def with_results(self, logits: Logits, labels: Labels) -> "Trial":
        """With those of held-out rows, logits [N, C] and labels [N]; the worst if it diverged."""
        accuracy, loss = 0.0, WORST_LOSS
        if labels.dtype.kind == "f" and np.isfinite(logits).all():
            accuracy = pearson(labels, logits[:, 0])
            loss = float(((logits[:, 0] - labels) ** 2).mean())
        elif np.isfinite(logits).all():
            accuracy = float((logits.argmax(1) == labels).mean())
            loss = log_loss(logits, labels, fit_temperature(logits, labels))
        return replace(self, rows=len(labels), accuracy=accuracy, loss=loss)

    def line(self) -> str:
        line = f"learning rate {self.learning_rate:g}, {counted(self.epochs, 'epoch')}"
        if not self.rows:
            return line
        return f"{line}, {self.accuracy:.4f} on {self.rows:,} held-out training rows"


def candidate_rates(model: BertConfig) -> tuple[float, ...]:
    """Three peak learning rates, in ascending order, by the width of the model.

    768 and wider: those of Devlin et al. 2018, A.3. Up to 512: around the upper half of Turc et al.
    2019. Narrower models: measured on 1,000 Amazon reviews, where the best rate was 1e-3.
    """
    if model.hidden_size > 512:
        return 2e-5, 3e-5, 5e-5
    if model.hidden_size > 320:
        return 1e-4, 2e-4, 4e-4
    return 3e-4, 1e-3, 3e-3


def rate_note(model: BertConfig, config: FinetuneConfig) -> list[str]:
    """A note on a learning rate more than ten times outside of the rates that are searched."""
    low, *_, high = candidate_rates(model)
    rate = config.learning_rate
    if rate == "auto" or low / FAR <= rate <= FAR * high:
        return []
    return [
        f"--learning-rate {rate:g} is far outside of the searched range, {low:g} to {high:g} for "
        "this model; leave it out, or give one within or near the range."
    ]


def most_epochs(rows: int, config: FinetuneConfig) -> int:
    """The config's epochs; for `auto`, the number that suits this many rows."""
    if config.epochs != "auto":
        return config.epochs
    return next(epochs for limit, epochs in EPOCHS if rows <= limit)


def search(
    evaluate: Callable[[Trial], Trial],
    rows: int,
    config: FinetuneConfig,
    rates: Sequence[float],
) -> tuple[Trial, list[Trial]]:
    """The trial for the final training, and those on held-out rows by which it was chosen.

    Tries each learning rate, and further ones while the best is at the edge of those tried, then
    half as many epochs; on a sample of the rows only the rates. What the config fixes is kept: it
    may leave nothing to try. `evaluate` trains and returns the trial with its results.
    """
    is_sampled, most = rows > SEARCH_ROWS, most_epochs(rows, config)
    are_halved = config.epochs == "auto" and not is_sampled
    if config.learning_rate != "auto":
        rates = [float(config.learning_rate)]
        if not are_halved:
            return Trial(learning_rate=rates[0], epochs=most), []
    epochs = SEARCH_EPOCHS if is_sampled and config.epochs == "auto" else most
    tried = [evaluate(Trial(learning_rate=rate, epochs=epochs)) for rate in rates]
    while (beyond := _beyond_the_edge(tried)) is not None:
        tried.append(evaluate(Trial(learning_rate=beyond, epochs=epochs)))
        tried.sort(key=lambda trial: trial.learning_rate)
    if are_halved:
        tried.append(evaluate(replace(best_of(tried), epochs=-(-epochs // 2))))
    best = best_of(tried)
    return replace(best, epochs=most) if is_sampled else best, tried


def best_of(tried: Sequence[Trial]) -> Trial:
    """The one with the lowest loss on held-out rows."""
    return min(tried, key=lambda trial: trial.loss)


def selection_folds(labels: Labels, *, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows held out, for each fold; every class in the same proportion."""
    rows = np.arange(len(labels))
    if len(labels) > SEARCH_ROWS:
        evenly = np.arange(SEARCH_ROWS) * len(labels) // SEARCH_ROWS
        rows = np.sort(_by_class(labels, seed=seed)[evenly])
    fold = stratified_folds(labels[rows], FOLDS, seed=seed)
    used = FOLDS if len(labels) <= FEW_ROWS else 1
    return [(rows[fold != i], rows[fold == i]) for i in range(used) if (fold == i).any()]


def final_split(labels: Labels, *, seed: int) -> tuple[Rows, Rows]:
    """Rows of the final training, and rows held out of it (none for up to 4,000 rows)."""
    if len(labels) <= SEARCH_ROWS:
        return np.arange(len(labels)), np.arange(0)
    parts = max(HELD_OUT_PARTS, -(-len(labels) // MOST_HELD_OUT))
    is_held = stratified_folds(labels, parts, seed=seed) == 0
    if labels.dtype.kind != "f":
        is_held &= np.bincount(labels)[labels] > 1  # every class is trained on
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def stratified_folds(labels: Labels, folds: int, *, seed: int) -> Rows:
    """The fold of each row, int64 [N] from 0: random, with equal parts of every class."""
    order = _by_class(labels, seed=seed)
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % folds
    return fold


def _by_class(labels: Labels, *, seed: int) -> Rows:
    """All rows, int64 [N], class after class, in random order in each."""
    order = permutation(stream_key(seed, "finetune/folds"), len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _beyond_the_edge(tried: Sequence[Trial]) -> float | None:
    """The next learning rate beyond the best one, if that is the lowest or the highest tried."""
    rates = [trial.learning_rate for trial in tried]  # ascending
    if not FEWEST_RATES <= len(rates) < MOST_RATES:
        return None
    best = best_of(tried).learning_rate
    if best not in (rates[0], rates[-1]):
        return None
    neighbour = rates[1] if best == rates[0] else rates[-2]
    return float(f"{best * best / neighbour:.6g}")
