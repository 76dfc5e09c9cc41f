"""Where blocks are many, their files are merged: the same shards, and no more work than linear."""

import json
import os
import pickle
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.job.beam_graph import DoItem, make_pipeline, run_graph
from clozeline.pipeline.job.phases import phases, run_here
from tests.pipeline.test_steps import CONFIG, work
from tests.support.files import times
from tests.support.small_jobs import (
    COMMAND,
    articles,
    clozeline_ok,
    in_own_group,
    shard_digests,
    without_sources,
    write_tokenizer,
)


@pytest.fixture
def merging(monkeypatch):
    """A shard may read 3 files."""
    monkeypatch.setattr("clozeline.pipeline.job.token_cache.MAX_FILES", 3)


def run(blocks, context):
    """All phases, in this process."""
    context = context.reading(blocks)
    run_here(phases(blocks, context), context)


def merged_files(context):
    return times(context.cache_dir, "*.merged")


def test_merged_files_give_the_same_bytes_and_are_not_merged_again(tmp_path, monkeypatch):
    run(*work(tmp_path / "few"))
    monkeypatch.setattr("clozeline.pipeline.job.token_cache.MAX_FILES", 3)
    blocks, context = work(tmp_path / "many", block_bytes=600)
    assert len(blocks) > 12
    reading = context.reading(blocks)
    run_graph(make_pipeline([]), phases(blocks, reading), reading)  # with Beam
    merged, shards = merged_files(context), shard_digests(context.out_dir)
    assert 1 <= len(merged) <= 3
    assert shards == shard_digests(tmp_path / "few/out")
    names = [tmp_path / name / "out" / MANIFEST for name in ("few", "many")]
    assert names[0].read_bytes() == names[1].read_bytes()
    run([*blocks, *blocks[:3]], context)  # a block that is given twice is used once
    assert shard_digests(context.out_dir) == shards
    run(blocks, replace(context, config=replace(CONFIG, seed=1)))
    assert shard_digests(context.out_dir) != shards
    assert merged_files(context) == merged


@pytest.mark.usefixtures("merging")
def test_what_beam_moves_is_linear_in_blocks_and_shards(tmp_path):
    blocks, context = work(tmp_path, replace(CONFIG, num_shards=40), block_bytes=600)
    context = context.reading(blocks)
    every = phases(blocks, context)
    assert [len(phase.items) for phase in every] == [len(blocks), 3, len(context.buckets), 1]
    for phase, following in pairwise(every):
        work_of = DoItem(context, phase, num_following=len(following.items))
        work_of.setup()
        given = [(number, None) for number in range(len(phase.items))]
        moved = [part for element in given for part in work_of.process(element)]
        assert sorted(number for number, _ in moved) == list(range(len(following.items)))
        assert max(len(pickle.dumps(element)) for element in moved) < 200


@pytest.mark.usefixtures("merging")
def test_sources_of_another_repeat_are_merged_apart(tmp_path, monkeypatch):
    blocks, context = work(tmp_path, block_bytes=600)
    mixed = [replace(block, repeat=1 + block.index % 2) for block in blocks]
    run(mixed, context)
    merged = shard_digests(context.out_dir)
    assert len(merged_files(context)) == 4
    monkeypatch.undo()
    run(mixed, context)
    assert shard_digests(context.out_dir) == merged


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_files_and_a_kill_give_the_bytes_of_one_file(tmp_path):
    """Each file is a block; two workers are killed after a fifth of them."""
    tokenizer = write_tokenizer(tmp_path / "tokenizer", articles(20))
    (tmp_path / "many").mkdir()
    lines = [
        json.dumps({"text": f"The file of number {i} is short. It was written {i % 7} times."})
        for i in range(100_000)
    ]
    for number, line in enumerate(lines):
        (tmp_path / "many" / f"{number:06}.jsonl").write_text(line)
    (tmp_path / "one.jsonl").write_text("\n".join(lines))
    options = ("--tokenizer", tokenizer, "--num-shards", 2, "--workers", 2)
    clozeline_ok("shards", tmp_path / "one.jsonl", *options, "--out", tmp_path / "one")

    out = tmp_path / "out"
    arguments = ("shards", f"{tmp_path}/many/*.jsonl", *options, "--out", out)
    with in_own_group(*COMMAND, *arguments, stderr=subprocess.DEVNULL) as job:
        while job.poll() is None and files_in(out / ".cache") < 20_000:
            with suppress(subprocess.TimeoutExpired):
                job.wait(timeout=0.2)
        os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == -signal.SIGKILL
    kept = files_in(out / ".cache")
    assert 20_000 <= kept < 100_000
    clozeline_ok(*arguments)
    assert shard_digests(out) == shard_digests(tmp_path / "one")
    manifests = [without_sources(folder / MANIFEST) for folder in (out, tmp_path / "one")]
    assert manifests[0] == manifests[1]


def files_in(folder):
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
