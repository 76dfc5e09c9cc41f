"""What is wrong with a run, in words, from its lines of metrics alone.

    health = Health(total_steps=1000)
    for warning in health.update(step, metrics):
        print(warning)

    step 300: NSP accuracy is 50.1% over the last 2,560 pairs, no better than chance. Look at ...

A number in a line covers one batch (accuracies) or the steps since the line before
(losses, waiting), so each check reads several lines and allows for chance. A cause is
reported once, and again only after it has gone.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Any

Line = Mapping[str, Any]

FEW, SOME, MANY = 5, 20, 200  # lines of metrics: to notice, to judge, to remember
GONE_AFTER = 10  # a cause has gone after so many lines without it
HELDOUT = "heldout/mlm_loss"

#: When a run must have made progress: a share of its steps, if their number is known, or, with a
#: time budget, a number of steps.
LEARNS_AFTER, LEARNS_AFTER_STEPS = 0.1, 500
LEAVES_PLATEAU_AFTER, LEAVES_PLATEAU_AFTER_STEPS = 0.2, 1000
FIRST_STEPS = 100  # in which nothing is expected of a run, however short
LEARNS_PAIRS_AFTER, LEARNS_PAIRS_AFTER_STEPS, FIRST_STEPS_OF_PAIRS = 0.2, 1000, 300  # later

PAIRS = 1000  # enough to judge NSP by
SURE = 3.0  # standard deviations
EASY_ERRORS = 0.001  # share of pairs; BERT ends at some 0.02
NEAR_UNIGRAM = 0.02  # share of the unigram loss
ABOVE_START = 1.05
FALLEN = 0.99  # of the loss at the start
WAITING = 0.1
OVERFIT = 1.02


@dataclass(frozen=True, kw_only=True)
class HealthWarning:
    """One line: the number that was observed, and what to do."""

    step: int
    cause: str  # a name; a run has each once at a time
    words: str

    def __str__(self) -> str:
        return f"step {self.step:,}: {self.words}"


class MetricsHistory:
    """What the checks know: what was expected, the first lines, and the newest ones."""

    def __init__(self, *, total_steps: int | None) -> None:
        self.unigram_loss: float | None = None  # the first line of a run has it
        self.total_steps = total_steps
        self.step = 0
        self.first: list[Line] = []
        self.lines: deque[Line] = deque(maxlen=MANY)  # the newest one last
        self.heldout: list[tuple[int, float]] = []  # step, loss

    def add(self, step: int, line: Line) -> None:
        """A new line, of training or of held-out examples."""
        self.step = step
        self.unigram_loss = line.get("unigram_loss", self.unigram_loss)
        if HELDOUT in line:
            self.heldout.append((step, line[HELDOUT]))
        if "mlm_loss" in line:
            self.lines.append(line)
            if len(self.first) < FEW:
                self.first.append(line)

    def last(self, name: str, number: int, *, skip: int = 0) -> list[float]:
        """The finite ones of the newest `number` values, newest first, after `skip` newer ones."""
        newest = islice(reversed(self.lines), skip, skip + number)
        return [line[name] for line in newest if math.isfinite(line.get(name, math.nan))]

    def is_after(self, share: float, steps: int, least: int = FIRST_STEPS) -> bool:
        """Whether so much of the run is over."""
        due = steps if self.total_steps is None else share * self.total_steps
        return self.step >= max(due, least)


class Health:
    """Reads the lines of a run as they come, and reports what is wrong."""

    def __init__(self, *, total_steps: int | None) -> None:
        """`total_steps` None: the run ends with its time budget."""
        self._history = MetricsHistory(total_steps=total_steps)
        self._lines_since: dict[str, int] = {}  # causes that were reported and have not gone

    def update(self, step: int, metrics: Line) -> list[HealthWarning]:
        """The warnings that this line gives rise to; `metrics` as in metrics.jsonl."""
        self._history.add(step, metrics)
        checks = HELDOUT_CHECKS if HELDOUT in metrics else CHECKS
        results = [(check.__name__, check(self._history)) for check in checks]
        return [new for cause, words in results for new in self._news(step, cause, words)]

    def _news(self, step: int, cause: str, words: str | None) -> Iterator[HealthWarning]:
        if words:
            if cause not in self._lines_since:
                yield HealthWarning(step=step, cause=cause, words=words)
            self._lines_since[cause] = 0
        elif cause in self._lines_since:
            self._lines_since[cause] += 1
            if self._lines_since[cause] >= GONE_AFTER:
                del self._lines_since[cause]


def find_warnings(lines: Sequence[Line], *, total_steps: int | None) -> list[HealthWarning]:
    """All warnings of a run, whether or not they were printed."""
    health = Health(total_steps=total_steps)
    return [warning for line in lines for warning in health.update(line["step"], line)]


def diverging(history: MetricsHistory) -> str | None:
    """A loss that is worse than that of an untrained model."""
    newest, start = history.last("mlm_loss", FEW), history.first[0]["mlm_loss"]
    if len(history.lines) < 2 * FEW or not newest or fmean(newest) <= ABOVE_START * start:
        return None
    return (
        f"the masked-LM loss is {fmean(newest):.3f}, above the {start:.3f} it started from: "
        "training diverges. Begin again with a smaller --learning-rate or a longer --warmup."
    )


def not_falling(history: MetricsHistory) -> str | None:
    """A loss that stays where it began, unless that is the unigram: `parked_at_unigram`."""
    newest, start = history.last("mlm_loss", SOME), fmean(x["mlm_loss"] for x in history.first)
    if len(newest) < SOME or not history.is_after(LEARNS_AFTER, LEARNS_AFTER_STEPS):
        return None
    level = fmean(newest)
    near = history.unigram_loss is not None and level <= (1 + NEAR_UNIGRAM) * history.unigram_loss
    if near or not FALLEN * start < level <= ABOVE_START * start:
        return None
    return (
        f"the masked-LM loss is {level:.3f}, and it began at {start:.3f}: it does not fall. Give a "
        "larger --learning-rate, or a shorter --warmup."
    )


def parked_at_unigram(history: MetricsHistory) -> str | None:
    """The plateau where a model has learned how often tokens are, and nothing else."""
    newest, unigram = history.last("mlm_loss", SOME), history.unigram_loss
    is_time = history.is_after(LEAVES_PLATEAU_AFTER, LEAVES_PLATEAU_AFTER_STEPS)
    if unigram is None or len(newest) < SOME or not is_time:
        return None
    if abs(fmean(newest) - unigram) > NEAR_UNIGRAM * unigram:
        return None
    return (
        f"the masked-LM loss is {fmean(newest):.3f} and counting tokens alone gives {unigram:.3f}: "
        "the model knows how frequent tokens are, and no context. Give more steps, a larger "
        "--learning-rate or --batch-size, or a model with a norm after its embeddings."
    )


def nsp_at_chance(history: MetricsHistory) -> str | None:
    """Accuracy within what guessing gives, by the binomial's bound."""
    pairs, accuracy = _nsp(history)
    is_time = history.is_after(LEARNS_PAIRS_AFTER, LEARNS_PAIRS_AFTER_STEPS, FIRST_STEPS_OF_PAIRS)
    if not is_time or pairs < PAIRS or accuracy > 0.5 + SURE * math.sqrt(0.25 / pairs):
        return None
    return (
        f"NSP accuracy is {accuracy:.1%} over {pairs:,} pairs, no better than chance. Look at the "
        "pairs (`clozeline inspect`), or give a smaller --learning-rate or a longer --warmup."
    )


