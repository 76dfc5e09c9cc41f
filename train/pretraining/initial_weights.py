"""The state of training, the model and the optimizer before the first step of a process."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining, start_decoder_at_unigram
from clozeline.model.huggingface.weight_files import weights_sha256
from clozeline.model.positions import TABLE, continued_positions
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import (
    TrainState,
    load_moments,
    load_weights,
    restore_moments,
)
from clozeline.train.artifacts.huggingface import PARTS, load_model, vocabulary_differences
from clozeline.train.artifacts.run import RunConfig, with_dropout_of
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World, full_tensor, shard_like
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import products_dtype
from clozeline.train.pretraining.word_vectors import start_at_word_vectors


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The state of training before the first step, as `find_resume_point` finds it."""

    state: TrainState
    checkpoint: Path | None = (
        None  # has the weights; None: they come from `model_folder` or the seed
    )
    model_folder: Path | None = None  # in Hugging Face's format
    has_moments: bool = True  # the checkpoint's moments fit the optimizer
    is_complete: bool = False  # there is nothing left to do
    #: The checkpoints after this one, which cannot be read, and why.
    damaged: Mapping[Path, str] = field(default_factory=dict)
    started_from: str | None = None  # see RunConfig
    trained_before: int | None = None  # see RunConfig
    trained_positions: int | None = None  # of the checkpoint, where longer examples need more

    @property
    def origin(self) -> dict[str, Any]:
        """What RunConfig has of the initial weights."""
        return {"started_from": self.started_from, "trained_before": self.trained_before}


def first_model(
    config: RunConfig, shards: ShardSet, world: World, start: ResumePoint
) -> BertForPretraining:
    """The model with the weights that training starts from, on the CPU.

    They are those of a checkpoint, of a Hugging Face folder (without those of a part that is
    missing there), or drawn from the seed. Raises InputError, or StoreError for shards, where they
    cannot be read; rank 0 reads them for all.
    """
    checkpoint, folder = start.checkpoint, start.model_folder
    model = BertForPretraining(config.model, seed=config.training.seed)
    if config.model.head_bias:
        start_decoder_at_unigram(model, torch.from_numpy(shards.manifest.log_unigram))

    def stored() -> dict[str, Tensor]:
        if checkpoint:
            weights = load_weights(checkpoint, is_checked=True)
            return grown_weights(weights, config.model, trained=start.trained_positions)
        assert folder
        ours, stored_weights = model.state_dict(), load_model(folder)[0].weights
        return ours | {name: x for name, x in stored_weights.items() if name in ours}

    if checkpoint or folder:
        model.load_state_dict(world.tensors_from_main(stored))
    elif config.training.word_vectors:
        start_at_word_vectors(model, shards, world, seed=config.training.seed)
    return model


def first_optimizer(
    model: BertForPretraining, config: RunConfig, world: World, start: ResumePoint
) -> torch.optim.Optimizer:
    """The optimizer, with the moments of the checkpoint that training starts from."""
    optimizer = build_optimizer(model, config.training, dtype=products_dtype(world))
    if (checkpoint := start.checkpoint) and start.has_moments:

        def stored() -> dict[str, Tensor]:
            moments = load_moments(checkpoint, is_checked=True)
            return grown_moments(moments, config.model, trained=start.trained_positions)

        restore_moments(model, optimizer, world.tensors_from_main(stored))
    return optimizer


def check_initial(folder: Path, model: BertConfig, shards: AnyPath) -> str:
    """The sha256 of the folder's weights; prints a note about parts that are missing there.

    Raises InputError where it holds another model, or the shards have another tokenizer.
    """
    stored, tokenizer = load_model(folder)
    theirs = with_dropout_of(model, stored.config.model)
    if changed := "; ".join(differences(theirs.to_dict(), model.to_dict())):
        raise InputError(
            f"{folder} has another model ({changed}), so its weights do not fit; give its own."
        )
    if differs := "; ".join(vocabulary_differences(tokenizer, load_tokenizer(shards / TOKENIZER))):
        raise InputError(
            f"{folder} has another tokenizer than {shards} ({differs}); build shards with its own: "
            "`clozeline tokenizer --vocab` adopts it."
        )
    if absent := [PARTS[part] for part in PARTS if part in stored.absent]:
        print(
            f"note: {folder} has no {' and no '.join(absent)}; initialized from the seed.",
            file=sys.stderr,
        )
    return weights_sha256(folder)


# More positions: examples that are longer than those before them need positions that are trained as
# well. They are those of a run that starts from another, or of a later phase of a new model. Only a
# table of learned positions grows; computed positions have no weights.
#
#     encoder.embeddings.position_embeddings.weight              [64, H] -> [256, H]
#     encoder.embeddings.position_embeddings.weight/exp_avg_sq   [64, H] -> [256, H]


def with_positions(config: BertConfig, longest: int) -> BertConfig:
    """The config with positions for examples of `longest` tokens, and never fewer than it has.

    Slower rotations keep more positions distinct. Warner et al. 2024 (2.2.2) went from 1,024 tokens
    to 8,192 with a base of 160,000 instead of 10,000 in global layers; here it also grows by
    a factor of twice the growth in length. Local layers see the same distances as before.
    """
    growth = longest / config.max_position_embeddings
    if growth <= 1:
        return config
    theta = config.global_rope_theta * (2 * growth if config.positions == "rotary" else 1)
    return replace(config, max_position_embeddings=longest, global_rope_theta=theta)


def grown_weights(
    weights: dict[str, Tensor], config: BertConfig, *, trained: int | None = None
) -> dict[str, Tensor]:
    """The weights with a position table of the config's length.

    Of its rows only the first `trained` ones are kept; None: all of them.
    """
    if TABLE not in weights or len(weights[TABLE][:trained]) == config.max_position_embeddings:
        return weights
    return weights | {TABLE: continued_positions(weights[TABLE][:trained], config)}


def grown_moments(
    moments: dict[str, Tensor], config: BertConfig, *, trained: int | None = None
) -> dict[str, Tensor]:
    """The optimizer's moments; those of a new position are the mean over the old ones."""
    grown = dict(moments)
    for name, value in moments.items():
        if name.startswith(f"{TABLE}/") and value.ndim:
            old = value[:trained]
            new = old.mean(0).expand(config.max_position_embeddings - len(old), -1)
            grown[name] = torch.cat([old, new])
    return grown


@torch.no_grad()
def continue_positions(
    model: BertForPretraining, optimizer: torch.optim.Optimizer, world: World, *, trained: int
) -> None:
    """Set the positions from `trained` on, and their moments, as `grown_weights` does.

    For positions that no example had: they are as they were drawn, and the layers have learned to
    read the others as these are now. A collective call.
    """
    model.state_dict()  # after an evaluation FSDP2 has gathered the weights; this shards them again
    table = model.encoder.embeddings.position_embeddings
    if table is None:
        return
    tensors = {f"{TABLE}/{name}": value for name, value in optimizer.state[table.weight].items()}
    tensors = {TABLE: table.weight} | {name: value for name, value in tensors.items() if value.ndim}
    rows = {name: full_tensor(value)[:trained].cpu() for name, value in tensors.items()}
    weights = {TABLE: rows.pop(TABLE)}

    def grown() -> dict[str, Tensor]:
        return grown_weights(weights, model.config) | grown_moments(rows, model.config)

    for name, value in world.tensors_from_main(grown).items():
        tensors[name].copy_(shard_like(tensors[name], value))
