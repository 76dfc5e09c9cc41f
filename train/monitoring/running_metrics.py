"""The numbers of a line of metrics, collected over the steps since the line before.

Each process collects those of its part of the batches; a line adds them up over all processes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from clozeline.train.data.batch import LoadedBatch, digest_text
from clozeline.train.engine.distributed import World, to_device
from clozeline.train.engine.flops import mfu


class StepTimer:
    """Seconds and real tokens since the last lap."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.waited = 0.0  # seconds in which the model had no batch
        self.tokens = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the time in which the model has no batch."""
        start = time.perf_counter()
        yield
        self.waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of an evaluation, which is not that of steps."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def lap(self) -> tuple[float, float, int]:
        """Seconds since the last lap, seconds of waiting among them, and tokens; starts anew."""
        time_now = time.perf_counter()
        lap = time_now - self._start, self.waited, self.tokens
        self._start, self.waited, self.tokens = time_now, 0.0, 0
        return lap


def _begin_read(values: Tensor) -> Callable[[], list[float]]:
    """What returns the values; a GPU copies them behind its steps, and is waited for only then."""
    if not values.is_cuda:
        return values.tolist
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    is_there = torch.cuda.Event()
    is_there.record()

    def read() -> list[float]:
        is_there.synchronize()
        numbers: list[float] = copy.tolist()
        return numbers

    return read


class RunningMetrics:
    """Loss sums, counts, seconds and FLOPs since the last line of metrics.

        running = RunningMetrics(world, peak_flops=None)
        with running.timer.waiting():
            loaded = next(batches)
        running.add(loaded, losses, flops=2e9, slots=64)  # every step; does not wait for the GPU
        totals = world.sum(running.sums(loaded, hits))    # every line: its only collective
        line = running.begin_line(totals, norm)           # does not wait, either
        line()  ->  {"mlm_loss": 6.21, "tokens_per_second": 9012.5, ...}

    Losses are means over all masked tokens and pairs since the last line. Accuracies and the data
    digest are those of its last batch alone. Tokens are real ones; slots are tokens and padding,
    which cost the device the same, so `mfu` counts both and `mfu_of_tokens` only the tokens.
    `carried` is the `state` of an earlier process.
    """

    def __init__(
        self,
        world: World,
        *,
        peak_flops: float | None,
        carried: Sequence[float] = (),
    ) -> None:
        self.timer = StepTimer()
        self._world, self._peak_flops = world, peak_flops
        # The sums that all processes had reached earlier; rank 0 alone adds them.
        earlier = carried if carried and world.is_main else (0.0, 0.0, 0.0, 0.0)
        self._losses = torch.tensor(earlier[:2], dtype=torch.float64, device=world.device)
        self._predictions, self._pairs = map(int, earlier[2:])
        self._flops, self._slots = 0.0, 0

    def add(self, loaded: LoadedBatch[Any], losses: Tensor, *, flops: float, slots: int) -> None:
        """Add this process's part of a step: sums of both losses [2], FLOPs, slots with padding."""
        self._losses += losses
        self._predictions += loaded.num_predictions
        self._pairs += loaded.num_pairs
        self._flops += flops
        self._slots += slots
        self.timer.tokens += loaded.num_tokens

    def sums(self, loaded: LoadedBatch[Any], hits: Tensor) -> Tensor:
        """This process's terms of the sums that a line needs, float64 [13].

        `loaded` is the last batch, and `hits` [2] the masked tokens and the pairs that were
        predicted right in this process's part of it.
        """
        digest = divmod(loaded.digest % 2**64, 2**32)  # two halves, which float64 adds exactly
        counts = (self._predictions, self._pairs, self._flops, self._slots, self.timer.tokens)
        of_last = (loaded.num_predictions, loaded.num_pairs)
        rest = torch.tensor([*counts, *of_last, *digest], dtype=torch.float64)
        return torch.cat([self._losses, hits.double(), to_device(rest, self._losses.device)])

    def begin_line(self, totals: Tensor, norm: Tensor) -> Callable[[], dict[str, Any]]:
        """What returns the line, from the `sums` of all processes and the gradient norm.

        The sums start anew at once. A GPU is waited for by what is returned, so that it has steps
        to compute while an earlier line is read.
        """
        read = _begin_read(torch.cat([totals, norm.to(totals).view(1)]))
        seconds, waited, _ = self.timer.lap()
        self._losses.zero_()
        self._predictions, self._pairs, self._flops, self._slots = 0, 0, 0.0, 0
        return lambda: self._line(read(), seconds, waited)

    def _line(self, numbers: list[float], seconds: float, waited: float) -> dict[str, Any]:
        mlm, nsp, token_hits, pair_hits, *counts, norm = numbers
        predictions, pairs, flops, slots, tokens, last_predictions, last_pairs, high, low = counts
        line = {
            "mlm_loss": mlm / max(predictions, 1),
            "mlm_accuracy": token_hits / max(last_predictions, 1),
            "tokens_per_second": round(tokens / seconds, 1),
            "slots_per_second": round(slots / seconds, 1),
            "data_wait": round(waited / seconds, 4),
            "data_digest": digest_text(int(high) << 32, int(low)),
            "gradient_norm": norm,
        }
        devices = self._world.size
        used = mfu(flops, seconds=seconds, peak=self._peak_flops, devices=devices)
        if used is not None:
            line["mfu"] = round(used, 4)
            line["mfu_of_tokens"] = round(used * tokens / max(slots, 1), 4)
        if self._world.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._world.device)
            line["peak_memory_gb"] = round(peak / 1e9, 3)
        if pairs:
            line["nsp_loss"] = nsp / pairs
        if last_pairs:
            line["nsp_accuracy"] = pair_hits / last_pairs
            line["nsp_pairs"] = int(last_pairs)
        return line

    def state(self) -> list[float]:
        """Loss sums and counts since the last line, for a checkpoint; all processes call it."""
        counts = torch.tensor([self._predictions, self._pairs]).to(self._losses)
        sums: list[float] = self._world.sum(torch.cat([self._losses, counts])).tolist()
        return sums
