"""MediaWiki dumps as sources: blocks are ranges of bz2 streams, documents are articles.

a-multistream.xml.bz2 and its index  ->  Block(start=0, stop=9731), Block(start=9731, ...), ...
<page>..'''Rome''' is a [[city]]...  ->  "Rome is a city."
"""

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.sources import files
from clozeline.pipeline.sources.block import Block, cut
from clozeline.pipeline.sources.documents import HOLES, Documents
from clozeline.pipeline.sources.mediawiki import dump
from clozeline.pipeline.sources.mediawiki.inline import LinkPatterns
from clozeline.pipeline.sources.mediawiki.markup import over_budget, strip_page

INDEX_NAME = r"-multistream-index[0-9]*\.txt(-p[0-9]+p[0-9]+)?$"
DUMP_NAME = re.compile(r"\.xml(-p[0-9]+p[0-9]+)?$", re.IGNORECASE)
ROOT_TAG = re.compile(rb"<\0?m\0?e\0?d\0?i\0?a\0?w\0?i\0?k\0?i")  # in UTF-8 or UTF-16
MARKUP = re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\0]*<")
WIKITEXTS = (dump.WIKITEXT, "proofread-page")  #: content models that are wiki markup
TEXT_PERCENT = 50  #: of a dump's bytes that are text: an estimate, and a constant
#: Keeps the whole pages of an unpacked dump that ends early.
WHOLE_PAGES = (
    """awk '{p = p $0 "\\n"} /<\\/page>/ {printf "%s", p; p = ""} END {print "</mediawiki>"}'"""
)


def is_dump(name: str, head: bytes) -> bool:
    """Whether the first bytes hold the root tag of a dump or, in a file named as one, a page.

    Other XML has neither. An empty file is what its name says.
    """
    if ROOT_TAG.search(head[:1024]) and MARKUP.match(head):
        return True
    return DUMP_NAME.search(name) is not None and (dump.PAGE in head or not head.strip())


def list_stream_ranges(whole: Block, block_bytes: int) -> list[Block]:
    """Ranges of whole streams where a multistream dump has its index beside it, else one block.

    An index itself has no blocks: a glob that names a dump often names its index, too.
    """
    if re.search(INDEX_NAME, files.bare_name(whole.path)) or not (whole.stop or whole.compression):
        return []
    whole = replace(whole, text_bytes=whole.text_bytes * TEXT_PERCENT // 100)
    edges = _indexed_edges(whole)
    blocks = cut(whole, edges, block_bytes)
    if len(blocks) > 1:
        # Only where it is cut: a store would be asked for each of 200,000 streams.
        with files.RawFile(whole.path) as file:
            if not dump.begin_streams(file, [edges[-2], *(block.start for block in blocks)]):
                return cut(whole, [0, whole.stop], block_bytes)
    return blocks


def _indexed_edges(whole: Block) -> list[int]:
    """Where the index beside a multistream dump says that streams begin, and the dump's end.

    [0, end] for other dumps, and where the index is missing or damaged or does not fit.
    """
    edges = None
    if name := dump.index_name(whole.path):
        with (
            suppress(InputError),
            files.open_unpacked(files.find_files(name)[0].path, "bz2") as index,
        ):
            edges = dump.read_index(index, whole.stop)
    return edges or [0, whole.stop]


def read_articles(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The articles of a block; redirects and other namespaces are counted, bad pages rejected."""
    documents, size = Documents(), 0
    with files.open_unpacked(block.path, block.compression) as header:  # of the whole dump
        links = dump.read_wiki(header)
    with files.open_file(block.path) as file:
        is_whole = (block.start, block.stop) == (0, file.seek(0, io.SEEK_END))
        file.seek(block.start)
        packed = file if is_whole else io.BytesIO(file.read(block.stop - block.start))
        stream = files.unpack(file, block.compression)
        longest = block.max_document_bytes
        if is_whole:
            pages = dump.read_pages(stream, longest=longest)
        else:
            pages = dump.read_streams(packed, longest=longest)
        try:
            for page in pages:
                _keep_article(page, documents, block, links)
                size += len(page.text)
                if size >= chunk_bytes:
                    yield documents
                    documents, size = Documents(), 0
        except dump.TruncatedDump as error:
            if not is_whole:
                raise files.damaged(block.path, "bz2", error) from error
            unpack = f"{files.COMMANDS[block.compression]} -c" if block.compression else "cat"
            raise InputError(
                f"{block.path} is not whole: {error}. Get the whole file, or keep its whole pages: "
                f"{unpack} OLD | {WHOLE_PAGES} > NEW.xml"
            ) from error
    yield documents


def _keep_article(page: dump.Page, documents: Documents, block: Block, links: LinkPatterns) -> None:
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
