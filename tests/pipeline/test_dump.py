"""Dumps to pages: every version, every encoding, every way of being broken, and real ones."""

import bz2
import io
import lzma
import os
import re
import tracemalloc
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.sources.documents import HOLES
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.sources.mediawiki.dump import (
    Page,
    TruncatedDump,
    begin_streams,
    index_name,
    read_index,
    read_pages,
)
from tests.benchmarks.reference_text import comparisons
from tests.support.small_sources import read, strip_markup, write_multistream

SITEINFO = (
    '<mediawiki xml:lang="de"><siteinfo><namespaces><namespace key="0" case="first-letter" />'
    '<namespace key="14" case="first-letter">Kategorie</namespace></namespaces></siteinfo>'
)
FOOTER = "</mediawiki>\n"


def page(title="A", text="a", ns="<ns>0</ns>", extra=""):
    return (
        f"<page>\n <title>{title}</title>{ns}<id>7</id>{extra}<revision><id>8</id>"
        f'<text xml:space="preserve">{text}</text></revision>\n</page>\n'
    )


def pages_of(xml):
    return list(read_pages(io.BytesIO(xml if isinstance(xml, bytes) else xml.encode())))


def until_cut(pages):
    whole: list[Page] = []
    with pytest.raises(TruncatedDump) as cut:
        whole.extend(pages)  # what came before the error stays in the list
    return whole, cut.value


def test_a_page_has_its_fields_and_entities_are_decoded_once():
    xml = page("R&amp;D", "B &amp;amp; &lt;b&gt; &quot;c&quot; &#39;&#x41; &amp;nbsp; &amp;#38;")
    expected = 'B &amp; <b> "c" \'A &nbsp; &#38;'
    assert pages_of(xml) == [Page("R&D", 0, False, expected)]


def test_header_and_footer_may_be_there_or_not():
    body = page("A") + page("B")
    whole = SITEINFO + body + FOOTER
    assert pages_of(whole) == pages_of(body) == pages_of("\ufeff" + whole)
    assert [p.title for p in pages_of(body)] == ["A", "B"]
    assert pages_of("") == pages_of(SITEINFO) == pages_of("no XML at all") == []


@pytest.mark.parametrize(
    ("text", "redirect"),
    [
        ("#REDIRECT [[B]]", True),
        ("#redirect:[[B]] {{R from typo}}", True),
        ("\n#WEITERLEITUNG [[B#c|d]]\n[[Kategorie:E]]", True),
        ("#перенаправление [[Б]]", True),
        ("#重定向[[B]]", True),
        ("# [[B]]", False),
        ("#one [[B]] and more", False),
        ("Text #REDIRECT [[B]]", False),
        ("#REDIRECT [[B]]\nand more", True),
        ("#Berlin [[Germany]]\n#Paris [[France]]\n", False),
    ],
)
def test_a_redirect_is_known_by_its_text_in_any_language(text, redirect):
    assert pages_of(page(text=text, ns=""))[0].redirect is redirect
    assert pages_of(page(text=text))[0].redirect is redirect
    assert pages_of(page(text="", extra='<redirect title="B" />'))[0].redirect


