"""Where a run begins, with which model and numbers: all that is decided before anything is written.

    given     --out, --from, --preset, ...     Start(out=work/run, origin=work/old@8000)
    start     the runs among these             Start(..., existing=RunConfig, other=RunConfig)
    numbers   the model, and each number       Plan(model=BertConfig,
              with its source                       settings={"batch_size": (256, "given")})

A run begins with the first of these that there is, and has its numbers where none are given:

    a run in --out, unless --overwrite    its newest intact checkpoint; wants --resume
    --from RUN@STEP for a cool-down       weights, moments and position in the data of that step;
                                          the beginning of other data
    --from RUN or RUN@STEP                weights and moments of its newest checkpoint or of that
    --from HF_DIR                         weights alone, and the recipe of continued pretraining
    the seed                              the recipe of the preset

Then `find_resume_point` checks that the files are intact and fit, and `train_run` trains.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig
from clozeline.pipeline.commandline.config_options import option_name
from clozeline.pipeline.common.errors import InputError, as_input_error
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import Manifest, ShardEntry
from clozeline.train.artifacts.checkpoint import checkpoint_of, list_checkpoints, read_state
from clozeline.train.artifacts.huggingface import read_model_config
from clozeline.train.artifacts.pretrained import PRETRAINED, kind_of_model
from clozeline.train.artifacts.run import (
    RUN,
    RunConfig,
    model_config,
    read_run,
    with_dropout,
    with_dropout_of,
)
from clozeline.train.config import (
    COOL_DOWN,
    KEPT_FIELDS,
    RECIPE_FIELDS,
    PretrainConfig,
    effective_fields,
)
from clozeline.train.engine.distributed import World, is_restart
from clozeline.train.engine.precision import resolve_precision
from clozeline.train.engine.schedule import learning_rate_at, phase_at
from clozeline.train.pretraining.initial_weights import with_positions
from clozeline.train.pretraining.recipes import (
    CONTINUED,
    DEFAULT_PRESET,
    MOST_EPOCHS,
    SHARD_SETTINGS,
    WSD_DECAY,
    Origin,
    Recipe,
    Setting,
    Value,
    check_cool_down,
    recipe_like,
    recipe_of,
    resolve,
    with_decay,
)

#: A plan without SHARDS assumes BERT's vocabulary, and more examples than any recipe wants.
ASSUMED = Manifest(
    config=DataConfig(),
    tokenizer_digest="",
    vocab_size=BertConfig.vocab_size,
    shards=[
        ShardEntry(
            name="", split="train", rows=1 << 40, bytes=0, sha256="", rows_sha256="", checksum=0,
            length_histogram=[],
        )
    ],
)  # fmt: skip
ASSUMED_NOTE = (
    f"note: without SHARDS, {ASSUMED.vocab_size:,} tokens in the vocabulary and examples of "
    f"{ASSUMED.config.max_seq_length} tokens are assumed."
)


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run begins with, as it is given, and the configs of the runs among it."""

    out: Path
    resume: bool = False
    overwrite: bool = False
    origin: Origin | None = None  # --from
    preset: str | None = None
    changes: Sequence[str] = ()  # --set
    dropout: float | None = None
    #: Fields of PretrainConfig, None where the user gave nothing.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Found by `find_start`: the run in `out` that is continued, and the run of `origin`.
    existing: RunConfig | None = None
    other: RunConfig | None = None

    @property
    def cools_down(self) -> bool:
        """Whether the run of `origin` continues from its step, with --schedule cool-down."""
        is_given = self.options.get("schedule") == COOL_DOWN
        return is_given or cool_down_origin(self.existing) is not None

    @property
    def model_folder(self) -> Path | None:
        """The Hugging Face folder whose weights the run begins with."""
        is_one = self.origin and not self.other and not self.cools_down
        return self.origin.folder if self.origin and is_one else None