def nsp_too_easy(history: MetricsHistory) -> str | None:
    """Almost no mistakes: the pairs give themselves away, or are known by heart."""
    pairs, accuracy = _nsp(history)
    if pairs < PAIRS or accuracy < 1 - EASY_ERRORS:
        return None
    return (
        f"NSP accuracy is {accuracy:.1%} over {pairs:,} pairs: the pairs give themselves away, or "
        "the model knows them by heart. Run `clozeline verify`, look at the pairs (`clozeline "
        "inspect`), or give more text."
    )


def slow_loader(history: MetricsHistory) -> str | None:
    """The model waits for batches."""
    shares = history.last("data_wait", FEW)
    if len(history.lines) <= FEW or len(shares) < FEW or median(shares) <= WAITING:
        return None
    return (
        f"{median(shares):.0%} of the time the model waits for data: the loader is slower than the "
        "model. Put the shards on a local disk, uncompressed, and leave a core to the loader."
    )


def overfitting(history: MetricsHistory) -> str | None:
    """Held-out loss rises from evaluation to evaluation while the training loss keeps falling."""
    newest, before = history.last("mlm_loss", SOME), history.last("mlm_loss", SOME, skip=SOME)
    if len(history.heldout) < 3 or len(before) < FEW or fmean(newest) >= fmean(before):
        return None
    (_, one), (_, two), (_, three) = history.heldout[-3:]
    step, best = min(history.heldout, key=lambda evaluation: evaluation[1])
    if not one < two < three or three <= OVERFIT * best:
        return None
    return (
        f"the held-out loss rose from {best:.3f} (step {step:,}) to {three:.3f} while the training "
        "loss fell: the model learns the examples by heart. Stop here (the best checkpoint is "
        "kept), or give more text or --dropout."
    )


def _nsp(history: MetricsHistory) -> tuple[int, float]:
    """Pairs in the newest lines, at least PAIRS of them if there are, and their accuracy."""
    pairs, right = 0, 0.0
    lines = (line for line in reversed(history.lines) if line.get("nsp_pairs"))
    for number, line in enumerate(lines):
        if number >= SOME and pairs >= PAIRS:
            break
        pairs += line["nsp_pairs"]
        right += line["nsp_pairs"] * line["nsp_accuracy"]
    return pairs, right / max(pairs, 1)


Check = Callable[[MetricsHistory], str | None]
CHECKS: tuple[Check, ...] = (
    *(diverging, not_falling, parked_at_unigram, nsp_at_chance, nsp_too_easy, slow_loader),
)
HELDOUT_CHECKS: tuple[Check, ...] = (overfitting,)
