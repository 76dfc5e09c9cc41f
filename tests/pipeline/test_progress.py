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
from clozeline.pipeline.job.graph import replace_data_set
from clozeline.pipeline.job.out_folder import begin_job
from clozeline.pipeline.job.progress import Progress, show_progress
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import write_cache_file
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, build, work
from tests.pipeline.test_token_cache import tokenized
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import articles, clozeline_ok, write_parquet, write_tokenizer


def finish_block(context, block):
    """The token cache file of a block of one document."""
    chunks, size = [(tokenized([[[[7, 8]]]]), Counts())], context.vocab_size
    write_cache_file(context.cache_path(block), chunks, buckets=context.buckets, vocab_size=size)


def test_finished_blocks_are_counted(tmp_path):
    blocks, context = work(tmp_path)
    progress = Progress(blocks, context)
    seen = []
    for block in blocks[:3]:
        progress.poll()
        seen.append(progress.done_bytes)
        finish_block(context, block)
    progress.poll()
    sizes = [block.text_bytes for block in blocks]
    assert seen == [0, sizes[0], sum(sizes[:2])]
    assert progress.done_bytes == sum(sizes[:3])
    words = re.fullmatch(rf"blocks 3/{len(blocks)}, peak memory ([0-9.]+) GB", progress.as_text())
    assert words
    assert float(words[1]) == pytest.approx(progress.peak_memory / 1e9, abs=0.01)


def test_only_files_of_this_job_are_counted(tmp_path):
    blocks, context = work(tmp_path)
    build(blocks, context)
    (context.out_dir / "train-00009-of-00099.arrow").touch()
    (context.cache_dir / "another.tokens").touch()
    progress = Progress(blocks, context)
    progress.poll()
    assert progress.done_bytes == sum(block.text_bytes for block in blocks)
    assert progress.done_shards == progress.shards
    assert len(progress.shards) == len(context.buckets)


def test_a_block_is_finished_when_all_its_files_are_there(tmp_path):
    """A kept token cache of a job without the search for near-duplicates has one of three."""
    blocks, context = work(tmp_path, replace(CONFIG, deduplicate="near"))
    finish_block(context, blocks[0])
    progress = Progress(blocks, context)
    progress.poll()
    assert progress.done_bytes == 0
    Steps(context).tokenize_block(blocks[0])
    progress.poll()
    assert progress.done_bytes == blocks[0].text_bytes


def test_shards_of_the_data_set_that_is_replaced_are_not_counted(tmp_path):
    build(*work(tmp_path))
    blocks, context = work(tmp_path, replace(CONFIG, min_characters=5))
    steps = Steps(begin_job(context.reading(blocks), small_tokenizer(PUNKT)))
    progress = Progress(blocks, steps.context)
    assert progress.shards <= {path.name for path in context.out_dir.iterdir()}
    for block in blocks:
        progress.poll()
        assert not progress.done_shards
        steps.tokenize_block(block)
    replace_data_set(steps, "")
    progress.poll()
    assert progress.done_bytes == sum(block.text_bytes for block in blocks)
    assert not progress.done_shards
    steps.build_shard(0)
    progress.poll()
    assert progress.done_shards == {context.shard_path(0).name}


def test_text_that_an_earlier_job_read_is_not_part_of_the_speed(tmp_path):
    options = replace(OPTIONS, token_cache=tmp_path / "cache")
    speeds = []
    for seed in (0, 1):
        out = tmp_path / f"out{seed}"
        shards(tmp_path, replace(CONFIG, seed=seed), options, out=out)
        speeds.append(json.loads((out / "job.json").read_bytes())["megabytes_per_second"])
    assert speeds[0] > speeds[1] == 0


def test_the_last_line_shows_that_everything_is_done(tmp_path):
    blocks, context = work(tmp_path)
    progress, terminal = Progress(blocks, context), io.StringIO()
    with click.Context(click.Command("shards")), show_progress(progress, terminal):
        build(blocks, context)
    shown = terminal.getvalue()
    assert f"blocks {len(blocks)}/{len(blocks)}" in shown
    assert f"{len(context.buckets)}/{len(context.buckets)}" in shown


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
