"""`clozeline pretrain`: masked words and next sentences (Devlin et al. 2018, section 3.1).

The loss of a step is the sum over masked words divided by their number in the *global* batch, of
all processes and forward passes, and likewise for next sentences. The numbers come with the batch,
before the forward pass. (Averaging the means of the parts is another objective: it weighs a word
more where its part has fewer of them.)
"""

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.config import BertConfig
from model.heads import (
    BertForPretraining,
    masked_lm_loss_sum,
    next_sentence_loss_sum,
    start_decoder_at_unigram,
)
from pipeline.draws import random_words, stream_key
from pipeline.errors import InputError
from pipeline.manifest import TOKENIZER, Manifest, read_manifest
from pipeline.tokenizer import load_tokenizer
from train.batch import Batch, LoadedBatch
from train.checkpoint import (
    TrainState,
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
from train.optim import build_optimizer, clip_gradients, learning_rate_at, set_learning_rate
from train.run import RunConfig, read_run, remove_run, write_run


@dataclass(frozen=True)
class Outcome:
    """How a call of `pretrain` ended."""

    step: int
    is_new: bool  # False: it was complete before
    is_complete: bool  # False: a signal stopped it, and the checkpoint is written
    heldout: Evaluation | None


def pretrain(
    shards: Path,
    *,
    out: Path,
    model_config: BertConfig,
    training: PretrainConfig,
    resume: bool = False,
    overwrite: bool = False,
) -> Outcome:
    """Train a model on a data set, from the start or from the newest checkpoint of `out`.

    Raises InputError for all that the user can mend.
    """
    manifest = read_manifest(shards)
    config = RunConfig.of(model_config, training, manifest)
    with join_world() as world:
        accumulation = _accumulation(training, world)
        start = _starting_point(out, config, resume=resume, overwrite=overwrite)
        if start is not None and start.step >= training.max_steps:
            return Outcome(start.step, False, True, None)
        world.wait()  # all have looked before the first one writes
        if world.is_main:
            if overwrite:
                remove_run(out)
            write_run(out, config, load_tokenizer(shards / TOKENIZER))
        world.wait()
        return _Trainer(shards, out, manifest, config, world, accumulation, start).train()


def train_step(
    forward: nn.Module, batch: LoadedBatch, *, accumulation: int, world_size: int, autocast: Autocast
) -> Tensor:
    """Forward and backward of this process's part of the global batch; gradients add up.

    Gives what the metrics need, float32 [4]: the sums of the masked-word and next-sentence losses,
    and how many words and sentences were told right.
    """
    sums = torch.zeros(4, device=batch.part.input_ids.device)
    parts = batch.part.split(accumulation)
    for part in parts:
        with _gradients_shared(forward, now=part is parts[-1]):
            with autocast:
                mlm_logits, nsp_logits = forward(
                    part.input_ids,
                    part.token_type_ids,
                    part.attention_mask,
                    part.masked_lm_positions,
                )
            mlm = masked_lm_loss_sum(mlm_logits, part.masked_lm_labels, part.masked_lm_weights)
            nsp = next_sentence_loss_sum(nsp_logits, part.next_sentence_labels)
            loss = mlm / max(batch.global_masked, 1) + nsp / max(batch.global_pairs, 1)
            (loss * world_size).backward()  # DistributedDataParallel averages; we want the sum
        sums += torch.stack([mlm.detach(), nsp.detach(), *_hits(part, mlm_logits, nsp_logits)])
    return sums


class _Trainer:
    """One life of a run in one process: from a starting point to the last step, or to a signal."""

    def __init__(
        self,
        shards: Path,
        out: Path,
        manifest: Manifest,
        config: RunConfig,
        world: World,
        accumulation: int,
        start: TrainState | None,
    ) -> None:
        self.shards, self.out, self.manifest, self.config = shards, out, manifest, config
        self.world, self.accumulation, self.training = world, accumulation, config.training
        self.state = start or TrainState(
            step=0,
            next_position=0,
            dataset_digest=manifest.dataset_digest,
            tokenizer_digest=manifest.tokenizer_digest,
            seed=config.training.seed,
        )
        self.model = BertForPretraining(config.model, seed=config.training.seed)
        start_decoder_at_unigram(self.model, torch.tensor(manifest.token_counts))
        self.model.to(world.device)
        self.optimizer = build_optimizer(
            self.model,
            learning_rate=self.training.learning_rate,
            weight_decay=self.training.weight_decay,
            betas=(self.training.beta1, self.training.beta2),
        )
        if start is not None:
            folder = checkpoint_folder(out, start.step)
            self.model.load_state_dict(load_weights(folder))
            load_moments(folder, self.model, self.optimizer)
        self.autocast = _autocast(self.training.precision, world.device)
        self.forward = self._wrap()

    def train(self) -> Outcome:
        """Steps, metrics, checkpoints."""
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
        with _stop_requests() as stop, self._log() as log, closing(iter(loader)) as batches:
            self.watch = Stopwatch()
            while self.state.step < self.training.max_steps:
                self._step(batches, log)
                if self.world.any(stop.is_set()):
                    self._save()
                    return Outcome(self.state.step, True, False, None)
            return Outcome(self.state.step, True, True, self.heldout)

    def _step(self, batches: Iterator[LoadedBatch], log: MetricsLog | None) -> None:
        training, step = self.training, self.state.step + 1
        waiting = time.perf_counter()
        batch = next(batches).to(self.world.device)
        self.watch.waited(time.perf_counter() - waiting)
        _seed_dropout(training.seed, step, self.world)
        sums = train_step(
            self.forward,
            batch,
            accumulation=self.accumulation,
            world_size=self.world.size,
            autocast=self.autocast,
        )
        norm = clip_gradients(self.model.parameters(), training.clip)
        set_learning_rate(self.optimizer, learning_rate_at(step, training))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state = replace(self.state, step=step, next_position=batch.next_position)
        self._report(step, batch, sums, norm, log)
