"""The same text and config give the same bytes, however and wherever they are worked on.

The corpus is small, but every part of it counts: several files, several blocks a file, documents
that stand twice, held-out documents.
"""

import gzip
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from tests.support.command import output_of
from tests.support.files import times
from tests.support.small_jobs import (
    articles,
    clozeline_in_turn,
    in_own_group,
    shard_digests,
    without_sources,
    write_parquet,
    write_tokenizer,
)
from tests.support.waiting import free_port

FN_API = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
RUNNERS = {
    "one worker": (),
    "two workers": (),
    "portable": ("--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"),
}
DASK = "--runner=DaskRunner"
IN_MEMORY = (FN_API, "--direct_running_mode=in_memory")
#: None of these may change the token cache.
AFTER_TOKENIZING = (
    "--pairs=sentences", "--masking=whole-words", "--masked-lm-prob=0.2", "--max-seq-length=48",
    "--dupe-factor=2", "--seed=7", "--format=webdataset",
)  # fmt: skip


@dataclass(frozen=True)
class Corpus:
    """Documents, the files that hold them, and a finished data set of them."""

    texts: list[str]
    files: list[Path]
    tokenizer: Path
    finished: Path

    def line(self, out, *options, sources=(), runner=IN_MEMORY):
        """The arguments of the job."""
        fixed = ("--num-shards=3", "--validation=0.2", "--max-seq-length=64", *options)
        files = sources or self.files
        return [*files, "--tokenizer", self.tokenizer, "--out", out, *fixed, "--", *runner]

    def build(self, out, *options, **more):
        """Make a data set in this process."""
        output_of("shards", *self.line(out, *options, **more))
        return read_manifest(out)

    def check_in_turn(self, folder, jobs, *more):
        """Jobs of another process give the same bytes: by name, the runner and options of each.

        Returns exit codes and outputs of more jobs.
        """
        lines = [self.line(folder / name, *job[1:], runner=job[0]) for name, job in jobs.items()]
        done = clozeline_in_turn(*(["shards", *line] for line in [*lines, *more]))
        for name, (code, said) in zip(jobs, done, strict=False):
            assert code == 0, said
            self.assert_same_bytes(folder / name)
        return done[len(jobs) :]

    def assert_same_bytes(self, out):
        """Shards and manifest are those of the finished data set, to the last byte."""
        assert shard_digests(out) == shard_digests(self.finished)
        assert (out / MANIFEST).read_bytes() == (self.finished / MANIFEST).read_bytes()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """180 documents in 3 files, 15 of them twice; built in this process."""
    folder = tmp_path_factory.mktemp("reproducible")
    texts = articles(165)
    texts += texts[::11]
    files = [write_parquet(folder / f"{i}.parquet", texts[i * 60 : i * 60 + 60]) for i in range(3)]
    tokenizer = write_tokenizer(folder / "tokenizer", texts)
    corpus = Corpus(texts, files, tokenizer, folder / "finished")
    corpus.build(corpus.finished, "--block-bytes=20000")
    return corpus


def test_the_corpus_leaves_no_part_out(corpus):
    """Else the other tests here would prove less than they say."""
    manifest = read_manifest(corpus.finished)
    job = json.loads((corpus.finished / "job.json").read_bytes())
    assert job["blocks"] == 9
    assert manifest.dropped["duplicate_document"] == 15
    assert [shard.split for shard in manifest.shards] == ["train"] * 3 + ["validation"]
    assert all(shard.rows > 50 for shard in manifest.shards)


def test_every_runner_writes_the_same_bytes(corpus, tmp_path):
    jobs = {
        name: (runner, "--block-bytes=20000", f"--workers={2 if name == 'two workers' else 1}")
        for name, runner in RUNNERS.items()
    }
    corpus.check_in_turn(tmp_path, jobs)


