"""MediaWiki XML dumps to pages and articles, one page in memory at a time.

    <page><title>A</title><ns>0</ns><id>7</id><revision>..<text>B &amp;amp; C</text>..</page>
    ->  Page(title="A", namespace=0, redirect=False, text="B &amp; C")  ->  "B & C"

Dumps are written by one program in one layout, so it is enough to scan the bytes for `<page>` and
`</page>`. Unlike an XML parser, a scanner can begin anywhere (a range of a multistream dump has no
root element), accepts control characters and bad bytes (expat stops there), and keeps a broken page
from affecting the next one. It does not read XML that MediaWiki does not write: namespace prefixes,
CDATA, attributes on `<page>`.

A *multistream* dump is many concatenated bz2 streams, and its index lists the offsets where they
begin: so it has blocks, which are ranges of streams, and any other dump is one block.
"""

import bz2
import codecs
import html
import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.sources import files
from clozeline.pipeline.sources.block import Block, cut
from clozeline.pipeline.sources.documents import HOLES, Documents
from clozeline.pipeline.sources.mediawiki.inline import HIDDEN_KEYS, LinkPatterns, link_patterns
from clozeline.pipeline.sources.mediawiki.markup import over_budget, strip_page

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 1 << 16  #: kept of a page that is too long; they hold its title

ROOT, ROOT_END, PAGE, PAGE_END = b"<mediawiki", b"</mediawiki", b"<page>", b"</page>"
PAGE_TAG = re.compile(rb"</?page>")
TITLE_TAG = re.compile(r"<title(?:\s[^<>]*)?>")
TEXT_TAG = re.compile(r"<text(?:\s[^<>]*)?/?>")
MODEL = re.compile(r"<model>\s*([^<>]*?)\s*</model>")
TIMESTAMP = re.compile(r"<timestamp>\s*([0-9T:Z-]{8,24})\s*</timestamp>")
WIKITEXT = "wikitext"
NS = re.compile(r"<ns>\s*(-?[0-9]{1,6})\s*</ns>")
ENTITY = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
# "#REDIRECT [[A]]"; in another language, too, if only templates, categories and comments follow:
# "#Berlin [[Germany]]", and "#Paris [[France]]" below it, is a numbered list.
REDIRECT = re.compile(
    r"\s*#(?:redirect|([^\s\[\]:]++))\s*+:?\s*+\[\[[^\[\]\n]*\]\](?(1)\s*(?:\Z|\{\{|\[\[|<!--|__))",
    re.IGNORECASE,
)
NAMESPACE = re.compile(r'<namespace key="(-?[0-9]{1,6})"[^<>]*>([^<>]+)</namespace>')
LANGUAGE = re.compile(r'<mediawiki [^>]*xml:lang="([a-z-]+)"|<dbname>([a-z]+)wik')

BZ2_HEADER = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")  # then a block, or the end at once
MULTISTREAM = re.compile(r"(-multistream)([0-9]*)\.xml(-p[0-9]+p[0-9]+)?\.bz2$")

INDEX_NAME = r"-multistream-index[0-9]*\.txt(-p[0-9]+p[0-9]+)?$"
DUMP_NAME = re.compile(r"\.xml(-p[0-9]+p[0-9]+)?$", re.IGNORECASE)
ROOT_TAG = re.compile(rb"<\0?m\0?e\0?d\0?i\0?a\0?w\0?i\0?k\0?i")  # in UTF-8 or UTF-16
MARKUP = re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\0]*<")
WIKITEXTS = (WIKITEXT, "proofread-page")  #: content models that are wiki markup
TEXT_PERCENT = 50  #: of a dump's bytes that are text: an estimate, and a constant
#: Keeps the whole pages of an unpacked dump that ends early.
WHOLE_PAGES = (
    """awk '{p = p $0 "\\n"} /<\\/page>/ {printf "%s", p; p = ""} END {print "</mediawiki>"}'"""
)


@dataclass(frozen=True)
class Page:
    """A page in its newest revision; `text` is wiki markup, empty if it is missing.

    A `model` other than "wikitext" says that it is not, such as "wikibase-item".
    """

    title: str
    namespace: int
    redirect: bool
    text: str
    is_too_long: bool = False  # then the text is not whole
    model: str = WIKITEXT


class TruncatedDump(InputError):
    """The dump ends inside a page, after the whole ones that were read."""


