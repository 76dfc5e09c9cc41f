"""The model and the numbers of a run, chosen before anything is written.

an option that is given      wins
else, a run in --out         continues with its own model and numbers, whatever its recipe says
else, --start-from RUN       hands on the numbers of that run
else, --cool-down-from       the numbers at that step, and a decay of the learning rate
else                         the recipe of the preset, or with --init of continued pretraining
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig
from clozeline.pipeline.commandline.config_options import option_name
from clozeline.pipeline.dataset.manifest import Manifest
from clozeline.train.artifacts.checkpoint import checkpoint_of, read_state
from clozeline.train.artifacts.run import RunConfig, model_config, with_dropout, with_dropout_of
from clozeline.train.config import KEPT_FIELDS, RECIPE_FIELDS, PretrainConfig, effective_fields
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import resolve_precision
from clozeline.train.engine.schedule import learning_rate_at, phase_at
from clozeline.train.pretraining.initial_weights import initial_config
from clozeline.train.pretraining.more_positions import with_positions
from clozeline.train.pretraining.recipes import (
    CONTINUED,
    DEFAULT_PRESET,
    MOST_EPOCHS,
    OF_SHARDS,
    WSD_DECAY,
    CoolDown,
    Setting,
    Value,
    check_origin,
    recipe_of,
    resolve,
    with_decay,
)
from clozeline.train.pretraining.start import Start

#: What belongs to the device and to the first weights of the run that another starts from.
_OWN = {name: CONTINUED[name] for name in ("precision", "word_vectors")}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a call of `clozeline pretrain` is going to train, and how."""

    model: BertConfig
    settings: Mapping[str, Setting]  # of RECIPE_FIELDS; with a recipe, also of OF_SHARDS
    manifest: Manifest
    left_out: float = 0.0  # attention dropout that a new run on CUDA drops
    growth: float = 1.0  # tokens of a step, in those of a step of the run that is cooled down
    is_timed: bool = False  # a time budget ends the run, not a number of steps
    #: Schedules that a continued run keeps, by field of PretrainConfig.
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """The fields of PretrainConfig that `settings` has, and what is kept."""
        return {name: self.settings[name].value for name in RECIPE_FIELDS} | dict(self.kept)

    @property
    def note(self) -> str | None:
        """Lines about what differs from the recipe or the model, and why."""
        notes, (steps, source) = [], self.settings["max_steps"]
        if source.startswith(MOST_EPOCHS.source) and not self.is_timed:
            examples = self.manifest.num_examples("train")
            notes.append(f"--max-steps {steps}: {source}. The data set has {examples:,} examples.")
        if self.left_out:
            notes.append(
                f"no dropout in attention, which excludes the fastest kernels on CUDA; --dropout "
                f"{self.left_out:g} applies it there, too."
            )
        if self.growth > 1:
            size = int(self.settings["batch_size"].value)
            notes.append(
                f"--batch-size {size}, as in the other run, but of longer examples: steps have "
                f"{self.growth:g} times its tokens; --batch-size {max(1, int(size / self.growth))} "
                "keeps them."
            )
        schedule, (cool_down, source) = self.values["schedule"], self.settings["cool_down"]
        if source == "given" and "cool_down" not in effective_fields(schedule):
            notes.append(
                f"--cool-down {cool_down} has no effect with --schedule {schedule}; it is for "
                "wsd and wsd-sqrt."
            )
        return "\n".join(f"note: {note}" for note in notes) or None

    def lines(self) -> list[str]:
        """All numbers that have an effect, as options with their sources, a line each."""
        names = effective_fields(self.values["schedule"])
        rows = [(x, self.settings[x]) for x in names if x != "max_steps" or not self.is_timed]
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
    manifest: Manifest,
    start: Start,
    world: World,
    *,
    preset: str | None,
    dropout: float | None,
    options: Mapping[str, Any],
) -> Plan:
    """The plan of a run; `options` has fields of PretrainConfig, None where the user gave nothing.

    Raises InputError for an unknown preset, and for folders that cannot be used.
    """
    check_origin({**options, "cool_down_from": start.cool_down_from})  # of a resumed run, too
    given = {name: options[name] for name in RECIPE_FIELDS if options.get(name) is not None}
    there, left_out, is_timed = start.existing, 0.0, bool(options.get("for_"))
    model = _model(manifest, preset, dropout=dropout, start=start)
    if dropout is None and there:
        model = with_dropout_of(there.model, model)
    elif dropout is None and not start.cool_down_from and world.device.type == "cuda":
        left_out = model.attention_probs_dropout_prob
        model = replace(model, attention_probs_dropout_prob=0.0)
    if there:
        settings = _of_run(start.out, there)
    elif start.cool_down_from and start.other:
        settings = _of_step(start.cool_down_from, start.other)
    elif start.start_from and start.other:
        settings = _of_run(start.start_from, start.other) | _OWN
    else:
        settings = resolve(
            CONTINUED if start.init else recipe_of(preset or DEFAULT_PRESET),
            given,
            model=model,
            examples=manifest.num_examples("train"),
            max_seq_length=manifest.config.max_seq_length,
            device=world.device.type,
            world_size=world.size,
            is_timed=is_timed,
        )
    settings |= {name: Setting(value, "given") for name, value in given.items()}
    if start.cool_down_from:
        settings = with_decay(settings, given, start.cool_down_from)
    precision, source = settings["precision"]
    settings["precision"] = Setting(resolve_precision(str(precision), world.device), source)
    kept = _kept_fields(start, options)
    growth = 1.0 if there or "batch_size" in given else _growth(start, manifest)
    plan = Plan(model=model, settings=settings, manifest=manifest, kept=kept)
    is_timed = is_timed or bool(kept.get("for_"))
    return replace(plan, left_out=left_out, growth=growth, is_timed=is_timed)


