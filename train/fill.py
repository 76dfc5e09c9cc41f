"""`clozeline fill`: what a pretrained model would write for each [MASK] of a text.

    "The [MASK] of France is [MASK]."  ->  capital 0.61, king 0.07, ...   paris 0.55, lyon 0.09, ...

All masks are answered at once, each as if the others were not filled. To the tokenizer "[MASK]" is
text like any other, on purpose; only here does the user mean the token, so the text is cut there.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model.heads import BertForPretraining
from pipeline.common.errors import InputError
from pipeline.sources.documents import fix_unicode
from pipeline.tokenization.tokenizer import CONTINUATION, Tokenizer
from train.artifacts.pretrained import load_pretrained
from train.engine.distributed import join_world

MASK = "[MASK]"


@dataclass(frozen=True)
class Guess:
    """A piece of the vocabulary ("##s" goes on with the word before it), and how likely it is."""

    piece: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """The text with the best guesses in place, and all guesses of each mask, best first."""

    text: str
    guesses: list[list[Guess]]


def fill(run: Path, text: str, *, top: int = 5) -> Filled:
    """Fill the masks of a text with the newest weights of a run, or those of somebody else's model.

    Raises InputError for a folder that is neither, or has no masked-word head; for a text without a
    mask, one that is longer than the model reads, and a `top` that is no number of guesses.
    """
    found = load_pretrained(run)
    if "mlm_head" in found.absent:
        raise InputError(
            f"{run} has no masked-word head, so it cannot fill a {MASK}; give a model that has one."
        )
    tokenizer, text = found.tokenizer, fix_unicode(text)
    ids = mask_ids(text, tokenizer, max_seq_length=found.max_seq_length)
    if not 1 <= top <= tokenizer.vocab_size:
        raise InputError(f"top is {top}; it lies between 1 and {tokenizer.vocab_size:,}.")
    with join_world() as world:
        model = BertForPretraining(found.model)
        model.load_state_dict(found.weights)
        probabilities = masked_probabilities(model.to(world.device), ids, tokenizer.mask_id)
    best, pieces = probabilities.topk(top)  # each [P, top]
    guesses = [
        [Guess(tokenizer.tokens[i], p) for i, p in zip(row_pieces, row, strict=True)]
        for row_pieces, row in zip(pieces.tolist(), best.tolist(), strict=True)
    ]
    return Filled(write_in(text, [row[0].piece for row in guesses]), guesses)


def mask_ids(text: str, tokenizer: Tokenizer, *, max_seq_length: int) -> list[int]:
    """[CLS] text [SEP], where each "[MASK]" of the text is the token."""
    first, *rest = tokenizer.encode_batch(text.split(MASK))
    if not rest:
        raise InputError(f"no {MASK} in {text!r}; write it where a word is missing.")
    ids = [tokenizer.cls_id, *first]
    for part in rest:
        ids += [tokenizer.mask_id, *part]
    ids.append(tokenizer.sep_id)
    if len(ids) > max_seq_length:
        raise InputError(
            f"the text has {len(ids)} tokens with [CLS] and [SEP], and the model reads "
            f"{max_seq_length} at most; shorten it."
        )
    return ids


@torch.no_grad()
def masked_probabilities(model: BertForPretraining, ids: list[int], mask_id: int) -> Tensor:
    """The probability of each word at each of the P masks, float32 [P, V], on the CPU."""
    device = model.nsp_head.weight.device
    input_ids = torch.tensor([ids], device=device)
    positions = (input_ids[0] == mask_id).nonzero().T  # [1, P]
    model.eval()
    logits, _ = model(input_ids, torch.zeros_like(input_ids), None, positions)  # [1, P, W]
    return logits[0, :, : model.config.vocab_size].float().softmax(-1).cpu()


def write_in(text: str, pieces: list[str]) -> str:
    """The text with a piece for each mask; a "##" piece joins the word before it.

    "The [MASK] of [MASK] [MASK].", [king, fran, ##ce]  ->  "The king of france."
    """
    written, *rest = text.split(MASK)
    for piece, part in zip(pieces, rest, strict=True):
        if piece.startswith(CONTINUATION):
            written = written.rstrip(" ")
        written += piece.removeprefix(CONTINUATION) + part
    return written
