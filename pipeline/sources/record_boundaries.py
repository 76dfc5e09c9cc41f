"""Cuts a stream of bytes where documents start, so that blocks of any size give the same documents.

    b"a\n\nb\n\nc", bytes 1 to 5, blank lines as boundary  ->  (3, b"b\n\n")

Call `next_start(p)` the first start of a document at or after byte p: a function of the file alone.
A block [start, stop) then holds the bytes from next_start(start) up to next_start(stop), whatever
its size, and so does a chunk of a block. So each document is in the one block in which it starts,
and no block has to be read from the beginning of its file.

A `boundary` is a pattern for what separates two documents: it begins with a line end and includes
all whitespace that follows. To find the starts at or after p it is enough to search from where the
whitespace before p begins.
"""

import io
import re
import sys
from collections.abc import Iterator

WHITESPACE = b" \t\r\n"
LOOKAHEAD = 16  #: bytes after a start that a boundary may inspect ("<doc "), at most
STEP = 1 << 16  #: bytes read beyond a target, doubled as long as there is no boundary in them


def cut_chunks(
    stream: io.BufferedIOBase,
    boundary: re.Pattern[bytes],
    *,
    start: int = 0,
    stop: int = sys.maxsize,
    chunk_bytes: int,
) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of chunks of whole documents: those that start in [start, stop).

    A chunk is at least `chunk_bytes` long, except the last one, and ends where a document does.
    `stream` is at byte 0; it must be seekable only where `start` is not 0.
    """
    window = _Window(stream, boundary, _whitespace_before(stream, start) if start else 0)
    if start:
        window.drop(window.next_start(start, limit=stop))
    while window.offset < stop:
        target = min(window.offset + chunk_bytes, stop)
        offset, data = window.offset, window.drop(window.next_start(target))
        if not data:  # the end of the stream
            return
        yield offset, data


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
    """The part of a stream that has been read and not dropped yet."""

    def __init__(self, stream: io.BufferedIOBase, boundary: re.Pattern[bytes], offset: int) -> None:
        self.offset = offset  #: of the first byte kept
        self._stream = stream
        self._boundary = boundary
        self._data = b""
        self._ended = False

    def next_start(self, position: int, *, limit: int = sys.maxsize) -> int:
        """The first start at or after `position`, or where the stream ends, or `limit` if nearer.

        With the limit a block in the middle of a huge document does not read to its end.
        """
        self._read(position + STEP - self._end)
        step = STEP
        while (found := self._search(position)) is None:
            if self._ended:
                return self._end
            if self._end > limit + LOOKAHEAD:
                return limit
            self._read(step)
            step *= 2
        return found

    def drop(self, position: int) -> bytes:
        """Returns the bytes up to `position` and forgets them."""
        size = position - self.offset
        dropped, self._data = self._data[:size], self._data[size:]
        self.offset = position
        return dropped

    @property
    def _end(self) -> int:
        return self.offset + len(self._data)

    def _search(self, position: int) -> int | None:
        size = position - self.offset
        found = self._boundary.search(self._data, len(self._data[:size].rstrip(WHITESPACE)))
        # Whitespace at the end of what was read may continue in what was not.
        if found and (found.end() < len(self._data) or self._ended):
            return self.offset + found.end()
        return None

    def _read(self, size: int) -> None:
        while size > 0 and not self._ended:
            data = self._stream.read(size)
            self._ended = not data
            self._data += data
            size -= len(data)
