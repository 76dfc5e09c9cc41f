"""Mixtures by budget: each source gives its tokens, cut or repeated, whatever the blocks are."""

import random
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common import folder_lock
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.curation.dropped import mixture_lines
from clozeline.pipeline.curation.mixture import DOCUMENT, choose_mixture, uses_of
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.job.job import build_shards
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.report.dataset_chapter import dataset_chapter
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_curation_job import NEAR, make, planted
from tests.pipeline.test_curation_job import build as build_all
from tests.support.command import invoke
from tests.support.small_jobs import (
    articles,
    shard_digests,
    without_sources,
    write_texts,
    write_tokenizer,
)

CONFIG = replace(NEAR, pairs="none")


# The choice, on columns


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1), st.integers(1, 9)), min_size=1),
    st.integers(1, 200),
)
def test_the_choice_is_that_of_the_definition(rows, budget):
    """Documents in the order of their hashes, over and over, until the tokens are reached."""
    rows = [*rows, (7, 0, 5), (8, 1, 5)]
    documents = np.array([(h << 58 | h, share, tokens) for h, share, tokens in rows], DOCUMENT)
    budgets = {"a": budget, "b": budget + 1}
    for share, found in enumerate(choose_mixture(budgets, documents)):
        own = np.sort(documents[documents["share"] == share], order="hash")
        uses = uses_of(own["hash"], found)
        assert found.used == (uses * own["tokens"]).sum()
        assert found.repeat * len(own) + found.more == uses.sum()
        reached, expected = 0, Counter()
        while reached < budgets[found.source]:
            for value in np.unique(own["hash"]):  # copies count together
                if reached < budgets[found.source]:
                    reached += int(own["tokens"][own["hash"] == value].sum())
                    expected[int(value)] += 1
        assert uses.tolist() == [expected[int(value)] for value in own["hash"]]


# In a job


def sources(folder):
    """110 articles with near copies, and 30 others, some of which the first source has, too."""
    folder.mkdir(exist_ok=True)
    wiki = write_texts(folder / "first.jsonl", planted()[:140])
    news = write_texts(folder / "second.jsonl", [*articles(130)[100:], *articles(5)])
    return [f"{wiki}?tokens=24k", f"{news}?tokens=16k"]


