"""Whether pretraining paid, by the same model trained from scratch."""

import math
from collections.abc import Sequence

from clozeline.train.finetuning.label_efficiency import Point

FALLING = 0.99  #: a held-out loss below this share of the one before it is still falling


def no_gain(
    points: Sequence[Point], *, test_rows: int, losses: Sequence[float], pairs: str
) -> list[str]:
    """A note where pretraining did not pay beyond the noise, with what its curve suggests.

    `losses` and `pairs` are the held-out losses and the pairs of the pretraining.
    """
    most = max(point.examples for point in points)
    compared = {point.start: point for point in points if point.examples == most}
    ours, scratch = compared["pretrained"], compared.get("from_scratch")
    if scratch is None:
        return []
    noise = 2 * math.hypot(_error(ours, test_rows), _error(scratch, test_rows))
    if ours.mean() - scratch.mean() > noise:
        return []
    advice = ["pretrain on more text like that of the task"]
    if len(losses) > 1 and losses[-1] < FALLING * losses[-2]:
        advice.append(f"for more minutes (its held-out loss still fell, to {losses[-1]:.2f})")
    if pairs not in ("none", "packed"):
        advice.append("on shards of --pairs none")
    return [
        f"pretraining did not pay: accuracy {ours.mean():.4f}, from scratch {scratch.mean():.4f}, "
        f"and differences up to {noise:.4f} are noise; {', '.join(advice)}."
    ]


def _error(point: Point, test_rows: int) -> float:
    """Standard error of the mean over seeds; that of the test rows for a single seed."""
    if len(point.accuracies) > 1:
        return point.deviation() / math.sqrt(len(point.accuracies))
    return math.sqrt(point.mean() * (1 - point.mean()) / test_rows)
