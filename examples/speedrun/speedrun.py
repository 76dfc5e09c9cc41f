"""Time to quality: the CPU minutes of training in which a recipe reaches held-out losses.

    python examples/speedrun/speedrun.py [RECIPE.toml] [--save-every 200] [--seed 1] [--wall]

    held-out loss   CPU minutes   wall minutes   million tokens   PFLOPs
    4.00                   60.1           31.2             15.2     ...
    recipe 3f2a..., 2,835 held-out examples of 256 tokens

A recipe is a list of stages: options of `shards` and of `pretrain`, each stage starting from the
weights of the one before. A stage may first read other shards, for a fraction of its steps:

    [[stage]]
    phase = [{ shards = { max-seq-length = 64 }, fraction = 0.6 }]
    shards = { max-seq-length = 256 }
    pretrain = { batch-size = 32, max-steps = 5000 }

    [digests]
    tokenizer = "51b0..."
    training = "77d2..."
    held-out = "9c41..."

Losses of other text cannot be compared, so a recipe says what it was measured on, by the digests
that are printed at the end; before training, any other text is refused.

The rules are the same for all: the text, the vocabulary of 16,384 and
the held-out examples of 256 tokens, which no stage trains on (the split depends on the text's hash
alone). Checkpoints are evaluated afterwards, in this process, so evaluation costs a recipe nothing;
a loss counts as reached at the first checkpoint that has it. CPU minutes are those of the
`pretrain` processes, user and system, with their start-up and checkpoints; a stage's are spread
over its steps by the time that these took.

On a GPU, --wall counts seconds of wall time instead, from the start of `pretrain`: start-up, word
vectors, compiling and checkpoints are in them, and what no step took counts before the first one.

    held-out loss   wall seconds   million tokens    PFLOPs   device
    2.60                   201.3            176.2     49.10   NVIDIA H100 80GB HBM3

The model of a stage with shorter examples may have too few positions for the held-out ones: its
checkpoints cost, and are not measured.

Finished stages are kept and an interrupted one is resumed with its CPU time so far. Where
CLOZELINE_DATA is set the text is the shared Wikipedia, else `sample:articles`.
"""

import json
import os
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.json_files import write_json
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import list_checkpoints, load_weights, step_of
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.engine.distributed import device_name, join_world
from clozeline.train.engine.flops import step_flops
from clozeline.train.engine.schedule import phase_at
from clozeline.train.evaluation.evaluate import evaluate_model
from clozeline.train.monitoring.metrics import read_metrics

DATA = os.environ.get("CLOZELINE_DATA")
ENVIRONMENT = os.environ | ({"NLTK_DATA": f"{DATA}/nltk_data"} if DATA else {})
RECIPE = Path(__file__).with_name("nano.toml")
SOURCE = f"{DATA}/wikipedia/train-*.parquet" if DATA else "sample:articles?size=20MB"
VOCABULARY, LENGTH = 16384, 256  # of the held-out examples, and of every recipe
TARGETS = (4.0, 3.75, 3.5, 3.3, 3.15)
GPU_TARGETS = (2.6, 2.3, 2.1)


@dataclass(frozen=True)
class Cost:
    """What a recipe has spent up to a checkpoint."""

    cpu: float = 0.0  # seconds of the training processes
    wall: float = 0.0  # seconds
    tokens: float = 0.0  # slots of the batches, padding included
    flops: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path, exists=True), default=RECIPE)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("work/speedrun"))
