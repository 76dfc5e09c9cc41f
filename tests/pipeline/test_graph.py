"""The graph: what it counts, and what it makes again when files are lost on the way."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.job.graph import run_graph
from clozeline.pipeline.job.lost_files import with_files
from clozeline.pipeline.job.mixture import choose_documents
from clozeline.pipeline.job.near_steps import compare_documents, connect_documents, pair_documents
from clozeline.pipeline.job.steps import Steps
from clozeline.pipeline.job.tasks import Task, TaskShare
from clozeline.pipeline.job.workers import run_in_workers
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, TEXT, work
from tests.support.small_jobs import shard_digests

NEAR = replace(CONFIG, deduplicate="near", validation=0.0)


def counters_of(folder):
    """What the counters must be by the manifest."""
    manifest = read_manifest(folder)
    dropped = {f"dropped_{reason}": number for reason, number in manifest.dropped.items()}
    examples = sum(shard.rows for shard in manifest.shards)
    counts = {name: number for name, number in manifest.counts.items() if name != "repeat"}
    return +Counter({**counts, **dropped, "examples": examples})


def rejecting(folder, config=NEAR):
    """A job over copies, bad lines and short documents."""
    lines = [json.dumps({"text": text}) for text in TEXT.split("\n\n")]
    (folder / "a.jsonl").write_text("\n".join([*lines, *lines[:9], "{no json", '{"text": "a"}']))
    return shards(folder, replace(config, max_rejected=0.5), source="a.jsonl")


def test_the_counters_are_the_counts_of_the_manifest(tmp_path):
    blocks, context = work(tmp_path, NEAR, text=TEXT + "\n\n" + TEXT[:3000])
    for _ in range(2):  # then everything is there
        assert run_graph(context.reading(blocks)).counters == counters_of(context.out_dir)
    assert counters_of(context.out_dir)["dropped_duplicate_document"] > 0


def test_the_counters_of_all_workers_are_added_up(tmp_path):
    blocks, context = work(tmp_path, NEAR)
    assert len(blocks) > 3
    two = run_in_workers(context.reading(blocks), workers=2)
    assert two.counters == counters_of(context.out_dir)


def test_the_counters_of_a_job_stand_in_its_report(tmp_path):
    rejecting(tmp_path)
    found = json.loads((tmp_path / "out" / "job.json").read_bytes())["counters"]
    assert found == counters_of(tmp_path / "out")
    assert found["rejected"] == 1


def test_a_worker_without_a_block_builds_shards(tmp_path):
    """Else the second task would leave its shards undone."""
    blocks, context = work(tmp_path, block_bytes=1 << 20)
    assert len(blocks) == 1
    context = context.reading(blocks)
    run_in_workers(context, workers=4)
    whole = shard_digests(context.out_dir)
    assert len(whole) == 4
    (context.out_dir / MANIFEST).unlink()
    run_graph(context, TaskShare(Task(1, 2), 0.0))
    assert shard_digests(context.out_dir) == whole


@pytest.fixture(scope="module")
def curated(tmp_path_factory):
    """The steps of a finished job whose token cache has a file of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clozeline.pipeline.job.token_cache.MAX_FILES", 3)
        folder = tmp_path_factory.mktemp("curated")
        blocks, context = work(folder, NEAR, text=TEXT + "\n\n" + TEXT[:3000], block_bytes=600)
        named = [replace(block, share="all", tokens=2000) for block in blocks]
        context = context.reading(named)
    run_graph(context)
    return Steps(context)


LOST = {
    "tokens merged": lambda steps: steps.build_shard(0),
    "merged": lambda steps: steps.build_shard(1),
    "drops": lambda steps: steps.build_shard(2),
    "edges pairs words": lambda steps: connect_documents(steps.context),
    "pairs near": lambda steps: compare_documents(steps.context, 0),
    "near": lambda steps: pair_documents(steps.context, 0),
    "words": lambda steps: compare_documents(steps.context, 0),
    "mixed": lambda steps: choose_documents(steps.context),
}


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
@pytest.mark.parametrize("lost", LOST)
def test_a_file_of_the_token_cache_that_is_lost_is_made_again(curated, lost, damage):
    context = curated.context
    suffixes = tuple(f".{name}" for name in lost.split())
    files = [path for path in context.cache_dir.iterdir() if path.name.endswith(suffixes)]
    assert files
    whole = shard_digests(context.out_dir)
    for path in files:
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(data[:-5])
        else:
            path.write_bytes(bytes([*data[:40], *(byte ^ 1 for byte in data[40:])]))
    for record in context.cache_dir.glob("*.shard.json"):
        record.unlink()
    steps = Steps(context)
    with_files(steps, lambda: LOST[lost](steps))
    run_graph(context)
    assert shard_digests(context.out_dir) == whole


def test_a_job_without_text_ends_in_one_line(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="there is no document in the sources"):
        shards(tmp_path, options=replace(OPTIONS, workers=2), source="empty.jsonl")