@pytest.mark.parametrize("run", [" ", "\n", "a", "[", "[[", "[[a] ", "#a ", ": "])
def test_a_text_that_is_nearly_a_redirect_is_read_in_linear_time(run):
    text = "#a" + run * (1_000_000 // len(run)) + "x"
    assert not pages_of(page(text=text))[0].redirect


def test_a_namespace_with_a_number_beyond_all_wikis_is_ignored():
    """Python refuses to read numbers of more than 4,300 digits."""
    header = SITEINFO.replace('key="14"', f'key="{"1" * 5000}"')
    [found] = pages_of(header + page("Kategorie:A", ns="") + FOOTER)
    assert found.namespace == 0


@pytest.mark.parametrize(
    "text", ['<text bytes="0" />', "<text/>", "", '<text deleted="deleted" />', "<text></text>"]
)
def test_text_may_be_empty_missing_or_deleted(text):
    xml = f"<page><title>A</title><id>7</id><revision>{text}</revision></page>"
    assert pages_of(xml + page("B")) == [Page("A", 0, False, ""), *pages_of(page("B"))]


def test_bad_bytes_and_control_characters_stay_inside_their_page():
    broken = page(text="a\x01\x0b BAD \ufffe").encode().replace(b"BAD", b"\xff\x00\xc3(")
    assert [p.text for p in pages_of(broken + page(text="good").encode())] == [
        "a\x01\x0b \ufffd\x00\ufffd( \ufffe",
        "good",
    ]


def test_utf16_reads_as_utf8_does():
    xml = SITEINFO + page("Ж", "я 😀") + page("Б") + FOOTER
    assert pages_of(("\ufeff" + xml).encode("utf-16-be")) == pages_of(xml)


def test_a_page_without_its_end_does_not_swallow_the_next_one():
    broken = page("A").replace("</page>", "")
    cut = "<page><title>C</title><ns>x</ns><revision><text>c"
    pages = pages_of(broken + page("B") + "</page></page>" + cut + page("D"))
    assert [(p.title, p.text) for p in pages] == [("A", "a"), ("B", "a"), ("C", ""), ("D", "a")]


def test_a_damaged_stream_after_a_good_one_is_detected():
    header = bz2.compress((SITEINFO + page("A")).encode())
    damaged = bytearray(bz2.compress(page("B").encode()))
    damaged[20:24] = b"!!!!"
    by_range = read_pages(io.BytesIO(header + damaged), is_packed=True)
    with bz2.open(io.BytesIO(header + damaged)) as stream:
        for pages, cut in (until_cut(read_pages(stream)), until_cut(by_range)):
            assert [p.title for p in pages] == ["A"]
            assert "after 1 pages" in str(cut)


class Dribble(io.BytesIO):
    """Hands out a few bytes at a time, as a network may."""

    def __init__(self, data, size):
        super().__init__(data)
        self.size = size

    def read1(self, _=-1):
        return super().read1(self.size)


@given(st.text(max_size=40), st.integers(1, 40))
def test_pages_do_not_depend_on_how_the_bytes_arrive(text, size):
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").encode(errors="replace").decode()
    xml = SITEINFO + page("A", escaped, ns="") + page("B") + page("C").replace("</p", "")
    whole = until_cut(read_pages(io.BytesIO(xml.encode())))[0]
    assert whole[0].text == text.encode(errors="replace").decode()
    assert until_cut(read_pages(Dribble(xml.encode(), size)))[0] == whole


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_garbage_around_pages_never_raises_anything_else(before, inside):
    xml = page(text="BAD").encode().replace(b"BAD", inside) + page("B").encode()
    assert pages_of(b" " + before + xml + FOOTER.encode())[-1].title == "B"


class Repeated(io.BytesIO):
    """The same page over and over, without ever being in memory as a whole."""

    left = 60

    def read1(self, _=-1):
        self.left -= 1
        return self.getvalue() if self.left >= 0 else b""


def test_memory_is_one_page_not_the_dump():
    stream = Repeated(page(text="x" * 999_000).encode())
    tracemalloc.start()
    pages = sum(1 for _ in read_pages(stream))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pages == 60
    assert peak < 12e6


@pytest.mark.parametrize(
    ("dump", "index"),
    [
        ("d/enwiki-multistream.xml.bz2", "d/enwiki-multistream-index.txt.bz2"),
        ("a-multistream4.xml-p1p99.bz2", "a-multistream-index4.txt-p1p99.bz2"),
        ("a-multistream-index.txt.bz2", None),
        ("enwiki-pages-articles.xml.bz2", None),
        ("a-multistream.xml", None),
    ],
)
def test_an_index_is_found_by_its_dumps_name(dump, index):
    assert index_name(dump) == index


def test_an_index_that_does_not_fit_its_dump_is_not_used_and_a_range_inside_a_stream_is_cut(
    tmp_path,
):
    pages = ["".join(map(page, titles)) for titles in ("AB", "CD", "EF")]
    source, _ = write_multistream(tmp_path, [SITEINFO, *pages, FOOTER])
    dump = Path(source).read_bytes()
    index = bz2.decompress(Path(index_name(source)).read_bytes())
    edges = read_index(io.BytesIO(index), len(dump))
    assert begin_streams(io.BytesIO(dump), edges[:-1])
    for wrong in (dump[:-200], b"x" + dump, b""):
        assert not begin_streams(io.BytesIO(wrong), edges[:-1])
    assert read_index(io.BytesIO(index), 9) is None
    for damaged in (b"one:2:A\n", b"-5:2:A\n", b"9" * 30, b"9" * 5000):
        assert read_index(io.BytesIO(damaged), len(dump)) is None
    assert read_index(io.BytesIO(b""), len(dump)) == [0, len(dump)]
    pages, cut = until_cut(read_pages(io.BytesIO(dump[: edges[1] + 30]), is_packed=True))
    assert [p.title for p in pages] == ["A", "B"]
    assert "after 2 pages" in str(cut)


# --- Real dumps go all the way: nothing vanishes uncounted, and the text is as good as a parser's
DATA = os.environ.get("CLOZELINE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set: no real dumps")
DUMPS = Path(DATA or "") / "dumps"
#: Reading a dump takes seconds, and two tests read the slice.
documents_of = cache(read)
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
    name, pages, documents, left_out, tmp_path
):
    path = DUMPS / name
    if "truncated" in name:
        xml = lzma.decompress(path.read_bytes())
        _, cut = until_cut(read_pages(io.BytesIO(xml)))
        assert f"truncated after {pages} pages" in str(cut)
        path = tmp_path / "whole_pages.xml"
        path.write_bytes(xml[: xml.rindex(b"</page>") + len(b"</page>")] + FOOTER.encode())
    found = documents_of(path)
    assert len(found.texts) == documents
    assert found.counts - Counter({HOLES: found.counts[HOLES]}) == Counter(left_out)
    assert documents + sum(left_out.values()) == pages
    assert found.rejected == []
    lines = [line for text in found.texts for line in text.split("\n")]
    bare = list(filter(BARE.search, lines))
    assert len(bare) <= len(lines) // 2000, bare[:20]  # pages about markup spell it


@needs_data
def test_a_multistream_dump_in_blocks_gives_the_documents_of_the_whole():
    sizes = {"block_bytes": 1_000_000}
    assert len(list_blocks([str(DUMPS / MULTISTREAM)], **sizes)) == 3
    assert read(DUMPS / MULTISTREAM, **sizes) == documents_of(DUMPS / SLICE)


@needs_data
@pytest.mark.slow
def test_of_the_paragraphs_that_strip_code_gives_all_but_the_named_ones_are_ours():
    with bz2.open(DUMPS / SLICE) as stream:
        texts = [page.text for page in read_pages(stream) if not page.redirect]
    rows, remains = comparisons((text, strip_markup(text)) for text in texts)
    last = rows[-1]
    assert last.same / last.ours > 0.985
    assert last.same / last.theirs > 0.97
    others = [name for name in remains if name.startswith("other: ")]
    assert len(others) <= 15, others
