"""Where blocks are many, their files are merged: the same shards, and no more work than linear."""

import json
import os
import pickle
import signal
import subprocess
import uuid
from contextlib import suppress
from dataclasses import replace

import apache_beam as beam
import pytest

from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.job.graph import All, run_graph
from clozeline.pipeline.job.workers import run_in_workers
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
    monkeypatch.setattr("clozeline.pipeline.steps.token_cache.MAX_FILES", 3)


def run(blocks, context):
    """The graph, in this process."""
    run_graph(context.reading(blocks))


def merged_files(context):
    return times(context.cache_dir, "*.merged")


def test_merged_files_give_the_same_bytes_and_are_not_merged_again(tmp_path, monkeypatch):
    run(*work(tmp_path / "few"))
    monkeypatch.setattr("clozeline.pipeline.steps.token_cache.MAX_FILES", 3)
    blocks, context = work(tmp_path / "many", block_bytes=600)
    assert len(blocks) > 12
    run_in_workers(context.reading(blocks), workers=2)
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


class Moved(beam.DoFn):
    """Notes the size of each element that goes through, in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def process(self, element):
        (self.folder / uuid.uuid4().hex).write_bytes(pickle.dumps(element))
        yield element


@pytest.mark.usefixtures("merging")
def test_what_beam_moves_is_linear_in_blocks_and_shards(tmp_path, monkeypatch):
    """An element for each block, merged file and shard, and none for a block and a shard."""
    blocks, context = work(tmp_path, replace(CONFIG, num_shards=40), block_bytes=600)
    context, moved = context.reading(blocks), tmp_path / "moved"
    moved.mkdir()
    expand = All.expand

    def noted(self, before):
        after = expand(self, before)
        return after | "Noted" >> beam.ParDo(Moved(moved))

    monkeypatch.setattr(All, "expand", noted)
    run_graph(context)
    elements = [path.read_bytes() for path in moved.iterdir()]
    assert len(elements) == len(blocks) + 3 + len(context.buckets) + 1 + 4  # and 4 empty ones
    assert max(map(len, elements)) < 700  # a block, or the names of a few files


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