def find_start(given: Start, world: World) -> Start:
    """The start with the configs of its runs; rank 0 reads them for all processes.

    A run without a checkpoint counts only with `resume`: its numbers may be the reason why it
    failed. Raises InputError for an origin that is neither a run nor a model, or `out` itself, and
    where `overwrite` would lose what `resume` or a restart by torchrun continues.
    """
    if given.resume and given.overwrite:
        raise InputError("--resume and --overwrite exclude each other; give one.")
    if given.overwrite and world.any(is_restart()):
        raise InputError(
            "torchrun restarted this command, and --overwrite would remove what it trained; run it "
            "again with --resume instead."
        )
    out, origin = given.out, given.origin

    def find() -> Start:
        if origin and origin.folder.resolve() == out.resolve():
            raise InputError(f"--from and --out are both {out}; give the new run another --out.")
        has_run = (out / RUN).exists() and (given.resume or bool(list_checkpoints(out)))
        existing = read_run(out) if has_run and not given.overwrite else None
        return replace(
            given,
            origin=origin or cool_down_origin(existing),
            existing=existing,
            other=_run_of(origin) if origin else None,
        )

    return world.broadcast_from_main(find)


def cool_down_origin(run: RunConfig | None) -> Origin | None:
    """The RUN@STEP from which a run was cooled down, if its command recorded that."""
    options = run.options.get("pretrain", {}) if run else {}
    return Origin.parse(options["from"]) if options.get("schedule") == COOL_DOWN else None