def _model(
    manifest: Manifest, preset: str | None, *, dropout: float | None, start: Start
) -> BertConfig:
    """The preset; if none is given, the architecture of what training starts from.

    The positions are those of the run that is continued or started from, whatever its preset.
    """
    if start.init:
        return initial_config(start.init, preset_name=preset, dropout=dropout)
    model = model_config(preset or DEFAULT_PRESET, manifest, dropout=dropout)
    there = start.existing or start.other
    if there is None:
        return model
    own = with_dropout(there.model, dropout)
    if preset is None and start.existing:
        return replace(own, vocab_size=manifest.vocab_size)
    longer = with_positions(own, manifest.config.max_seq_length)
    if preset is None:
        return longer
    return replace(
        model,
        max_position_embeddings=longer.max_position_embeddings,
        global_rope_theta=longer.global_rope_theta,
    )


def _of_run(run: Path | CoolDown, config: RunConfig, **changes: Value) -> dict[str, Setting]:
    values = {name: getattr(config.training, name) for name in RECIPE_FIELDS} | changes
    return {name: Setting(value, str(run)) for name, value in values.items()}


def _of_step(step: CoolDown, run: RunConfig) -> dict[str, Setting]:
    """The other run's settings at that step; the decay then is the last fifth of all steps."""
    at = _position(step, run)
    settings = _of_run(
        step,
        run,
        word_vectors=False,
        learning_rate=learning_rate_at(*at),
        batch_size=run.training.batch_size * phase_at(run.phases, *at).batch_factor,
    )
    steps = math.ceil(step.step / (1 - float(WSD_DECAY.value)))
    return settings | {"max_steps": Setting(steps, WSD_DECAY.source)}


def _position(step: CoolDown, run: RunConfig) -> tuple[PretrainConfig, int, float]:
    """Where the other run's schedules were then. Raises InputError without such a checkpoint."""
    return run.training, step.step, read_state(checkpoint_of(step.run, step.step)).elapsed


def _growth(start: Start, manifest: Manifest) -> float:
    """How many times as long examples are as those of the step that is cooled down from."""
    if not (start.cool_down_from and start.other):
        return 1.0
    there = phase_at(start.other.phases, *_position(start.cool_down_from, start.other))
    return manifest.config.max_seq_length / there.max_seq_length


def _kept_fields(start: Start, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a continued run keeps where `options` leaves it out, unless it is the default.

    For a decay from a step of another run, what continues the schedules there.
    """
    found: dict[str, Any] = {}
    if there := start.existing:
        found = {name: getattr(there.training, name) for name in KEPT_FIELDS}
        if options.get("max_steps") is not None:  # steps end the run now
            del found["for_"]
    elif start.cool_down_from and start.other:
        own = ("masked_lm_prob", "seed", "length_bins", "unpadded")
        found = {name: getattr(start.other.training, name) for name in own}
    left = {name: x for name, x in found.items() if options.get(name) is None}
    return {n: x for n, x in left.items() if x not in (None, getattr(PretrainConfig, n))}


def _line(name: str, value: Value, source: str) -> str:
    shown = option_name(f"no_{name}" if value is False else name)
    if not isinstance(value, bool):
        shown += f" {value:g}" if isinstance(value, float) else f" {value}"
    return f"  {shown}".ljust(30) + source