@pytest.fixture(params=["clozeline-worker", pytest.param("python", marks=pytest.mark.slow)])
def worker_pool(request, tmp_path):
    """The address of a process that starts workers for whoever asks, as on a cluster.

    They are Beam's own, or the program that a PROCESS environment starts.
    """
    worker = tmp_path / "clozeline-worker"
    code = "from clozeline.pipeline.commandline.beam_worker import boot; boot()"
    worker.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
    worker.chmod(0o755)
    started = [] if request.param == "python" else [f"--container_executable={worker}"]
    port = free_port()
    module = "apache_beam.runners.worker.worker_pool_main"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with (
        in_own_group(
            *(sys.executable, "-m", module, f"--service_port={port}", *started),
            env={**os.environ, "PATH": path},  # a worker is the first `python` there
            stderr=subprocess.DEVNULL,
        ),
        grpc.insecure_channel(f"localhost:{port}") as channel,
    ):
        grpc.channel_ready_future(channel).result(timeout=60)
        yield f"localhost:{port}"


def test_an_external_pool_of_workers_writes_the_same_bytes(worker_pool, corpus, tmp_path):
    environment = ("--environment_type=EXTERNAL", f"--environment_config={worker_pool}")
    runner = ("--runner=PortableRunner", "--job_endpoint=embed", *environment)
    jobs = {"out": (runner, "--block-bytes=20000"), "texts": (runner, "--token-cache=none")}
    corpus.check_in_turn(tmp_path, jobs)


@pytest.fixture
def dask_cluster():
    """The address of a scheduler that has two worker processes."""
    distributed = pytest.importorskip("distributed", reason="needs clozeline[dask]")
    two = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with distributed.LocalCluster(**two, dashboard_address=None, silence_logs=False) as cluster:
        yield cluster.scheduler_address


def test_two_dask_workers_write_the_same_bytes_and_name_what_is_wrong(
    dask_cluster, corpus, tmp_path
):
    runner = (DASK, f"--dask_client_address={dask_cluster}", "--dask_partition_size=1")
    blocks, kept = "--block-bytes=20000", tmp_path / "kept"
    corpus.build(tmp_path / "whole", blocks, f"--token-cache={kept}")
    damaged, *others = kept.glob("*.tokens")
    damaged.write_bytes(b"ARROW1")  # is made again, as the others are
    for path in others:
        path.unlink()
    jobs = {
        "cached": (runner, blocks, f"--token-cache={kept}"),
        "texts": (runner, blocks, "--token-cache=none"),
    }
    cut = tmp_path / "cut.jsonl.gz"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in corpus.texts)
    cut.write_bytes(gzip.compress(lines.encode())[:-8])  # the end, which workers read
    other = corpus.line(tmp_path / "other", blocks, sources=[cut], runner=runner)
    [(code, said)] = corpus.check_in_turn(tmp_path, jobs, other)
    assert code == 2
    assert said.splitlines()[-1].startswith(f"Error: {cut} is not whole: truncated")


def test_shuffled_documents_in_files_of_two_formats_and_other_blocks_give_the_same_bytes(
    corpus, tmp_path
):
    """The manifest differs in the line that names the sources."""
    texts = random.Random(5).sample(corpus.texts, len(corpus.texts))
    rows, lines, out = tmp_path / "z.parquet", tmp_path / "a.jsonl", tmp_path / "out"
    write_parquet(rows, texts[::2], row_group_size=7)
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[1::2]))
    corpus.build(out, "--block-bytes=7000", sources=[rows, lines])
    assert shard_digests(out) == shard_digests(corpus.finished)
    assert without_sources(out / MANIFEST) == without_sources(corpus.finished / MANIFEST)
    assert (out / MANIFEST).read_bytes() != (corpus.finished / MANIFEST).read_bytes()


def test_a_kept_token_cache_serves_another_config_and_one_more_source(corpus, tmp_path):
    kept = tmp_path / "cache"
    options = ("--block-bytes=20000", "--token-cache", kept)

    def cached():
        return times(kept, "*.tokens")

    corpus.build(tmp_path / "fewer", *options, sources=corpus.files[:2])
    first = cached()
    assert len(first) == 6

    other = corpus.build(tmp_path / "other", *options, *AFTER_TOKENIZING, sources=corpus.files[:2])
    assert other.config.seed == 7
    assert cached() == first

    corpus.build(tmp_path / "out", *options)
    assert len(cached()) == 9
    assert first.items() <= cached().items()
    corpus.assert_same_bytes(tmp_path / "out")
