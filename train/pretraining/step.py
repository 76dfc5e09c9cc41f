"""One training step (Devlin et al. 2018, section 3.1): masked words and next sentences.

The loss is the sum over masked words divided by their number in the *global* batch, of all
processes and forward passes, and likewise for next sentences. The numbers come with the batch,
before the forward pass. (Averaging the means of the parts is another objective: it weighs a word
more where its part has fewer of them.)
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.attention import Packing
from model.heads import masked_lm_loss_sum, next_sentence_loss_sum
from train.data.batch import Batch, LoadedBatch, split
from train.data.unpadded import UnpaddedBatch, split_unpadded
from train.engine.distributed import World, full_tensor
from train.engine.precision import autocast


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
) -> tuple[Tensor, Tensor]:
    """Update the model on the global batch of which `loaded` is this process's part.

    Returns this process's sums of the masked-LM and next-sentence losses and its numbers of correct
    predictions, float32 [4], and the global gradient norm before clipping. The numbers of correct
    predictions stay 0 without `count_hits`: for a small model, counting takes a tenth of the step.
    """
    sums = torch.zeros(4, device=world.device)
    parts = _split(loaded.batch, accumulation)
    with _weights_converted_once(world.device):
        for part in parts:
            with _gradients_shared(model, now=part is parts[-1]):
                with autocast(precision, world.device):
                    mlm_logits, nsp_logits = _forward(model, part, is_full=_is_full(loaded, world))
                mlm = masked_lm_loss_sum(mlm_logits, part.masked_lm_labels, part.masked_lm_weights)
                nsp = next_sentence_loss_sum(nsp_logits, part.next_sentence_labels)
                loss = mlm / max(loaded.num_predictions, 1) + nsp / max(loaded.num_pairs, 1)
                (loss * world.size).backward()  # what averages over processes now gives the sum
            sums[:2] += torch.stack([mlm.detach(), nsp.detach()])
            if count_hits:
                sums[2:] += _hits(part, mlm_logits, nsp_logits)
    norm = clip_gradients(model, clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums, norm


def clip_gradients(model: nn.Module, clip: float) -> Tensor:
    """Bound the norm of the gradient, of all processes' parts of it; gives it as it was."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = full_tensor(nn.utils.get_total_norm(gradients))
    # On CPU reading the norm is cheaper than a product of everything with 1; CUDA would wait.
    if norm.is_cuda or norm > clip > 0:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip or float("inf"), norm)
    return norm


def _weights_converted_once(device: torch.device) -> AbstractContextManager[object]:
    """Autocast forgets its bfloat16 copies of the weights when the outermost of them ends."""
    return torch.autocast(device.type, enabled=False)


def _split(batch: Batch | UnpaddedBatch, parts: int) -> Sequence[Batch | UnpaddedBatch]:
    return split_unpadded(batch, parts) if isinstance(batch, UnpaddedBatch) else split(batch, parts)


def _forward(
    model: nn.Module, part: Batch | UnpaddedBatch, *, is_full: bool
) -> tuple[Tensor, Tensor]:
    """Logits of masked words and of next sentences."""
    ids, types, positions = part.input_ids, part.token_type_ids, part.masked_lm_positions
    if isinstance(part, UnpaddedBatch):
        packing = Packing(part.position_ids, part.cu_seqlens, part.max_seqlen, part.row_starts)
        mlm_logits, nsp_logits = model(ids, types, None, positions, packing)
    else:
        is_packed = part.attention_mask.dtype != torch.bool
        mask = None if is_full and not is_packed else part.attention_mask
        mlm_logits, nsp_logits = model(ids, types, mask, positions)
    return mlm_logits, nsp_logits


def _is_full(loaded: LoadedBatch[Any], world: World) -> bool:
    """Whether nothing is padded; counted beforehand, for asking the GPU would mean waiting."""
    slots: int = loaded.batch.input_ids.numel() * world.size
    return loaded.num_tokens == slots


def _hits(part: Batch | UnpaddedBatch, mlm_logits: Tensor, nsp_logits: Tensor) -> Tensor:
    words = (mlm_logits.detach().argmax(-1) == part.masked_lm_labels) * part.masked_lm_weights
    pairs = nsp_logits.detach().argmax(-1) == part.next_sentence_labels
    return torch.stack([words.sum(), pairs.sum().float()])


def _gradients_shared(model: nn.Module, *, now: bool) -> AbstractContextManager[object]:
    """Processes add up their gradients once a step, with its last backward pass."""
    if isinstance(model, DistributedDataParallel) and not now:
        return model.no_sync()
    if share := getattr(model, "set_requires_gradient_sync", None):  # FSDP2 has it
        share(now)
    return nullcontext()
