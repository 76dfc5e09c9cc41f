"""A run folder for any model."""

from pathlib import Path

from model.heads import BertForPretraining
from pipeline.config import DataConfig
from pipeline.tokenization.tokenizer import Tokenizer
from tests.support.training_configs import training_config
from train.artifacts.checkpoint import TrainState, save_checkpoint
from train.artifacts.run import RunConfig, write_run
from train.artifacts.snapshot import take_snapshot
from train.engine.optim import build_optimizer


def write_small_run(
    folder: Path, model: BertForPretraining, tokenizer: Tokenizer, *, max_seq_length: int
) -> Path:
    """A run whose only checkpoint holds this model."""
    config = RunConfig(
        model=model.config,
        training=training_config(),
        data=DataConfig(max_seq_length=max_seq_length),
        dataset_digest="0" * 64,
        tokenizer_digest=tokenizer.digest,
    )
    write_run(folder, config, tokenizer)
    state = TrainState(step=1, loader={"next_position": 8})
    snapshot = take_snapshot(model, build_optimizer(model, config.training))
    save_checkpoint(folder, snapshot, state)
    return folder