def read_pages(
    stream: IO[bytes], *, longest: int = sys.maxsize, is_packed: bool = False
) -> Iterator[Page]:
    """The pages of a decompressed dump, or of any part of it that begins and ends between pages.

    Or, if it is packed, of some of a multistream dump's bz2 streams.

    UTF-8, or UTF-16 with a byte-order mark; invalid bytes become U+FFFD. A page without an end tag
    before the next page is still a page, without the text that is missing; a page of more than
    `longest` bytes is read past, and only its title is whole. Raises TruncatedDump,
    after the last whole page, if the data end inside a page or, where there was a header, without a
    footer (which packed streams need not have), or if decompression fails.
    """
    unpacked = files.unpack_streams(stream, bz2.BZ2Decompressor) if is_packed else None
    elements = _elements(unpacked or _utf8_chunks(stream), footer=not is_packed, longest=longest)
    pages = 0
    try:
        next(elements, None)  # the header
        for element, is_too_long in elements:
            page = _page(element.decode("utf-8", "replace"))
            yield replace(page, text="", is_too_long=True) if is_too_long else page
            pages += 1
    except files.DAMAGE as error:
        raise TruncatedDump(f"the dump is truncated after {pages:,} pages ({error})") from error


def read_wiki(stream: IO[bytes]) -> LinkPatterns:
    """What a dump's header says of its wiki; the English names if it has none."""
    header = b""
    for chunk in _utf8_chunks(stream):
        header += chunk
        if b"</siteinfo>" in header or PAGE in header or len(header) >= CHUNK_BYTES:
            break
    text = header.partition(PAGE)[0].decode("utf-8", "replace")
    names = {_unescape(name) for key, name in NAMESPACE.findall(text) if int(key) in HIDDEN_KEYS}
    language = LANGUAGE.search(text)
    return link_patterns(frozenset(names), (language and (language[1] or language[2])) or "")


def _utf8_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    # read1 returns what a decompressor has, while read would lose it to the error that follows.
    read = getattr(stream, "read1", stream.read)
    chunk = read(CHUNK_BYTES)
    is_utf16 = chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    while chunk:
        yield decoder.decode(chunk).encode("utf-8", "replace") if is_utf16 else chunk
        chunk = read(CHUNK_BYTES)


def _elements(
    chunks: Iterator[bytes], *, footer: bool, longest: int
) -> Iterator[tuple[bytearray, bool]]:
    """What precedes the first page (at most its last CHUNK_BYTES), then every page's bytes.

    True marks a page that is too long: these are only its beginning and its end.
    """
    buffer, scanned, inside, first = bytearray(), 0, False, True
    unended = is_cut = False
    for chunk in chunks:
        buffer += chunk
        while tag := PAGE_TAG.search(buffer, scanned):
            begins = tag[0] == PAGE
            stop = tag.start() if begins else tag.end()
            if inside or (begins and first):
                unended |= first and footer and ROOT in buffer[:stop]
                yield buffer[:stop], is_cut or (not first and stop > longest)
                first = is_cut = False
            del buffer[:stop]
            scanned, inside = len(PAGE) if begins else 0, begins
        if not inside:
            del buffer[:-CHUNK_BYTES]
        elif len(buffer) > max(longest, 2 * HEAD_BYTES):
            del buffer[HEAD_BYTES : -len(PAGE_END)]
            is_cut, scanned = True, 0
        scanned = max(len(buffer) - len(PAGE_END) + 1, scanned)
    if inside:
        raise EOFError("the XML ends inside a page")
    if unended and ROOT_END not in buffer:  # truncated between pages, or "trailing garbage"
        raise EOFError("the XML ends without a footer")


def _page(xml: str) -> Page:
    head, *revisions = xml.split("<revision>")
    revision = max(reversed(revisions), key=_timestamp, default=xml)  # the last, if times are equal
    text = _content(revision, TEXT_TAG, "</text>")
    model = MODEL.search(revision.partition("<text")[0])
    title = _content(head, TITLE_TAG, "</title>")
    number = NS.search(head)
    return Page(
        title=title,
        namespace=int(number[1]) if number else 0,
        redirect="<redirect" in head or REDIRECT.match(text) is not None,
        text=text,
        model=(model and model[1]) or WIKITEXT,
    )


def _timestamp(revision: str) -> str:
    match = TIMESTAMP.search(revision)
    return match[1] if match else ""


def _content(xml: str, tag: re.Pattern[str], end_tag: str) -> str:
    """The unescaped content of the first such element, "" if there is none."""
    begin = tag.search(xml)
    if begin is None or begin[0].endswith("/>"):
        return ""
    end = xml.find(end_tag, begin.end())
    return _unescape(xml[begin.end() : end]) if end >= 0 else ""


def _unescape(xml: str) -> str:
    """Decodes XML entities once: &amp;nbsp; is &nbsp;, which is left for the markup."""
    return ENTITY.sub(lambda entity: CHARACTERS.get(entity[1]) or html.unescape(entity[0]), xml)


