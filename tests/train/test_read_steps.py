"""`clozeline inspect RUN`: the examples behind a step are those that the loader yields."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.data.batch import collate
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import RankSlice
from clozeline.train.pretraining.pretrain import pretrain
from clozeline.train.report.read_steps import ReadSteps, parse_steps
from tests.pipeline.test_curation_job import CONFIG as JOB
from tests.pipeline.test_curation_job import build, make
from tests.support.command import output_of
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_jobs import articles
from tests.support.small_training import go_back, preset_of, train
from tests.train.test_loader import rows_of

BATCH, STEPS = 12, 12  # of 57 examples: more than two epochs
ROWS = (20, 0, 37)


def trained(folder: Path, shards: Path, **changes: Any) -> Path:
    """A run with a checkpoint at step 9 and the metrics of every second step."""
    options = {"batch_size": BATCH, "max_steps": STEPS, "seed": 3, "log_every": 2} | changes
    train(shards, folder, save_every=9, **options)
    return go_back(folder, 9)


def batches(shards: Path, ranks: int = 1, **changes: object) -> list[tuple]:
    """Each step's batch, as the parts of the ranks."""
    known = {name: changes[name] for name in ("length_bins", "masked_lm_prob") if name in changes}
    options = {"batch_size": BATCH, "seed": 3, "prefetch": 0, "world_size": ranks, **known}
    loaders = [iter(Loader(shards, rank=rank, **options)) for rank in range(ranks)]
    return [tuple(next(loader) for loader in loaders) for _ in range(STEPS)]


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        ("segments", {}),
        ("segments", {"masked_lm_prob": 0.5}),
        ("segments", {"length_bins": 2}),
        ("segments", {"micro_batch_size": 3}),
        ("packed", {}),
    ],
    ids=["redrawn", "another rate", "bins", "accumulated", "packed"],
)
def test_the_examples_of_a_step_are_those_of_the_loader(tmp_path, pairs, changes):
    """Masks and order, also across the ends of epochs and after the last checkpoint."""
    config = replace(SMALL, pairs=pairs)
    shards = write_data_set(tmp_path / "shards", train=ROWS, config=config)
    read = ReadSteps(trained(tmp_path / "run", shards, **changes), shards)
    assert read.last_step == STEPS
    for ranks in (1, 2):
        of_loader = batches(shards, ranks, **changes)
        for step in (1, 4, 5, 9, 10, 12):
            start, _, examples = read.rows(step)
            assert start == BATCH * (step - 1)
            for rank, part in enumerate(of_loader[step - 1]):
                positions = RankSlice(BATCH, rank, ranks).positions(np.array([start]))[0]
                found = collate(
                    examples,
                    positions - start,
                    max_seq_length=part.batch.input_ids.shape[1],
                    max_predictions=part.batch.masked_lm_positions.shape[1],
                    pad_id=read.shards.pad_id,
                )
                assert rows_of([replace(part, batch=found)]) == rows_of([part])


@pytest.fixture
def shards(tmp_path):
    return write_data_set(tmp_path / "shards", train=ROWS)


def test_a_run_that_read_other_examples_is_named(shards, tmp_path):
    run = trained(tmp_path / "run", shards)
    (run / "metrics.jsonl").write_text('{"step": 4, "data_digest": "0123456789abcdef"}\n')
    read = ReadSteps(run, shards)
    assert read.rows(3)[0] == 24
    with pytest.raises(InputError, match="at step 4 other examples were read"):
        read.rows(4)
    other = write_data_set(tmp_path / "other", train=(20, 30))
    with pytest.raises(InputError, match="is not the data set that"):
        ReadSteps(run, other)


@pytest.mark.parametrize("text", ["", "a", "5-", "0-3", "9-5", "1-99", "-3"])
def test_steps_that_a_run_does_not_have(text):
    with pytest.raises(InputError, match="--steps is"):
        parse_steps(text, 1, 12)


def test_a_run_has_no_steps_before_those_that_it_was_cooled_down_from(shards, tmp_path):
    """The other run read those, here in smaller batches."""
    run = tmp_path / "run"
    train(shards, run, schedule="constant", warmup=0.0)
    more = {"schedule": "cool-down", "max_steps": 10, "batch_size": 16}
    pretrain(shards, out=tmp_path / "out", from_=f"{run}@8", **more)
    read = ReadSteps(tmp_path / "out", shards)
    assert (read.first_step, read.last_step) == (9, 10)
    assert [read.rows(step)[0] for step in (9, 10)] == [64, 80]
    with pytest.raises(InputError, match="the run has steps 9 to 10"):
        parse_steps("8", read.first_step, read.last_step)


def test_the_command_shows_examples_and_the_hashes_of_their_documents(tmp_path):
    context = make(tmp_path / "work", JOB, articles(40))
    build(context)
    run = trained(tmp_path / "run", context.out_dir, model=preset_of(context.out_dir))
    shards = f"--shards={context.out_dir}"
    lines = output_of("inspect", run, "--steps=2-3", "-n2", shards).splitlines()
    assert lines[0].startswith("step 2: positions 12 to 23, epoch 0, 12 examples of ")
    sources = [line for line in lines if line.startswith("  from ")]
    assert len(sources) == 4
    hashes = {found for line in sources for found in line.replace(",", "").split()[1:]}
    entries = read_manifest(context.out_dir).of_split("train")
    parts = [read_shard(context.out_dir / entry.name) for entry in entries]
    known = {x for part in parts for x in (*part.document_a.tolist(), *part.document_b.tolist())}
    assert hashes <= {f"{x:016x}" for x in known}
    for wrong in ([run, "--steps=1"], [run, shards], [run, f"--shards={run}", "--steps=1"],
                  [run, shards, "--steps=1", "--document=12"], [context.out_dir, "--steps=1"],
                  [run, shards, "--steps=1", "--seed=5"]):  # fmt: skip
        output_of("inspect", *wrong, code=2)
