"""The commands that pretrain a model and measure it."""

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from model.config import PRESETS, BertConfig
from pipeline.common.config_options import PathOrUrl, config_or_usage_error, options_of
from pipeline.common.errors import STOPPED
from train.config import PretrainConfig

LOCAL = click.Path(path_type=Path)
FOLDER = PathOrUrl()


@click.command()
@click.argument("folder", metavar="SHARDS", type=FOLDER)
@click.option("--out", required=True, type=LOCAL, help="Folder for the run.")
@click.option(
    "--preset", default="nano", show_default=True, help=f"Model architecture: {', '.join(PRESETS)}."
)
@click.option("--dropout", type=float, help="Dropout probability; overrides the preset.")
@click.option(
    "--resume", is_flag=True, help="Continue from the latest checkpoint, if there is one."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@click.option(
    "--start-from", type=LOCAL, help="Start from the weights and optimizer state of this run."
)
@click.option("--init", type=LOCAL, help="Start from the weights of this Hugging Face folder.")
@options_of(PretrainConfig)
def pretrain(
    folder: Path,
    out: Path,
    preset: str,
    dropout: float | None,
    resume: bool,
    overwrite: bool,
    start_from: Path | None,
    init: Path | None,
    **options: Any,
) -> None:
    """Pretrain a model on shards, in one process or under torchrun.

    With --start-from or --init, the architecture is that of the given run or folder, unless
    --preset is given as well. A run that starts from another may have longer examples: the
    model then gets more positions. SIGTERM and SIGINT save a checkpoint and exit with code 75.
    """
    if start_from and init:
        raise click.UsageError("--start-from and --init exclude each other; give one.")
    training = config_or_usage_error(PretrainConfig, options)
    from train.engine.distributed import is_main_process
    from train.pretraining.evaluate import as_table
    from train.pretraining.pretrain import pretrain as run_pretraining

    model = _chosen_model(folder, preset, dropout=dropout, start_from=start_from, init=init)
    outcome = run_pretraining(
        folder,
        out=out,
        model=model,
        training=training,
        resume=resume,
        overwrite=overwrite,
        start_from=start_from,
        init=init,
    )
    budget = f"in {training.for_}" if training.for_ else f"of {training.max_steps}"
    reached, done = f"step {outcome.step} {budget}", "" if outcome.is_new else "already complete: "
    last_line = f"{done}{reached}: {out}"
    if not outcome.is_complete:
        last_line = f"Stopped at {reached}; checkpoint saved. Add `--resume` to continue."
    if is_main_process():
        for line in as_table(outcome.heldout) if outcome.heldout else ():
            click.echo(line)
        click.echo(last_line)
    if not outcome.is_complete:
        click.get_current_context().exit(STOPPED)


def _chosen_model(
    folder: Path,
    preset: str,
    *,
    dropout: float | None,
    start_from: Path | None,
    init: Path | None,
) -> BertConfig:
    """The preset; without --preset the architecture of the run or folder training starts from."""
    from pipeline.dataset.manifest import read_manifest
    from train.artifacts.run import model_config, model_of
    from train.pretraining.initial_weights import initial_config
    from train.pretraining.more_positions import with_positions

    source = click.get_current_context().get_parameter_source("preset")
    is_given = source is not ParameterSource.DEFAULT
    if init:
        return initial_config(init, preset_name=preset if is_given else None, dropout=dropout)
    if start_from and not is_given:
        longest = read_manifest(folder).config.max_seq_length
        return with_positions(model_of(start_from, dropout=dropout), longest)
    return model_config(preset, read_manifest(folder), dropout=dropout)


@click.command()
@click.argument("run", type=LOCAL)
@click.argument("folder", metavar="SHARDS", type=FOLDER)
@click.option(
    "--split",
    default="validation",
    show_default=True,
    type=click.Choice(["validation", "train"]),
    help="Evaluate on held-out or on training examples.",
)
@click.option(
    "--batch-size",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Examples per forward pass.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of examples.")
@click.option("--ngrams", is_flag=True, help="Also measure bigrams and trigrams; takes minutes.")
@click.option(
    "--ngram-tokens",
    default=100_000_000,
    show_default=True,
    type=click.IntRange(min=3),
    help="Maximum number of training tokens to count n-grams in.",
)
@click.option("--json", "json_file", type=LOCAL, help="Also write the results to this file.")
def evaluate(
    run: Path,
    folder: Path,
    split: str,
    batch_size: int,
    limit: int | None,
    ngrams: bool,
    ngram_tokens: int,
    json_file: Path | None,
) -> None:
    """Measure the loss and accuracy of a run on a data set.

    With --ngrams, the masked-LM loss is compared with Kneser-Ney bigrams and trigrams, counted in
    the training shards.
    """
    if ngrams and split == "train":
        raise click.UsageError("--ngrams counts the training examples; use --split validation.")
    from train.engine.distributed import is_main_process
    from train.pretraining.evaluate import as_table, evaluate_run
    from train.pretraining.ngram_loss import ngram_losses

    result = evaluate_run(run, folder, split=split, batch_size=batch_size, limit=limit)
    if not is_main_process():
        return
    values = result.to_dict()
    for line in as_table(result, split=split):
        click.echo(line)
    if ngrams:
        losses = ngram_losses(folder, limit=limit, max_tokens=ngram_tokens)
        values |= losses.to_dict()
        for line in losses.lines():
            click.echo(line)
    if json_file:
        json_file.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