def build(folder, given, config=CONFIG, **options):
    """The data set of these sources."""
    return build_all(make(folder, config, []), *given, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The folder of a data set of two sources, 24,000 and 16,000 tokens of them."""
    folder = tmp_path_factory.mktemp("mixed")
    build(folder / "work", sources(folder))
    return folder / "work" / "out"


def test_each_source_gives_its_tokens(mixed):
    """One is cut, the other is repeated; held-out documents are of the same mixture, once each."""
    manifest = read_manifest(mixed)
    wiki, news = manifest.mixture
    assert (wiki.source, news.source) == ("first.jsonl", "second.jsonl")
    assert (news.budget, wiki.budget) == (16_000, 24_000)
    longest = 2000
    assert all(0 <= source.used - source.budget < longest for source in (news, wiki))
    assert news.repeat >= 1
    assert (wiki.repeat, wiki.more < wiki.documents) == (0, True)
    rows = [read_shard(mixed / entry.name) for entry in manifest.of_split("train")]
    tokens = sum(len(part.input_ids.values) - 2 * len(part) for part in rows)
    assert 0.97 < tokens / (news.used + wiki.used) <= 1
    assert manifest.dropped["beyond_budget"] >= wiki.documents - wiki.more
    assert manifest.counts["repeat"] == news.repeat + (news.more > 0)
    lines = list(mixture_lines(manifest))
    assert f"first.jsonl gives {wiki.used:,} tokens: " in lines[0]
    assert f"{wiki.more:,} of {wiki.documents:,} documents once" in lines[0]
    sections = dataset_chapter(mixed, "").sections
    rows = [[row[0] for row in table.rows] for part in sections for table in part.tables]
    assert lines in rows
    train, validation = (
        sum(len(np.unique(read_shard(mixed / x.name).document_a)) for x in manifest.of_split(split))
        for split in ("train", "validation")
    )
    assert 0.1 < validation / (train + validation) < 0.35  # --validation 0.2


def test_neither_blocks_nor_order_nor_a_store_change_a_byte(mixed, tmp_path, monkeypatch):
    given = sources(tmp_path / "sources")
    for source in given:
        path = Path(source.partition("?")[0])
        lines = path.read_text().splitlines(keepends=True)
        random.Random(0).shuffle(lines)
        path.write_text("".join(lines))
    tokenizer = write_tokenizer(tmp_path / "tokenizer", articles(100))
    monkeypatch.setattr(folder_lock, "START_SECONDS", 0.0)
    store, options = (
        path_of("memory://clozeline-mixture"),
        JobOptions(workers=1, block_bytes=20_000),
    )
    build_shards(given[::-1], config=CONFIG, options=options, tokenizer=tokenizer, out=store)
    names = [entry.name for entry in read_manifest(store).shards]
    found = {name: sha256((store / name).read_bytes()).hexdigest() for name in names}
    assert found == shard_digests(mixed)
    assert without_sources(store / MANIFEST) == without_sources(mixed / MANIFEST)
    store.rmdir(recursive=True)


def test_the_command_prints_what_was_done_and_verify_proves_it(mixed, tmp_path):
    given = sources(tmp_path / "sources")
    tokenizer = write_tokenizer(tmp_path / "tokenizer", articles(100))
    folders = ("--tokenizer", tokenizer, "--out", tmp_path / "out", "--workers=2")
    shape = ("--num-shards=3", "--validation=0.2", "--max-seq-length=64", "--pairs=none")
    done = invoke("shards", *given, *folders, *shape, "--deduplicate=near", "--block-bytes=50000")
    assert done.exit_code == 0, done.output
    assert shard_digests(tmp_path / "out") == shard_digests(mixed)
    assert all(line in done.stderr for line in mixture_lines(read_manifest(mixed)))
    assert verify(tmp_path / "out", given) == []


def test_the_name_of_a_source_does_not_reach_the_terminal_as_it_is(tmp_path):
    """Neither sequences that change the terminal nor bytes that are not UTF-8."""
    folder = tmp_path / "\x1b]0;mine\x07"
    folder.mkdir()
    source = write_texts(folder / "a\x1b[2J\udcff.jsonl", articles(30))
    tokenizer, out = write_tokenizer(tmp_path / "tokenizer", articles(30)), tmp_path / "out"
    line = ("shards", f"{source}?tokens=2k", "--tokenizer", tokenizer, "--out", out, "--workers=1")
    done = invoke(*line, "--max-seq-length=32", "--pairs=none")
    proven = invoke("verify", out, "--source", f"{source}?tokens=2k")
    for shown, text in (
        (done, r"a\x1b[2J\udcff.jsonl gives "),
        (invoke("inspect", out), r"a\x1b[2J\udcff.jsonl gives "),
        (proven, r"\udcff.jsonl?tokens=2k"),
    ):
        assert shown.exit_code == 0, shown.output
        assert text in shown.output
        assert "\x1b" not in shown.output
    assert "rebuilt from" in proven.output


def test_a_source_with_tokens_is_cut_or_repeated_and_the_others_stay(tmp_path):
    """As many tokens as a source has change nothing; three times as many are `repeat=3`."""
    config = replace(CONFIG, deduplicate="exact")
    first = str(write_texts(tmp_path / "first.jsonl", articles(30)))
    second = str(write_texts(tmp_path / "second.jsonl", articles(45)[30:]))

    def built(name, query):
        return build(tmp_path / name, [first, f"{second}{query}"], config)

    cut = built("cut", "?tokens=2k")
    [source] = cut.mixture
    assert source.source == "second.jsonl"
    assert (source.repeat, source.more < source.documents) == (0, True)
    used = f"{source.more} of {source.documents} documents once"
    assert list(mixture_lines(cut)) == [f"second.jsonl gives {source.used:,} tokens: {used}"]
    plain, every = built("plain", ""), built("every", f"?tokens={source.available}")
    thrice, budget = built("3", "?repeat=3"), built("budget", f"?tokens={3 * source.available}")
    assert plain.dataset_digest == every.dataset_digest
    assert thrice.dataset_digest == budget.dataset_digest
    assert len({each.dataset_digest for each in (cut, plain, thrice)}) == 3


def test_with_all_copies_each_counts(tmp_path):
    config = replace(CONFIG, deduplicate="none")
    first = write_texts(tmp_path / "first.jsonl", articles(20) * 2)
    second = write_texts(tmp_path / "second.jsonl", articles(30)[15:])
    given = [f"{first}?tokens=12k", f"{second}?tokens=8k"]
    copies = build(tmp_path / "copies", given, config).mixture
    exact = build(tmp_path / "exact", given, replace(config, deduplicate="exact")).mixture
    assert copies[0].documents == 2 * exact[0].documents  # its articles are there twice
    assert copies[1].documents > exact[1].documents  # and five of the second are in the first


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["first.jsonl?tokens=5B"], " bytes of text, and 5,000,000,000 tokens would use each more"),
        (["first.jsonl?tokens=9M"], " tokens, and 9,000,000 tokens would use each more than 1,000"),
        (["first.jsonl?tokens=2k", "second.jsonl?tokens=20"], r"second\.jsonl: no training text"),
        (["first.jsonl?tokens=5", "first.jsonl?tokens=6"], "two numbers of tokens; give one"),
        (["first.jsonl?tokens=5", "first.jsonl?tokens=5&text=title"],
         "twice with tokens=, for the columns text and title"),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_is_one_line(tmp_path, given, message):
    write_texts(tmp_path / "first.jsonl", articles(9))
    write_texts(tmp_path / "second.jsonl", ["short"] * 9)
    with pytest.raises(ValueError, match=message) as error:
        build(tmp_path / "work", [f"{tmp_path}/{source}" for source in given])
    assert "\n" not in str(error.value)
