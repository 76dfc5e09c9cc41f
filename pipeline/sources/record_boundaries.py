"""Cuts a stream of bytes where documents start, so that blocks of any size give the same documents.

    b"a\n\nb\n\nc", bytes 1 to 5, blank lines as boundary  ->  (3, b"b\n\n")

Call `next_start(p)` the first start of a document at or after byte p: a function of the file alone.
A block [start, stop) then holds the bytes from next_start(start) up to next_start(stop), whatever
its size, and so does a chunk of a block. So each document is in the one block in which it starts,
and no block has to be read from the beginning of its file.

A `boundary` is a pattern for what separates two documents: it begins with a line end and includes
all whitespace that follows. To find the starts at or after p it is enough to search from where the
whitespace before p begins.

A document that is over a limit, with the whitespace after it, is skipped, and never in memory as a
whole.
"""

import io
import re
import sys
from collections.abc import Iterator
from itertools import pairwise

WHITESPACE = b" \t\r\n"
LOOKAHEAD = 16  #: bytes after a start that a boundary may inspect ("<doc "), at most
STEP = 1 << 16  #: bytes read beyond a target, doubled until they contain a boundary
MAX_STEP = 1 << 20


def cut_chunks(
    stream: io.BufferedIOBase,
    boundary: re.Pattern[bytes],
    *,
    start: int = 0,
    stop: int = sys.maxsize,
    chunk_bytes: int,
    longest: int = sys.maxsize,
) -> Iterator[tuple[int, bytes | None]]:
    """Offset and bytes of chunks of whole documents: those that start in [start, stop).

    A chunk is at least `chunk_bytes` long, except the last one, and ends where a document does; a
    document of more than `longest` bytes is None instead.
    `stream` is at byte 0; it must be seekable unless `start` is 0.
    """
    window = _Window(stream, boundary, longest)
    if start:
        window.offset = _whitespace_before(stream, start)
        window.drop(window.next_start(start, limit=stop))
    while window.offset < stop:
        end = window.next_start(min(window.offset + chunk_bytes, stop))
        if not end:
            return
        yield from window.drop(end)


def _whitespace_before(stream: io.BufferedIOBase, position: int) -> int:
    """Where the whitespace that ends at `position` begins; leaves the stream there."""
    width = STEP
    while True:
        begin = max(0, position - width)
        stream.seek(begin)
        lead = stream.read(position - begin).rstrip(WHITESPACE)
        if lead or begin == 0:
            return stream.seek(begin + len(lead))
        width *= 2


class _Window:
    """The part of a stream that has been read and not dropped yet.

    Only the last document in it may be too long; then its middle is gone.
    """

    def __init__(
        self, stream: io.BufferedIOBase, boundary: re.Pattern[bytes], longest: int
    ) -> None:
        self.offset = 0  #: of the first byte kept
        self._stream = stream
        self._boundary = boundary
        self._longest = longest
        self._data = b""
        self._gone = 0  # bytes of the last document's middle
        self._ended = False

    def next_start(self, position: int, *, limit: int = sys.maxsize) -> int:
        """The bytes kept before the first start at or after `position`, or the stream's end.

        With a `limit`, a block inside a huge document does not read to the document's end.
        """
        at = position - self.offset
        step = STEP
        self._read(at + step - len(self._data))
        while True:
            boundary = self._boundary.search(self._data, len(self._data[:at].rstrip(WHITESPACE)))
            # Whitespace at the end of what was read may continue in what was not.
            if boundary and (boundary.end() < len(self._data) or self._ended):
                return boundary.end()
            if self._ended or self.offset + len(self._data) > limit + LOOKAHEAD:
                return len(self._data)
            # What a boundary may still inspect does not belong to the document yet.
            at = max(at, len(self._data) - LOOKAHEAD)
            if at > self._longest:
                at = self._shorten(at)
            self._read(step)
            step = min(2 * step, MAX_STEP)

    def _shorten(self, at: int) -> int:
        """Forget the middle of the document that holds this byte, if it is too long."""
        begin = max((end for end in self._starts(self._data) if end < at), default=0)
        kept, rest = begin + self._longest, len(self._data[:at].rstrip(WHITESPACE))
        if rest <= kept:
            return at
        self._gone += rest - kept - 1
        self._data = self._data[:kept] + b"x" + self._data[rest:]  # no line end begins before "x"
        return at - rest + kept + 1

    def drop(self, size: int) -> list[tuple[int, bytes | None]]:
        """Forget the first bytes; returns their documents, around those that are too long."""
        documents: list[tuple[int, bytes | None]] = []
        offset, data, begin = self.offset, self._data[:size], 0
        self.offset, self._gone = offset + size + self._gone, 0
        self._data = self._data[size:]
        for start, stop in pairwise(self._starts(data)) if len(data) > self._longest else ():
            if stop - start > self._longest:
                if start > begin:
                    documents.append((offset + begin, data[begin:start]))
                documents.append((offset + start, None))
                begin = stop
        if begin < len(data):
            documents.append((offset + begin, data[begin:] if begin else data))
        return documents

    def _starts(self, data: bytes) -> list[int]:
        """Where documents start in data that begin with one, and where the data end."""
        return [0, *(boundary.end() for boundary in self._boundary.finditer(data)), len(data)]

    def _read(self, size: int) -> None:
        while size > 0 and not self._ended:
            data = self._stream.read(size)
            self._ended = not data
            self._data += data
            size -= len(data)
