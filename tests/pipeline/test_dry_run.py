"""A dry run says what the job will write and what it drops of a sample, and writes nothing."""

import json
import re
from dataclasses import replace

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.rules import Text
from clozeline.pipeline.job.job import plan_job
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.report.dry_run import dry_run, read_sample
from clozeline.pipeline.sources.formats import list_blocks
from tests.support.command import invoke, output_of, refused
from tests.support.small_jobs import articles, write_tokenizer
from tests.support.small_sources import write

CONFIG = DataConfig(max_seq_length=64, validation=0.0)
SOURCE = "sample:articles?size=6MB"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("estimate") / "tokenizer", articles(240))


def facts(tokenizer, out, config=CONFIG, source=SOURCE, block_bytes=1 << 20):
    """A job."""
    return plan_job([source], tokenizer, out, config, JobOptions(block_bytes=block_bytes))


def by_name(lines):
    """The first word of each line, and the others."""
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_the_sample_is_spread_over_all_files_and_a_large_one_is_not_read_whole(tokenizer, tmp_path):
    for number, text in enumerate(articles(300)):
        key = "body" if number % 75 == 0 else "text"
        write(tmp_path / f"{number:03}.jsonl", json.dumps({key: text}))
    job = facts(tokenizer, tmp_path / "out", source=str(tmp_path / "*.jsonl"))
    found = re.match(r"([1-4]) of 256 documents sampled", by_name(dry_run(job))["rejected"])
    assert found
    source = "sample:articles?size=60MB"
    [large] = list_blocks([source], block_bytes=1 << 30)
    [part] = read_sample([large])
    assert 4 << 20 < sum(map(len, part.texts)) < 16 << 20
    assert [len(part.texts) for part in read_sample(list_blocks([source]))] != [0]


def test_finished_blocks_are_counted(tokenizer, tmp_path):
    source = "sample:articles?size=1MB"
    job = facts(tokenizer, tmp_path / "out", source=source, block_bytes=300_000)
    blocks, context = job.blocks, job.context
    context.cache_dir.mkdir(parents=True)
    for block in blocks[:2]:
        context.cache_path(block).touch()
    lines = by_name(dry_run(job))
    assert lines["blocks"].startswith(f"{len(blocks)} in 1 source, 2 already tokenized; about ")
    assert lines["shards"] == f"1 for training and 0 for validation, arrow, in {tmp_path / 'out'}"
    near = replace(context, config=replace(CONFIG, deduplicate="near"))
    near.near.paths(near.cache_path(blocks[0]).name)[0].touch()  # one of the two that it needs
    lines = by_name(dry_run(replace(job, context=near)))
    assert lines["blocks"].startswith(f"{len(blocks)} in 1 source, 0 already tokenized; about ")


def test_a_complete_data_set_needs_nothing(tokenizer, tmp_path):
    source = tmp_path / "corpus.txt"
    source.write_text("\n\n".join(articles(40)))
    line = ("shards", source, "--tokenizer", tokenizer, "--out", tmp_path / "out")
    options = ("--max-seq-length=64", "--num-shards=1", "--workers=1")
    before = sorted(tmp_path.iterdir())
    assert "shards     1 for training" in output_of(*line, *options, "--dry-run")
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
        list(dry_run(facts(tokenizer, tmp_path / "out", source=source)))
    (tmp_path / "b.txt").write_text(" \n" * 9)
    with pytest.raises(InputError, match="the sampled parts of the sources have no text; give"):
        list(dry_run(facts(tokenizer, tmp_path / "out", source=str(tmp_path / "b.txt"))))


def test_the_rejected_share_of_the_sample_is_in_the_plan(tokenizer, tmp_path):
    source = json_lines(tmp_path / "a.jsonl", *["text", "text", "content", "text"] * 10)
    lines = by_name(dry_run(facts(tokenizer, tmp_path / "out", source=source)))
    shown = "10 of 40 documents sampled (25.0%, more than --max-rejected 0.01); the first is "
    assert lines["rejected"].startswith(f"{shown}{source}:3 (no 'text' in the JSON object; its ")


def test_near_copies_and_bad_documents_of_the_sample_are_in_the_plan(tokenizer, tmp_path):
    whole = [text.replace("\n", " ") for text in articles(40)]
    texts = [*whole, *(f"{text} Again." for text in whole[:10]), "word " * 40]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    config = replace(CONFIG, deduplicate="near", quality=("min_words=45",))
    job = facts(tokenizer, tmp_path / "out", config, str(tmp_path / "a.jsonl"))
    dropped = [line for line in dry_run(job) if line.startswith("dropped")]
    assert any("10 of 51 documents sampled (19.6%): near_duplicate" in line for line in dropped)
    short = sum(len(Text(text).words) < 45 for text in texts)
    named = f"{short} of 51 documents sampled ({short / 51:.1%}): quality_min_words"
    assert any(line.endswith(named) for line in dropped)


def test_what_the_job_would_refuse_the_dry_run_refuses(tokenizer, tmp_path):
    folders = ("--tokenizer", tokenizer, "--out", tmp_path / "out")
    assert "no such file" in refused("shards", tmp_path / "nothing.txt", *folders, "--dry-run")
    source = json_lines(tmp_path / "a.jsonl", "text")
    assert refused("shards", source, *folders, "--dry-run", "--", "--runner=DirectRunner") == (
        "--dry-run runs on this machine; leave out -- and what follows it."
    )
