"""The commands from text to shards. Each parses its options, calls once and prints the result."""

import logging
import re
from typing import Any

import click

from clozeline.pipeline.commandline.command import Command, print_next, print_next_for, sibling
from clozeline.pipeline.commandline.config_options import (
    PathOrUrl,
    config_or_usage_error,
    grouped_option,
    options_of,
)
from clozeline.pipeline.commandline.hub_model import is_hub_name
from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.errors import InputError, escaped
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import Manifest
from clozeline.pipeline.job.fork_server import fork_server
from clozeline.pipeline.job.options import JobOptions, is_drawing
from clozeline.pipeline.tokenization.options import TokenizerOptions

FOLDER = PathOrUrl()
#: Ours have no underscores.
BEAMS_OPTION = re.compile("--(runner|[a-z]+_[a-z_]+)")
#: The preset of `clozeline pretrain` without --preset, and the pairs that its recipe advises.
#: `train` has them, too, which this package does not import; a test compares the two.
DEFAULT_PRESET, ADVISED_PAIRS = "nano", "none"


@click.command(
    cls=Command,
    example='clozeline tokenizer "articles/*.parquet" --vocab-size 16384 --out work/tokenizer',
)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@grouped_option(
    "--out", required=True, type=FOLDER, help="Folder to write the tokenizer to.", group="Output"
)
@options_of(TokenizerOptions)
@grouped_option("--overwrite", is_flag=True, help="Replace an existing tokenizer.", group="Output")
def tokenizer(sources: tuple[str, ...], out: AnyPath, **options: Any) -> None:
    """Learn or adopt a vocabulary and a sentence splitter.

    Give --vocab FILE to adopt a vocabulary, or sources and --vocab-size N to learn one. Without
    NLTK's punkt_tab for the language, Punkt is trained on the sources.
    """
    config_or_usage_error(TokenizerOptions, options)
    from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer

    made = make_tokenizer(sources, out=out, **options)
    if made.warning:
        click.echo(f"warning: {made.warning}", err=True)
    for note in made.notes:
        click.echo(f"note: {escaped(note)}", err=True)
    size = f"{made.tokenizer.vocab_size:,} tokens"
    click.echo(f"{size}, {made.accents}, sentence splitter: {made.punkt}: {out}")
    words = ["shards", *(sources or ["SOURCE..."])]
    if options["text_columns"] != TokenizerOptions.text_columns:  # `shards` needs them, too
        words += (word for column in options["text_columns"] for word in ("--text-columns", column))
    print_next(*words, "--tokenizer", out, "--out", sibling(out, "shards"))


