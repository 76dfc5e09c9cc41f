"""The steps: each does its work once, and what is not sound never gets a manifest."""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import CorruptDataError, InputError, JobFailedError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.dropped import dropped_lines
from clozeline.pipeline.dataset.cache_file import read_counts
from clozeline.pipeline.dataset.manifest import MANIFEST, REJECTED, read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.steps.finish import check_read, finish_dataset
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.verify.verify import verify
from tests.support.files import times
from tests.support.small import PUNKT, WORDS, small_tokenizer
from tests.support.small_jobs import job_context

CONFIG = DataConfig(num_shards=3, validation=0.2, max_seq_length=32, min_characters=4)
TEXT = "\n\n".join(
    "\n".join(
        " ".join(
            " ".join(
                WORDS[(7 * d + 5 * s + 3 * w * (d + 1)) % len(WORDS)] for w in range(4 + s % 5)
            )
            + "."
            for s in range(paragraph, paragraph + 4)
        )
        for paragraph in range(2 + d % 3)
    )
    for d in range(60)
)


def work(folder, config=CONFIG, *, text=TEXT, block_bytes=2000):
    """A source, the blocks of it and a workplace with a tokenizer."""
    folder.mkdir(exist_ok=True)
    source = folder / "corpus.txt"
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    blocks = list_blocks([str(source)], block_bytes=block_bytes)
    more = {"text_bytes": sum(b.text_bytes for b in blocks), "sources_digest": "of corpus.txt"}
    return blocks, job_context(folder, config, small_tokenizer(PUNKT), **more)


def build(blocks, context):
    """All steps."""
    return finish_dataset(built(blocks, context))


def built(blocks, context):
    """The steps, with all shards built."""
    steps = Steps(context.reading(blocks))
    for block in blocks:
        steps.tokenize_block(block)
    for bucket in range(len(context.buckets)):
        steps.build_shard(bucket)
    return steps


def cache_files(context):
    """The tokenized blocks, and when they were written."""
    return times(context.cache_dir, "*.tokens")


