"""The model and the numbers of a run, chosen before anything is written.

an option that is given      wins
else, a run in --out         continues with its own numbers, whatever its recipe says today
else, --start-from RUN       hands on the numbers of that run
else, --cool-down-from       the numbers at that step, and a decay of the learning rate
else                         the recipe of the preset, or with --init of continued pretraining
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig
from clozeline.pipeline.dataset.manifest import Manifest, read_manifest
from clozeline.train.artifacts.run import RUN, RunConfig, model_config, model_of, read_run
from clozeline.train.config import RECIPE_FIELDS
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import resolve_precision
from clozeline.train.pretraining.cool_down import CoolDown, settings_of, with_decay
from clozeline.train.pretraining.initial_weights import initial_config
from clozeline.train.pretraining.more_positions import with_positions
from clozeline.train.pretraining.recipes import (
    CONTINUED,
    DEFAULT_PRESET,
    MOST_EPOCHS,
    OF_SHARDS,
    Setting,
    Value,
    recipe_of,
    resolve,
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a call of `clozeline pretrain` is going to train, and how."""

    model: BertConfig
    settings: Mapping[str, Setting]  # of RECIPE_FIELDS; with a recipe, also of OF_SHARDS
    manifest: Manifest
    left_out: float = 0.0  # attention dropout that a new run on CUDA drops

    @property
    def values(self) -> dict[str, Value]:
        """The fields of PretrainConfig that `settings` has."""
        return {name: self.settings[name].value for name in RECIPE_FIELDS}

    @property
    def note(self) -> str | None:
        """Lines about what differs from the recipe or the model, and why."""
        notes, (steps, source) = [], self.settings["max_steps"]
        if source.startswith(MOST_EPOCHS.source):
            examples = self.manifest.num_examples("train")
            notes.append(f"--max-steps {steps}: {source}. The data set has {examples:,} examples.")
        if self.left_out:
            notes.append(
                f"no dropout in attention, which excludes the fastest kernels on CUDA; --dropout "
                f"{self.left_out:g} applies it there, too."
            )
        return "\n".join(f"note: {note}" for note in notes) or None

    def lines(self) -> list[str]:
        """All numbers as options with their sources, a line each."""
        rows = [(name, self.settings[name]) for name in RECIPE_FIELDS]
        rows.append(("dropout", Setting(self.model.hidden_dropout_prob, "of the model")))
        advised = [(name, self.settings[name]) for name in OF_SHARDS if name in self.settings]
        there = self.manifest.config.to_dict()
        return [
            *(_line(name, setting.value, setting.source) for name, setting in rows),
            *(["advised for `clozeline shards`:"] if advised else []),
            *(
                _line(name, setting.value, f"{setting.source} (these shards: {there[name]})")
                for name, setting in advised
            ),
        ]


def make_plan(
    shards: Path,
    *,
    out: Path,
    preset: str | None,
    dropout: float | None,
    start_from: Path | None,
    init: Path | None,
    cool_down_from: CoolDown | None,
    overwrite: bool,
    given: Mapping[str, Value],
    is_timed: bool,
    is_sharded: bool,
    world: World,
) -> Plan:
    """The plan of a run; `given` has the values of RECIPE_FIELDS that the user chose.

    Raises InputError for an unknown preset, and for folders that cannot be used.
    """
    manifest = read_manifest(shards)
    there = world.broadcast_from_main(lambda: None if overwrite else _run_in(out))
    other, left_out = cool_down_from.run if cool_down_from else start_from, 0.0
    model = _model(manifest, preset, dropout=dropout, start_from=other, init=init)
    if dropout is None and there:
        model = _with_dropout_of(there.model, model)
    elif dropout is None and not cool_down_from and world.device.type == "cuda":
        left_out = model.attention_probs_dropout_prob
        model = replace(model, attention_probs_dropout_prob=0.0)
    if there:
        settings = _of_run(there, out)
    elif cool_down_from:
        settings = settings_of(cool_down_from)
    elif start_from:  # that run may have used another device
        settings = _of_run(read_run(start_from), start_from) | {"precision": CONTINUED["precision"]}
    else:
        recipe = CONTINUED if init else recipe_of(preset or DEFAULT_PRESET)
        data: dict[str, Any] = {
            "examples": manifest.num_examples("train"),
            "max_seq_length": manifest.config.max_seq_length,
        }
        machine: dict[str, Any] = {"device": world.device.type, "world_size": world.size}
        how: dict[str, Any] = {"is_timed": is_timed, "is_sharded": is_sharded}
        settings = resolve(recipe, given, model=model, **data, **machine, **how)
    settings |= {name: Setting(value, "given") for name, value in given.items()}
    if cool_down_from:
        settings = with_decay(settings, given, cool_down_from)
    settings["precision"] = _resolved(settings["precision"], world)
    return Plan(model=model, settings=settings, manifest=manifest, left_out=left_out)


def _run_in(out: Path) -> RunConfig | None:
    return read_run(out) if (out / RUN).exists() else None


def _resolved(precision: Setting, world: World) -> Setting:
    """`auto` resolved for this device."""
    return Setting(resolve_precision(str(precision.value), world.device), precision.source)


def _model(
    manifest: Manifest,
    preset: str | None,
    *,
    dropout: float | None,
    start_from: Path | None,
    init: Path | None,
) -> BertConfig:
    """The preset; if none is given, the architecture of what training starts from."""
    if init:
        return initial_config(init, preset_name=preset, dropout=dropout)
    model = model_config(preset or DEFAULT_PRESET, manifest, dropout=dropout)
    if start_from is None:
        return model
    longest = manifest.config.max_seq_length
    longer = with_positions(model_of(start_from, dropout=dropout), longest)
    if preset is None:
        return longer
    return replace(model, global_rope_theta=longer.global_rope_theta)  # not up to the preset


def _with_dropout_of(there: BertConfig, model: BertConfig) -> BertConfig:
    return replace(
        model,
        hidden_dropout_prob=there.hidden_dropout_prob,
        attention_probs_dropout_prob=there.attention_probs_dropout_prob,
    )


def _of_run(config: RunConfig, run: Path) -> dict[str, Setting]:
    values = config.training.to_dict()
    return {name: Setting(values[name], str(run)) for name in RECIPE_FIELDS}


def _line(name: str, value: Value, source: str) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"  --{name.replace('_', '-')} {shown}".ljust(30) + source
