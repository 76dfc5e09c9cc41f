"""A run's folder: what a model is and was trained on; the door to it for every later command."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from model.config import BertConfig, preset
from pipeline.common.differences import differences
from pipeline.common.errors import InputError
from pipeline.common.paths import whole_file
from pipeline.config import DataConfig
from pipeline.dataset.manifest import Manifest
from pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from train.artifacts.checkpoint import CHECKPOINTS, latest_checkpoint, load_weights
from train.config import PretrainConfig

RUN, TOKENIZER, SUMMARY = "run.json", "tokenizer", "summary.json"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All that decides a run, besides the number of processes."""

    model: BertConfig
    training: PretrainConfig
    data: DataConfig
    dataset_digest: str
    tokenizer_digest: str
    started_from: str | None = None  # sha256 of the weights it began with, if they are not its own

    @classmethod
    def of(cls, model: BertConfig, training: PretrainConfig, manifest: Manifest) -> Self:
        """The config of a run on the shards of a manifest."""
        return cls(
            model=model,
            training=training,
            data=manifest.config,
            dataset_digest=manifest.dataset_digest,
            tokenizer_digest=manifest.tokenizer_digest,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as run.json stores them."""
        return {
            "model": self.model.to_dict(),
            "training": self.training.to_dict(),
            "data": self.data.to_dict(),
            "dataset_digest": self.dataset_digest,
            "tokenizer_digest": self.tokenizer_digest,
            "started_from": self.started_from,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(
            model=BertConfig.from_dict(values["model"]),
            training=PretrainConfig.from_dict(values["training"]),
            data=DataConfig.from_dict(values["data"]),
            dataset_digest=values["dataset_digest"],
            tokenizer_digest=values["tokenizer_digest"],
            started_from=values.get("started_from"),
        )

    def differences(self, other: "RunConfig", *parts: str) -> list[str]:
        """What differs in the named parts ("model", "training" ...): "name a there, b now"."""
        there, now = other.to_dict(), self.to_dict()
        return [
            difference
            for part in parts
            for difference in differences(_named(part, there[part]), _named(part, now[part]))
        ]


def model_config(name: str, manifest: Manifest, *, dropout: float | None = None) -> BertConfig:
    """A preset that fits a data set: its vocabulary, and positions for its longest examples.

    Raises InputError for an unknown preset or an impossible dropout.
    """
    try:
        config = preset(name, vocab_size=manifest.vocab_size)
        positions = max(config.max_position_embeddings, manifest.config.max_seq_length)
        return with_dropout(replace(config, max_position_embeddings=positions), dropout)
    except ValueError as error:
        raise InputError(str(error)) from error


def model_of(run: Path, *, dropout: float | None = None) -> BertConfig:
    """The model of a run. Raises InputError for no run or an impossible dropout."""
    try:
        return with_dropout(read_run(run).model, dropout)
    except ValueError as error:
        raise InputError(str(error)) from error


def with_dropout(config: BertConfig, dropout: float | None) -> BertConfig:
    """With another dropout everywhere; None: as it is."""
    if dropout is None:
        return config
    return replace(config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def write_run(run: Path, config: RunConfig, tokenizer: Tokenizer) -> None:
    """Start (or go on with) a run's folder; it is not complete (any more)."""
    run.mkdir(parents=True, exist_ok=True)
    (run / SUMMARY).unlink(missing_ok=True)
    tokenizer.save(run / TOKENIZER)
    with whole_file(run / RUN) as file:
        file.write((json.dumps(config.to_dict(), indent=2) + "\n").encode())


def read_run(run: Path) -> RunConfig:
    """Raises InputError where the folder is no run of `clozeline pretrain`."""
    try:
        return RunConfig.from_dict(json.loads((run / RUN).read_bytes()))
    except FileNotFoundError as error:
        raise InputError(
            f"{run} is no run (no {RUN} in it); `clozeline pretrain SHARDS --out {run}` makes one."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run / RUN} cannot be read ({error}).") from error


def load_run(run: Path) -> tuple[RunConfig, Tokenizer, dict[str, Tensor]]:
    """The configs, the tokenizer and the newest weights of a run.

    Raises InputError where there is no checkpoint, or where the tokenizer is another one than the
    model was trained with.
    """
    config = read_run(run)
    folder = latest_checkpoint(run)
    if folder is None:
        raise InputError(f"{run} has no checkpoint yet; `clozeline pretrain ... --resume` goes on.")
    tokenizer = load_tokenizer(run / TOKENIZER)
    if tokenizer.digest != config.tokenizer_digest:
        raise InputError(
            f"{run / TOKENIZER} is another tokenizer ({tokenizer.digest[:12]}) than the model was "
            f"trained with ({config.tokenizer_digest[:12]}); put the right one back."
        )
    return config, tokenizer, load_weights(folder)


def write_summary(run: Path, step: int, heldout: dict[str, float] | None) -> None:
    """summary.json: there once a run is complete; what it reached on held-out examples."""
    facts = {"step": step, "heldout": heldout}
    with whole_file(run / SUMMARY) as file:
        file.write((json.dumps(facts, indent=2) + "\n").encode())


def remove_run(run: Path) -> None:
    """Make room for another run; only what belongs to a run is removed."""
    for name in (CHECKPOINTS, TOKENIZER, "tensorboard"):
        shutil.rmtree(run / name, ignore_errors=True)
    for name in (RUN, SUMMARY, "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)


def _named(part: str, value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {part: value}
