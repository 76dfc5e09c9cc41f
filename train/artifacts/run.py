"""A run's folder: its configs, tokenizer and weights, which later commands read."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.config_checks import check_field_names, differences
from clozeline.pipeline.common.errors import InputError, as_input_error
from clozeline.pipeline.common.folders import check_kind, remove_files, wrong_folder
from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.pipeline.common.paths import AnyPath, GivenPath
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import REPORT, Manifest
from clozeline.pipeline.tokenization.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer
from clozeline.train.artifacts.architecture import architecture
from clozeline.train.artifacts.checkpoint import (
    CHECKPOINT_FILES,
    CHECKPOINTS,
    TrainState,
    check_finite,
    latest_checkpoint,
    load_weights,
    read_state,
)
from clozeline.train.config import PretrainConfig
from clozeline.train.data.phases import DataPhase, find_phases, states_of
from clozeline.train.store.local_folder import local_folder

RUN, TOKENIZER, SUMMARY = "run.json", "tokenizer", "summary.json"
TENSORBOARD = "tensorboard"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the result of a run, except the number of processes."""

    model: BertConfig
    training: PretrainConfig
    data: DataConfig
    dataset_digest: str
    tokenizer_digest: str
    phases: tuple[DataPhase, ...]  # the last one reads the data set of `dataset_digest`
    started_from: str | None = None  # sha256 of the initial weights, if another folder gave them
    trained_before: int | None = None  # learned positions that those had trained; None: all
    #: The command's options, as `--config` reads them.
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: BertConfig, training: PretrainConfig, manifest: Manifest, shards: AnyPath
    ) -> Self:
        """The config of a run on `shards`, whose manifest this is; raises as `find_phases` does."""
        return cls(
            model=model,
            training=training,
            data=manifest.config,
            dataset_digest=manifest.dataset_digest,
            tokenizer_digest=manifest.tokenizer_digest,
            phases=find_phases(shards, manifest, training),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"data": self.data.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config that was stored; raises ValueError for that of another version."""
        check_field_names(cls, values)
        configs = {
            "model": BertConfig(**values["model"]),
            "training": PretrainConfig.from_dict(values["training"]),
            "data": DataConfig.from_dict(values["data"]),
            "phases": tuple(map(DataPhase.from_dict, values["phases"])),
        }
        return cls(**values | configs)

    def differences(self, other: "RunConfig", *parts: str) -> list[str]:
        """What differs in the named parts ("model", "training" ...): "name a there, b now"."""
        earlier, own = other.to_dict(), self.to_dict()
        return [
            difference
            for part in parts
            for difference in differences(_named(part, earlier[part]), _named(part, own[part]))
        ]


def trained_positions(run: RunConfig, state: TrainState) -> int | None:
    """How many learned positions the examples of a run have reached by a state; None: all.

    Of a run that started from other weights, the positions that those had trained count, too.
    """
    is_from_other, before = run.started_from is not None, run.trained_before
    if not run.model.has_position_table or (is_from_other and before is None):
        return None
    lengths = {phase.dataset_digest: phase.max_seq_length for phase in run.phases}
    read = [one["dataset_digest"] for one in states_of(state.loader) if one["next_position"]]
    return max([lengths[digest] for digest in read] + [before or 0]) or None


def positions_note(trained: int) -> str:
    """What is done about the others, after the name of a run."""
    return (
        f"has read examples of up to {trained} tokens; positions from {trained} on continue those "
        "before them."
    )


def model_config(
    name: str, manifest: Manifest, *, dropout: float | None = None, changes: Sequence[str] = ()
) -> BertConfig:
    """A preset with a data set's vocabulary, and positions for its longest examples at least.

    Raises InputError for a bad option.
    """
    with as_input_error():
        config = replace(architecture(name, changes), vocab_size=manifest.vocab_size)
        positions = max(config.max_position_embeddings, manifest.config.max_seq_length)
        return with_dropout(replace(config, max_position_embeddings=positions), dropout)


def with_dropout(config: BertConfig, dropout: float | None) -> BertConfig:
    """The config with this dropout everywhere; None leaves it as it is."""
    if dropout is None:
        return config
    return replace(config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def with_dropout_of(donor: BertConfig, config: BertConfig) -> BertConfig:
    """The config with the dropout of another, which is not part of the weights."""
    return replace(
        config,
        hidden_dropout_prob=donor.hidden_dropout_prob,
        attention_probs_dropout_prob=donor.attention_probs_dropout_prob,
    )


def check_run_folder(out: Path) -> None:
    """Raises InputError if the folder is neither empty nor a run."""
    is_run = False
    with suppress(InputError), json_values(out / RUN, "delete it") as values:
        is_run = {"model", "training"} <= values.keys()
    check_kind(out, "a run", is_own=is_run)


def write_run(run: Path, config: RunConfig, tokenizer: Tokenizer) -> None:
    """Start or continue the folder of a run, which from now on is not complete.

    run.json comes first: without it the folder would not be recognized after a kill.
    """
    run.mkdir(parents=True, exist_ok=True)
    (run / SUMMARY).unlink(missing_ok=True)
    write_json(run / RUN, config.to_dict(), seal=True)
    tokenizer.save(
        run / TOKENIZER,
        max_seq_length=config.data.max_seq_length,
        has_segments=config.model.type_vocab_size > 0,
    )


def read_run(run: Path) -> RunConfig:
    """The config of a run. Raises InputError where the folder is not a run."""
    if not (run / RUN).exists():
        raise wrong_folder(run, "a run of `clozeline pretrain`")
    with json_values(run / RUN, "restore it, or train a new run", seal=True) as values:
        return RunConfig.from_dict(values)


def load_run(run: GivenPath) -> tuple[RunConfig, Tokenizer, dict[str, Tensor]]:
    """The configs, the tokenizer and the newest weights of a run.

        >>> config, tokenizer, weights = load_run("work/run")
        >>> config.model.hidden_size, tokenizer.vocab_size
        (128, 400)

    Raises InputError where there is no checkpoint, where the tokenizer is not the one that the
    model was trained with, and for weights that are not finite.
    """
    with local_folder(run) as folder:
        config, tokenizer, _, weights = read_run_and_weights(folder)
        return config, tokenizer, weights


def read_run_and_weights(
    run: Path,
) -> tuple[RunConfig, Tokenizer, TrainState, dict[str, Tensor]]:
    """As `load_run`, with the state of the checkpoint that the weights are of."""
    config = read_run(run)
    tokenizer = load_tokenizer(run / TOKENIZER)
    if tokenizer.digest != config.tokenizer_digest:
        raise InputError(
            f"{run / TOKENIZER} is not the tokenizer that the model was trained with (digest "
            f"{tokenizer.digest[:12]}, expected {config.tokenizer_digest[:12]}); restore that."
        )
    folder = latest_checkpoint(run)
    weights = load_weights(folder)
    check_finite(folder, weights)
    return config, tokenizer, read_state(folder), weights


def check_fits(shards: GivenPath, manifest: Manifest, run: GivenPath, config: RunConfig) -> None:
    """Raises InputError where the model of a run cannot read the rows of a data set."""
    if manifest.tokenizer_digest != config.tokenizer_digest:
        raise InputError(
            f"{shards} was made with another tokenizer ({manifest.tokenizer_digest[:12]}) than "
            f"{run} ({config.tokenizer_digest[:12]}); give shards of the same one."
        )
    positions = config.model.max_position_embeddings
    if manifest.config.max_seq_length > positions:
        raise InputError(
            f"{shards} has examples of {manifest.config.max_seq_length} tokens, the model of "
            f"{run} reads {positions} at most; give shorter ones."
        )


def write_summary(run: Path, step: int, heldout: dict[str, float] | None) -> None:
    """Write summary.json, which only a complete run has: its last step and held-out numbers."""
    write_json(run / SUMMARY, {"step": step, "heldout": heldout}, seal=True)


def remove_run(run: Path) -> None:
    """Remove the files of a run, and nothing else, from its folder; run.json comes last."""
    for folder in (run / CHECKPOINTS).glob("*step-*"):  # also damaged and half-written ones
        remove_files(folder, CHECKPOINT_FILES)
    remove_files(run / CHECKPOINTS, ())
    remove_files(run / TOKENIZER, TOKENIZER_FILES)
    events = (run / TENSORBOARD).glob("events.out.tfevents.*")
    remove_files(run / TENSORBOARD, [path.name for path in events])
    for name in (SUMMARY, REPORT, "metrics.jsonl", RUN):
        (run / name).unlink(missing_ok=True)


def _named(part: str, value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {part: value}
