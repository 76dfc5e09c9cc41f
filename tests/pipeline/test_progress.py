"""What a job says before, while and after it runs: plan, progress, costs."""

import json
import mmap
import re
from dataclasses import replace

import pytest

from clozeline.pipeline.common.counts import Counts, tree_memory
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.job.graph import replace_data_set
from clozeline.pipeline.job.job import plan_job
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.job.out_folder import begin_job
from clozeline.pipeline.job.progress import Progress
from clozeline.pipeline.report.dry_run import dry_run, read_sample
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import write_cache_file
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, build, work
from tests.pipeline.test_token_cache import tokenized
from tests.support.command import invoke, output_of
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import articles, write_tokenizer
from tests.support.small_sources import write


def finish_block(context, block):
    """The token cache file of a block of one document."""
    chunks, size = [(tokenized([[[[7, 8]]]]), Counts())], context.vocab_size
    write_cache_file(context.cache_path(block), chunks, buckets=context.buckets, vocab_size=size)


def test_finished_blocks_and_shards_of_this_job_are_counted(tmp_path):
    blocks, context = work(tmp_path)
    (context.out_dir / "train-00009-of-00099.arrow").touch()
    (context.cache_dir / "another.tokens").touch()
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
    assert not progress.done_shards
    build(blocks, context)
    progress.poll()
    assert progress.done_bytes == sum(sizes)
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


def test_memory_counts_this_process_and_those_below_it():
    before = tree_memory()
    # Pages of its own: an array may be laid into memory that an earlier test has given back.
    with mmap.mmap(-1, 200_000_000) as held:
        held.write(bytes(len(held)))
        assert tree_memory() - before > 0.9 * len(held)


def test_what_a_job_used_stands_in_its_report(finished):
    job = json.loads((finished / "out" / "job.json").read_bytes())
    assert job["cpu_seconds"] > 0
    assert 50 < job["peak_memory_megabytes"] < 20_000


# --- A dry run says what the job will write and drop, and writes nothing --------------------------


PLANNED = DataConfig(max_seq_length=64, validation=0.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("estimate") / "tokenizer", articles(240))


def facts(tokenizer, out, config=PLANNED, *, source, block_bytes=1 << 20):
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


def test_finished_blocks_are_in_the_plan(tokenizer, tmp_path):
    source = "sample:articles?size=1MB"
    job = facts(tokenizer, tmp_path / "out", source=source, block_bytes=300_000)
    blocks, context = job.blocks, job.context
    context.cache_dir.mkdir(parents=True)
    for block in blocks[:2]:
        context.cache_path(block).touch()
    lines = by_name(dry_run(job))
    assert lines["blocks"].startswith(f"{len(blocks)} in 1 source, 2 already tokenized; about ")
    assert lines["shards"] == f"1 for training and 0 for validation, arrow, in {tmp_path / 'out'}"
    near = replace(context, config=replace(PLANNED, deduplicate="near"))
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


def test_the_rejected_share_of_the_sample_is_in_the_plan(tokenizer, tmp_path):
    source = json_lines(tmp_path / "a.jsonl", *["text", "text", "content", "text"] * 10)
    lines = by_name(dry_run(facts(tokenizer, tmp_path / "out", source=source)))
    shown = "10 of 40 documents sampled (25.0%, more than --max-rejected 0.01); the first is "
    where = f"{source}: byte {2 * 181} (no 'text' in the JSON object; its "  # after two lines
    assert lines["rejected"].startswith(shown + where)


def test_near_copies_and_bad_documents_of_the_sample_are_in_the_plan(tokenizer, tmp_path):
    whole = [text.replace("\n", " ") for text in articles(40)]
    texts = [*whole, *(f"{text} Again." for text in whole[:10]), "The word and " * 15]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    config = replace(PLANNED, deduplicate="near", quality=("gopher",))
    job = facts(tokenizer, tmp_path / "out", config, source=str(tmp_path / "a.jsonl"))
    dropped = [line for line in dry_run(job) if line.startswith("dropped")]
    assert any("10 of 51 documents sampled (19.6%): near_duplicate" in line for line in dropped)
    named = "1 of 51 documents sampled (2.0%): quality_min_words"
    assert any(line.endswith(named) for line in dropped)
