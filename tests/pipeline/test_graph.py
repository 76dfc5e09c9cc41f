"""The graph: what it counts, what it makes again, and which options of Beam it takes."""

import json
import pickle
import re
import shutil
import sys
import uuid
from collections import Counter
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import apache_beam as beam
import pytest
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from clozeline.pipeline.commandline.beam_options import closed_client, make_pipeline
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.curation.near.steps import (
    compare_documents,
    connect_documents,
    pair_documents,
)
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.job.graph import All, data_set, run_graph
from clozeline.pipeline.job.options import Task
from clozeline.pipeline.job.tasks import TaskShare
from clozeline.pipeline.job.workers import run_in_workers
from clozeline.pipeline.steps.stages import with_files
from clozeline.pipeline.steps.steps import Steps
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, TEXT, work
from tests.support.command import invoke, output_of, refused
from tests.support.files import times
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import ROOT, shard_digests

NEAR = replace(CONFIG, deduplicate="near", validation=0.0)


def counters_of(folder):
    """What the counters must be by the manifest."""
    manifest = read_manifest(folder)
    dropped = {f"dropped_{reason}": number for reason, number in manifest.dropped.items()}
    examples = sum(shard.rows for shard in manifest.shards)
    counts = {name: number for name, number in manifest.counts.items() if name != "repeat"}
    return +Counter({**counts, **dropped, "examples": examples})


def test_the_counters_of_all_workers_add_up_to_the_counts_of_the_manifest(tmp_path):
    blocks, context = work(tmp_path, NEAR, text=TEXT + "\n\n" + TEXT[:3000])
    assert len(blocks) > 3
    two = run_in_workers(context.reading(blocks), workers=2)
    again = run_graph(context.reading(blocks))  # then everything is there
    assert two.counters == again.counters == counters_of(context.out_dir)
    assert two.counters["dropped_duplicate_document"] > 0