def index_name(dump: str) -> str | None:
    """The name of a multistream dump's index in the same folder; None for any other file.

    a-multistream.xml.bz2              ->  a-multistream-index.txt.bz2
    a-multistream4.xml-p1p99.bz2       ->  a-multistream-index4.txt-p1p99.bz2
    """
    name, replaced = MULTISTREAM.subn(r"\1-index\2.txt\3.bz2", dump)
    return name if replaced else None


def read_index(index: IO[bytes], size: int) -> list[int] | None:
    """Where a dump of so many bytes may be cut, by its decompressed index: [0, ..., size].

    The header belongs to the first stream and the footer to the last. None if the index is damaged
    or names a place that the dump does not have.
    """
    try:
        offsets = sorted(map(int, {line.partition(b":")[0] for line in index}))
    except ValueError:
        return None
    if offsets and not 0 <= offsets[0] <= offsets[-1] < size:
        return None
    return [0, *offsets[1:], size]


def begin_streams(dump: IO[bytes] | io.RawIOBase, offsets: Iterable[int]) -> bool:
    """Whether a stream of the dump begins at each of these places."""
    for offset in offsets:
        dump.seek(offset)
        if not BZ2_HEADER.match(dump.read(10) or b""):
            return False
    return True


def is_dump(name: str, head: bytes) -> bool:
    """Whether the first bytes hold the root tag of a dump or, in a file named as one, a page.

    Other XML has neither. An empty file is what its name says.
    """
    if ROOT_TAG.search(head[:1024]) and MARKUP.match(head):
        return True
    return DUMP_NAME.search(name) is not None and (PAGE in head or not head.strip())


def list_stream_ranges(whole: Block, block_bytes: int) -> list[Block]:
    """Ranges of whole streams where a multistream dump has its index beside it, else one block.

    An index itself has no blocks: a glob that names a dump often names its index, too.
    """
    if re.search(INDEX_NAME, files.bare_name(whole.path)) or not (whole.stop or whole.compression):
        return []
    whole = replace(whole, text_bytes=whole.text_bytes * TEXT_PERCENT // 100)
    edges = [0, whole.stop]
    if name := index_name(whole.path):
        with (
            suppress(InputError),  # it is missing or damaged
            files.open_unpacked(files.find_files(name)[0].path, "bz2") as index,
        ):
            edges = read_index(index, whole.stop) or edges
    blocks = cut(whole, edges, block_bytes)
    if len(blocks) > 1:
        # Only where it is cut: a store would be asked for each of 200,000 streams.
        with files.RawFile(whole.path) as file:
            if not begin_streams(file, [edges[-2], *(block.start for block in blocks)]):
                return cut(whole, [0, whole.stop], block_bytes)
    return blocks


def read_articles(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The articles of a block; redirects and other namespaces are counted, bad pages rejected."""
    documents, size = Documents(), 0
    with files.open_unpacked(block.path, block.compression) as header:  # of the whole dump
        links = read_wiki(header)
    with files.open_file(block.path) as file:
        is_whole = (block.start, block.stop) == (0, file.seek(0, io.SEEK_END))
        file.seek(block.start)
        longest = block.max_document_bytes
        if is_whole:
            pages = read_pages(files.unpack(file, block.compression), longest=longest)
        else:
            packed = io.BytesIO(file.read(block.stop - block.start))
            pages = read_pages(packed, longest=longest, is_packed=True)
        try:
            for page in pages:
                _keep_article(page, documents, block, links)
                size += len(page.text)
                if size >= chunk_bytes:
                    yield documents
                    documents, size = Documents(), 0
        except TruncatedDump as error:
            if not is_whole:
                raise files.damaged(block.path, "bz2", error) from error
            unpack = f"{files.COMMANDS[block.compression]} -c" if block.compression else "cat"
            raise InputError(
                f"{block.path} is not whole: {error}. Get the whole file, or keep its whole pages: "
                f"{unpack} OLD | {WHOLE_PAGES} > NEW.xml"
            ) from error
    yield documents


def _keep_article(page: Page, documents: Documents, block: Block, links: LinkPatterns) -> None:
    where = f"{block.path}: {page.title}"
    if page.is_too_long:
        documents.reject(where, f"longer than --max-document-bytes {block.max_document_bytes:,}")
    elif page.redirect:
        documents.count("redirect")
    elif page.namespace:
        documents.count("other_namespace")
    elif page.model not in WIKITEXTS:
        documents.count("other_model")
    elif reason := over_budget(page.text):
        documents.reject(where, f"over the page budget: {reason}")
    else:
        try:
            text, holes = strip_page(page.text, links, drop_holes="holes=drop" in block.reading)
        except Exception as error:  # whatever the parser fails on, it is one page of a dump
            documents.reject(where, f"markup: {one_line(error)}")
        else:
            documents.count(HOLES, holes)
            documents.keep(text)
