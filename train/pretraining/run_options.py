"""The options of `clozeline pretrain` besides those of the training config.

    --preset nano --resume  ->  RunOptions(preset="nano", resume=True, print_recipe=False, ...)

What its model is (`plan.py`), where the run starts (`start.py`), and what is printed or watched
beside it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from clozeline.model.config import PRESETS
from clozeline.pipeline.commandline.config_options import AT_LEAST_ONE, option
from clozeline.train.pretraining.recipes import DEFAULT_PRESET
from clozeline.train.store.folder_option import Folder


def _presets(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(incomplete)]


@dataclass(frozen=True)
class RunOptions:
    """The model, where the run starts, and what is printed or watched beside it."""

    preset: str | None = option(
        None,
        f"Model architecture, with its recipe of training: {', '.join(PRESETS)}; defaults to "
        f"{DEFAULT_PRESET}.",
        group="Model",
        shell_complete=_presets,
    )
    dropout: float | None = option(
        None, "Dropout probability; overrides the preset.", group="Model"
    )
    resume: bool = option(
        False,
        "Continue from the latest checkpoint, if there is one.",
        group="Output",
        is_flag=True,
    )
    overwrite: bool = option(False, "Replace an existing run.", group="Output", is_flag=True)
    start_from: Path | None = option(
        None,
        "Start from the weights and optimizer state of this run.",
        group="Model",
        type=Folder(),
    )
    init: Path | None = option(
        None, "Start from the weights of this Hugging Face folder.", group="Model", type=Folder()
    )
    cool_down_from: str | None = option(
        None,
        "Continue this run from this checkpoint, and lower its learning rate to 0 until "
        "--max-steps; other shards of its tokenizer are read from their beginning.",
        group="Model",
        metavar="RUN@STEP",
    )
    print_recipe: bool = option(
        False,
        "Print the numbers of the run with their sources and exit.",
        group="Output",
        is_flag=True,
    )
    profile: int | None = option(
        None,
        "Profile this many steps after the first three: OUT/profile gets a trace and a table of "
        "the ten most expensive operations.",
        group="Output",
        metavar="STEPS",
        type=AT_LEAST_ONE,
    )
    timeout: str = option(
        "10m",
        "How long processes wait for one that does not answer before all end with an error.",
        group="Speed and memory",
        metavar="TIME",
    )
    track: Literal["none", "wandb", "mlflow"] = option(
        "none",
        "Also send the metrics to Weights & Biases or MLflow; a resumed run continues there, too.",
        group="Metrics and checkpoints",
    )
