"""A dry run estimates what the job will write, from a part of the text, and writes nothing."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.job.job import build_shards, plan_job
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.report.dry_run import Sample, dry_run, estimate
from clozeline.pipeline.sources.formats import list_blocks
from tests.support.command import invoke, output_of, refused
from tests.support.small_jobs import articles, write_parquet, write_tokenizer
from tests.support.small_sources import PACKERS, page, write

CONFIG = DataConfig(max_seq_length=64, validation=0.0)
SOURCE = "sample:articles?size=6MB"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("estimate") / "tokenizer", articles(240))


def facts(tokenizer, out, config=CONFIG, source=SOURCE, block_bytes=1 << 20):
    """Blocks, context and tokenizer of a job."""
    job = plan_job([source], tokenizer, out, config, JobOptions(block_bytes=block_bytes))
    return job.blocks, job.context, job.tokenizer


def test_the_estimate_is_near_what_the_job_makes(tokenizer, tmp_path):
    found = estimate(*facts(tokenizer, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    options = JobOptions(workers=1, token_cache=tmp_path / "cache")
    folders = {"tokenizer": tokenizer, "out": tmp_path / "out"}
    manifest, _ = build_shards(SOURCE, config=CONFIG, options=options, **folders)
    shard_bytes = sum(shard.bytes for shard in manifest.shards)
    assert found.examples == pytest.approx(manifest.num_examples("train"), rel=0.1)
    assert found.shard_bytes == pytest.approx(shard_bytes, rel=0.1)
    assert found.cpu_seconds > 0


def test_copies_make_as_many_times_the_examples(tokenizer, tmp_path):
    source = "sample:articles?size=300KB"
    once = estimate(*facts(tokenizer, tmp_path, source=source))
    found = estimate(*facts(tokenizer, tmp_path, replace(CONFIG, dupe_factor=3), source))
    assert found.examples == pytest.approx(3 * once.examples, rel=0.02)


def by_name(lines):
    """The first word of each line, and the others."""
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_many_small_files_are_not_judged_by_four(tokenizer, tmp_path):
    for number, text in enumerate(articles(300)):
        key = "body" if number % 75 == 0 else "text"
        write(tmp_path / f"{number:03}.jsonl", json.dumps({key: text}))
    found = estimate(*facts(tokenizer, tmp_path / "out", source=str(tmp_path / "*.jsonl")))
    assert found.sampled == 256
    assert 1 <= len(found.rejected) <= 4


@pytest.mark.parametrize("name", ["a.jsonl", "a.xml.bz2"])
def test_what_is_read_whole_is_not_scaled(name, tokenizer, tmp_path):
    texts = articles(150)
    if name == "a.jsonl":
        data = "".join(json.dumps({"html": "<p>" * 999, "text": text}) + "\n" for text in texts)
    else:
        data = "".join(map(page, map(str, range(150)), texts))
    pack = PACKERS.get(Path(name).suffix[1:], bytes)
    source = write(tmp_path / name, pack(data.encode()))
    found = estimate(*facts(tokenizer, tmp_path / "out", source=source))
    folders = {"tokenizer": tokenizer, "out": tmp_path / "out"}
    options = JobOptions(workers=1, token_cache=tmp_path / "cache")
    manifest, _ = build_shards(source, config=CONFIG, options=options, **folders)
    assert found.examples == pytest.approx(manifest.num_examples("train"), rel=0.02)


TEXTS = articles(2370)
HTML = [hashlib.sha512(text.encode()).hexdigest() * 20 for text in TEXTS]
ESCAPED = [json.dumps(text)[1:-1] for text in TEXTS]
QUOTED = [text.replace('"', '""') for text in TEXTS]
PAGES = [page("A", f"{text}<!--{html}-->") for text, html in zip(TEXTS, HTML, strict=True)]
FILES = {
    "jsonl": lambda: "".join(map('{{"html": "{}", "text": "{}"}}\n'.format, HTML, ESCAPED)),
    "csv": lambda: "html,text\n" + "".join(map('{},"{}"\n'.format, HTML, QUOTED)),
    "xml": lambda: "".join(PAGES),
    "txt": lambda: "\n\n".join(" ".join(text.split()) for text in TEXTS),
}


@pytest.fixture
def one_sample(monkeypatch):
    """Asserts that some of the 2,000 documents are read, and as much of the source."""
    monkeypatch.setattr("clozeline.pipeline.report.dry_run.SAMPLES", 1)
    monkeypatch.setattr("clozeline.pipeline.report.dry_run.SAMPLE_BYTES", 1 << 20)

    def check(source, block_bytes=1 << 30):
        blocks, sample = list_blocks([source], block_bytes=block_bytes), Sample()
        for _ in sample.read(blocks):
            pass
        part = sample.text_bytes / sum(block.text_bytes for block in blocks)
        assert 0.2 < part < 0.8
        assert part == pytest.approx(sample.documents / len(TEXTS), abs=0.12)

    return check


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "xml", "xml.gz", "txt"])
def test_what_is_read_in_part_is_scaled_by_that_part(name, one_sample, tmp_path):
    kind, _, packed = name.partition(".")
    data = FILES[kind]().encode()
    one_sample(write(tmp_path / f"a.{name}", PACKERS.get(packed, bytes)(data)))


def test_a_part_of_a_table_and_of_the_first_documents(one_sample, tmp_path):
    one_sample(str(write_parquet(tmp_path / "a.parquet", TEXTS)))
    source = write(tmp_path / "a.jsonl", FILES["jsonl"]() * 2)
    one_sample(f"{source}?limit={len(TEXTS)}")


def test_finished_blocks_are_counted(tokenizer, tmp_path):
    source = "sample:articles?size=1MB"
    blocks, context, loaded = facts(tokenizer, tmp_path / "out", source=source, block_bytes=300_000)
    context.cache_dir.mkdir(parents=True)
    for block in blocks[:2]:
        context.cache_path(block).touch()
    lines = by_name(list(dry_run(blocks, context, loaded, workers=2)))
    assert lines["blocks"].startswith(f"{len(blocks)} in 1 source, 2 already tokenized; about ")
    shards = f"1 for training and 0 for validation, arrow, about .* MB, in {tmp_path / 'out'}"
    assert re.fullmatch(shards, lines["shards"])
    assert lines["time"].endswith("with 2 workers on this machine")
    assert re.fullmatch(r"about [\d,]+", lines["examples"])
    near = replace(context, config=replace(CONFIG, deduplicate="near"))
    near.near.paths(near.cache_path(blocks[0]).name)[0].touch()  # one of the two that it needs
    lines = by_name(list(dry_run(blocks, near, loaded, workers=2)))
    assert lines["blocks"].startswith(f"{len(blocks)} in 1 source, 0 already tokenized; about ")


def test_a_complete_data_set_needs_nothing(tokenizer, tmp_path):
    source = tmp_path / "corpus.txt"
    source.write_text("\n\n".join(articles(40)))
    line = ("shards", source, "--tokenizer", tokenizer, "--out", tmp_path / "out")
    options = ("--max-seq-length=64", "--num-shards=1", "--workers=1")
    before = sorted(tmp_path.iterdir())
    assert "examples   about" in output_of(*line, *options, "--dry-run")
    assert sorted(tmp_path.iterdir()) == before
    output_of(*line, *options)
    shown = invoke(*line, *options, "--dry-run")
    assert shown.stdout == f"nothing to do: {tmp_path / 'out'} is already complete\n"
    assert shown.stderr == f"Next: clozeline pretrain {tmp_path}/out --out {tmp_path}/run\n"


def json_lines(path, *keys):
    """A document of 40 words under each of the keys."""
    lines = [json.dumps({key: "the cat sat on the mat. " * 7}) for key in keys]
    path.write_text("\n".join(lines))
    return str(path)


def test_a_sample_without_text_names_the_first_reason(tokenizer, tmp_path):
    source = json_lines(tmp_path / "a.jsonl", *["content"] * 200)
    message = (
        r"every document sampled is rejected, 200 in all; the first is .*a\.jsonl:1 "
        r"\(no 'text' in the JSON object; its keys are content\); check --text-columns"
    )
    with pytest.raises(InputError, match=message):
        estimate(*facts(tokenizer, tmp_path / "out", source=source))
    (tmp_path / "b.txt").write_text(" \n" * 9)
    with pytest.raises(InputError, match="the sampled parts of the sources have no text; give"):
        estimate(*facts(tokenizer, tmp_path / "out", source=str(tmp_path / "b.txt")))


def test_the_rejected_share_of_the_sample_is_in_the_plan(tokenizer, tmp_path):
    source = json_lines(tmp_path / "a.jsonl", *["text", "text", "content", "text"] * 10)
    lines = by_name(list(dry_run(*facts(tokenizer, tmp_path / "out", source=source), workers=1)))
    shown = "10 of 40 documents sampled (25.0%, more than --max-rejected 0.01); the first is "
    assert lines["rejected"].startswith(f"{shown}{source}:3 (no 'text' in the JSON object; its ")


def test_what_the_job_would_refuse_the_dry_run_refuses(tokenizer, tmp_path):
    folders = ("--tokenizer", tokenizer, "--out", tmp_path / "out")
    assert "no such file" in refused("shards", tmp_path / "nothing.txt", *folders, "--dry-run")
    source = json_lines(tmp_path / "a.jsonl", "text")
    assert refused("shards", source, *folders, "--dry-run", "--", "--runner=DirectRunner") == (
        "--dry-run runs on this machine; leave out -- and what follows it."
    )
