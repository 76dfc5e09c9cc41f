"""Learning rate and number of epochs, chosen on rows held out of the training rows.

Test rows are never used here. For each learning rate of a small grid:

    training rows   held out                          trained on
    up to 300       all of them, in 5 folds           4/5, five times (Stone 1974)
    up to 4,000     a fifth                           4/5
    more            a fifth of a sample of 4,000      3,200 of the sample

The classifier is then trained again: on all rows, or, of more than 4,000, on all but a twentieth
(at most 2,000 rows), after which its best epoch is kept. The search tries 3 rates, and up to 2 more
where the best is at the edge; on a sample it costs 3 x 4 x 3,200 = 38,400 rows, two thirds of an
epoch of Amazon polarity's 59,242. With few labels a single fifth would decide by chance, hence the
folds.

The criterion is the cross-entropy on held-out rows after temperature scaling. It is smoother than
accuracy, and unlike the plain cross-entropy it does not favour a model for being less confident.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from model.config import BertConfig
from pipeline.common.counter_rng import permutation, stream_key
from train.finetuning.config import FinetuneConfig
from train.finetuning.training import Labels, Logits, Plan
from train.labelled.calibration import fit_temperature, log_loss
from train.labelled.correlations import pearson
from train.labelled.rows import Rows

FOLDS = 5
FEW_ROWS = 300  # up to here every row is held out once
SEARCH_ROWS = 4_000  # of larger training sets only a sample is searched
MOST_RATES = 5
#: Epochs of the schedule for up to so many rows: the fewer the rows, the more often they are read.
EPOCHS = ((500, 12), (2_000, 6), (20_000, 4), (math.inf, 3))
SEARCH_EPOCHS = 4  # of the search on a sample
#: Larger sets also hold out one row in 20, at most 2,000, of the final training.
HELD_OUT_PARTS, MOST_HELD_OUT = 20, 2_000

#: Trains on some rows and returns the logits of others after each of the given epochs.
HeldOutLogits = Callable[[Rows, Rows, Plan, Sequence[int]], Mapping[int, Logits]]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How good a trained model is on rows that it was not trained on."""

    rows: int
    accuracy: float  # of a regression: Pearson's correlation
    loss: float  # cross-entropy in nats, at the temperature; of a regression: squared error
    temperature: float  # fitted on these rows

    @classmethod
    def of(cls, logits: Logits, labels: Labels) -> Self:
        """From the logits [N, C] and labels [N] of the rows; of a diverged model the worst."""
        if not np.isfinite(logits).all():
            return cls(rows=len(labels), accuracy=0.0, loss=math.inf, temperature=1.0)
        if labels.dtype.kind == "f":
            predicted = logits[:, 0]
            squared = float(((predicted - labels) ** 2).mean())
            correlation = pearson(labels, predicted)
            return cls(rows=len(labels), accuracy=correlation, loss=squared, temperature=1.0)
        temperature = fit_temperature(logits, labels)
        return cls(
            rows=len(labels),
            accuracy=float((logits.argmax(1) == labels).mean()),
            loss=log_loss(logits, labels, temperature),
            temperature=temperature,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an infinite loss, which JSON does not have, is None."""
        return asdict(self) | ({} if math.isfinite(self.loss) else {"loss": None})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**values) if values["loss"] is not None else cls(**values | {"loss": math.inf})


NOT_HELD_OUT = HeldOut(rows=0, accuracy=0.0, loss=0.0, temperature=1.0)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen plan, and the best result of each learning rate on held-out rows."""

    plan: Plan
    held_out: HeldOut
    tried: tuple[tuple[Plan, HeldOut], ...]

    def line(self) -> str:
        """The chosen values as text."""
        plan, held_out = self.plan, self.held_out
        chosen = (
            f"learning rate {plan.learning_rate:g}, {plan.epochs} of {plan.schedule_epochs} epochs"
        )
        if not held_out.rows:
            return chosen
        return f"{chosen}, {held_out.accuracy:.4f} on {held_out.rows:,} held-out training rows"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "plan": asdict(self.plan),
            "held_out": self.held_out.to_dict(),
            "tried": [[asdict(plan), held_out.to_dict()] for plan, held_out in self.tried],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(
            plan=Plan(**values["plan"]),
            held_out=HeldOut.from_dict(values["held_out"]),
            tried=tuple((Plan(**plan), HeldOut.from_dict(held)) for plan, held in values["tried"]),
        )


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


def scheduled_epochs(rows: int, config: FinetuneConfig) -> int:
    """Epochs over which the learning rate decays in the final training."""
    if config.epochs != "auto":
        return config.epochs
    return next(epochs for limit, epochs in EPOCHS if rows <= limit)


def select_plan(
    held_out_logits: HeldOutLogits,
    labels: Labels,
    config: FinetuneConfig,
    rates: Sequence[float],
    *,
    seed: int,
    needs_held_out: bool = True,
) -> Selection:
    """Try each learning rate, and further ones while the best is at the edge of those tried.

    The number of epochs is one of the quarters of the schedule. What the config fixes is kept;
    where that is both, rows are held out only for a result that `needs_held_out`.
    """
    is_sampled = len(labels) > SEARCH_ROWS
    schedule = scheduled_epochs(len(labels), config)
    if is_sampled and config.epochs == "auto":
        schedule = SEARCH_EPOCHS
    if config.learning_rate != "auto":
        rates = [config.learning_rate]
        is_fixed = config.epochs != "auto" and not needs_held_out
        if is_sampled or is_fixed:  # the final training finds the rest
            plan = Plan(learning_rate=rates[0], schedule_epochs=schedule, epochs=schedule)
            return Selection(plan=plan, held_out=NOT_HELD_OUT, tried=())
    stops = [schedule]
    if config.epochs == "auto":
        stops = sorted({-(-schedule * quarter // 4) for quarter in range(1, 5)})

    def attempt(rate: float) -> tuple[Plan, HeldOut]:
        plan = Plan(learning_rate=rate, schedule_epochs=schedule, epochs=schedule)
        by_stop = held_out_results(held_out_logits, labels, plan, stops, seed=seed)
        best = min(stops, key=lambda stop: by_stop[stop].loss)
        return replace(plan, epochs=best), by_stop[best]

    tried = {rate: attempt(rate) for rate in rates}
    while (beyond := _beyond_the_edge(tried)) is not None:
        tried[beyond] = attempt(beyond)
    plan, held_out = min(tried.values(), key=lambda found: found[1].loss)
    return Selection(plan=plan, held_out=held_out, tried=tuple(tried[r] for r in sorted(tried)))


def held_out_results(
    held_out_logits: HeldOutLogits, labels: Labels, plan: Plan, stops: Sequence[int], *, seed: int
) -> dict[int, HeldOut]:
    """The result of a plan after each epoch in `stops`, over the held-out rows of all folds."""
    folds = selection_folds(labels, seed=seed)
    parts = [held_out_logits(train, held, plan, stops) for train, held in folds]
    held_labels = labels[np.concatenate([held for _, held in folds])]
    return {
        stop: HeldOut.of(np.concatenate([part[stop] for part in parts]), held_labels)
        for stop in stops
    }


def final_plan(plan: Plan, rows: int, config: FinetuneConfig) -> Plan:
    """The plan for all rows: that of the search, or a schedule for as many rows as there are."""
    if rows <= SEARCH_ROWS:
        return plan
    schedule = scheduled_epochs(rows, config)
    return replace(plan, schedule_epochs=schedule, epochs=schedule)


def selection_folds(labels: Labels, *, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows held out, for each fold; every class in the same proportion."""
    rows = np.arange(len(labels))
    if len(labels) > SEARCH_ROWS:
        parts = -(-len(labels) // SEARCH_ROWS)
        rows = np.flatnonzero(stratified_folds(labels, parts, seed=seed) == 0)
    fold = stratified_folds(labels[rows], FOLDS, seed=seed)
    used = FOLDS if len(labels) <= FEW_ROWS else 1
    return [(rows[fold != i], rows[fold == i]) for i in range(used) if (fold == i).any()]


def final_split(labels: Labels, *, seed: int) -> tuple[Rows, Rows]:
    """Rows of the final training and rows held out of it: none of up to 4,000 rows.

    In larger sets the held-out rows decide which epoch is kept, and the temperature.
    """
    if len(labels) <= SEARCH_ROWS:
        return np.arange(len(labels)), np.arange(0)
    parts = max(HELD_OUT_PARTS, -(-len(labels) // MOST_HELD_OUT))
    is_held = stratified_folds(labels, parts, seed=seed) == 0
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def stratified_folds(labels: Labels, folds: int, *, seed: int) -> Rows:
    """The fold of each row, int64 [N] from 0: random, with equal parts of every class."""
    order = permutation(stream_key(seed, "finetune/folds"), len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % folds
    return fold


def _beyond_the_edge(tried: Mapping[float, tuple[Plan, HeldOut]]) -> float | None:
    """The next learning rate beyond the best one, if that is the lowest or the highest tried."""
    rates = sorted(tried)
    if not 3 <= len(rates) < MOST_RATES:
        return None
    best = min(rates, key=lambda rate: tried[rate][1].loss)
    if best == rates[0]:
        return best * best / rates[1]
    return best * best / rates[-2] if best == rates[-1] else None
