"""Pretraining objectives and architectures at equal compute, by what a classifier gains from them.

    python tests/benchmarks/objectives.py FOLDER [--steps 500] [--batch-size 128] [--labels 1000]
        [--seeds 3] [--source SOURCE ...] [--train FILE --test FILE --text COLUMNS]
        [--only NAME ...]

Each row is pretrained from scratch on shards of 64 tokens, for as many steps as cost the floating-
point operations of `--steps` steps of the first row (counted by `clozeline.train.engine.flops`).
Then each pooling is fine-tuned on `--labels` rows with `--seeds` seeds at its own searched learning
rate. Everything else is the preset's recipe; rows "by its recipe" have its rate for `--batch-size`,
its first embeddings and its sample of words, too.
Stages that FOLDER already has are not repeated, so an interrupted comparison continues.

Where CLOZELINE_DATA is set the text is that of the Amazon and IMDB training reviews and the labels
are Amazon's, else `sample:reviews`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from clozeline.model.config import preset as preset_config
from clozeline.train.engine.flops import step_flops
from clozeline.train.pretraining.recipes import recipe_of
from tests.support.measuring import DATA
from tests.support.small_jobs import clozeline

LENGTH = 64
SOURCES = (
    (
        f"{DATA}/amazon_polarity/train-*.parquet?text=title,content",
        f"{DATA}/imdb/train-*.parquet",
    )
    if DATA
    else ("sample:reviews?rows=24000",)
)
TRAIN, TEST = (
    (f"{DATA}/amazon_polarity/train-*.parquet", f"{DATA}/amazon_polarity/test-*.parquet")
    if DATA
    else ("sample:reviews?rows=4000&start=100000", "sample:reviews?rows=2000&start=200000")
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of the table: an architecture, an objective, and what is read off the states."""

    name: str
    preset: str = "nano"
    pairs: str = "none"
    masked_lm_prob: float = 0.15
    masking: str = "tokens"
    optimizer: str = "adamw"
    learning_rate: float = 1.4e-3
    by_recipe: bool = False  # optimizer, rate, first embeddings and sample are those of the recipe
    poolings: tuple[str, ...] = ("mean",)

    @property
    def numbers(self) -> tuple[object, ...]:
        if self.by_recipe:
            return ()
        return (
            *("--optimizer", self.optimizer, "--learning-rate", self.learning_rate),
            *("--no-word-vectors", "--sampled-words", 0),
        )

    @property
    def predictions(self) -> int:
        """Slots for masked tokens of an example, as `shards` has by default."""
        return -int(-LENGTH * self.masked_lm_prob // 1)

    def flops_per_example(self, vocab_size: int) -> float:
        """Floating-point operations of an example in training."""
        config = replace(preset_config(self.preset), vocab_size=vocab_size)
        words = int(recipe_of(self.preset)["sampled_words"].value) if self.by_recipe else 0
        return step_flops(
            config,
            batch_size=1,
            seq_len=LENGTH,
            predictions=self.predictions,
            words=words,
        )


BASE = Variant(name="masked LM, 15 %")
BOTH = ("mean", "cls")
VARIANTS = (
    replace(BASE, poolings=BOTH),
    replace(BASE, name="masked LM, 30 %", masked_lm_prob=0.3),
    replace(BASE, name="masked LM, 40 %", masked_lm_prob=0.4),
    replace(BASE, name="masked LM, Muon", optimizer="muon"),
    replace(BASE, name="masked LM, whole words", masking="whole-words"),
    replace(BASE, name="masked LM + next sentence", pairs="segments", poolings=BOTH),
    replace(BASE, name="masked LM + sentence order", pairs="order", poolings=BOTH),
    replace(BASE, name="masked LM, modern-nano", preset="modern-nano", learning_rate=7.1e-4),
    *(
        Variant(name=f"masked LM, {name} by its recipe", preset=name, by_recipe=True)
        for name in ("nano", "bert-mini", "modern-mini")
    ),
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--steps", default=500, help="Steps of nano whose compute every row gets.")
@click.option("--batch-size", default=128)
@click.option("--labels", default=1000)
@click.option("--seeds", default=3)
@click.option("--source", "sources", multiple=True, default=SOURCES)
@click.option("--train", default=TRAIN)
@click.option("--test", default=TEST)
@click.option("--text", default="title,content")
@click.option("--vocab-size", default=8192)
@click.option("--only", multiple=True, type=click.Choice([row.name for row in VARIANTS]))
def main(
    folder: Path,
    steps: int,
    batch_size: int,
    labels: int,
    seeds: int,
    sources: tuple[str, ...],
    train: str,
    test: str,
    text: str,
    vocab_size: int,
    only: tuple[str, ...],
) -> None:
    """Compare objectives and architectures at equal compute."""
    folder = folder.resolve()
    tokenizer = folder / "tokenizer"
    if not (tokenizer / "tokenizer.json").exists():
        command("tokenizer", *sources, "--vocab-size", vocab_size, "--out", tokenizer)
    budget = BASE.flops_per_example(vocab_size) * steps
    labelled = [train, "--test", test, "--text", text, "--max-examples", labels, "--seeds", seeds]
    print("| objective | steps | masked-LM loss | NSP or order | pooling | accuracy |")
    print("|---|---:|---:|---:|---|---:|", flush=True)
    for row in VARIANTS:
        if not only or row.name in only:
            equal_steps = round(budget / row.flops_per_example(vocab_size))
            run = pretrained(row, folder, sources, steps=equal_steps, batch_size=batch_size)
            for pooling in row.poolings:
                report = fine_tuned(run, pooling, labelled)
                print(line(row, run, pooling, report), flush=True)
    if (report_file := folder / "nano-adamw-none-15-tokens" / "mean" / "report.json").exists():
        report = json.loads(report_file.read_text())
        for start, name in (
            ("from_scratch", "nano from scratch"),
            ("bag_of_words", "bag-of-words"),
        ):
            print(f"{name}: {spread(report, start)}")


def pretrained(
    row: Variant, folder: Path, sources: Sequence[str], *, steps: int, batch_size: int
) -> Path:
    """The run of a row, trained if it was not yet."""
    objective = f"{row.pairs}-{round(100 * row.masked_lm_prob)}-{row.masking}"
    data = folder / f"shards-{objective}"
    run = folder / f"{row.preset}-{'recipe' if row.by_recipe else row.optimizer}-{objective}"
    command(
        "shards", *sources, "--tokenizer", folder / "tokenizer", "--out", data,
        "--token-cache", folder / "cache", "--max-seq-length", LENGTH, "--pairs", row.pairs,
        "--masked-lm-prob", row.masked_lm_prob, "--masking", row.masking, "--workers", 1,
    )  # fmt: skip
    command(
        "pretrain", data, "--out", run / "run", "--preset", row.preset, "--dropout", 0,
        *row.numbers, "--batch-size", batch_size, "--max-steps", steps, "--eval-every", 0,
        "--save-every", 100, "--keep", 1, "--resume",
    )  # fmt: skip
    return run


def fine_tuned(run: Path, pooling: str, labelled: Sequence[object]) -> dict[str, Any]:
    out = run / pooling
    is_base = run.name == "nano-adamw-none-15-tokens" and pooling == "mean"
    scratch = ["--from-scratch"] if is_base else ["--no-baseline"]
    command(
        "finetune", run / "run", *labelled, "--pooling", pooling, "--out", out, "--resume", *scratch
    )
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def command(*arguments: object) -> None:
    """Run a command of ours; one that fails ends the comparison with its last line."""
    done = clozeline(*arguments)
    if done.returncode:
        raise click.ClickException(done.stderr.strip().splitlines()[-1].removeprefix("Error: "))


def line(row: Variant, run: Path, pooling: str, report: dict[str, Any]) -> str:
    summary = json.loads((run / "run" / "summary.json").read_text())
    heldout = summary["heldout"]
    pair = f"{heldout['nsp_accuracy']:.1%}" if "nsp_accuracy" in heldout else ""
    accuracy = spread(report, "pretrained")
    return (
        f"| {row.name} | {summary['step']:,} | {heldout['mlm_loss']:.3f} | {pair} | {pooling} "
        f"| {accuracy} |"
    )


def spread(report: dict[str, Any], start: str) -> str:
    """Mean and standard deviation over the seeds, in percent."""
    [point] = [point for point in report["label_efficiency"] if point["start"] == start]
    return f"{100 * point['mean']:.1f} ± {100 * point['deviation']:.1f}"


if __name__ == "__main__":
    main()
