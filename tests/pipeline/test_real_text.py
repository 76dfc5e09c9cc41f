"""Real dumps go all the way: nothing vanishes uncounted, and the text is as good as a parser's."""

import bz2
import os
import re
from pathlib import Path

import pytest

from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.sources.mediawiki.dump import read_pages
from clozeline.pipeline.sources.mediawiki.markup import strip_markup
from clozeline.pipeline.sources.sample.articles import make_articles
from tests.benchmarks.reference_text import comparisons
from tests.support.command import output_of
from tests.support.small_jobs import write_tokenizer
from tests.support.small_sources import read

DATA = os.environ.get("CLOZELINE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set: no real dumps")
DUMPS = Path(DATA or "") / "dumps"
SLICE = "enwiki-slice-pages-articles.xml.bz2"
MULTISTREAM = "enwiki-slice-pages-articles-multistream.xml.bz2"

BARE = re.compile(r"\[\[|\{\{|\{\||'''|</?(?:ref|br|div|span)\b|^[|*]|__[A-Z]+__", re.MULTILINE)


@needs_data
@pytest.mark.parametrize(
    ("name", "pages", "documents", "left_out"),
    [
        ("enwiki-table-markup.xml.bz2", 5, 5, {}),
        ("bgwiki-latest-pages-articles-shortened.xml.bz2", 3, 1, {"other_namespace": 2}),
        ("smallwiki-latest-pages-articles.xml.bz2", 2004, 896, {"redirect": 195,
         "other_namespace": 906, "empty": 7}),
        ("elwiki-truncated-100k.xml.xz", 933, 523, {"redirect": 26, "other_namespace": 383,
         "empty": 1}),
        (SLICE, 206, 106, {"redirect": 100}),
    ],
)  # fmt: skip
def test_every_page_of_a_real_dump_is_accounted_for_and_keeps_no_bare_markup(
    name, pages, documents, left_out
):
    found = read(DUMPS / name)
    is_cut = "truncated" in name
    assert len(found.texts) == documents
    assert dict(found.counts) == left_out | ({"truncated": 1} if is_cut else {})
    assert documents + sum(left_out.values()) == pages
    assert [bad.where for bad in found.rejected] == [str(DUMPS / name)] * is_cut
    assert all(f"truncated after {pages} pages" in bad.reason for bad in found.rejected)
    lines = [line for text in found.texts for line in text.split("\n")]
    bare = list(filter(BARE.search, lines))
    assert len(bare) <= len(lines) // 2000, bare[:20]  # pages about markup spell it


@needs_data
def test_a_real_dump_goes_all_the_way(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer", make_articles(0, 0, 20))
    source = DUMPS / "bgwiki-latest-pages-articles-shortened.xml.bz2"
    out = tmp_path / "out"
    said = output_of("shards", source, "--tokenizer", tokenizer, "--out", out, "--workers=1")
    manifest = read_manifest(out)
    assert (manifest.counts["documents"], manifest.counts["rejected"]) == (1, 0)
    assert manifest.dropped["other_namespace"] == 2
    assert "warning" not in said


@needs_data
def test_a_multistream_dump_in_blocks_gives_the_documents_of_the_whole():
    sizes = {"block_bytes": 1_000_000}
    assert len(list_blocks([str(DUMPS / MULTISTREAM)], **sizes)) == 3
    assert read(DUMPS / MULTISTREAM, **sizes) == read(DUMPS / SLICE)


def slice_pages():
    with bz2.open(DUMPS / SLICE) as stream:
        return [page.text for page in read_pages(stream) if not page.redirect]


@needs_data
@pytest.mark.slow
def test_of_the_paragraphs_that_strip_code_gives_all_but_the_named_ones_are_ours():
    rows, remains = comparisons((text, strip_markup(text)) for text in slice_pages())
    last = rows[-1]
    assert last.same / last.ours > 0.985
    assert last.same / last.theirs > 0.97
    others = [name for name in remains if name.startswith("other: ")]
    assert len(others) <= 15, others  # `markup_speed.py --show 1` prints them
