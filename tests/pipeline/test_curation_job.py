"""Curation in a job: what is dropped follows from the texts and the config alone."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pytest

from clozeline.pipeline.common.errors import STOPPED, CorruptDataError
from clozeline.pipeline.config import DataConfig, PairScheme
from clozeline.pipeline.curation.exclusion import text_hash
from clozeline.pipeline.curation.near.steps import ENTRY, read_rows, read_words
from clozeline.pipeline.curation.rules import quality_of
from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.dataset.manifest import MANIFEST, TOKENIZER, read_manifest
from clozeline.pipeline.job.graph import run_graph
from clozeline.pipeline.job.options import Task
from clozeline.pipeline.job.tasks import TaskShare
from clozeline.pipeline.report.dataset_chapter import dataset_chapter
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.steps.context import excluded_blocks
from clozeline.pipeline.steps.finish import finish_dataset
from clozeline.pipeline.steps.stages import choose
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_curation_near import plain_words
from tests.pipeline.test_curation_rules import grams
from tests.support.command import invoke, output_of
from tests.support.small_jobs import (
    COMMAND,
    articles,
    clozeline_ok,
    in_own_group,
    job_context,
    shard_digests,
    without_sources,
    write_texts,
    write_tokenizer,
)

FILES_OF_PHASES = (".words", ".pairs", ".edges", ".drops", ".mixture", ".shard.json")
CONFIG = DataConfig(num_shards=3, validation=0.2, max_seq_length=64)
NEAR = replace(CONFIG, deduplicate="near")
BUDGET = "?tokens=40k"  #: of the corpus of `curated`
#: dataset_digest, and SHA-256 of the manifest without what depends on the source's file, before
#: there was any curation.
DEFAULT = (
    "5a88d1dca60e359abba5804d1b6d046f9a03fcee9b8245c030efdf1f15f934bc",
    "b3c6f535c9f30d1f96716b7d85e39c642a071b03664d2ce9138cdb53f721efae",
)


def edited(text, every):
    """The text with each `every`th word replaced."""
    words = text.split(" ")
    words[every // 2 :: every] = ["edited"] * len(words[every // 2 :: every])
    return " ".join(words)


def planted():
    """100 articles; of 30 a copy, an edited one and one that is too far away; short ones."""
    texts = articles(100)
    near = [edited(text, 60) for text in texts[:30]]
    far = [edited(text, 8) for text in texts[:30]]
    return [*texts, *texts[:30:3], *near, *far, *(text[:200] for text in texts[90:93])]


def clean(text):
    """The text as a data set takes it: without short paragraphs."""
    lines = [line.strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if len(line) >= CONFIG.min_characters)


def make(folder, config, texts, **context):
    """The context of a job over these texts, and its folder."""
    folder.mkdir(parents=True)
    write_texts(folder / "corpus.jsonl", texts)
    write_tokenizer(folder / "out" / TOKENIZER, articles(100))
    tokenizer = load_tokenizer(folder / "out" / TOKENIZER)
    return job_context(folder, config, tokenizer, text_bytes=1, **context)


def reading(context, *sources, block_bytes=1 << 20, query=""):
    """The context of a job over the corpus of `make` or other sources."""
    corpus = f"{context.out_dir.parent}/corpus.jsonl{query}"
    return context.reading(list_blocks(sources or [corpus], block_bytes=block_bytes))


def build(context, *sources, **given):
    """The steps of the graph, without Beam."""
    steps = Steps(reading(context, *sources, **given))
    for block in steps.context.blocks:
        steps.tokenize_block(block)
    choose(steps)
    for bucket in range(len(context.buckets)):
        steps.build_shard(bucket)
    return finish_dataset(steps)


class Curated(NamedTuple):
    """A data set, and how it was made."""

    folder: Path
    config: DataConfig

    def assert_same_bytes(self, folder):
        """Shards, and the manifest but for the digests of the source files."""
        assert shard_digests(folder) == shard_digests(self.folder)
        manifests = [without_sources(each / MANIFEST) for each in (folder, self.folder)]
        assert manifests[0] == manifests[1]


def similarity(one, other):
    """By definition."""
    sets = []
    for text in (one, other):
        words = plain_words(text)
        sets.append({tuple(words[i : i + 5]) for i in range(max(len(words) - 4, 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """The context of a finished data set without near-duplicates."""
    context = make(tmp_path_factory.mktemp("near") / "work", NEAR, planted())
    build(context)
    return reading(context)


@pytest.fixture(scope="module")
def curated(tmp_path_factory):
    """A data set for which documents were dropped for each reason, and those left were repeated."""
    folder = tmp_path_factory.mktemp("curated")
    tests = write_texts(folder / "test.jsonl", [text[:300] for text in articles(9)])
    chosen = {"exclude": (str(tests),), "quality": ("gopher",)}
    config = replace(NEAR, **chosen)
    context = make(folder / "work", config, planted(), excluded=excluded_blocks(config))
    manifest = build(context, query=BUDGET)
    reasons = ("duplicate_document", "near_duplicate", "excluded", "quality_min_words")
    assert all(manifest.dropped[reason] > 1 for reason in reasons)
    [source] = manifest.mixture
    assert source.repeat > 0
    assert 0 < source.more < source.documents
    return Curated(folder / "work" / "out", config)


def test_one_of_an_article_and_its_near_copy_is_kept_whichever_is_held_out(near):
    """What is too far away stays, and `verify` takes the data set for sound."""
    manifest, texts = read_manifest(near.out_dir), planted()
    assert manifest.dropped["duplicate_document"] == 10
    assert manifest.dropped["near_duplicate"] == 30
    assert manifest.counts["near_duplicate_components"] == 30
    assert all(similarity(texts[i], texts[110 + i]) > 0.82 for i in range(30))
    assert all(similarity(texts[i], texts[140 + i]) < 0.7 for i in range(30))
    assert verify(near.out_dir, [str(near.out_dir.parent / "corpus.jsonl")]) == []
    drops = map(Steps(near).drops, range(len(near.buckets)))
    dropped = {row for rows in drops for row in rows.tolist()}
    halves = [half.tolist() for half in hash_documents([clean(text) for text in texts])]
    hashes = list(zip(*halves, strict=True))
    assert all((hashes[i] in dropped) != (hashes[110 + i] in dropped) for i in range(30))


def test_neither_partitions_nor_blocks_nor_order_change_a_byte(curated, tmp_path):
    texts = planted()
    random.Random(1).shuffle(texts)
    given = {"partitions": 7, "excluded": excluded_blocks(curated.config)}
    context = make(tmp_path / "work", curated.config, texts, **given)
    build(context, block_bytes=20_000, query=BUDGET)
    curated.assert_same_bytes(context.out_dir)


def command(folder, texts, *options, query=""):
    """The arguments that build `texts` in `folder`."""
    folder.mkdir()
    source = f"{write_texts(folder / 'corpus.jsonl', texts)}{query}"
    tokenizer = write_tokenizer(folder / "tokenizer", articles(100))
    fixed = ("--num-shards=3", "--validation=0.2", "--max-seq-length=64")
    return ["shards", source, "--tokenizer", tokenizer, "--out", folder / "out", *fixed, *options]


def command_of(curated, folder, *options):
    """The arguments that build the same data set, in more blocks."""
    quality = [f"--quality={name}" for name in curated.config.quality]
    curation = ["--deduplicate=near", *quality, f"--exclude={curated.config.exclude[0]}"]
    more = (*curation, "--block-bytes=50000", *options)
    return command(folder, planted(), *more, query=BUDGET)


@pytest.mark.parametrize("runner", [("--workers=2",), ("--workers=1", "--", "--job_name=mine")])
def test_every_runner_writes_the_same_bytes(curated, tmp_path, runner):
    output_of(*command_of(curated, tmp_path / "work", *runner))
    curated.assert_same_bytes(tmp_path / "work" / "out")
    assert not (tmp_path / "work" / "out" / ".cache").exists()


def test_tasks_write_the_same_bytes(curated, tmp_path):
    line = command_of(curated, tmp_path / "work", "--wait=0s")
    tries = 0
    while not (tmp_path / "work" / "out" / MANIFEST).exists():
        done = invoke(*line, f"--task={tries % 2}/2")
        assert done.exit_code in (0, STOPPED), done.output
        tries += 1
        assert tries < 30
    curated.assert_same_bytes(tmp_path / "work" / "out")


def test_whatever_a_killed_job_leaves_is_continued_to_the_same_bytes(curated, tmp_path):
    """Its files of the first phases, or any half of them, each of them whole."""
    given = {"partitions": 2, "excluded": excluded_blocks(curated.config)}
    context = make(tmp_path / "work", curated.config, planted(), **given)
    job, share = reading(context, block_bytes=50_000, query=BUDGET), TaskShare(Task(0, 1), 0.0)
    run_graph(job, share)  # a task looks for the files of each element after it is done
    for phase in range(0, len(FILES_OF_PHASES) + 1, 2):
        files = [*sorted(context.cache_dir.iterdir()), *sorted(context.out_dir.glob("*-of-*"))]
        lost = [file for file in files if file.name.endswith(FILES_OF_PHASES[phase:])]
        if not lost:  # any half of them; and some are damaged, as is seen later
            lost = random.Random(1).sample(files, len(files) // 2)
            for file in context.cache_dir.glob("*.tokens"):
                file.write_bytes(file.read_bytes()[:-5])
        for file in lost:
            file.unlink()
        (context.out_dir / MANIFEST).unlink()
        run_graph(job, share)
        curated.assert_same_bytes(context.out_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "workers"), [(signal.SIGKILL, 2), (signal.SIGKILL, 1), (signal.SIGINT, 1)]
)
@pytest.mark.parametrize("suffix", FILES_OF_PHASES)
def test_a_stopped_job_continues_to_the_same_bytes(curated, tmp_path, suffix, how, workers):
    """The job and its workers get a signal when the first file of a phase is there."""
    arguments = command_of(curated, tmp_path / "work", f"--workers={workers}")
    cache = tmp_path / "work" / "out" / ".cache"
    with in_own_group(*COMMAND, *arguments, stderr=subprocess.PIPE) as job:
        while job.poll() is None and not any(cache.glob(f"[!.]*{suffix}")):
            pass
        os.killpg(job.pid, how)
        said = job.communicate()[1].decode().splitlines()
    if how == signal.SIGINT:
        assert job.returncode == STOPPED
        assert any(line.startswith("Interrupted. ") for line in said)
        assert not any("Traceback" in line for line in said)
    else:
        assert job.returncode == -signal.SIGKILL
    assert not (tmp_path / "work" / "out" / MANIFEST).exists()
    clozeline_ok(*arguments)
    curated.assert_same_bytes(tmp_path / "work" / "out")


@pytest.mark.parametrize("position", [3, 200, -1])
def test_damage_to_the_words_of_a_document_is_found(near, tmp_path, position):
    [words] = near.cache_dir.glob("*.words")
    entries = np.concatenate([*read_rows([*near.cache_dir.glob("*.near")], 0, ENTRY)])
    documents = np.unique(entries["document"])
    assert len(read_words([words], documents)) == len(documents) > 1
    data = bytearray(words.read_bytes())
    data[position] ^= 1
    (tmp_path / "bad.words").write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"is damaged .*; delete it"):
        read_words([tmp_path / "bad.words"], documents)


def test_default_options_give_the_bytes_of_before(tmp_path):
    texts = articles(165)
    text = "\n\n".join(text.replace("\n\n", "\n") for text in texts + texts[::11])
    (tmp_path / "corpus.txt").write_text(text)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts + texts[::11])
    folders = ("--tokenizer", tokenizer, "--out", tmp_path / "out", "--workers=1")
    fixed = ("--num-shards=3", "--validation=0.2", "--max-seq-length=64")
    output_of("shards", tmp_path / "corpus.txt", *folders, *fixed)
    manifest = without_sources(tmp_path / "out" / MANIFEST)
    found = (read_manifest(tmp_path / "out").dataset_digest, sha256(manifest).hexdigest())
    assert found == DEFAULT


@pytest.mark.parametrize(
    "changes",
    [*({"deduplicate": "none", "pairs": pairs} for pairs in get_args(PairScheme)),
     {"deduplicate": "near", "validation": 0.0}],
    ids=lambda changes: " ".join(map(str, changes.values())),
)  # fmt: skip
def test_copies_that_stay_and_a_data_set_without_held_out_documents_are_sound(tmp_path, changes):
    """Rows of equal texts have one hash, and each text ends in a row of its own."""
    source = str(tmp_path / "work" / "corpus.jsonl")
    texts = [*articles(20), *articles(9), *articles(5)]
    manifest = build(make(tmp_path / "work", replace(CONFIG, **changes), texts))
    assert verify(tmp_path / "work" / "out", [source]) == []
    copies = 0 if changes["deduplicate"] == "none" else 14
    assert manifest.dropped.get("duplicate_document", 0) == copies


def test_excluded_texts_and_bad_ones_are_dropped_counted_and_recorded(tmp_path, monkeypatch):
    texts = articles(60)
    tests = [*(f"Unseen {text[:300]}" for text in texts[:5]), "too short", "no such words " * 9]
    source = str(write_texts(tmp_path / "test.jsonl", tests))
    config = replace(CONFIG, exclude=(source,), quality=("gopher",))
    broken = [quality_of(config.quality).check(text)[1] for text in texts]
    good = [text for text, rule in zip(texts, broken, strict=True) if not rule]
    of = {text: grams(text, 13) for text in (*good, *tests)}
    of_tests = set().union(*(of[text] for text in tests))
    kept = [text for text in good if not of[text] & of_tests]
    assert 0 < len(kept) < len(good) < 60
    given = {"excluded": excluded_blocks(config)}
    manifest = build(make(tmp_path / "work", config, texts, **given), block_bytes=20_000)
    plain = build(make(tmp_path / "plain", CONFIG, kept))
    assert manifest.dataset_digest == plain.dataset_digest
    found = {name: n for name, n in manifest.dropped.items() if name.startswith("quality_")}
    assert found == Counter(f"quality_{rule}" for rule in broken if rule)
    assert manifest.dropped["excluded"] == len(good) - len(kept)
    monkeypatch.chdir(tmp_path)  # without a job.json, the name in the manifest is a path here
    assert verify(tmp_path / "work" / "out", [str(tmp_path / "work" / "corpus.jsonl")]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quality=gophr"], "there is no such set; did you mean gopher?"),
        (["--similarity=1.5"], "similarity is 1.5; it must be 0.3 to 1.0."),
        (["--exclude-ngram=0"], "ngram is 0; it must be 1 to 100."),
        (["--similarity=0.7"], "similarity is for --deduplicate near; add that"),
        (["--exclude-ngram=7"], "ngram is for --exclude; add that, or leave it out."),
        (["--exclude={}/empty.jsonl"], "empty.jsonl"),
        (["--exclude={}/nothing.jsonl"], "--exclude: "),
        (["--exclude={}/short.jsonl"], "no text has 13 words, so nothing would be excluded"),
        (["--exclude={}/bad.jsonl"], "bad.jsonl: byte 29: not a JSON object; fix it first."),
        (["--exclude={}/cut.jsonl.gz"], "cut.jsonl.gz is not whole: truncated or corrupt gz"),
        (["--exclude={}/short.jsonl?tokens=5M"], ": tokens= is for text to train on and does no"),
        (["--exclude={}/short.jsonl?repeat=3"], "short.jsonl?repeat=3: repeat= is for text to tr"),
    ],
)
def test_bad_input_is_one_line(tmp_path, options, message):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "short.jsonl").write_text('{"text": "only a few words"}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "only a few words"}\n[]\n')
    packed = gzip.compress(write_texts(tmp_path / "whole.jsonl", articles(200)).read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    options = [option.format(tmp_path) for option in options]
    done = invoke(*command(tmp_path / "work", articles(20), *options, "--workers=1"))
    assert (done.exit_code, type(done.exception)) == (2, SystemExit), done.output
    assert message in done.stderr.splitlines()[-1]


def test_the_manifest_is_the_same_wherever_the_sources_are(tmp_path, monkeypatch):
    """Those of --exclude and with tokens=; what they were given as is in job.json, for `verify`."""
    one = tmp_path / "one"
    write_tokenizer(one / "tokenizer", articles(40))
    (one / "a").mkdir()
    (one / "b").mkdir()
    write_texts(one / "a" / "c.jsonl", articles(40)[20:])
    write_texts(one / "a" / "t.jsonl", articles(2))
    write_texts(one / "b" / "c.jsonl", articles(20))
    write_texts(one / "b" / "t.jsonl", articles(4)[2:])
    two = shutil.copytree(one, tmp_path / "of" / "another")  # keeps the times of change

    def line(folder):
        sources = [f"{folder}/{name}/c.jsonl?tokens=2k" for name in "ab"]
        exclude = ["--exclude=a/t.jsonl", f"--exclude=file://{folder}/b/t.jsonl"]
        monkeypatch.chdir(folder)
        known = ("--tokenizer", folder / "tokenizer", "--out", folder / "out", "--workers=1")
        return ["shards", *sources, *exclude, *known, "--num-shards=1", "--max-seq-length=64"]

    assert "already complete" not in output_of(*line(one))
    assert "already complete" not in output_of(*line(two))
    text = (one / "out" / "manifest.json").read_text()
    assert (two / "out" / "manifest.json").read_text() == text
    assert str(tmp_path) not in text
    manifest = read_manifest(one / "out")
    assert [part.source for part in manifest.mixture] == ["a/c.jsonl", "b/c.jsonl"]
    assert manifest.config.exclude == ("t.jsonl", "file:///t.jsonl")
    sources = [str(source) for source in line(two)[1:3]]
    monkeypatch.chdir(tmp_path)
    assert verify(two / "out", sources) == []
    shutil.move(one / "out", tmp_path / "out")
    assert "already complete" in output_of(*line(two), "--out", tmp_path / "out")


def test_samples_of_what_is_dropped_are_kept_and_shown(curated):
    lines = (curated.folder / "dropped.jsonl").read_text().splitlines()
    by_hash = {text_hash(text): text for text in planted()}
    found = [(x["reason"], x["text"]) for x in map(json.loads, lines)]
    assert all(by_hash[x["document"]][:500] == x["text"] for x in map(json.loads, lines))
    *_, section = dataset_chapter(curated.folder, "").sections
    rows = [(row[0].partition(":")[0], row[1]) for row in section.tables[-1].rows]
    assert {row[0] for row in rows} > {"excluded", "quality min words"}
    by_reason = sorted(found, key=lambda sample: sample[0])
    assert rows == [(reason.replace("_", " "), text) for reason, text in by_reason]
    assert all(len(row) == len(table.heads) for table in section.tables for row in table.rows)
