"""`clozeline pretrain`: a data set to a model, in as many lives as it takes.

A life begins at a checkpoint (or at nothing) and ends at the last step, or when it is told to stop
(SIGTERM, SIGINT: a checkpoint is written), or when it is killed. Weights, moments and the position
in the data are all there is to carry over: the order of the data and dropout are functions of the
seed and the step.
"""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.config import BertConfig
from model.heads import BertForPretraining, start_decoder_at_unigram
from pipeline.errors import InputError
from pipeline.manifest import TOKENIZER, read_manifest
from pipeline.tokenizer import load_tokenizer
from train.batch import LoadedBatch, digest_text
from train.checkpoint import (
    TrainState,
    checkpoint_folder,
    latest_checkpoint,
    load_moments,
    load_weights,
    read_state,
    remove_old_checkpoints,
    save_checkpoint,
)
from train.config import PretrainConfig
from train.distributed import World, join_world
from train.evaluate import Evaluation, evaluate
from train.loader import Loader, evaluation_batches
from train.metrics import MetricsLog, Stopwatch
from train.optim import build_optimizer, learning_rate_at, set_learning_rate
from train.run import SUMMARY, RunConfig, read_run, remove_run, write_run, write_summary
from train.step import seed_dropout, train_step


@dataclass(frozen=True)
class Outcome:
    """How a call of `pretrain` ended."""

    step: int
    is_new: bool  # False: there was nothing to do
    is_complete: bool  # False: a signal stopped it; a checkpoint is written
    heldout: Evaluation | None


def pretrain(
    shards: Path,
    *,
    out: Path,
    model: BertConfig,
    training: PretrainConfig,
    resume: bool = False,
    overwrite: bool = False,
) -> Outcome:
    """Train a model on a data set, from the start or from the newest checkpoint of `out`.

    Raises InputError for all that the user can mend.
    """
    config = RunConfig.of(model, training, read_manifest(shards))
    with join_world() as world:
        training.accumulation(world.size)
        start = None if overwrite else _find_start(out, config, resume=resume)
        is_complete = start is not None and start.step >= training.max_steps
        if start is not None and is_complete and (out / SUMMARY).exists():
            return Outcome(start.step, is_new=False, is_complete=True, heldout=None)
        world.wait()  # all have looked before the first one writes
        if world.is_main:
            if overwrite:
                remove_run(out)
            write_run(out, config, load_tokenizer(shards / TOKENIZER))
        world.wait()
        return _Life(shards, out, config, world, start).live()


def _find_start(out: Path, config: RunConfig, *, resume: bool) -> TrainState | None:
    """Where to go on; None: at the start. Raises InputError rather than spoil what is there."""
    if not (out / "run.json").exists():
        return None
    there, latest = read_run(out), latest_checkpoint(out)
    if latest is None:
        return None  # it was stopped before its first checkpoint: nothing is lost
    state = read_state(latest)
    there = replace(  # what the checkpoint says counts, not what stands beside it
        there, dataset_digest=state.dataset_digest, tokenizer_digest=state.tokenizer_digest
    )
    if fatal := config.differences(there, "model", "dataset_digest", "tokenizer_digest"):
        raise InputError(
            f"{out} holds a run of another model, data set or tokenizer ({'; '.join(fatal)}). "
            "Give another --out, or --overwrite."
        )
    if state.seed != config.training.seed:
        raise InputError(
            f"{out} reads the data in the order of seed {state.seed}, not of "
            f"{config.training.seed}; give that seed, or another --out."
        )
    changed = config.differences(there, "training")
    is_finished = state.step >= there.training.max_steps
    if resume or (is_finished and not changed):
        return state
    raise InputError(
        f"{out} holds a run at step {state.step}"
        + (f" of another config ({'; '.join(changed)})" if changed else "")
        + ". Give --resume to go on, --overwrite to start anew, or another --out."
    )


