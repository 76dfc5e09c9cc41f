"""Files of text to documents: JSON lines, plain text, WikiExtractor output.

    {"text": "Rome is old."}        Rome is old.             <doc id="1" title="Rome">
    {"text": "Oslo is cold."}                                Rome ...
                                    Oslo is cold.            </doc>

JSON is read by the standard library: Arrow's reader is faster, but takes two objects on one line,
or one on two lines, for documents, and what it accepts would depend on where blocks begin.
"""

import codecs
import html
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from pipeline.sources.documents import Documents, Rejected, decode_utf8
from pipeline.sources.files import BUFFER, damage, open_file, open_unpacked
from pipeline.sources.formats import Block
from pipeline.sources.record_boundaries import cut_pieces

#: Lines are counted from the beginning of a file up to here, beyond from the beginning of a block:
#: or each block of a huge file with a bad line in each would read the whole of it.
COUNT_LINES_BYTES = 1 << 30

# What stands between two documents: see pieces.py. A lone "\r" ends a line, that of "\r\n" not.
LINE_END = rb"(?:\r\n|\n|\r(?!\n))"
BOUNDARIES = {
    "jsonl": re.compile(rb"\n[ \t\r\n]*"),
    "text": re.compile(LINE_END + rb"[ \t]*" + LINE_END + rb"[ \t\r\n]*"),
    "wikiextractor": re.compile(rb"\n[ \t\r\n]*(?=<doc )"),
}
PLAIN_BLANK_LINES = re.compile(rb"\n[ \t]*\n[ \t\n]*")  # enough where there is no "\r"; 4x as fast
# Of a cut file, what follows the last of these is not a whole document.
DOCUMENT_ENDS = {"jsonl": b"\n", "text": b"", "wikiextractor": b"</doc>"}

TITLE = re.compile(r' title="(.*)">\s*$')  # WikiExtractor does not escape quotes in it
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

BYTE_ORDER_MARK = codecs.BOM_UTF8
DECODE_JSON = json.JSONDecoder(strict=False).decode  # a raw tab or NUL in a string is no reason


def _pieces(block: Block, piece_bytes: int) -> Iterator[tuple[int, bytes, Documents]]:
    """Offset and bytes of whole documents, and where they go; damage of the file is rejected."""
    stop = sys.maxsize if block.compression else block.stop
    boundary = BOUNDARIES[block.format]
    with open_unpacked(block.path, block.compression) as stream:
        for offset, data in cut_pieces(
            stream, boundary, start=block.start, stop=stop, piece_bytes=piece_bytes
        ):
            if damage(stream):
                data = _whole(data, DOCUMENT_ENDS[block.format])
            yield offset, data if offset else data.removeprefix(BYTE_ORDER_MARK), Documents()
        if reason := damage(stream):
            yield 0, b"", Documents(rejected=[Rejected(block.path, reason)])


def _whole(data: bytes, end: bytes) -> bytes:
    """The data up to the last `end`."""
    found = data.rfind(end)
    return data[: found + len(end)] if found >= 0 else b""


def read_plain_text(block: Block, piece_bytes: int) -> Iterator[Documents]:
    """Documents with a blank line between them, and nothing else to part them."""
    for _, data, documents in _pieces(block, piece_bytes):
        blank_lines = BOUNDARIES["text"] if b"\r" in data else PLAIN_BLANK_LINES
        for document in blank_lines.split(data):
            if text := decode_utf8(document).strip():
                documents.keep(text)
        yield documents


def read_wikiextractor(block: Block, piece_bytes: int) -> Iterator[Documents]:
    """What WikiExtractor made of pages, without the line that repeats the title."""
    for _, data, documents in _pieces(block, piece_bytes):
        for document in BOUNDARIES["wikiextractor"].split(data):
            if text := decode_utf8(document).strip():
                _take_extracted(text, documents, block.path)
        yield documents


def _take_extracted(document: str, documents: Documents, path: str) -> None:
    """One `<doc id=".." url=".." title="..">`, its lines, and `</doc>`."""
    head, _, rest = document.partition("\n")
    body, end, after = rest.rpartition("</doc>")
    found = TITLE.search(head)
    title = _unescaped(found[1]) if found else ""
    if not head.startswith("<doc "):
        documents.reject(path, "text before the first <doc>")
    elif not end:
        documents.reject(f"{path}: {title}", "no </doc>: the document is cut")
    elif after.strip():
        documents.reject(f"{path}: {title}", "text after </doc>")
    else:
        first, _, others = _unescaped(body).lstrip().partition("\n")
        documents.keep((others if first.strip() == title else f"{first}\n{others}").strip())


def _unescaped(text: str) -> str:
    """Entities decoded, once; only whole ones, so that "AT&T" and "&c" stay as they are."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text


def read_json_lines(block: Block, columns: Sequence[str], piece_bytes: int) -> Iterator[Documents]:
    """The texts of JSON objects, one a line; several columns are joined by line ends."""
    lines: _Lines | None = None
    for offset, data, documents in _pieces(block, piece_bytes):
        lines = lines or _Lines(block.path, offset)
        for number, line in enumerate(data.split(b"\n")):
            if not line or line.isspace():
                continue
            try:
                documents.keep(_text_of(parse_json_object(line), columns))
            except ValueError as error:
                documents.reject(lines.name(number), str(error))
        lines.passed += data.count(b"\n")
        yield documents


def parse_json_object(line: bytes) -> dict[str, Any]:
    """A line of JSON lines. Raises ValueError with the reason where it is no object."""
    try:
        record = DECODE_JSON(decode_utf8(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("no JSON that can be read: it is nested too deep") from error
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    return record


def _text_of(record: dict[str, Any], columns: Sequence[str]) -> str:
    for name in columns:
        if not isinstance(record.get(name), str):
            missing = f"no '{name}' in the JSON object"
            raise ValueError(f"'{name}' is not text" if name in record else missing)
    return "\n".join([record[name] for name in columns])


class _Lines:
    """Names of lines in a file that may be read from its middle.

    The lines before it are only counted when a line must be named.
    """

    def __init__(self, path: str, begin: int) -> None:
        self.passed = 0  #: lines between `begin` and the piece at hand
        self._path = path
        self._begin = begin  #: the byte at which the reading began

    def name(self, number: int) -> str:
        """The name of the piece's line `number`, which counts from 0: "file:line"."""
        line = self.passed + number + 1
        if self._begin > COUNT_LINES_BYTES:
            return f"{self._path}: line {line} after byte {self._begin}"
        return f"{self._path}:{self._lines_before + line}"

    @cached_property
    def _lines_before(self) -> int:
        with open_file(self._path) as stream:
            sizes = (min(BUFFER, self._begin - at) for at in range(0, self._begin, BUFFER))
            return sum(stream.read(size).count(b"\n") for size in sizes)
