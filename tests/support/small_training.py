"""A tiny model, trained in this process on a small data set."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig, preset
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.artifacts.checkpoint import list_checkpoints
from clozeline.train.artifacts.run import model_config
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.pretraining.pretrain import pretrain
from clozeline.train.pretraining.trainer import Outcome
from tests.support.small import small_tokenizer
from tests.support.small_runs import training_config

TINY = preset(
    "bert-tiny",
    vocab_size=small_tokenizer().vocab_size,
    num_hidden_layers=1,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
)
STILL = replace(TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SHORT = training_config(batch_size=8, max_steps=12, log_every=1, save_every=4, keep=9, eval_every=0)
CLOCKS = ("tokens_per_second", "slots_per_second", "data_wait")


def train(
    shards: Path,
    out: Path,
    *,
    model: BertConfig = TINY,
    resume: bool = False,
    overwrite: bool = False,
    from_: Path | None = None,
    **changes: Any,
) -> Outcome:
    """Pretrain for 12 steps of 8 examples; metrics every step, a checkpoint every 4."""
    training = replace(SHORT, **changes)
    return pretrain(
        shards,
        out=out,
        model=model,
        training=training,
        resume=resume,
        overwrite=overwrite,
        from_=from_,
    )


def numbers(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics without the measured times."""
    return [
        {name: value for name, value in line.items() if name not in CLOCKS}
        for line in read_metrics(run)
    ]


def assert_same_run(run: Path, whole: Path) -> None:
    """Every number of every step, and the bytes of the last checkpoint."""
    assert numbers(run) == numbers(whole)
    for ours, theirs in zip(
        sorted(list_checkpoints(run)[-1].iterdir()),
        sorted(list_checkpoints(whole)[-1].iterdir()),
        strict=True,
    ):
        assert ours.read_bytes() == theirs.read_bytes(), ours.name


def go_back(run: Path, step: int) -> Path:
    """The run as if it had been killed between the checkpoint of this step and the next."""
    for folder in list_checkpoints(run):
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    return run


def weights(run: Path) -> bytes:
    """The newest weights on disk."""
    return (list_checkpoints(run)[-1] / "model.safetensors").read_bytes()


def command_line(
    shards: Path, out: Path, *options: object, preset: str | None = "bert-tiny", **changes: Any
) -> list[str]:
    """The command line of `train`; a run that goes on names no preset."""
    training = replace(SHORT, **changes).to_dict()
    flags = [
        f"--{name.rstrip('_').replace('_', '-')}={value}"
        for name, value in training.items()
        if value is not None and not isinstance(value, bool | tuple)
    ]
    flags += [f"--phase={phase}" for phase in training["phase"]]
    return [
        "pretrain",
        str(shards),
        f"--out={out}",
        *([f"--preset={preset}"] if preset else []),
        *flags,
        *map(str, options),
    ]


def preset_of(shards: Path, **changes: Any) -> BertConfig:
    """The model of `command_line`."""
    return model_config("bert-tiny", read_manifest(shards), **changes)
