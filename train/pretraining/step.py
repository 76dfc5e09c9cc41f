"""One training step (Devlin et al. 2018, section 3.1): masked words and next sentences.

The loss is the sum over masked words divided by their number in the *global* batch, over all
processes and forward passes; likewise for next sentences. The numbers come with the batch, and the
processes add them up during the first forward pass. (Averaging the means of the parts would be
another objective: it gives a word more weight if its part has fewer of them.)
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clozeline.model.attention import Packing
from clozeline.model.config import BertConfig
from clozeline.model.heads import Targets, WordSample
from clozeline.pipeline.common.counter_rng import random_bits, stream_key
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.data.unpadded import UnpaddedBatch, with_dummy_rows
from clozeline.train.engine.distributed import World, full_tensor, to_device
from clozeline.train.engine.flops import step_flops
from clozeline.train.engine.precision import autocast

FREQUENT = 0.1  # of a sample of words
CPU = torch.device("cpu")


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loaded: LoadedBatch[Batch] | LoadedBatch[UnpaddedBatch],
    *,
    world: World,
    accumulation: int,
    precision: str,
    clip: float,
    count_hits: bool = True,
    sample: WordSample | None = None,
) -> tuple[Tensor, Tensor]:
    """Update the model on the global batch of which `loaded` is this process's part.

    Returns this process's sums of the masked-LM and next-sentence losses and its numbers of correct
    predictions, float32 [4], and the global gradient norm before clipping. The numbers of correct
    predictions stay 0 without `count_hits`: for a small model, counting takes a tenth of the step.
    With a `sample` of words the masked-LM loss is estimated from it.
    """
    if sample is None and world.device.type == "cuda":
        count_hits = True  # costs nothing there, and needs no second graph
    sums = torch.zeros(4, device=world.device)
    global_counts = _begin_global_counts(loaded, world)
    parts = loaded.batch.split(accumulation)
    # An outer context keeps autocast's bfloat16 weight copies from one pass to the next.
    with torch.autocast(world.device.type, enabled=False):
        for part in parts:
            with _gradients_shared(model, is_last=part is parts[-1]):
                with autocast(precision, world.device):
                    losses, hits = forward_losses(
                        model,
                        part,
                        is_full=is_full(loaded),
                        count_hits=count_hits,
                        sample=sample,
                    )
                predictions, pairs = global_counts().clamp(min=1)
                mlm, nsp = losses.unbind()
                loss = mlm / predictions + nsp / pairs
                (loss * world.size).backward()  # averaging over processes now gives the sum
            sums += torch.cat([losses.detach(), hits])
    norm = clip_gradients(model, clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums, norm


def clip_gradients(model: nn.Module, clip: float) -> Tensor:
    """Clip the global gradient norm in place; returns the norm before clipping."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = full_tensor(nn.utils.get_total_norm(gradients))
    # On CPU, reading the norm is cheaper than multiplying everything by 1; CUDA would wait.
    if norm.device.type != "cpu" or norm > clip > 0:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip or float("inf"), norm)
    return norm


def forward_losses(
    model: nn.Module,
    part: Batch | UnpaddedBatch,
    *,
    is_full: bool,
    count_hits: bool,
    sample: WordSample | None = None,
) -> tuple[Tensor, Tensor]:
    """The losses and hits of `BertForPretraining.forward`."""
    mask, packing = None, None
    if isinstance(part, UnpaddedBatch):
        part = with_dummy_rows(part)
        packing = Packing(part.position_ids, part.cu_seqlens, part.max_seqlen, part.row_starts)
    elif not is_full or part.attention_mask.dtype != torch.bool:  # packed rows: numbered pieces
        mask = part.attention_mask
    inputs = part.input_ids, part.token_type_ids, mask, part.masked_lm_positions, packing
    targets = Targets(
        part.masked_lm_labels, part.masked_lm_weights, part.next_sentence_labels, sample
    )
    losses, hits = model(*inputs, targets, count_hits)
    return losses, hits


def flops_of_step(config: BertConfig, loaded: LoadedBatch[Any], words: int) -> float:
    """FLOPs of a step on this process's part of a batch; `words` as for `step_flops`."""
    batch, rows, keys = loaded.batch, len(loaded.batch), None
    if isinstance(batch, UnpaddedBatch):
        tokens, predictions = loaded.num_tokens / rows, loaded.num_predictions / rows
        keys = batch.keys_per_token
    else:
        tokens, predictions = batch.input_ids.shape[1], batch.masked_lm_positions.shape[1]
    return step_flops(
        config,
        batch_size=rows,
        seq_len=tokens,
        predictions=predictions,
        keys=keys,
        words=words,
    )


def _begin_global_counts(loaded: LoadedBatch[Any], world: World) -> Callable[[], Tensor]:
    """What returns the masked words and pairs in the global batch, float32 [2].

    Until then the host waits neither for the device nor for the other processes.
    """
    counts = torch.tensor([loaded.num_predictions, loaded.num_pairs], dtype=torch.float32)
    return world.begin_sum(to_device(counts, world.device))


def is_full(loaded: LoadedBatch[Any]) -> bool:
    """Whether nothing is padded; counted beforehand, since asking the GPU would mean waiting."""
    slots: int = loaded.batch.input_ids.numel()
    return loaded.num_tokens == slots


def _gradients_shared(model: nn.Module, *, is_last: bool) -> AbstractContextManager[object]:
    """Processes add up their gradients once a step, with its last backward pass."""
    if isinstance(model, DistributedDataParallel) and not is_last:
        return model.no_sync()
    if share := getattr(model, "set_requires_gradient_sync", None):  # FSDP2 has it
        share(is_last)
    return nullcontext()


class WordSampler:
    """The words that the masked-LM loss of a step compares with, instead of the vocabulary.

        the most frequent words    always, a tenth of the sample
        others                     drawn anew in each step; each counts as (V - F) / (K - F) words

    V vocabulary, K words of the sample, F frequent ones of them. The output layer is most of a
    small model's arithmetic; with a sample it costs K / V as much. Seed, step and word counts alone
    decide on a sample: all processes and passes of a step share it, and a resumed run continues
    with the same ones. Without a `size`, or with one of the vocabulary or more, there is none.
    """

    def __init__(
        self, token_counts: ArrayLike, size: int, *, seed: int, device: torch.device = CPU
    ) -> None:
        """`token_counts` [V]: how often each word occurs in training."""
        counts = np.asarray(token_counts)
        self.size = size if size < len(counts) else 0
        self.seed = seed
        by_frequency = np.argsort(-counts, kind="stable")
        self.frequent, self.others = np.split(by_frequency, [int(FREQUENT * self.size)])
        log_weights = np.zeros(self.size, np.float32)
        if self.size:
            others = self.size - len(self.frequent)
            log_weights[len(self.frequent) :] = math.log(len(self.others) / others)
        self._log_weights = torch.from_numpy(log_weights).to(device)

    def at(self, step: int) -> WordSample | None:
        """The sample of a step; None stands for the whole vocabulary. A GPU is not waited for."""
        if not self.size:
            return None
        drawn = self.size - len(self.frequent)
        bits = random_bits(stream_key(self.seed, "words", step), self.others.astype(np.uint64))
        others = self.others[np.argpartition(bits, drawn - 1)[:drawn]]
        words = torch.from_numpy(np.concatenate([self.frequent, others]))
        return WordSample(to_device(words, self._log_weights.device), self._log_weights)
