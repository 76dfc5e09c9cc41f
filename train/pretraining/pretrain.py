"""`clozeline pretrain`: a data set to a model, in as many lives as it takes.

A life begins at a checkpoint (or at nothing) and ends at the last step, or when it is told to stop
(SIGTERM, SIGINT: a checkpoint is written), or when it is killed. Weights, moments and the position
in the data are all there is to carry over: the order of the data and dropout are functions of the
seed and the step.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import BertConfig
from model.heads import BertForPretraining, start_decoder_at_unigram
from pipeline.common.errors import InputError
from pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from pipeline.tokenization.tokenizer import load_tokenizer
from train.artifacts.checkpoint import load_moments, load_weights
from train.artifacts.checkpoint_writer import CheckpointWriter
from train.artifacts.run import RunConfig, remove_run, write_run, write_summary
from train.artifacts.snapshot import restore_moments, take_snapshot
from train.config import PretrainConfig
from train.data.batch import LoadedBatch, digest_text
from train.data.loader import evaluation_batches
from train.engine.distributed import World, is_restart, join_world, parallelize
from train.engine.flops import mfu, peak_flops, step_flops
from train.engine.malloc import disable_malloc_trim
from train.engine.optim import build_optimizer, set_learning_rate
from train.engine.precision import seed_dropout
from train.engine.schedule import batch_size_at, is_over, learning_rate_at
from train.monitoring.health import Health, unigram_entropy
from train.monitoring.metrics import MetricsLog, StepTimer
from train.pretraining.evaluate import Evaluation, evaluate
from train.pretraining.initial_weights import load_initial
from train.pretraining.open_loader import open_loader
from train.pretraining.resume import Start, find_start
from train.pretraining.step import train_step
from train.pretraining.stop_and_budget import Pace, stop_requests

LOOK_UP_EVERY = 8  # batches of a look at held-out examples, between two questions whether to stop


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
    start_from: Path | None = None,
    init: Path | None = None,
) -> Outcome:
    """Train a model on a data set, from the start or from the newest checkpoint of `out`.

    `start_from`: another run, whose weights and moments a new run begins with; `init`: a Hugging
    Face folder, whose weights it begins with. Raises InputError for all that the user can mend.
    """
    manifest = read_manifest(shards)
    _check_length(shards, manifest, model)
    _check_unpadded(model, training)
    config = RunConfig.of(model, training, manifest)
    with join_world() as world:
        if world.any(is_restart()):  # torchrun counts those of this machine only
            resume, overwrite = True, False  # what is there now is what failed a moment ago
        for size in training.batch_sizes:
            training.accumulation(world.size, size)

        def prepare() -> Start:
            start = find_start(
                out,
                config,
                shards=shards,
                resume=resume,
                overwrite=overwrite,
                start_from=start_from,
                init=init,
            )
            if overwrite:  # now that the new run is known to be one
                remove_run(out)
            if not start.is_complete:
                begun = replace(config, started_from=start.started_from)
                write_run(out, begun, load_tokenizer(shards / TOKENIZER))
            return start

        start = world.broadcast_from_main(prepare)
        if start.is_complete:
            return Outcome(start.state.step, is_new=False, is_complete=True, heldout=None)
        return Trainer(shards, out, config, world, start).live()


def _check_length(shards: Path, manifest: Manifest, model: BertConfig) -> None:
    longest = manifest.config.max_seq_length
    if longest > model.max_position_embeddings:
        raise InputError(
            f"{shards} has examples of {longest} tokens, and the model reads "
            f"{model.max_position_embeddings} at most (max_position_embeddings); give shorter "
            "ones, or train a model with more positions."
        )


def _check_unpadded(model: BertConfig, training: PretrainConfig) -> None:
    """Before anything is written; attention would say it in the first step."""
    has_kernel = torch.cuda.is_available() and training.precision != "fp32"
    if training.unpadded and has_kernel and model.attention_probs_dropout_prob:
        raise InputError(
            "--unpadded: attention over unpadded rows has no dropout on CUDA, and the model asks "
            f"for {model.attention_probs_dropout_prob}; give --dropout 0, or padded rows."
        )


class Trainer:
    """The training of one process, from a starting point until it ends."""

    def __init__(
        self, shards: Path, out: Path, config: RunConfig, world: World, start: Start
    ) -> None:
        self.shards, self.out, self.world = shards, out, world
        self.training = config.training
        self.manifest = read_manifest(shards)
        self.loader, self.state = open_loader(shards, self.training, start.state, world)
        self.saved_step = start.state.step  # nothing new to save until there was a step
        self.model = BertForPretraining(config.model, seed=self.training.seed)
        if config.model.head_bias:
            start_decoder_at_unigram(self.model, torch.tensor(self.manifest.token_counts))
        if start.checkpoint:
            self.model.load_state_dict(load_weights(start.checkpoint))
        elif start.init:
            load_initial(self.model, start.init)
        is_cuda = world.device.type == "cuda"
        disable_malloc_trim()
        self.wrapped = parallelize(
            self.model,
            world,
            parallel=self.training.parallel,
            compile=is_cuda if self.training.compile is None else self.training.compile,
        )
        self.optimizer = build_optimizer(self.model, self.training)
        if start.checkpoint and start.has_moments:
            restore_moments(self.model, self.optimizer, load_moments(start.checkpoint))
        self.watch = StepTimer()
        self.flops = 0.0  # since the last line of metrics
        self.peak_flops = peak_flops(world.device)
        self.heldout: Evaluation | None = None

    def live(self) -> Outcome:
        """Steps until the last one, or until a signal."""
        self.model.train()
        with ExitStack() as stack:
            self.stop = stack.enter_context(stop_requests())
            self.pace = Pace(self.world, elapsed=self.state.elapsed)
            self.writer = stack.enter_context(CheckpointWriter(self.out, keep=self.training.keep))
            log = stack.enter_context(
                MetricsLog(
                    self.out,
                    start_step=self.state.step,
                    max_steps=None if self.training.budget else self.training.max_steps,
                    writes=self.world.is_main,
                    health=self._health(),
                )
            )
            batches = stack.enter_context(closing(self._batches()))
            while not (self._is_over() or self.pace.is_stopped):
                self._step(batches, log)
                self.pace.step(is_asked=self.stop.is_set() or self.writer.has_failed)
                self._look_and_save(log)
            if self._is_over() and self.heldout is None and not self.pace.is_stopped:
                self._look(log)  # the life before was stopped just before it
            self.world.broadcast_from_main(self.writer.wait)
        is_complete = self._is_over() and not self.pace.is_stopped
        if is_complete and self.world.is_main:
            heldout = self.heldout.to_dict() if self.heldout else None
            write_summary(self.out, self.state.step, heldout)
        return Outcome(self.state.step, True, is_complete, self.heldout)

    def _health(self) -> Health:
        training = self.training
        return Health(
            unigram_loss=unigram_entropy(self.manifest.token_counts),
            batch_size=training.batch_size,
            total_steps=None if training.budget else training.max_steps,
        )

    def _is_over(self) -> bool:
        return is_over(self.training, self.state.step, self.pace.elapsed)

    def _batches(self) -> Generator[LoadedBatch]:
        """From where the data stands; the size of each is asked for when it is needed."""
        while True:
            size = self._batch_size()
            self.loader.set_batch_size(size)
            with closing(iter(self.loader)) as batches:
                while size == self._batch_size():
                    yield next(batches)

    def _batch_size(self) -> int:
        return batch_size_at(self.training, self.state.step + 1, self.pace.elapsed)

    def _step(self, batches: Iterator[LoadedBatch], log: MetricsLog) -> None:
        training, step = self.training, self.state.step + 1
        with self.watch.waiting():
            loaded = next(batches)
        seed_dropout(training.seed, step, self.world.rank)
        set_learning_rate(self.optimizer, learning_rate_at(training, step, self.pace.elapsed))
        is_logged = step % training.log_every == 0 or step == 1
        sums, norm = train_step(
            self.wrapped,
            self.optimizer,
            loaded,
            world=self.world,
            accumulation=training.accumulation(self.world.size, self._batch_size()),
            precision=training.precision,
            clip=training.clip,
            count_hits=is_logged,
        )
        self.state = replace(
            self.state, step=step, next_position=loaded.next_position, heldout_loss=None
        )
        self.watch.tokens += loaded.num_tokens
        self.flops += self._step_flops(loaded)
        if is_logged:
            log.write(step, self._metrics(loaded, sums, norm))
        log.advance()

    def _step_flops(self, loaded: LoadedBatch) -> float:
        batch, rows = loaded.batch, len(loaded.batch) * self.world.size
        if self.training.unpadded:
            tokens, words = loaded.num_tokens / rows, loaded.num_predictions / rows
        else:
            tokens, words = batch.input_ids.shape[1], batch.masked_lm_positions.shape[1]
        config = self.model.config
        return step_flops(config, batch_size=rows, seq_len=tokens, predictions=words)

    def _metrics(self, loaded: LoadedBatch, sums: Tensor, norm: Tensor) -> dict[str, Any]:
        digest = self.world.sum(torch.tensor(loaded.digest, device=self.world.device))
        mlm, nsp, words, pairs = self.world.sum(sums.double()).tolist()
        if not math.isfinite(mlm + nsp + norm.item()):
            raise InputError(
                f"the loss or the gradient of step {self.state.step} is not a number. Go on from "
                "the newest checkpoint, with --resume and a smaller --learning-rate."
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
        share = mfu(self.flops, seconds=seconds, peak=self.peak_flops, devices=self.world.size)
        if share is not None:
            metrics["mfu"] = round(share, 4)
        self.flops = 0.0
        if loaded.num_pairs:
            metrics["nsp_loss"] = nsp / loaded.num_pairs
            metrics["nsp_accuracy"] = pairs / loaded.num_pairs
        return metrics

    def _look_and_save(self, log: MetricsLog) -> None:
        training, step = self.training, self.state.step
        saves = _is_due(step, training.save_every)
        looks = saves if training.eval_every is None else _is_due(step, training.eval_every)
        # Whoever asked to stop may not wait for long: saving does not wait for a look.
        if (looks or self._is_over()) and not self.pace.is_stopped:
            try:
                self._look(log)
            except InputError:  # of a validation shard: what was trained is not lost by it
                self._save()
                raise
        if saves or self._is_over() or self.pace.is_stopped:
            self._save()

    def _save(self) -> None:
        if self.state.step == self.saved_step:
            return
        self.saved_step = self.state.step
        self.world.broadcast_from_main(self.writer.wait)
        if self.training.budget:
            self.state = replace(self.state, elapsed=self.pace.elapsed)
        snapshot = take_snapshot(self.model, self.optimizer, is_kept=self.world.is_main)
        if self.world.is_main:
            self.writer.save(snapshot, self.state)

    def _look(self, log: MetricsLog) -> None:
        """Measure on held-out examples, if there are any; cut short, it measures nothing."""
        if not self.manifest.num_examples("validation"):
            return
        training = self.training
        rows = training.micro_batch_size or training.batch_size // self.world.size
        batches = evaluation_batches(
            self.shards,
            batch_size=rows * self.world.size,  # so many fit into memory
            rank=self.world.rank,
            world_size=self.world.size,
            limit=training.eval_examples or None,
        )
        heldout = evaluate(
            self.model,
            self._until_stopped(batches),
            token_counts=self.manifest.token_counts,
            world=self.world,
            precision=training.precision,
        )
        if self.pace.is_stopped:
            return
        self.heldout = heldout
        self.state = replace(self.state, heldout_loss=heldout.loss)
        values = {f"heldout/{name}": value for name, value in heldout.to_dict().items()}
        log.write(self.state.step, values)

    def _until_stopped(self, batches: Iterable[LoadedBatch]) -> Iterator[LoadedBatch]:
        """All processes stop at the same batch."""
        remaining = iter(batches)
        while some := list(islice(remaining, LOOK_UP_EVERY)):
            yield from some
            self.pace.agree(is_asked=self.stop.is_set())
            if self.pace.is_stopped:
                return


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
