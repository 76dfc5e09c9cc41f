"""`clozeline fill`: the tokens a pretrained model predicts for each [MASK] in a text.

    "The [MASK] of France is [MASK]."  ->  capital 0.61, king 0.07, ...   paris 0.55, lyon 0.09, ...

All masks are predicted in one forward pass, each independently of the other predictions. The
tokenizer deliberately treats "[MASK]" as ordinary text; here the user means the special token.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.config_checks import takes_keywords
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import GivenPath
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, join_bytes
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.engine.distributed import join_world
from clozeline.train.labelled.encoding import ids_with_masks
from clozeline.train.labelled.rows import given_texts


@dataclass(frozen=True)
class Guess:
    """A vocabulary token ("##s" continues the preceding word) and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """The text with each mask filled by its best guess; the guesses for each mask, best first."""

    text: str
    guesses: list[list[Guess]]


@takes_keywords
def fill(run: GivenPath, texts: str | Iterable[str], *, top: int = 5) -> list[Filled]:
    """Fill the masks of each text with the latest weights of a run or a Hugging Face folder.

        >>> [filled] = fill("work/run", "The [MASK] of the town.")
        >>> len(filled.guesses), len(filled.guesses[0])  # masks, guesses for the first
        (1, 5)

    Raises InputError if the folder is neither or has no masked-LM head, if a text has no mask or
    exceeds the model's maximum length, and if `top` is not between 1 and the vocabulary size.
    """
    pretrained = load_pretrained(run)
    tokenizer = pretrained.tokenizer
    if "mlm_head" in pretrained.absent:
        raise InputError(
            f"{run} has no masked-LM head, so it cannot fill masks; use a model that has one."
        )
    if not 1 <= top <= tokenizer.vocab_size:
        raise InputError(f"top is {top}; it must be between 1 and {tokenizer.vocab_size:,}.")
    filled = []
    with join_world() as world:
        model = BertForPretraining(pretrained.model)
        model.load_state_dict(pretrained.weights)
        model.to(world.device)
        for text in given_texts(texts):
            ids = mask_ids(text, tokenizer, max_seq_length=pretrained.max_seq_length)
            probabilities = masked_probabilities(model, ids, tokenizer.mask_id)
            if not probabilities.isfinite().all():
                raise InputError(f"the logits of {run} are not finite; its weights are unusable.")
            filled.append(_filled(text, probabilities, tokenizer, top=top))
    return filled


def _filled(text: str, probabilities: Tensor, tokenizer: Tokenizer, *, top: int) -> Filled:
    """The text with the best guesses, from the probabilities of each token at each mask, [P, V]."""
    best, ids_of_best = probabilities.topk(top)  # each [P, top]
    guesses = [
        [Guess(tokenizer.shown_tokens[i], p) for i, p in zip(row_ids, row, strict=True)]
        for row_ids, row in zip(ids_of_best.tolist(), best.tolist(), strict=True)
    ]
    pieces = [tokenizer.texts[row[0]] for row in ids_of_best.tolist()]
    return Filled(fill_text(text, pieces, mask=tokenizer.mask_token), guesses)


def mask_ids(text: str, tokenizer: Tokenizer, *, max_seq_length: int) -> list[int]:
    """Ids of [CLS] text [SEP], with the mask token wherever the text has one."""
    ids, mask = ids_with_masks(text, tokenizer), tokenizer.mask_token
    if tokenizer.mask_id not in ids:
        raise InputError(f"no {mask} in {text!r}; write {mask} where a word is missing.")
    ids = [tokenizer.cls_id, *ids, tokenizer.sep_id]
    if len(ids) > max_seq_length:
        raise InputError(
            f"the text has {len(ids)} tokens including [CLS] and [SEP], but the model reads at "
            f"most {max_seq_length}; shorten it."
        )
    return ids


@torch.no_grad()
def masked_probabilities(model: BertForPretraining, ids: list[int], mask_id: int) -> Tensor:
    """Probability of each token at each of the P masks, float32 [P, V], on the CPU."""
    device = model.nsp_head.weight.device
    input_ids = torch.tensor([ids], device=device)
    places = [place for place, token in enumerate(ids) if token == mask_id]
    positions = torch.tensor([places], device=device)  # [1, P]
    model.eval()
    logits: Tensor = model(input_ids, torch.zeros_like(input_ids), None, positions)[0]
    return logits[0, :, : model.config.vocab_size].float().softmax(-1).cpu()


def fill_text(text: str, pieces: list[str], *, mask: str = SPECIAL_TOKENS[-1]) -> str:
    """Replace each mask by the text of a token; one without a space joins the preceding word.

    "The [MASK] of [MASK] [MASK].", [" king", " fran", "ce"]  ->  "The king of france."
    """
    filled, *rest = text.split(mask)
    for piece, part in zip(pieces, rest, strict=True):
        if not piece.startswith(" "):
            filled = filled.rstrip(" ")
        filled += piece.removeprefix(" ") + part
    return join_bytes(filled)