class BeamCommand(Command):
    """A command that keeps the arguments after `--` for Beam, in `ctx.obj`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.obj = args[cut + 1 :]
        if {"-h", "--help"} & {*ctx.obj}:
            logging.disable(logging.WARNING)  # Beam's, while it is imported
            from clozeline.pipeline.commandline.beam_options import beam_help

            logging.disable(logging.NOTSET)
            click.echo(beam_help())
            ctx.exit()
        given = (arg.partition("=")[0] for arg in args[:cut])
        if named := [option for option in given if BEAMS_OPTION.fullmatch(option)]:
            raise click.UsageError(f"{named[0]} is an option of Beam; put it after --.", ctx)
        return super().parse_args(ctx, args[:cut])


@click.command(
    cls=BeamCommand,
    example='clozeline shards "articles/*.parquet" --tokenizer work/tokenizer --out work/shards',
    kept="Finished blocks and shards are kept; run the same command again to continue.",
    common=(
        *("num_shards", "validation", "pairs", "max_seq_length", "masked_lm_prob", "masking"),
        *("text_columns", "deduplicate", "quality", "exclude", "workers", "overwrite", "dry_run"),
    ),
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@grouped_option(
    "--tokenizer",
    required=True,
    type=FOLDER,
    help="Folder written by `clozeline tokenizer`.",
    group="Text",
)
@grouped_option(
    "--out", required=True, type=FOLDER, help="Folder to write the data set to.", group="Output"
)
@options_of(DataConfig)
@options_of(JobOptions)
@grouped_option("--dry-run", is_flag=True, help="Print the plan and exit.", group="Output")
@click.pass_obj
def shards(
    beam_args: list[str],
    /,
    sources: tuple[str, ...],
    tokenizer: AnyPath,
    out: AnyPath,
    dry_run: bool,
    **options: Any,
) -> None:
    """Build shards of masked examples from text.

    A SOURCE is a path, glob or URL of Parquet, JSON lines, CSV, TSV, plain text, WikiExtractor
    output or a MediaWiki dump; a data set of the Hub, as hf://DATASET?split=train; or generated
    text, as sample:articles?size=250MB or sample:reviews?rows=5000.
    Any SOURCE has options, as in "a.jsonl?text=title,content&limit=1000&repeat=2"; instead of
    repeat, give tokens=50M.
    SOURCE, --out, --token-cache and --tokenizer may be URLs of any store that fsspec can open, such
    as s3://bucket/shards. Options after -- are passed to Beam.
    """
    if is_hub_name(tokenizer):
        raise InputError(
            f"{tokenizer} does not exist; check the path. For the tokenizer of a model of the Hub, "
            f"run `clozeline tokenizer --vocab {tokenizer} --out DIR`, and give DIR."
        )
    config = config_or_usage_error(DataConfig, options)
    job = config_or_usage_error(JobOptions, options)
    if not (beam_args or dry_run):
        fork_server()  # it imports Beam meanwhile
    from clozeline.pipeline.job.job import build_shards, draw, plan_job
    from clozeline.pipeline.report.dry_run import dry_run as plan_lines

    asked: dict[str, Any] = {"tokenizer": tokenizer, "out": out, "config": config, "options": job}
    if dry_run:
        if beam_args:
            raise InputError("--dry-run runs on this machine; leave out -- and what follows it.")
        planned = plan_job(sources, tokenizer, out, config, job)
        if planned.finished():
            click.echo(f"nothing to do: {out} is already complete")
            print_next_for(out)
            return
        for line in plan_lines(planned):
            click.echo(escaped(line))
        click.echo("Next: the same command without --dry-run", err=True)
        return
    if is_drawing(beam_args):
        context = plan_job(sources, tokenizer, out, config, job).context
        click.echo("\n".join(draw(context, beam_args)))
        return
    manifest, is_new = build_shards(sources, **asked, beam_args=beam_args)
    _print_shards(manifest, is_new, out)


def _print_shards(manifest: Manifest, is_new: bool, out: AnyPath) -> None:
    """What was read, dropped and written."""
    from clozeline.pipeline.curation.dropped import dropped_lines, mixture_lines

    if rejected := manifest.counts.get("rejected", 0):
        click.echo(f"warning: {rejected:,} rejected; see {out / 'rejected.jsonl'}", err=True)
    if is_new:
        for line in (*dropped_lines(manifest), *mixture_lines(manifest)):
            click.echo(escaped(line), err=True)  # it may name a source
    done = "" if is_new else "already complete: "
    number = counted(len(manifest.of_split("train")), "shard")
    examples = counted(manifest.num_examples("train"), "training example")
    click.echo(f"{done}{examples} in {number}: {out}")
    if (pairs := manifest.config.pairs) != ADVISED_PAIRS:
        click.echo(
            f"note: these are `{pairs}` pairs; the default preset of `clozeline pretrain`, "
            f"{DEFAULT_PRESET}, learns more from --pairs {ADVISED_PAIRS}.",
            err=True,
        )
    print_next_for(out)


@click.command(cls=Command, example='clozeline verify work/shards --source "articles/*.parquet"')
@click.argument("shards", metavar="SHARDS", type=FOLDER)
@grouped_option(
    "--source",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="Rebuild the examples from this text and compare them; give all sources of the shards.",
    group="Checks",
)
def verify(shards: AnyPath, sources: tuple[str, ...]) -> None:
    """Check every byte and every example of a data set.

    Exit code 1 if there are problems. --source needs space in the temporary folder (TMPDIR) for
    the tokenized text, about as much as the shards take.
    """
    from clozeline.pipeline.common.errors import CheckFailedError
    from clozeline.pipeline.dataset.manifest import read_manifest
    from clozeline.pipeline.verify.verify import summary
    from clozeline.pipeline.verify.verify import verify as verify_dataset

    findings = verify_dataset(shards, sources)
    for finding in findings:
        click.echo(escaped(finding), err=True)
    if findings:
        raise CheckFailedError(
            f"{counted(len(findings), 'problem')} in {shards}. Rerun `clozeline shards` with "
            "--overwrite, or delete the damaged files and rerun it."
        )
    click.echo(escaped(summary(read_manifest(shards), sources)))
    print_next_for(shards)
