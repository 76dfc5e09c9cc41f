"""Real dumps go all the way: nothing vanishes uncounted, and the text is as good as a parser's."""

import bz2
import json
import os
from pathlib import Path

import pytest

from clozeline.pipeline.dataset.manifest import REJECTED, read_manifest
from clozeline.pipeline.sources.mediawiki.dump import read_pages
from clozeline.pipeline.sources.mediawiki.markup import MAX_BYTES, MAX_DEPTH, MAX_OPEN, strip_markup
from clozeline.pipeline.sources.sample.articles import make_articles
from tests.support.command import output_of
from tests.support.reference_text import comparisons, difference
from tests.support.small_jobs import write_tokenizer

DATA = os.environ.get("CLOZELINE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set: no real dumps")
DUMPS = Path(DATA or "") / "dumps"
SLICE = "enwiki-slice-pages-articles.xml.bz2"
MULTISTREAM = "enwiki-slice-pages-articles-multistream.xml.bz2"

#: Why a page becomes no document; "short_document": no paragraph of it is long enough.
REASONS = ("redirect", "other_namespace", "empty", "short_document", "no_tokens")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), make_articles(0, 0, 20))


def build(source, out, tokenizer, *options):
    """The manifest of the dump's shards, and the warnings."""
    said = output_of("shards", source, "--tokenizer", tokenizer, "--out", out, *options)
    warnings = [line for line in said.split("\n") if line.startswith("warning")]
    return read_manifest(out), "\n".join(warnings)


def rejected(out):
    """(The title of the page, the reason) for each rejected page."""
    lines = (out / REJECTED).read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [(Path(entry["where"]).name, entry["reason"]) for entry in entries]


def accounts(manifest):
    """How many pages became what."""
    left_out = {name: manifest.dropped[name] for name in REASONS if name in manifest.dropped}
    return {"documents": manifest.counts["documents"], **left_out}


@needs_data
@pytest.mark.parametrize(
    ("name", "pages", "expected"),
    [
        ("enwiki-table-markup.xml.bz2", 5, {"documents": 5}),
        (
            "bgwiki-latest-pages-articles-shortened.xml.bz2",
            3,
            {"documents": 1, "other_namespace": 2},
        ),
        (
            "smallwiki-latest-pages-articles.xml.bz2",
            2004,
            {
                "documents": 895,
                "redirect": 195,
                "other_namespace": 906,
                "empty": 7,
                "short_document": 1,
            },
        ),
    ],
)
def test_every_page_of_a_real_dump_is_accounted_for(name, pages, expected, tokenizer, tmp_path):
    manifest, warnings = build(DUMPS / name, tmp_path / "out", tokenizer, "--workers=1")
    assert accounts(manifest) == expected
    assert sum(expected.values()) == pages
    assert manifest.counts["rejected"] == 0
    assert "warning" not in warnings


@needs_data
def test_a_truncated_dump_is_one_rejection_and_its_whole_pages(tokenizer, tmp_path):
    name, out = "elwiki-truncated-100k.xml.xz", tmp_path / "out"
    options = ("--workers=1", "--allow-truncated")
    manifest, warnings = build(DUMPS / name, out, tokenizer, *options)
    expected = {"documents": 523, "redirect": 26, "other_namespace": 383, "empty": 1}
    assert accounts(manifest) == expected
    assert sum(expected.values()) == 933
    assert manifest.counts["rejected"] == 1
    assert f"warning: 1 rejected; see {out / REJECTED}" in warnings
    ((where, reason),) = rejected(out)
    assert where == name
    assert "truncated after 933 pages" in reason


@needs_data
def test_a_multistream_dump_read_in_parallel_gives_the_documents_of_the_whole(tokenizer, tmp_path):
    whole, _ = build(DUMPS / SLICE, tmp_path / "whole", tokenizer, "--workers=1")
    options = ("--workers=2", "--block-bytes=1000000")
    parts, _ = build(DUMPS / MULTISTREAM, tmp_path / "parts", tokenizer, *options)
    blocks = json.loads((tmp_path / "parts" / "job.json").read_text())["blocks"]
    assert accounts(whole) == {"documents": 106, "redirect": 100}
    assert blocks == 3
    assert parts.dataset_digest == whole.dataset_digest
    assert (parts.counts, parts.dropped) == (whole.counts, whole.dropped)


def test_the_page_budget_names_each_page_past_a_limit(tokenizer, tmp_path):
    text = "Rome is an old town of some size. "
    within = {
        "Long": (text * (MAX_BYTES // len(text) + 1))[:MAX_BYTES],
        "Open": text + "[a] " * MAX_OPEN,
        "Deep": text + "{{" * MAX_DEPTH,
    }
    one_over = {"Longer": "a", "Opener": "<", "Deeper": "[["}
    pages = dict(within)
    for (name, more), markup in zip(one_over.items(), within.values(), strict=True):
        pages[name] = markup + more
    source = tmp_path / "budget.xml"
    source.write_text("<mediawiki>\n" + "".join(map(xml_page, *zip(*pages.items(), strict=True))))
    with source.open("a") as file:
        file.write("</mediawiki>\n")
    out = tmp_path / "out"
    manifest, _ = build(source, out, tokenizer, "--workers=1", "--max-rejected=1", "--pairs=none")
    assert (manifest.counts["documents"], manifest.counts["rejected"]) == (3, 3)
    assert sorted(rejected(out)) == [
        ("budget.xml: Deeper", "over the page budget: nesting_depth"),
        ("budget.xml: Longer", "over the page budget: markup_bytes"),
        ("budget.xml: Opener", "over the page budget: open_braces"),
    ]


def xml_page(title, markup):
    text = markup.replace("<", "&lt;")
    return f"<page><title>{title}</title><revision><text>{text}</text></revision></page>\n"


@needs_data
@pytest.mark.slow
def test_of_the_paragraphs_that_strip_code_gives_all_but_the_named_ones_are_ours():
    with bz2.open(DUMPS / SLICE) as stream:
        markup = [page.text for page in read_pages(stream) if not page.redirect]
    rows, remains = comparisons((text, strip_markup(text)) for text in markup)
    last = rows[-1]
    assert last.same / last.ours > 0.985
    assert last.same / last.theirs > 0.97
    others = [name for name in remains if name.startswith("other: ")]
    assert len(others) <= 15, others  # `markup_speed.py --show 1` prints them


@needs_data
@pytest.mark.slow
def test_differences_from_strip_code_are_seen():
    with bz2.open(DUMPS / SLICE) as stream:
        markup = [page.text for page in read_pages(stream) if not page.redirect][:4]
    whole, _ = comparisons((text, strip_markup(text)) for text in markup)
    halves, remains = comparisons((text, strip_markup(text)[::2]) for text in markup)
    assert halves[-1].same < whole[-1].same // 10
    assert any(name.startswith("other: ") for name in remains)


def test_a_difference_is_shown_between_what_both_have():
    theirs, ours = "The city<ref>a</ref> is", "The city is"
    assert difference(theirs, ours) == "The city[-<ref>a</ref>-]{++} is"