@click.option("--save-every", default=200, help="Steps between the losses that can be reached.")
@click.option("--examples", type=int, help="Measure only so many held-out examples.")
@click.option("--target", "targets", type=float, multiple=True, help="Losses to reach.")
@click.option("--seed", default=0, help="Added to the seed of every stage.")
@click.option("--wall", is_flag=True, help="Count seconds of wall time, on a GPU.")
def main(
    recipe: Path,
    folder: Path,
    save_every: int,
    examples: int | None,
    targets: tuple[float, ...],
    seed: int,
    wall: bool,
) -> None:
    """Train a recipe and print when it reaches which loss."""
    values = tomllib.loads(recipe.read_text())
    expected = values.pop("digests", {})
    if seed:
        for stage in values["stage"]:
            stage["pretrain"]["seed"] = stage["pretrain"].get("seed", 0) + seed
    folder = folder.resolve()
    held_out, training, digests = _data(folder, values["stage"], expected)
    start, spent, points = None, Cost(), []
    key = sha256(values["preset"].encode())
    for stage in values["stage"]:
        key.update(_as_text(stage))
        run = folder / f"run-{key.hexdigest()[:12]}"  # recipes share the stages they begin with
        shards = training[_as_text(stage["shards"])]
        source = ("--from", start) if start else ("--preset", values["preset"])
        phases = [
            f"{training[_as_text(phase['shards'])]}@{phase['fraction']}"
            for phase in stage.get("phase", ())
        ]
        options = [*_flags(stage["pretrain"]), *(part for p in phases for part in ("--phase", p))]
        _train(run, shards, *source, *options, "--save-every", save_every)
        costs = _costs(run, wall=wall)
        points += [(loss, spent + costs[step]) for loss, step in _losses(run, held_out, examples)]
        start, spent = run, spent + costs[max(costs)]
    print("\n".join(_table(points, targets, _device() if wall else None)))
    count = read_manifest(held_out).num_examples("validation")
    print(
        f"recipe {sha256(_as_text(values)).hexdigest()[:12]}, {examples or count:,} held-out "
        f"examples of {LENGTH} tokens\n[digests]"
    )
    for name, digest in digests.items():
        print(f'{name} = "{digest[:12]}"')


def _data(
    folder: Path, stages: list[dict[str, Any]], expected: dict[str, str]
) -> tuple[Path, dict[bytes, Path], dict[str, str]]:
    """The held-out shards, the training shards by their options, and the digests of all data."""
    tokenizer = folder / "tokenizer"
    if not (tokenizer / "tokenizer.json").exists():
        _clozeline("tokenizer", SOURCE, "--vocab-size", VOCABULARY, "--out", tokenizer)
    digests = {"tokenizer": load_tokenizer(tokenizer).digest}
    _check(digests, expected)
    held_out = _shards(folder, {"max-seq-length": LENGTH})
    parts = [part for stage in stages for part in (*stage.get("phase", ()), stage)]
    training = {_as_text(part["shards"]): _shards(folder, part["shards"]) for part in parts}
    each = [read_manifest(shards).dataset_digest for shards in training.values()]
    digests["training"] = sha256("".join(each).encode()).hexdigest()
    digests["held-out"] = read_manifest(held_out).dataset_digest
    _check(digests, expected)
    return held_out, training, digests


def _check(digests: dict[str, str], expected: dict[str, str]) -> None:
    """Exit in one line if something is not what the recipe was measured on."""
    for name, digest in digests.items():
        if not digest.startswith(wanted := expected.get(name, "")):
            sys.exit(
                f"{name}: digest {digest[:12]}, but the recipe was measured on {wanted}, so losses "
                "cannot be compared; use the text and version that the recipe names, or leave out "
                "its [digests]."
            )


def _table(
    points: list[tuple[float, Cost]], targets: tuple[float, ...], device: str | None
) -> Iterator[str]:
    """The lines of the table; with a `device`, of its wall time."""
    columns = "wall seconds" if device else "CPU minutes   wall minutes"
    yield f"held-out loss   {columns}   million tokens    PFLOPs{'   device' if device else ''}"
    for target in targets or (GPU_TARGETS if device else TARGETS):
        reached = next((cost for loss, cost in points if loss <= target), None)
        yield f"{target:<13.2f} " + (_row(reached, device) if reached else f"{'not reached':>13}")
    loss, cost = points[-1]
    yield f"{f'{loss:.3f}, end':<13} {_row(cost, device)}"


