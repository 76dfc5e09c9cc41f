"""Cut a stream of bytes where documents start, so that blocks of any size give the same documents.

Call `next_start(p)` the first start of a document at or after byte p: a function of the file alone.
A block [start, stop) then holds the bytes from next_start(start) up to next_start(stop), whatever
its size, and a piece of a block is made the same way. So each document is in the one block in which
it starts, and nobody has to read a file from its beginning.

A `boundary` is a pattern for what stands between two documents: it begins with a line end and
takes in all the whitespace that follows. To ask for the starts at or after p it is enough to search
from where the whitespace before p begins.
"""

import io
import re
import sys
from collections.abc import Iterator

WHITESPACE = b" \t\r\n"
LOOKAHEAD = 16  #: bytes after a start that tell that it is one ("<doc "), at most
STEP = 1 << 16  #: bytes read beyond a wanted cut, doubled as long as there is no boundary in them


def cut_pieces(
    stream: io.BufferedIOBase,
    boundary: re.Pattern[bytes],
    *,
    start: int = 0,
    stop: int = sys.maxsize,
    piece_bytes: int,
) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of pieces that hold whole documents: those that start in [start, stop).

    A piece is at least `piece_bytes` long but for the last one, and ends with a document. `stream`
    stands at byte 0; it is only sought in where `start` is not 0.
    """
    window = _Window(stream, boundary, _whitespace_before(stream, start) if start else 0)
    if start:
        window.drop(window.next_start(start, limit=stop))
    while window.offset < stop:
        wanted = min(window.offset + piece_bytes, stop)
        offset, data = window.offset, window.drop(window.next_start(wanted))
        if not data:  # only at the end of the stream does it not advance
            return
        yield offset, data


def _whitespace_before(stream: io.BufferedIOBase, position: int) -> int:
    """Where the whitespace that ends at `position` begins; the stream is left standing there."""
    width = STEP
    while True:
        begin = max(0, position - width)
        stream.seek(begin)
        lead = stream.read(position - begin).rstrip(WHITESPACE)
        if lead or begin == 0:
            return stream.seek(begin + len(lead))
        width *= 2


class _Window:
    """The part of a stream that has been read and not yet dropped."""

    def __init__(self, stream: io.BufferedIOBase, boundary: re.Pattern[bytes], offset: int) -> None:
        self.offset = offset  #: of the first byte kept
        self._stream = stream
        self._boundary = boundary
        self._data = b""
        self._ended = False

    def next_start(self, position: int, *, limit: int = sys.maxsize) -> int:
        """The first start at or after `position`, or where the stream ends, or `limit` if nearer.

        The limit spares a block in the middle of a huge document the reading of its end.
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
        """The bytes up to `position`, which are forgotten."""
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
        # Whitespace at the end of what was read may go on in what was not.
        if found and (found.end() < len(self._data) or self._ended):
            return self.offset + found.end()
        return None

    def _read(self, size: int) -> None:
        while size > 0 and not self._ended:
            data = self._stream.read(size)
            self._ended = not data
            self._data += data
            size -= len(data)
