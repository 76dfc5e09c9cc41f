"""A run folder for any model; a tokenizer, a model of one layer and a config to put there."""

from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig, PairScheme
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from clozeline.train.artifacts.checkpoint import TrainState, save_checkpoint, take_snapshot
from clozeline.train.artifacts.run import RunConfig, write_run
from clozeline.train.config import PretrainConfig
from clozeline.train.data.phases import DataPhase
from clozeline.train.engine.optim import build_optimizer


def tokenizer_of(*words: str) -> Tokenizer:
    """An uncased tokenizer whose vocabulary is these words."""
    return Tokenizer([*SPECIAL_TOKENS, *words], Normalization(strip_accents=True, lowercase=True))


def one_layer(tokenizer: Tokenizer, *, positions: int) -> BertConfig:
    """A model that learns a few words in seconds; no dropout."""
    return BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def training_config(**changes: Any) -> PretrainConfig:
    """Every number that `clozeline pretrain` takes from a recipe, fixed for tests."""
    numbers: dict[str, Any] = {
        "batch_size": 128,
        "max_steps": 1000,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "warmup": 0.06,
        "schedule": "linear",
        "cool_down": 0.2,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.98,
        "clip": 1.0,
        "word_vectors": False,
        "sampled_words": 0,
        "precision": "fp32",
    }
    return PretrainConfig(**numbers | changes)


def write_small_run(
    folder: Path,
    model: BertForPretraining,
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    pairs: PairScheme = DataConfig.pairs,
) -> Path:
    """A run whose only checkpoint holds this model."""
    config = RunConfig(
        model=model.config,
        training=training_config(),
        data=DataConfig(max_seq_length=max_seq_length, pairs=pairs),
        dataset_digest="0" * 64,
        tokenizer_digest=tokenizer.digest,
        phases=(
            DataPhase(
                start=0.0,
                shards="shards",
                dataset_digest="0" * 64,
                max_seq_length=max_seq_length,
                batch_factor=1,
                max_predictions=1,
            ),
        ),
    )
    write_run(folder, config, tokenizer)
    state = TrainState(step=1, loader={"dataset_digest": "0" * 64, "next_position": 8})
    snapshot = take_snapshot(model, build_optimizer(model, config.training))
    save_checkpoint(folder, snapshot, state)
    return folder