class _Life:
    """The training of one process, from a starting point until it ends."""

    def __init__(
        self, shards: Path, out: Path, config: RunConfig, world: World, start: TrainState | None
    ) -> None:
        self.shards, self.out, self.world = shards, out, world
        self.training = config.training
        self.manifest = read_manifest(shards)
        self.state = start or TrainState(
            step=0,
            next_position=0,
            dataset_digest=config.dataset_digest,
            tokenizer_digest=config.tokenizer_digest,
            seed=self.training.seed,
        )
        self.model = BertForPretraining(config.model, seed=self.training.seed)
        if config.model.head_bias:
            start_decoder_at_unigram(self.model, torch.tensor(self.manifest.token_counts))
        self.model.to(world.device)
        self.optimizer = build_optimizer(self.model, self.training)
        if start is not None:
            folder = checkpoint_folder(out, start.step)
            self.model.load_state_dict(load_weights(folder))
            load_moments(folder, self.model, self.optimizer)
        self.wrapped = _wrap(self.model, self.training, world)
        self.watch = Stopwatch()
        self.heldout: Evaluation | None = None

    def live(self) -> Outcome:
        """Steps until the last one, or until a signal."""
        last = self.training.max_steps
        loader = Loader(
            self.shards,
            batch_size=self.training.batch_size,
            rank=self.world.rank,
            world_size=self.world.size,
            seed=self.training.seed,
            start_position=self.state.next_position,
            remask=self.training.remask,
        )
        self.model.train()
        with (
            _stop_requests() as stop,
            MetricsLog(
                self.out, start_step=self.state.step, max_steps=last, writes=self.world.is_main
            ) as log,
            closing(iter(loader)) as batches,
        ):
            is_stopped = False
            while self.state.step < last and not is_stopped:
                self._step(batches, log)
                is_stopped = self.world.any(stop.is_set())
                self._look_and_save(log, is_stopped=is_stopped)
            is_complete = self.state.step >= last
            if is_complete and self.heldout is None:  # killed just before its last look
                self._look(log)
        if is_complete and self.world.is_main:
            heldout = self.heldout.to_dict() if self.heldout else None
            write_summary(self.out, self.state.step, heldout)
        return Outcome(self.state.step, True, is_complete, self.heldout)

    def _step(self, batches: Iterator[LoadedBatch], log: MetricsLog) -> None:
        step = self.state.step + 1
        with self.watch.waiting():
            loaded = next(batches).to(self.world.device)
        seed_dropout(self.training.seed, step, self.world.rank)
        set_learning_rate(self.optimizer, learning_rate_at(step, self.training))
        sums, norm = train_step(
            self.wrapped,
            self.optimizer,
            loaded,
            world=self.world,
            accumulation=self.training.accumulation(self.world.size),
            precision=self.training.precision,
            clip=self.training.clip,
        )
        self.state = replace(self.state, step=step, next_position=loaded.next_position)
        self.watch.tokens += loaded.num_tokens
        if step % self.training.log_every == 0 or step == 1:
            log.write(step, self._metrics(loaded, sums, norm))
        log.advance()

    def _metrics(self, loaded: LoadedBatch, sums: Tensor, norm: Tensor) -> dict[str, Any]:
        digest = self.world.sum(torch.tensor(loaded.digest, device=self.world.device))
        mlm, nsp, words, pairs = self.world.sum(sums.double()).tolist()
        if not math.isfinite(mlm + nsp):
            raise InputError(
                f"the loss of step {self.state.step} is not a number. Go on from the newest "
                "checkpoint, with --resume and a smaller --learning-rate."
            )
        seconds, waited, tokens = self.watch.look()
        metrics = {
            "mlm_loss": mlm / max(loaded.num_predictions, 1),
            "mlm_accuracy": words / max(loaded.num_predictions, 1),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm.item(),
            "tokens_per_second": round(tokens / seconds, 1),
            "data_wait": round(waited / seconds, 4),
            "data_digest": digest_text(int(digest)),
        }
        if loaded.num_pairs:
            metrics["nsp_loss"] = nsp / loaded.num_pairs
            metrics["nsp_accuracy"] = pairs / loaded.num_pairs
        return metrics

    def _look_and_save(self, log: MetricsLog, *, is_stopped: bool) -> None:
        training, step = self.training, self.state.step
        is_last = step == training.max_steps
        if is_last or _is_due(step, training.eval_every):
            self._look(log)
        # Whoever asked to stop may not wait for long: saving does not wait for a look.
        if is_last or is_stopped or _is_due(step, training.save_every):
            if self.world.is_main:
                save_checkpoint(self.out, self.model, self.optimizer, self.state)
                remove_old_checkpoints(self.out, keep=training.keep)
            self.world.wait()

    def _look(self, log: MetricsLog) -> None:
        """Measure on held-out examples, if there are any."""
        if not self.manifest.num_examples("validation"):
            return
        self.heldout = evaluate(
            self.model,
            evaluation_batches(
                self.shards,
                batch_size=self.training.batch_size,
                rank=self.world.rank,
                world_size=self.world.size,
                limit=self.training.eval_examples or None,
            ),
            token_counts=self.manifest.token_counts,
            world=self.world,
            precision=self.training.precision,
        )
        self.state = replace(self.state, heldout_loss=self.heldout.loss)
        values = {f"heldout/{name}": value for name, value in self.heldout.to_dict().items()}
        log.write(self.state.step, values)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _wrap(model: BertForPretraining, training: PretrainConfig, world: World) -> nn.Module:
    compile = world.device.type == "cuda" if training.compile is None else training.compile
    if compile:
        model.compile()
    if world.size == 1:
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Set by SIGTERM or SIGINT; the step in progress is finished first."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(kind, lambda *_: stop.set()) for kind in kinds]
    try:
        yield stop
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
