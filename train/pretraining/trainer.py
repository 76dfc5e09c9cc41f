"""The training loop of one process: load, step, log, evaluate, save, stop."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozeline.pipeline.common.counts import disable_malloc_trim
from clozeline.pipeline.common.errors import ClozelineError, DivergedError, InputError
from clozeline.train.artifacts.checkpoint import (
    CheckpointWriter,
    TrainState,
    after_divergence,
    take_snapshot,
)
from clozeline.train.artifacts.run import RunConfig, write_summary
from clozeline.train.data.batch import LoadedBatch
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.data.phases import DataPhase, PhasedLoader
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World, device_name, is_sharded, parallelize
from clozeline.train.engine.flops import peak_flops
from clozeline.train.engine.optim import follow_schedule
from clozeline.train.engine.precision import resolve_compile, seed_dropout
from clozeline.train.engine.schedule import is_over, phase_at
from clozeline.train.evaluation.evaluate import Evaluation, evaluate_model
from clozeline.train.monitoring.health import Health
from clozeline.train.monitoring.metrics import MetricsLog
from clozeline.train.monitoring.running_metrics import RunningMetrics
from clozeline.train.pretraining.initial_weights import (
    ResumePoint,
    continue_positions,
    first_model,
    first_optimizer,
)
from clozeline.train.pretraining.step import WordSampler, flops_of_step, train_step
from clozeline.train.pretraining.stop_and_budget import StopAndBudget

STOP_CHECK_EVERY = 8  # evaluation batches


@dataclass(frozen=True)
class Outcome:
    """The result of a call to `pretrain`."""

    step: int
    is_new: bool  # False: the run was already complete
    is_complete: bool  # False: it stopped on request and saved a checkpoint
    heldout: Evaluation | None


class Trainer:
    """The training of one process, from a resume point to the last step or a stop request.

    Rank 0 calls `prepare`, which may replace the run in `out`, once the model and the optimizer are
    built; a failure before that leaves `out` unchanged.
    """

    #: A line of metrics that was begun: step, learning rate, and what reads the numbers.
    _unread: tuple[int, float, Callable[[], dict[str, Any]]] | None = None

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        world: World,
        *,
        data: tuple[PhasedLoader, ShardSet | None],
        start: ResumePoint,
        prepare: Callable[[], None],
    ) -> None:
        training = config.training
        self.out, self.training, self.world = out, training, world
        self.phases, self.is_new = config.phases, config.started_from is None
        self.loader, self.validation = data
        self.shards, self.manifest = self.loader.main.shards, self.loader.main.shards.manifest
        self.step = self.saved_step = start.state.step
        self.heldout: Evaluation | None = None  # of the weights as they are now
        self.bad_shard: ClozelineError | None = None  # why examples cannot be read
        self.model = first_model(config, self.shards, world, start)
        disable_malloc_trim()
        self.is_compiled = resolve_compile(training.compile, world)
        self.parallel_model = parallelize(
            self.model,
            world,
            parallel=training.parallel,
            precision=training.precision,
            compile=self.is_compiled,
        )
        # A sharded model converts its weights itself.
        self.autocast = "fp32" if is_sharded(world, training.parallel) else training.precision
        self.optimizer = first_optimizer(self.model, config, world, start)
        counts, words = self.manifest.token_counts, training.sampled_words
        self.sampler = WordSampler(counts, words, seed=training.seed, device=world.device)
        self.running = RunningMetrics(
            world,
            peak_flops=peak_flops(device_name(world.device), training.precision),
            carried=start.state.running_metrics,
        )
        world.broadcast_from_main(prepare)
        self.writer = CheckpointWriter(out, keep=training.keep)
        self.control = StopAndBudget(world, elapsed=start.state.elapsed)
        total_steps = None if training.budget else training.max_steps
        self.log = MetricsLog(
            out,
            start_step=self.step,
            max_steps=total_steps,
            writes=world.is_main,
            health=Health(total_steps=total_steps),
        )

    def train(self) -> Outcome:
        """Train until the last step, the end of the time budget, or a stop request."""
        training, control = self.training, self.control
        self.model.train()
        with control, self.writer, self.log, closing(self._batches()) as batches:
            while not (self._is_over() or control.is_stopped):
                with self.running.timer.waiting():
                    loaded = next(batches, None)
                if loaded is None:  # a process cannot read its part
                    break

                self.step += 1
                self.heldout = None
                is_logged = self.step == 1 or self._is_due(training.log_every)
                sums, norm = self._step(loaded, count_hits=is_logged)
                slots = loaded.batch.input_ids.numel()
                flops = flops_of_step(self.model.config, loaded, self.sampler.size)
                self.running.add(loaded, sums[:2], flops=flops, slots=slots)

                if is_logged:
                    totals = self.world.sum(self.running.sums(loaded, sums[2:]))
                    self._begin_line(self.running.begin_line(totals, norm))
                self.log.advance()

                is_bad_ahead = self.loader.is_bad_ahead
                control.after_step(stop=self.writer.has_failed, is_bad_ahead=is_bad_ahead)
                if self._evaluates() and not control.is_stopped:  # a stop request does not wait
                    with self.running.timer.paused():
                        self._evaluate()
                if self._saves() or control.is_stopped:
                    self._save()

            if self._is_over() and self.heldout is None and not control.is_stopped:
                self._evaluate()  # the previous process was stopped during its last evaluation
            self.world.broadcast_from_main(self.writer.wait)
        if self.world.any(self.bad_shard is not None):  # what was trained is saved
            # The process that could not read prints the reason.
            raise self.bad_shard or SystemExit(InputError.exit_code)
        is_complete = self._is_over() and not control.is_stopped
        if is_complete and self.world.is_main:
            heldout = self.heldout.to_dict() if self.heldout else None
            write_summary(self.out, self.step, heldout)
        return Outcome(self.step, True, is_complete, self.heldout)

    def _is_over(self) -> bool:
        return is_over(self.training, self.step, self.control.elapsed)

    def _evaluates(self) -> bool:
        every = self.training.eval_every
        return self._saves() if every is None else self._is_over() or self._is_due(every)

    def _saves(self) -> bool:
        return self._is_over() or self._is_due(self.training.save_every)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _batches(self) -> Generator[LoadedBatch[Any]]:
        """Batches from the loader's position on, each of the phase of its step."""
        while True:
            phase = self._next_phase()
            trained = self.loader.longest_read
            if self.is_new and 0 < trained < phase.max_seq_length:
                continue_positions(self.model, self.optimizer, self.world, trained=trained)
            with closing(self.loader.batches(phase)) as batches:
                agree = True
                while phase == self._next_phase():
                    if (loaded := self._read(batches, agree=agree)) is None:
                        return
                    yield loaded
                    agree = self.control.is_bad_ahead or self.world.size == 1
            if self.is_compiled:  # batches of another length; see `without_compiler`
                torch.compiler.reset()

    def _read(self, batches: Iterator[LoadedBatch[Any]], *, agree: bool) -> LoadedBatch[Any] | None:
        """The next batch; None if they `agree`, and one cannot read: then a checkpoint is saved."""
        loaded, before = None, self.loader.state_dict() if agree else None
        try:
            loaded = next(batches)
        except ClozelineError as error:  # a bad shard, or a store that does not answer
            self.bad_shard = error
        if agree and self.world.any(self.bad_shard is not None):
            self._save(before)
            return None
        if self.bad_shard:  # the others wait in the next step, and cannot save
            raise self.bad_shard
        return loaded

    def _next_phase(self) -> DataPhase:
        return phase_at(self.phases, self.training, self.step + 1, self.control.elapsed)

    def _step(self, loaded: LoadedBatch[Any], *, count_hits: bool) -> tuple[Tensor, Tensor]:
        training, world = self.training, self.world
        seed_dropout(training.seed, self.step, world.rank)
        follow_schedule(self.optimizer, training, self.step, self.control.elapsed)
        return train_step(
            self.parallel_model,
            self.optimizer,
            loaded,
            world=world,
            accumulation=training.accumulation(world.size),
            precision=self.autocast,
            clip=training.clip,
            count_hits=count_hits,
            sample=self.sampler.at(self.step),
        )

    def _begin_line(self, read: Callable[[], dict[str, Any]]) -> None:
        """Write the line before; on a GPU, this one's numbers are read only where the next begins.

        Or where the GPU is waited for anyway: before an evaluation and a checkpoint.
        """
        self._write_line()
        self._unread = self.step, self.optimizer.param_groups[0]["lr"], read
        if self.world.device.type != "cuda":
            self._write_line()

    def _write_line(self) -> None:
        """Write a line of metrics that was begun, if there is one.

        Raises DivergedError where a loss or the norm is not finite.
        """
        if self._unread is None:
            return
        step, rate, read = self._unread
        self._unread = None
        line = read() | {"learning_rate": rate}
        if step == 1:
            line["unigram_loss"] = self.manifest.unigram_loss  # read by the health checks
        for name in ("mlm_loss", "nsp_loss", "gradient_norm"):
            if not math.isfinite(line.get(name, 0.0)):
                raise DivergedError(
                    f"{name} is {line[name]} after step {step}. {after_divergence(self.out)}"
                )
        self.log.write(step, line)

    def _evaluate(self) -> None:
        """Measure the model on held-out examples, if there are any and no stop is requested."""
        self._write_line()
        if self.validation is None:
            return
        training, world = self.training, self.world
        rows = training.rows_per_pass(world.size)  # as in training, so that they fit
        batches = evaluation_batches(
            self.validation,
            batch_size=rows * world.size,
            rank=world.rank,
            world_size=world.size,
            limit=training.eval_examples or None,
        )
        heldout = evaluate_model(
            self.model,
            self._until_stopped(batches),
            log_unigram=self.manifest.log_unigram,
            world=world,
            precision=self.autocast,
        )
        if self.control.is_stopped:
            return
        self.heldout = heldout
        values = {f"heldout/{name}": value for name, value in heldout.to_dict().items()}
        self.log.write(self.step, values)

    def _until_stopped(self, batches: Iterable[LoadedBatch[Any]]) -> Iterator[LoadedBatch[Any]]:
        """The batches until a stop request, or a bad shard; all processes stop at the same batch.

        They agree before a forward pass, in which those of a sharded model wait for each other.
        """
        remaining = iter(batches)
        while True:
            try:
                some = list(islice(remaining, STOP_CHECK_EVERY))
            except ClozelineError as error:  # or a store that does not answer
                self.bad_shard, some = error, []
            if not some and not self.bad_shard:
                return
            self.control.sync(stop=self.bad_shard is not None)
            if self.control.is_stopped:
                return
            yield from some

    def _save(self, loader: dict[str, Any] | None = None) -> None:
        """Write a checkpoint in the background, unless this step has one."""
        self._write_line()
        if self.step == self.saved_step:
            return
        self.saved_step = self.step
        self.world.broadcast_from_main(self.writer.wait)
        state = TrainState(
            step=self.step,
            loader=loader or self.loader.state_dict(),
            heldout_loss=self.heldout.loss if self.heldout else None,
            elapsed=self.control.elapsed if self.training.budget else 0.0,
            running_metrics=self.running.state(),
        )
        snapshot = take_snapshot(self.model, self.optimizer, is_kept=self.world.is_main)
        if self.world.is_main:
            self.writer.save(snapshot, state)
