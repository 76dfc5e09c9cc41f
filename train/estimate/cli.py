"""The command `estimate`."""

import math
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from clozeline.pipeline.commandline.command import Command
from clozeline.pipeline.commandline.config_options import (
    PathOrUrl,
    config_or_usage_error,
    grouped_option,
)
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.train.config import COOL_DOWN, PretrainConfig
from clozeline.train.pretraining.cli import pretrain

#: The options of `pretrain` about the model and its steps, which the help does not list again.
NO_MATTER = {"phase", "log_every", "keep"}
TAKEN = {"preset", "set_", "dropout", *(field.name for field in fields(PretrainConfig))} - NO_MATTER
PRETRAIN_OPTIONS = [copy(param) for param in pretrain.params if param.name in TAKEN]
for param in PRETRAIN_OPTIONS:
    param.hidden = True  # type: ignore[attr-defined]  # an option


@click.command(
    cls=Command,
    params=PRETRAIN_OPTIONS,
    example="clozeline estimate work/shards --preset bert-base --gpu a100,h100 --gpus 1,8,64",
)
@click.argument("shards", metavar="[SHARDS]", required=False, type=PathOrUrl())
@grouped_option(
    "--gpu", default="h100", metavar="NAMES", show_default=True, group="GPUs",
    help="Kinds of GPU, such as a100,h100,rtx4090.",
)  # fmt: skip
@grouped_option(
    "--gpus", default="1", metavar="NUMBERS", show_default=True, group="GPUs",
    help="Numbers of GPUs, such as 1,8,64; each has the recipe for that number.",
)  # fmt: skip
@grouped_option(
    "--price-per-hour", type=click.FloatRange(min=0), group="GPUs",
    help="Price of one GPU for an hour.",
)  # fmt: skip
def estimate(
    shards: Path | None, gpu: str, gpus: str, price_per_hour: float | None, **options: Any
) -> None:
    """Print what a run needs on GPUs: memory, speed, hours, cost.

    All options of `clozeline pretrain` about the model and its steps are taken as well: --preset,
    --batch-size, --parallel and so on. Nothing is trained, and nothing is written. Without
    SHARDS, a vocabulary and a length are assumed.
    """
    if not math.isfinite(price_per_hour or 0.0):
        raise click.UsageError(f"--price-per-hour is {price_per_hour}; give a finite number.")
    if options["schedule"] == COOL_DOWN:
        raise click.UsageError("--schedule cool-down continues a run; estimate that run instead.")
    for text in gpus.split(","):
        if not text.strip().isdecimal() or not 0 < int(text) <= 1 << 20:
            raise click.UsageError(f"--gpus {text!r}: give whole numbers from 1 on, as in 1,8.")
    from clozeline.train.data.phases import find_phases
    from clozeline.train.engine.distributed import World
    from clozeline.train.engine.flops import gpu_named
    from clozeline.train.estimate.estimate import CUDA, Estimate, report
    from clozeline.train.pretraining.start import ASSUMED, ASSUMED_NOTE, Start, make_plan

    kinds = [gpu_named(name) for name in gpu.split(",")]
    manifest = read_manifest(shards) if shards else ASSUMED
    given = {"preset": options.pop("preset"), "dropout": options.pop("dropout")}
    options["precision"] = options["precision"] or "bf16"
    start = Start(out=Path(), changes=options.pop("set_"), options=options, **given)
    estimates = []
    for number in dict.fromkeys(map(int, gpus.split(","))):
        plan = make_plan(manifest, start, World(0, number, CUDA))
        training = config_or_usage_error(PretrainConfig, options | plan.values)
        training.accumulation(number)  # refuses what cannot be divided
        [phase] = find_phases(shards or Path("SHARDS"), manifest, training)
        data = replace(manifest.config, max_predictions_per_seq=phase.max_predictions)
        how: dict[str, Any] = {"model": plan.model, "training": training, "data": data}
        estimates.append([Estimate(gpu=kind, gpus=number, **how) for kind in kinds])
    rows = [one for of_kind in zip(*estimates, strict=True) for one in of_kind]
    if not shards:
        click.echo(ASSUMED_NOTE, err=True)
    click.echo("\n".join(report(rows, price=price_per_hour)))