def test_the_counters_of_a_job_stand_in_its_report(tmp_path):
    lines = [json.dumps({"text": text}) for text in TEXT.split("\n\n")]
    lines += [*lines[:9], "{no json", '{"text": "a"}']  # copies, a bad line, a short document
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    shards(tmp_path, replace(NEAR, max_rejected=0.5), source="a.jsonl")
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
    """The context of a finished job whose token cache has a file of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clozeline.pipeline.steps.token_cache.MAX_FILES", 3)
        folder = tmp_path_factory.mktemp("curated")
        blocks, context = work(folder, NEAR, text=TEXT + "\n\n" + TEXT[:3000])
        named = [replace(block, share="all", tokens=2000) for block in blocks]
        context = context.reading(named)
    run_graph(context)
    return context


LOST = {
    "tokens merged": lambda steps: steps.build_shard(0),
    "merged": lambda steps: steps.build_shard(1),
    "drops": lambda steps: steps.build_shard(2),
    "edges pairs words": lambda steps: connect_documents(steps.context.near),
    "pairs near": lambda steps: compare_documents(steps.context.near, 0),
    "near": lambda steps: pair_documents(steps.context.near, 0),
    "words": lambda steps: compare_documents(steps.context.near, 0),
    "mixed": lambda steps: steps.choose_documents(),
}


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
@pytest.mark.parametrize("lost", LOST)
def test_a_file_of_the_token_cache_that_is_lost_is_made_again(curated, lost, damage, tmp_path):
    copy = shutil.copytree(curated.out_dir.parent, tmp_path / "copy")
    context = replace(curated, out_dir=copy / "out", cache_dir=copy / "cache")
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
    for shard in context.out_dir.glob("*.arrow"):
        shard.unlink()
    for bucket in range(len(context.buckets)):
        with_files(steps, partial(steps.build_shard, bucket))
    assert shard_digests(context.out_dir) == whole


def test_a_job_without_text_ends_in_one_line(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="there is no document in the sources"):
        shards(tmp_path, options=replace(OPTIONS, workers=2), source="empty.jsonl")


# --- What follows `--`: what Beam would ignore, or wait for in vain, is one line at once ----------
PORTABLE = "--runner=PortableRunner"


@pytest.fixture
def small_sources(tmp_path):
    """The arguments of a job."""
    (tmp_path / "text.txt").write_text(TEXT)
    small_tokenizer(PUNKT).save(tmp_path / "tokenizer")
    folders = ("--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out")
    return ("shards", tmp_path / "text.txt", *folders)


@pytest.mark.parametrize(
    ("beam_args", "message"),
    [
        (["--flink_mster=host:8081"], "neither Beam nor the runner knows --flink_mster=host:8081;"),
        (["--nonsense", "1", "--job_name=mine"], "neither .* runner knows --nonsense 1;"),
        ([PORTABLE, "--job_endpoint=embed", "stray"], "neither Beam nor the runner knows stray;"),
        (["--runner=nowhere.to.be.Found"], "the runner cannot be .* module named 'nowhere'"),
        (["--direct_running_mode=multi_processing"], ".*=multi_processing opens servers.*--worker"),
        (["--direct_running_mode=multi_threading"], ".*=multi_threading opens servers"),
        (["--direct_num_workers=2"], "--direct_num_workers=2 starts no other .*--workers 2"),
    ],
)
def test_what_cannot_be_used_is_named_before_any_work_begins(beam_args, message):
    with pytest.raises(InputError, match=f"^{message}"):
        make_pipeline(beam_args)


@pytest.mark.parametrize("option", ["--runner", "--flink_master"])
def test_an_option_of_beam_before_the_dashes_is_sent_behind_them(small_sources, option):
    done = invoke(*small_sources, f"{option}=host:8081")
    assert done.exit_code == 2
    last = done.output.splitlines()[-1]
    assert last == f"Error: {option} is an option of Beam; put it after --."


def test_behind_the_dashes_help_is_that_of_beam():
    said = output_of("shards", "--", "--help")
    assert said.startswith("usage: clozeline shards ... --")
    for option in ("--runner RUNNER", "--flink_master", "--job_endpoint"):
        assert option in said


# ---- the graph as a picture ----------------------------------------------------------------------
def drawn(line, folder, *more):
    """The labels of the graph that RenderRunner draws, in their order."""
    file = folder / "graph.dot"
    said = output_of(*line, *more, "--", "--runner=RenderRunner", f"--render_output={file}")
    assert said == f"{file}\n"
    return re.findall(r'\[label="(\w+)"', file.read_text())


def test_the_picture_of_the_graph_is_the_pipeline_and_nothing_else_is_written(
    small_sources, tmp_path
):
    stages = ["Blocks", "Tokenize", "AllTokens", "Examples", "AllShards", "Manifest"]
    assert drawn(small_sources, tmp_path) == stages
    near = drawn(small_sources, tmp_path, "--deduplicate=near", f"--exclude={small_sources[1]}")
    assert near == [*stages[:2], "NearDuplicates", *stages[2:]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "graph.dot",
        "text.txt",
        "tokenizer",
    ]


def test_the_pipelines_in_the_manual_are_those_of_the_graph(tmp_path):
    _, context = work(tmp_path, NEAR)
    every = replace(context, merged=(("a", "b"),), budgets=(("a", 5),), replaces=True)
    page = (ROOT / "docs/manual/cluster.md").read_text().splitlines()
    for job in (replace(context, config=CONFIG), every):
        root = beam.Pipeline()
        data_set(root, job)
        line = " | ".join(part.full_label for part in root.transforms_stack[0].parts)
        assert line in page


def test_without_a_program_that_draws_it_is_said_how_to_do_without(
    small_sources, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    runner = ("--", "--runner=RenderRunner")
    said = refused(*small_sources, *runner, f"--render_output={tmp_path}/graph.svg")
    assert said.startswith(
        "there is no `dot`, which draws graphs; install the package graphviz, or"
    )
    assert refused(*small_sources, *runner).startswith("RenderRunner draws into a file: add --rend")


class DaskRunner(PipelineRunner):
    """As the one of Beam is named, which needs clozeline[dask]."""


def test_a_client_that_cannot_be_closed_is_logged_after_the_work(monkeypatch, caplog):
    """The default one of a `distributed` that is imported; with another runner it stays open."""
    client = Mock(close=Mock(side_effect=TimeoutError("no answer of the scheduler")))
    monkeypatch.setitem(sys.modules, "distributed", Mock(default_client=lambda: client))
    with closed_client(PortableRunner()):
        pass
    assert not client.close.called
    with closed_client(DaskRunner()):
        pass
    client.close.assert_called_once_with(timeout=5)
    assert "Dask's client was not closed" in caplog.text
    assert "TimeoutError: no answer of the scheduler" in caplog.text
    with pytest.raises(OSError, match="of the work"), closed_client(DaskRunner()):
        raise OSError("of the work")


# --- Where blocks are many, their files are merged ------------------------------------------------


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