def _row(cost: Cost, device: str | None) -> str:
    spent = f"{cost.wall:14.1f}" if device else f"{cost.cpu / 60:13.1f} {cost.wall / 60:14.1f}"
    row = f"{spent} {cost.tokens / 1e6:16.1f} {cost.flops / 1e15:9.2f}"
    return f"{row}   {device}" if device else row


def _shards(folder: Path, options: dict[str, Any]) -> Path:
    """The data set with these options; one that is complete stays as it is."""
    out = folder / f"shards-{sha256(_as_text(options)).hexdigest()[:12]}"
    tokenizer = ("--tokenizer", folder / "tokenizer")
    _clozeline("shards", SOURCE, *tokenizer, "--pairs", "none", *_flags(options), "--out", out)
    return out


def _train(run: Path, shards: Path, *options: object) -> None:
    """Train a stage, or what is left of it, and add what it took to the seconds beside it."""
    seconds = _seconds(run)
    if (run / "summary.json").exists():
        return
    began, cpu = perf_counter(), _cpu_seconds()
    try:
        _clozeline(
            *("pretrain", shards, "--out", run, "--resume", *options, "--keep", 1_000_000),
            *("--eval-every", 0, "--eval-examples", 1),
        )
    finally:
        seconds["cpu"] += _cpu_seconds() - cpu
        seconds["wall"] += perf_counter() - began
        write_json(run.with_suffix(".json"), seconds)


def _seconds(run: Path) -> dict[str, float]:
    file = run.with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {"cpu": 0.0, "wall": 0.0}


def _costs(run: Path, *, wall: bool = False) -> dict[int, Cost]:
    """What a stage has cost after each of its steps.

    What no step took is spread over all of them or, of `wall` time, comes before the first.
    """
    config, lines = read_run(run), read_metrics(run)
    speeds = {line["step"]: line["slots_per_second"] for line in lines if "mlm_loss" in line}
    spent, found = Cost(), {}
    for step in range(1, step_of(list_checkpoints(run)[-1]) + 1):
        phase = phase_at(config.phases, config.training, step, spent.wall)
        rows = config.training.batch_size * phase.batch_factor
        slots = rows * phase.max_seq_length
        speed = speeds[min((logged for logged in speeds if logged >= step), default=max(speeds))]
        flops = step_flops(
            config.model,
            batch_size=rows,
            seq_len=phase.max_seq_length,
            predictions=phase.max_predictions,
            words=config.training.sampled_words,
        )
        spent += Cost(wall=slots / speed, tokens=slots, flops=flops)
        found[step] = spent
    seconds = _seconds(run)
    if wall:
        before = seconds["wall"] - spent.wall
        return {step: replace(cost, wall=before + cost.wall) for step, cost in found.items()}
    return {
        step: replace(cost, **{name: seconds[name] * cost.wall / spent.wall for name in seconds})
        for step, cost in found.items()
    }


def _losses(run: Path, held_out: Path, examples: int | None) -> Iterator[tuple[float, int]]:
    """The held-out loss of each checkpoint of a stage, and its step."""
    config, manifest = read_run(run), read_manifest(held_out)
    if config.model.max_position_embeddings < LENGTH:
        return
    with join_world() as world:
        model = BertForPretraining(config.model).to(world.device)
        for checkpoint in list_checkpoints(run):
            model.load_state_dict(load_weights(checkpoint))
            found = evaluate_model(
                model,
                evaluation_batches(held_out, batch_size=64, limit=examples),
                log_unigram=manifest.log_unigram,
                world=world,
                precision=config.training.precision,
            )
            yield found.mlm_loss, step_of(checkpoint)


def _device() -> str:
    with join_world() as world:
        return device_name(world.device)


def _flags(options: dict[str, Any]) -> list[object]:
    """Options of a command; a switch has no value."""
    flags: list[object] = []
    for name, value in options.items():
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags += [f"--{name}", value]
    return flags


def _as_text(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def _clozeline(*arguments: object) -> None:
    line = [sys.executable, "-m", "clozeline", *map(str, arguments)]
    done = subprocess.run(line, env=ENVIRONMENT, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # it has printed why


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
