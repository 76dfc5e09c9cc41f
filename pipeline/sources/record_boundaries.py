"""Cuts a stream of bytes where documents start, so that blocks of any size give the same documents.

    b"a\n\nb\n\nc", bytes 1 to 5, blank lines as boundary  ->  (3, b"b\n\n")

Call `next_start(p)` the first start of a document at or after byte p: a function of the file alone.
A block [start, stop) then holds the bytes from next_start(start) up to next_start(stop), whatever
its size, and so does a chunk of a block. So each document is in the one block in which it starts,
and no block has to be read from the beginning of its file.

A `boundary` is a pattern for what separates two documents: it begins with a line end and includes
all whitespace that follows. To find the starts at or after p it is enough to search from where the
whitespace before p begins.

A document that is longer than a limit is skipped, and never in memory as a whole. The whitespace
after it does not count, unless both together are longer than twice the limit.
"""

import io
import re
import sys
from collections.abc import Iterator
from itertools import pairwise

WHITESPACE = b" \t\r\n"
BLANKS = re.compile(rb"[ \t]+")
LOOKAHEAD = 16  #: bytes after a start that a boundary may inspect ("<doc "), at most
STEP = 1 << 16  #: bytes read beyond a target, doubled until they contain a boundary
SKIP_STEP = 1 << 20  #: bytes of a document that is skipped, read at once


class TooLong(bytes):
    """Stands for a document that is over the limit; holds only its line ends."""


def cut_chunks(
    stream: io.BufferedIOBase,
    boundary: re.Pattern[bytes],
    *,
    start: int = 0,
    stop: int = sys.maxsize,
    chunk_bytes: int,
    longest: int = sys.maxsize,
) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of chunks of whole documents: those that start in [start, stop).

    A chunk is at least `chunk_bytes` long, except the last one, and ends where a document does; a
    document of more than `longest` bytes, or twice as many with the whitespace after it, is a
    `TooLong` instead.
    `stream` is at byte 0; it must be seekable unless `start` is 0.
    """
    window = _Window(stream, boundary, _whitespace_before(stream, start) if start else 0)
    if start:
        first = window.next_start(start, limit=stop)
        assert first is not None  # nothing is too long yet
        window.drop(first)
    while window.offset < stop:
        target = min(window.offset + chunk_bytes, stop)
        end = window.next_start(target, longest=longest)
        offset, data = window.offset, window.drop(window.last_start(target) if end is None else end)
        if data:
            yield from _without_long_ones(offset, data, boundary, longest)
        if end is None:
            yield window.offset, window.skip_document(longest)
        elif not data:  # the end of the stream
            return


def _without_long_ones(
    offset: int, data: bytes, boundary: re.Pattern[bytes], longest: int
) -> Iterator[tuple[int, bytes]]:
    """The data, cut around documents that are too long by themselves."""
    begin = 0
    if len(data) > longest:
        ends = [found.end() for found in boundary.finditer(data)]
        for start, stop in pairwise([0, *ends, len(data)]):
            if _is_longer(data[start:stop], longest):
                if start > begin:
                    yield offset + begin, data[begin:start]
                yield offset + start, TooLong(b"\n" * data.count(b"\n", start, stop))
                begin = stop
    if begin < len(data):
        yield offset + begin, data[begin:] if begin else data


def _is_longer(document: bytes, longest: int) -> bool:
    """Whether a document and the whitespace after it, or their beginning, is over the limit."""
    return len(document) > 2 * longest or len(document.rstrip(WHITESPACE)) > longest


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

    def next_start(
        self, position: int, *, limit: int = sys.maxsize, longest: int = sys.maxsize
    ) -> int | None:
        """The first start at or after `position`, or where the stream ends, or `limit` if nearer.

        With a `limit`, a block inside a huge document does not read to the document's end. None if
        the document before `position` is longer than `longest`.
        """
        self._read(position + STEP - self._end)
        step = STEP
        while (found := self._search(position)) is None:
            if self._ended:
                return self._end
            if self._end > limit + LOOKAHEAD:
                return limit
            # What a boundary may still inspect does not belong to the document yet.
            if self._end - position > longest and _is_longer(
                self._data[self.last_start(position) - self.offset : -LOOKAHEAD], longest
            ):
                return None
            self._read(step)
            step *= 2
        return found

    def last_start(self, position: int) -> int:
        """The last start before `position`, or the first byte kept."""
        last = 0
        for found in self._boundary.finditer(self._data):
            if self.offset + found.end() >= position:
                break
            last = found.end()
        return self.offset + last

    def skip_document(self, longest: int) -> TooLong:
        """Drop the document that begins at the first byte kept, and read on to the next one."""
        lines = 0
        while (found := self._search(self.offset + 1)) is None and not self._ended:
            # A boundary may have begun in the whitespace at the end, or be cut in what it inspects.
            kept = len(self._data[:-LOOKAHEAD].rstrip(WHITESPACE))
            lines += self.drop(self.offset + kept).count(b"\n")
            lines += self._drop_whitespace(len(self._data) - longest - 4 * LOOKAHEAD)
            self._read(SKIP_STEP)
        end = self._end if found is None else found
        return TooLong(b"\n" * (lines + self.drop(end).count(b"\n")))

    def _drop_whitespace(self, size: int) -> int:
        """Drop the first `size` bytes, all whitespace like the next ones; returns their line ends.

        A boundary that begins in them is kept: it replaces some of the whitespace that follows.
        """
        if size <= 0:
            return 0
        after = size + LOOKAHEAD
        begin = BLANKS.sub(b" ", self._data[:after])
        if len(begin) > LOOKAHEAD:  # then it has several line ends, and only their kind matters
            begin = begin[: LOOKAHEAD - 1] + (b"\n" if b"\n" in begin else b" ")
        begin = begin.rjust(LOOKAHEAD)
        lines = self._data.count(b"\n", 0, after) - begin.count(b"\n")
        self.drop(self.offset + size)
        self._data = begin + self._data[LOOKAHEAD:]
        return lines

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
