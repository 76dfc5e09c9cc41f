"""Files to read documents from, packed or not, and all that is read of them."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.sources.mediawiki.inline import LinkPatterns
from clozeline.pipeline.sources.mediawiki.markup import strip_page


def _bz2(data: bytes) -> bytes:
    """Small streams: what is packed in a damaged one is lost as a whole."""
    parts = (data[start : start + 20_000] for start in range(0, len(data), 20_000))
    return b"".join(map(bz2.compress, parts)) or bz2.compress(b"")


def _zst(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "bz2": _bz2,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": _zst,
}


def strip_markup(markup: str, links: LinkPatterns | None = None) -> str:
    """The text of a page of a wiki."""
    return strip_page(markup, links)[0]


def write(path: Path, data: str | bytes) -> str:
    """The name of the file, as of a source."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def read(*sources: object, chunk_bytes: int = 1 << 20, **options: Any) -> Documents:
    """All documents of the sources as one chunk."""
    whole = Documents()
    for block in list_blocks([*map(str, sources)], **options):
        for chunk in read_block(block, chunk_bytes=chunk_bytes):
            whole.texts += chunk.texts
            whole.rejected += chunk.rejected
            whole.counts += chunk.counts
    return whole


def page(title: str, text: str, *, ns: int = 0, redirect: str = "") -> str:
    """A page of a dump, in XML."""
    return (
        f"<page><title>{title}</title><ns>{ns}</ns><id>7</id>{redirect}"
        f"<revision><text>{text}</text></revision></page>\n"
    )


def write_multistream(folder: Path, streams: list[str]) -> tuple[str, list[int]]:
    """A dump of header, pages and footer, each a stream, and its index; where the pages begin."""
    packed = [bz2.compress(stream.encode()) for stream in streams]
    offsets = [sum(map(len, packed[:i])) for i in range(1, len(packed) - 1)]
    index = "".join(f"{offset}:{i}:T\n{offset}:{i}:U\n" for i, offset in enumerate(offsets))
    write(folder / "x-multistream-index.txt.bz2", bz2.compress(index.encode()))
    return write(folder / "x-multistream.xml.bz2", b"".join(packed)), offsets
