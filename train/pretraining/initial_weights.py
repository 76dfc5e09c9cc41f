"""The state of training, the model and the optimizer before the first step of a process."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from clozeline.model.config import BertConfig, preset
from clozeline.model.heads import BertForPretraining, start_decoder_at_unigram
from clozeline.model.huggingface.weight_files import weights_sha256
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError, as_input_error
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.tokenization.tokenizer import TOKENIZER_JSON, VOCAB_TXT, load_tokenizer
from clozeline.pipeline.tokenization.tokenizer_spec import TokenizerSpec
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.train.artifacts.checkpoint import TrainState, load_moments, load_weights
from clozeline.train.artifacts.huggingface import PARTS, load_model, read_model_config
from clozeline.train.artifacts.huggingface_tokenizer import vocabulary_differences
from clozeline.train.artifacts.pretrained import kind_of_model
from clozeline.train.artifacts.run import RunConfig, with_dropout, with_dropout_of
from clozeline.train.artifacts.snapshot import restore_moments
from clozeline.train.config import PretrainConfig
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import products_dtype
from clozeline.train.pretraining.more_positions import grown_moments, grown_weights
from clozeline.train.pretraining.word_vectors import start_at_word_vectors

# Fields that may differ from the preset: they depend on the data, or do not affect the weights.
FREE = (
    "vocab_size",
    "max_position_embeddings",
    "initializer_range",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The state of training before the first step, as `find_resume_point` finds it."""

    state: TrainState
    checkpoint: Path | None = None  # has the weights; None: they come from `init` or the seed
    init: Path | None = None  # a Hugging Face folder
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


def initial_model(config: BertConfig, training: PretrainConfig) -> BertForPretraining:
    """A model with random weights, on the CPU, whose layers compute as `training` says."""
    model = BertForPretraining(config, seed=training.seed)
    if training.activation_checkpointing:
        model.encoder.checkpoint_activations()
    return model


def first_model(
    config: RunConfig, shards: ShardSet, world: World, start: ResumePoint
) -> BertForPretraining:
    """The model with the weights that training starts from, on the CPU.

    They are those of a checkpoint, of a Hugging Face folder (without those of a part that is
    missing there), or drawn from the seed. Raises InputError, or StoreError for shards, where they
    cannot be read; rank 0 reads them for all.
    """
    checkpoint, init = start.checkpoint, start.init
    model = initial_model(config.model, config.training)
    if config.model.head_bias:
        start_decoder_at_unigram(model, torch.from_numpy(shards.manifest.log_unigram))

    def stored() -> dict[str, Tensor]:
        if checkpoint:
            weights = load_weights(checkpoint, is_checked=True)
            return grown_weights(weights, config.model, trained=start.trained_positions)
        assert init
        ours, found = model.state_dict(), load_model(init)[0].weights
        return ours | {name: found[name] for name in ours if name in found}

    if checkpoint or init:
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


def initial_config(init: Path, *, preset_name: str | None, dropout: float | None) -> BertConfig:
    """The model of the folder, with `dropout` if it is given.

    Raises InputError for another kind of folder, and where it does not match the given preset.
    """
    kind = kind_of_model(init)
    if kind == "run":
        raise InputError(f"{init} is a run; use --start-from {init} instead of --init.")
    if kind == "classifier":
        raise InputError(f"{init} is a classifier; give the folder that `clozeline export` writes.")
    there = read_model_config(init)
    with as_input_error():
        if preset_name is not None:
            own: dict[str, Any] = {field: getattr(there, field) for field in FREE}
            if differs := _differences(there, replace(preset(preset_name), **own)):
                raise InputError(
                    f"{init} is not a {preset_name} ({differs}); leave --preset out to train the "
                    "folder's model."
                )
        return with_dropout(there, dropout)


def check_initial(init: Path, model: BertConfig, shards: AnyPath) -> str:
    """The sha256 of the folder's weights; prints a note about parts that are missing there.

    Raises InputError where it holds another model, or the shards have another tokenizer.
    """
    found, tokenizer = load_model(init)
    if differs := _differences(with_dropout_of(model, found.config.model), model):
        raise InputError(
            f"{init} has another model ({differs}), so its weights do not fit; leave --preset out "
            "to train the folder's model."
        )
    if differs := "; ".join(vocabulary_differences(tokenizer, load_tokenizer(shards / TOKENIZER))):
        options = _options_of(tokenizer.normalization)
        names = (name for name in (VOCAB_TXT, TOKENIZER_JSON) if (init / name).exists())
        vocab = quote(str(init / next(names)))
        raise InputError(
            f"{init} has another tokenizer than {shards} ({differs}); build shards with the one of "
            f"`clozeline tokenizer --vocab {vocab} --out DIR{options}`."
        )
    if absent := [PARTS[part] for part in PARTS if part in found.absent]:
        print(
            f"note: {init} has no {' and no '.join(absent)}; initialized from the seed.",
            file=sys.stderr,
        )
    return weights_sha256(init)


def _options_of(flags: Normalization | TokenizerSpec) -> str:
    """The options of `clozeline tokenizer --vocab` for a vocabulary."""
    if isinstance(flags, TokenizerSpec):
        return ""
    options = "" if flags.lowercase else " --cased"
    if flags.strip_accents != flags.lowercase:
        options += " --strip-accents" if flags.strip_accents else " --no-strip-accents"
    return options


def _differences(there: BertConfig, now: BertConfig) -> str:
    return "; ".join(differences(there.to_dict(), now.to_dict()))
