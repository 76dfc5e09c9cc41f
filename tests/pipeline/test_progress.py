"""The progress shows what is finished, and the job file what it cost."""

import io
import json
import mmap
import re
import time
from dataclasses import replace

import click
import pytest

from clozeline.pipeline.common.counts import Counts, StageTimer, tree_memory
from clozeline.pipeline.job.progress import Progress
from clozeline.pipeline.job.workers import run_in_workers
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import write_cache_file
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, work
from tests.pipeline.test_token_cache import tokenized
from tests.support.small_jobs import articles, clozeline_ok, write_parquet, write_tokenizer


def test_the_bars_show_what_workers_have_done_and_their_memory(tmp_path):
    blocks, context = work(tmp_path)
    context = context.reading(blocks)
    Steps(context).tokenize_block(blocks[0])
    progress = Progress(context)
    assert progress.sizes == [0, *(block.text_bytes for block in blocks[1:])]
    progress.terminal = io.StringIO()
    with click.Context(click.Command("shards")):
        run_in_workers(context, workers=2, progress=progress)
    tokenizing, building = progress.terminal.getvalue().splitlines()[-2:]
    words = re.fullmatch(r"tokenizing: 100% .* peak memory ([0-9.]+) GB\]", tokenizing)
    assert 0.05 < float(words[1]) <= progress.peak_memory / 1e9 + 0.01
    assert f" {len(context.buckets)}/{len(context.buckets)} " in building


def test_a_block_is_tokenized_when_all_its_files_are_there(tmp_path):
    """A kept token cache of a job without the search for near-duplicates has one of three."""
    blocks, context = work(tmp_path, replace(CONFIG, deduplicate="near"))
    context = context.reading(blocks)
    chunks, size = [(tokenized([[[[7, 8]]]]), Counts())], context.vocab_size
    path, buckets = context.cache_path(blocks[0]), context.buckets
    write_cache_file(path, chunks, buckets=buckets, vocab_size=size)
    assert Progress(context).sizes[0] == blocks[0].text_bytes
    Steps(context).tokenize_block(blocks[0])
    assert Progress(context).sizes[0] == 0


def test_text_that_an_earlier_job_read_is_not_part_of_the_speed(tmp_path):
    options = replace(OPTIONS, token_cache=tmp_path / "cache")
    speeds = []
    for seed in (0, 1):
        out = tmp_path / f"out{seed}"
        shards(tmp_path, replace(CONFIG, seed=seed), options, out=out)
        speeds.append(json.loads((out / "job.json").read_bytes())["megabytes_per_second"])
    assert speeds[0] > speeds[1] == 0


def test_memory_counts_this_process_and_those_below_it():
    before = tree_memory()
    # Pages of its own: an array may be laid into memory that an earlier test has given back.
    with mmap.mmap(-1, 200_000_000) as held:
        held.write(bytes(len(held)))
        assert tree_memory() - before > 0.9 * len(held)


def test_the_stages_of_a_job_stand_in_its_report(tmp_path):
    texts = articles(60)
    source = write_parquet(tmp_path / "a.parquet", texts)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    line = ("--tokenizer", tokenizer, "--out", tmp_path / "out", "--workers=1")
    clozeline_ok("shards", source, *line)
    job = json.loads((tmp_path / "out" / "job.json").read_bytes())
    named = {"read", "documents", "sentences", "tokens", "token cache", "pairs", "masks", "shards"}
    assert named | {"counting", "curation"} == set(job["stages"])
    assert 0 < sum(job["stages"].values()) <= job["cpu_seconds"]
    assert 50 < job["peak_memory_megabytes"] < 2000


def test_a_stage_counts_the_work_of_its_thread_and_no_waiting():
    watch = StageTimer()

    def work_a_little():
        for _ in range(3):
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            yield

    for _ in watch.each("making", work_a_little()):
        with watch.stage("using"):
            pass
    assert watch.seconds["making"] == pytest.approx(0.06, rel=0.2)
    assert watch.seconds["using"] < 0.01


def test_a_stage_that_fails_is_counted_too():
    watch = StageTimer()
    with pytest.raises(ValueError, match="bad"), watch.stage("work"):
        raise ValueError("bad")
    assert "work" in watch.seconds
