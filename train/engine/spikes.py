"""Steps whose gradient norm is far beyond the usual: `clozeline pretrain --skip-spikes 6`.

norms 2.1, 1.9, ..., 2.0 (mean 2.0, deviation 0.1)    bound 2.0 + 6 * 0.1 = 2.6
2.4 -> an update; 30.0 -> none, and 2.6 enters the mean, so that a lasting change is followed
"""

import math
from collections.abc import Sequence

from torch import Tensor

from clozeline.train.engine.distributed import World

FIRST_STEPS = 20  # only counted: there is no mean to trust yet
MEMORY = 200  # steps; the mean and the variance decay with 1 / MEMORY
LEAST_DEVIATION = 0.05  # of the mean: a steady norm would make every other one a spike


class SpikeGuard:
    """The running mean of the gradient norm, and the number of steps that it had skipped."""

    def __init__(self, deviations: float, state: Sequence[float] = ()) -> None:
        """`state` is that of an earlier process, from its checkpoint."""
        self._deviations = deviations
        self._steps, self._mean, self._variance, self._skipped = state or (0.0, 0.0, 0.0, 0.0)

    @property
    def skipped(self) -> int:
        """Steps of the run without an update."""
        return int(self._skipped)

    def skips(self, norm: Tensor, world: World) -> bool:
        """Whether the step with this norm is skipped; every process calls it, and they agree.

        Waits for the device. A norm that is not finite does not count: the run has diverged.
        """
        found = norm.item()
        deviation = max(math.sqrt(self._variance), LEAST_DEVIATION * self._mean)
        bound = self._mean + self._deviations * deviation
        if self._steps < FIRST_STEPS:
            bound = math.inf
        is_spike = world.any(bound < found < math.inf)
        self._skipped += is_spike
        if math.isfinite(found):
            self._add(min(found, bound))
        return is_spike

    def _add(self, norm: float) -> None:
        self._steps += 1
        weight, difference = 1 / min(self._steps, MEMORY), norm - self._mean
        self._mean += weight * difference
        self._variance = (1 - weight) * (self._variance + weight * difference**2)

    def state(self) -> list[float]:
        """The steps counted, the mean and variance of their norms, and the steps skipped."""
        return [self._steps, self._mean, self._variance, self._skipped]