def test_the_steps_make_a_sound_data_set(tmp_path):
    manifest = build(*work(tmp_path))
    assert verify(tmp_path / "out") == []
    assert manifest == read_manifest(tmp_path / "out")
    assert manifest.num_examples("train") > 40
    assert manifest.num_examples("validation") > 5
    assert manifest.counts["documents"] == 60
    assert manifest.counts["rejected"] == 0
    for entry in manifest.shards:
        lengths = read_shard(tmp_path / "out" / entry.name).input_ids.lengths
        rows = Counter((int(length) - 1) // 16 for length in lengths)
        assert entry.length_histogram == [rows[i] for i in range(max(rows) + 1)]


def test_words_too_long_to_be_masked_whole_are_masked_by_tokens_and_noted(tmp_path):
    text = "\n\n".join(" ".join([f"{word}ing"] * 9) for word in WORDS)  # two tokens each
    config = replace(CONFIG, masking="whole-words", max_predictions_per_seq=1, pairs="none")
    manifest = build(*work(tmp_path, config, text=text))
    assert "without_masks" not in manifest.counts
    assert manifest.counts["in_long_words"] == 18 * manifest.num_examples("train")
    note = "100% of the tokens are in words too long to be masked whole, and are masked one by one"
    assert any(line.startswith(note) for line in dropped_lines(manifest))
    for entry in manifest.shards:
        assert (read_shard(tmp_path / "out" / entry.name).masked_lm_positions.lengths == 1).all()
    assert verify(tmp_path / "out") == []


def test_a_bucket_without_documents_is_an_empty_shard(tmp_path):
    manifest = build(*work(tmp_path, replace(CONFIG, num_shards=50)))
    assert len(manifest.shards) == 60
    assert any(not shard.rows for shard in manifest.shards)
    assert verify(tmp_path / "out") == []


def test_what_is_done_is_not_done_again_unless_it_changed_or_is_missing(tmp_path):
    blocks, context = work(tmp_path)
    first = build(blocks, context)
    cached, built = times(context.cache_dir), times(context.out_dir, "*.arrow")
    assert build(blocks, context) == first
    assert times(context.cache_dir) == cached
    assert times(context.out_dir, "*.arrow") == built
    changed = context.shard_path(0)
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    context.shard_path(1).unlink()
    assert build(blocks, context) == first
    assert verify(context.out_dir) == []
    kept = str(context.shard_path(2))
    assert times(context.out_dir)[kept] == built[kept]


@pytest.mark.parametrize("change", [{"num_shards": 4}, {"min_characters": 20}, {"validation": 0.3}])
def test_a_cache_file_is_named_by_what_it_depends_on(tmp_path, change):
    blocks, context = work(tmp_path)
    other = work(tmp_path, replace(CONFIG, **change))[1]
    assert context.cache_path(blocks[0]) != other.cache_path(blocks[0])
    assert context.cache_path(blocks[0]) != context.cache_path(blocks[1])
    later = {"seed": 5, "pairs": "none", "masked_lm_prob": 0.3, "format": "webdataset"}
    same = work(tmp_path, replace(CONFIG, **later))[1]
    assert context.cache_path(blocks[0]) == same.cache_path(blocks[0])


def test_a_cache_file_is_named_by_the_excluded_texts(tmp_path):
    blocks, context = work(tmp_path)
    a, b = (Block(path=name, format="csv", stop=1, version="1") for name in "ab")
    excluded = [
        (),
        (("*", (a, b)),),
        (("a", (a,)), ("b", (b,))),
        (("*", (replace(a, text_columns=("title",)), b)),),
        (("*", (replace(a, max_document_bytes=9), b)),),
    ]
    names = {replace(context, excluded=one).cache_path(blocks[0]) for one in excluded}
    assert len(names) == len(excluded)


def test_rejected_lines_are_sorted_and_an_old_list_goes(tmp_path):
    lines = "\n".join(["{no json", json.dumps({"text": TEXT}), "[]"])
    for name in ("b ß", "a"):
        (tmp_path / f"{name}.jsonl").write_text(lines)
    _, context = work(tmp_path, replace(CONFIG, max_rejected=1.0))
    sources = [str(tmp_path / f"{name}.jsonl") for name in ("b ß", "a")]
    assert build(list_blocks(sources), context).counts["rejected"] == 4
    listed = (context.out_dir / REJECTED).read_text("utf-8").splitlines()
    found = [json.loads(line)["where"].removeprefix(f"{tmp_path}/") for line in listed]
    last = f"byte {len(lines) - 2}"
    assert found == [f"{name}.jsonl: {at}" for name in ("a", "b ß") for at in ("byte 0", last)]
    build(*work(tmp_path))
    assert not (context.out_dir / REJECTED).exists()


def test_no_manifest_without_every_shard_and_its_record(tmp_path):
    steps = built(*work(tmp_path))
    for path in (steps.record_path(1), steps.context.shard_path(1)):
        whole = path.read_bytes()
        for damage in (path.unlink, partial(path.write_bytes, b"{}")):
            damage()
            with pytest.raises(CorruptDataError, match=rf"^{path} is missing or damaged; rerun"):
                finish_dataset(steps)
            assert not (steps.context.out_dir / MANIFEST).exists()
        path.write_bytes(whole)
    finish_dataset(steps)


def test_a_tokenizer_that_changed_under_the_job_is_named(tmp_path):
    _, context = work(tmp_path)
    with pytest.raises(InputError, match="tokenizer changed while the job was running"):
        _ = Steps(replace(context, tokenizer_digest="0" * 64)).tokenizer


def test_repaired_text_is_counted_as_read_and_not_as_dropped(tmp_path):
    _, context = work(tmp_path)
    source = tmp_path / "odd.txt"
    source.write_bytes(b"the cat sat\0 on the mat.\n\nthe \xff dog ran.\n\nit slept there.")
    [block] = list_blocks([str(source)])
    Steps(context).tokenize_block(block)
    [counts] = read_counts([context.cache_path(block)])
    assert counts.read["nul"] == counts.read["invalid_utf8"] == 1
    assert +counts.dropped == {}
    assert counts.read["documents"] == 3


#: Reasons of 151 documents that were read, and of tokens.
DROPPED = {
    "short_document": 148,
    "quality_min_words": 1,
    "duplicate_document": 100,
    "cut_tokens": 9,
}


@pytest.mark.parametrize(
    ("bad", "good", "max_rejected", "dropped", "message"),
    [(1, 9, 0.01, {}, "^1 of 10 "), (1, 9, 0.1, {}, ""), (1, 99, 0.01, {}, ""),
     (29, 71, 0.29, {}, ""), (1, 9, 0.0, {}, "^1 of 10 "), (30, 70, 0.29, {}, "^30 of 100 "),
     (3, 149, 0.01, DROPPED, ""), (4, 149, 0.01, DROPPED, "^4 of 302 ")],
)  # fmt: skip
def test_more_than_the_fraction_of_rejected_documents_fails(
    bad, good, max_rejected, dropped, message, tmp_path
):
    """Of all that were read, also of those that curation dropped."""
    _, context = work(tmp_path, replace(CONFIG, max_rejected=max_rejected))
    entry = {"where": "a.jsonl:1", "reason": "not JSON"}
    total = Counts(Counter(documents=good), Counter(dropped), [entry] * bad)
    refused = pytest.raises(JobFailedError, match=f"{message}documents were rejected")
    with refused if message else nullcontext():
        check_read(total, context)