def _run_of(origin: Origin) -> RunConfig | None:
    """The config of the run; None for a Hugging Face folder. Raises InputError for others."""
    if origin.step:
        return read_run(origin.folder)
    kind = kind_of_model(origin.folder, accepted=PRETRAINED)
    return read_run(origin.folder) if kind == "run" else None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The model and the numbers of a run."""

    model: BertConfig
    settings: Mapping[str, Setting]  # of RECIPE_FIELDS; with a recipe, also of SHARD_SETTINGS
    manifest: Manifest
    attention_dropout: float = 0.0  # of the preset, which a new run on CUDA leaves out
    is_timed: bool = False  # a time budget ends the run, not a number of steps
    #: What a run that continues another keeps besides `settings`, by field of PretrainConfig.
    inherited: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """The fields of PretrainConfig that `settings` has, and those that are inherited."""
        return {name: self.settings[name].value for name in RECIPE_FIELDS} | dict(self.inherited)

    @property
    def note(self) -> str | None:
        """Lines about what differs from the recipe or the model, and why."""
        notes, (steps, source) = [], self.settings["max_steps"]
        if source.startswith(MOST_EPOCHS.source) and not self.is_timed:
            examples = self.manifest.num_examples("train")
            notes.append(f"--max-steps {steps}: {source}. The data set has {examples:,} examples.")
        if self.attention_dropout:
            notes.append(
                f"no dropout in attention, which excludes the fastest kernels on CUDA; --dropout "
                f"{self.attention_dropout:g} applies it there, too."
            )
        return "\n".join(f"note: {note}" for note in notes) or None

    def lines(self) -> list[str]:
        """All numbers that have an effect, as options with their sources, a line each."""
        names = effective_fields(self.values["schedule"])
        rows = [(x, self.settings[x]) for x in names if x != "max_steps" or not self.is_timed]
        rows.append(("dropout", Setting(self.model.hidden_dropout_prob, "the model's own")))
        lines = [_line(name, setting.value, setting.source) for name, setting in rows]
        advised = [(name, self.settings[name]) for name in SHARD_SETTINGS if name in self.settings]
        if advised:
            lines.append("advised for `clozeline shards`:")
        for name, setting in advised:
            own = f" (these shards: {self.manifest.config.to_dict()[name]})"
            own *= self.manifest != ASSUMED
            lines.append(_line(name, setting.value, setting.source + own))
        return lines


def make_plan(manifest: Manifest, start: Start, world: World) -> Plan:
    """The plan of a run. Raises InputError for an unknown preset, and for unusable folders."""
    options, dropout = start.options, start.dropout
    if start.cools_down:
        check_cool_down(start.origin, options)  # of a resumed run, too
    given = {x: options[x] for x in RECIPE_FIELDS if options.get(x) not in (None, COOL_DOWN)}
    model, attention_dropout = _model(manifest, start), 0.0
    if dropout is None and start.existing:
        model = with_dropout_of(start.existing.model, model)
    elif dropout is None and not start.cools_down and world.device.type == "cuda":
        attention_dropout = model.attention_probs_dropout_prob
        model = replace(model, attention_probs_dropout_prob=0.0)
    settings = _inherited(start)
    if settings is None:
        settings = resolve(
            _recipe(start, model),
            given,
            model=model,
            examples=manifest.num_examples("train"),
            max_seq_length=manifest.config.max_seq_length,
            device=world.device.type,
            world_size=world.size,
            is_timed=bool(options.get("for_")),
        )
    settings |= {name: Setting(value, "given") for name, value in given.items()}
    if start.cools_down and start.origin:
        settings = with_decay(settings, given, start.origin)
    precision, source = settings["precision"]
    settings["precision"] = Setting(resolve_precision(str(precision), world.device), source)
    inherited = _kept_fields(start)
    return Plan(
        model=model,
        settings=settings,
        manifest=manifest,
        attention_dropout=attention_dropout,
        is_timed=bool(options.get("for_") or inherited.get("for_")),
        inherited=inherited,
    )


def _model(manifest: Manifest, start: Start) -> BertConfig:
    """The preset; if none is given, the architecture of what training starts from.

    The positions are those of the run that is continued or started from, whatever its preset.
    """
    preset, changes, dropout = start.preset, start.changes, start.dropout
    if start.model_folder:
        if preset or changes:
            raise InputError(
                f"{start.model_folder} has a model of its own; leave --preset and --set out."
            )
        with as_input_error():
            return with_dropout(read_model_config(start.model_folder), dropout)
    if changes and preset is None:
        preset = DEFAULT_PRESET
    model = model_config(preset or DEFAULT_PRESET, manifest, dropout=dropout, changes=changes)
    earlier = start.existing or start.other
    if earlier is None:
        return model
    own = with_dropout(earlier.model, dropout)
    if preset is None and start.existing:
        return own if manifest == ASSUMED else replace(own, vocab_size=manifest.vocab_size)
    longer = with_positions(own, manifest.config.max_seq_length)
    if preset is None:
        return longer
    return replace(
        model,
        max_position_embeddings=longer.max_position_embeddings,
        global_rope_theta=longer.global_rope_theta,
    )


def _recipe(start: Start, model: BertConfig) -> Recipe:
    if start.model_folder:
        return CONTINUED
    with suppress(ValueError):
        return recipe_of(start.preset or DEFAULT_PRESET)
    return recipe_like(model)


def _inherited(start: Start) -> dict[str, Setting] | None:
    """The settings of the run that is continued or started from; None: there is none."""
    run, origin = start.existing or start.other, start.origin
    if run is None:
        return None
    values: dict[str, Value] = {name: getattr(run.training, name) for name in RECIPE_FIELDS}
    source = str(start.out if start.existing else origin)
    settings = {name: Setting(value, source) for name, value in values.items()}
    if start.existing or not origin:
        return settings
    if not start.cools_down:  # precision belongs to the device, word vectors to the first weights
        return settings | {name: CONTINUED[name] for name in ("precision", "word_vectors")}
    assert origin.step is not None
    step, state = origin.step, read_state(checkpoint_of(origin.folder, origin.step))
    phase = phase_at(run.phases, run.training, step, state.elapsed)
    at_step: dict[str, Value] = {
        "word_vectors": False,
        "learning_rate": learning_rate_at(run.training, step, state.elapsed),
        "batch_size": run.training.batch_size * phase.batch_factor,
    }
    steps = math.ceil(step / (1 - float(WSD_DECAY.value)))  # the decay is the last fifth of them
    return {
        **settings,
        **{name: Setting(value, source) for name, value in at_step.items()},
        "max_steps": Setting(steps, WSD_DECAY.source),
    }


def _kept_fields(start: Start) -> dict[str, Any]:
    """What a continued run keeps where `options` leaves it out, unless it is the default.

    For a cool-down, what belongs to the order of the data and its masks.
    """
    run, names, options = start.existing, [*KEPT_FIELDS], start.options
    if run and options.get("max_steps") is not None:  # steps end the run now
        names.remove("for_")
    elif not run and start.cools_down:
        run, names = start.other, ["masked_lm_prob", "seed", "length_bins", "unpadded"]
    own = {x: getattr(run.training, x) for x in names if options.get(x) is None} if run else {}
    return {n: x for n, x in own.items() if x not in (None, getattr(PretrainConfig, n))}


def _line(name: str, value: Value, source: str) -> str:
    shown = option_name(f"no_{name}" if value is False else name)
    if not isinstance(value, bool):
        shown += f" {value:g}" if isinstance(value, float) else f" {value}"
    return f"  {shown}".ljust(30) + source
