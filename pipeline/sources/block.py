"""Blocks: slices of a source, the unit of work and of retry, and how a source is cut into them.

    Block(path="/a.txt", start=0, stop=1000, text_bytes=1000)
    cut(block, range(1001), 400)        ->  [0, 500)  [500, 1000)
    cut(block, [0, 300, 1000], 400)     ->  [0, 300)  [300, 1000)

A block is a few megabytes, so that a lost worker costs little. It says where the text is and does
not hold it. The size of blocks changes neither the documents nor the sum of `text_bytes`, from
which the number of shards is computed.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

BLOCK_BYTES = 16 << 20  #: of text, roughly
BATCH_ROWS = 8192  #: rows of a table that are read at once, at most


@dataclass(frozen=True, kw_only=True)
class Block:
    """A slice of a source. Plain values, so that it travels to any worker."""

    index: int = 0  #: ordinal over the whole job
    path: str  #: a file, a URL, or a `sample:` or `hf://` source
    format: str  #: the name of a row of `formats.FORMATS`
    compression: str | None = None  #: "bz2" "gz" "xz" "zst"
    start: int = 0  #: in the format's unit: row groups, bytes of the file, rows or articles
    stop: int
    text_bytes: int = 0  #: an estimate
    version: str  #: changes when the file does
    text_columns: tuple[str, ...] = ("text",)  #: joined by line ends, where the format has columns
    max_document_bytes: int = 64_000_000  #: longer documents are rejected
    documents: int | None = None  #: only the first documents of the block
    repeat: int = 1  #: its documents make this many times as many examples
    share: str = ""  #: the source with ?tokens= whose budget its documents share
    tokens: int | None = None  #: how many tokens the source gives
    reading: tuple[str, ...] = ()  #: how it is read, such as "document=line"
    query: str = ""  #: those of its source's options that every source has, such as "repeat=2"

    @property
    def identity(self) -> str:
        """All that the documents depend on, except text columns and `max_document_bytes`."""
        span = f"{self.start}-{self.stop}"
        parts = [self.path, self.format, self.compression or "", span, self.version, *self.reading]
        return "|".join(parts if self.documents is None else [*parts, str(self.documents)])


def cut(
    whole: Block,
    edges: Sequence[int],
    block_bytes: int,
    text_before: Sequence[int] | None = None,
) -> list[Block]:
    """Blocks of about `block_bytes` of text, as equal as possible, cut at edges only.

    Part i is [edges[i], edges[i + 1]), and `text_before[i]` the bytes of text before edge i;
    without it the text is assumed to be spread evenly. Equal blocks, because a local runner deals
    its workers the same number and waits for the last one. None if there is nothing to read.
    """
    before = edges if text_before is None else text_before
    total, text_bytes = before[-1], whole.text_bytes if text_before is None else before[-1]
    count = min(max(1, round(text_bytes / block_bytes)), len(edges) - 1)
    cuts = (_nearest(before, total * number // count) for number in range(1, count))
    chosen = sorted({0, *cuts, len(edges) - 1})
    text = [text_bytes * before[i] // max(total, 1) for i in chosen]
    return [
        replace(whole, start=edges[i], stop=edges[j], text_bytes=stop - start)
        for (i, j), (start, stop) in zip(pairwise(chosen), pairwise(text), strict=True)
    ]


def _nearest(rising: Sequence[int], target: int) -> int:
    """The index of the nearest number; `target` lies between the first and the last."""
    above = bisect_left(rising, target)
    return min(above, max(above - 1, 0), key=lambda index: abs(rising[index] - target))


def rows_per_chunk(block: Block, rows: int, chunk_bytes: int) -> int:
    """How many of a block's rows make a chunk of about `chunk_bytes` of text."""
    return max(1, min(BATCH_ROWS, chunk_bytes * rows // max(block.text_bytes, 1)))
