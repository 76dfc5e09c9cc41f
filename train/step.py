"""One training step (Devlin et al. 2018, section 3.1): masked words and next sentences.

The loss is the sum over masked words divided by their number in the *global* batch, of all
processes and forward passes, and likewise for next sentences. The numbers come with the batch,
before the forward pass. (Averaging the means of the parts is another objective: it weighs a word
more where its part has fewer of them.)
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.heads import masked_lm_loss_sum, next_sentence_loss_sum
from pipeline.draws import random_words, stream_key
from train.batch import Batch, LoadedBatch, split
from train.distributed import World


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loaded: LoadedBatch,
    *,
    world: World,
    accumulation: int,
    precision: str,
    clip: float,
) -> tuple[Tensor, Tensor]:
    """Update the model on the global batch of which `loaded` is this process's part.

    Gives the sums of the masked-word and next-sentence losses and of what was told right, float32
    [4], of this process; and the norm of the gradient before it was clipped, of all.
    """
    sums = torch.zeros(4, device=world.device)
    parts = split(loaded.batch, accumulation)
    for part in parts:
        with _gradients_shared(model, now=part is parts[-1]):
            with autocast(precision, world.device):
                mlm_logits, nsp_logits = model(
                    part.input_ids,
                    part.token_type_ids,
                    part.attention_mask,
                    part.masked_lm_positions,
                )
            mlm = masked_lm_loss_sum(mlm_logits, part.masked_lm_labels, part.masked_lm_weights)
            nsp = next_sentence_loss_sum(nsp_logits, part.next_sentence_labels)
            loss = mlm / max(loaded.num_predictions, 1) + nsp / max(loaded.num_pairs, 1)
            (loss * world.size).backward()  # DistributedDataParallel averages; this is the sum
        sums += torch.stack([mlm.detach(), nsp.detach(), *_hits(part, mlm_logits, nsp_logits)])
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums, norm


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16, or everything in float32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """What a step drops depends on (seed, step, rank) alone, so there is no state to save."""
    word = random_words(stream_key(seed, "dropout", step), rank)
    torch.manual_seed(int(word) >> 1)


def _hits(part: Batch, mlm_logits: Tensor, nsp_logits: Tensor) -> tuple[Tensor, Tensor]:
    words = (mlm_logits.detach().argmax(-1) == part.masked_lm_labels) * part.masked_lm_weights
    pairs = nsp_logits.detach().argmax(-1) == part.next_sentence_labels
    return words.sum(), pairs.sum().float()


def _gradients_shared(model: nn.Module, *, now: bool) -> AbstractContextManager[object]:
    """Processes add up their gradients once a step, with its last backward pass."""
    if isinstance(model, DistributedDataParallel) and not now:
        return model.no_sync()
    return nullcontext()
