"""Files of text to documents: JSON lines, plain text, WikiExtractor output.

    {"text": "Rome is old."}        Rome is old.             <doc id="1" title="Rome">
    {"text": "Oslo is cold."}                                Rome ...
                                    Oslo is cold.            </doc>

A block is a range of bytes and holds the documents that start in it; a compressed file is one
block. JSON is read by the standard library: Arrow's reader is faster, but takes two objects on one
line, or one on two lines, for documents, so what it accepts would depend on where blocks begin.
"""

import codecs
import html
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from clozeline.pipeline.common.errors import InputError, first_names
from clozeline.pipeline.sources import files
from clozeline.pipeline.sources.block import Block, cut
from clozeline.pipeline.sources.documents import HARD_WRAPPED, Documents, decode_utf8, fix_unicode
from clozeline.pipeline.sources.record_boundaries import WHITESPACE, cut_chunks
from clozeline.pipeline.sources.tables import check_columns

JSON_LINES_NAME = r"\.(jsonl|ndjson|json)$"
PLAIN_TEXT_NAME = r"\.(txt|text)$"
WIKIEXTRACTOR_NAME = re.compile(r"^wiki_[0-9]+$")  # WikiExtractor --json gives the same names

# What separates two documents: see record_boundaries. Lines end with "\r\n", "\n" or a lone "\r".
LINE_END = rb"(?:\r\n|\n|\r(?!\n))"
BOUNDARIES = {
    "jsonl": re.compile(rb"\n[ \t\r\n]*"),
    "text": re.compile(LINE_END + rb"[ \t]*" + LINE_END + rb"[ \t\r\n]*"),
    "wikiextractor": re.compile(rb"\n[ \t\r\n]*(?=<doc )"),
    "wet": re.compile(rb"[\r\n]+(?=WARC/1\.[01]\r?\nWARC-)"),
    "document=line": re.compile(LINE_END + rb"[ \t\r\n]*"),
    "lines=wrapped": re.compile(LINE_END + rb"(?:[ \t]*" + LINE_END + rb"){2}[ \t\r\n]*"),
}
WARC_TYPE = re.compile(rb"\nWARC-Type:[ \t]*(\w+)", re.IGNORECASE)
BLANK_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*")
#: Line ends that are joined without a space: after a soft hyphen, and between letters of scripts
#: without spaces, from Thai to Tibetan and from Chinese to Japanese.
UNSPACED = r"[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff01-\uff60]"
JOINED = re.compile(rf"(?<={UNSPACED})[ \t]*\n[ \t]*(?={UNSPACED})|\u00ad[ \t]*\n[ \t]*")
CUT_WORD = re.compile(r"(?<![^\W\d_])([^\W\d_]+)-\n[ \t]*([^\W\d_]+)")
WRAPPED_LINES = 5  #: of a document, at least, to be taken for wrapped ones
WIDTHS = range(40, 101)  #: characters of wrapped lines
PLAIN_BLANK_LINES = re.compile(rb"\n[ \t]*\n[ \t\n]*")  # enough where there is no "\r"; 4x as fast

TITLE = re.compile(r' title="(.*)">\s*$')  # WikiExtractor does not escape quotes in it
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

BYTE_ORDER_MARK = codecs.BOM_UTF8
DECODE_JSON = json.JSONDecoder(strict=False).decode  # raw tabs and NULs in a string are accepted


def is_json_lines(name: str, head: bytes) -> bool:
    """Whether the first bytes begin a JSON object that continues in its line."""
    return re.match(rb'\{[ \t]*["}]', _begin(head)) is not None


def is_wikiextractor(name: str, head: bytes) -> bool:
    """Whether this is WikiExtractor's output, without its --json."""
    named = WIKIEXTRACTOR_NAME.search(name) is not None
    # A corpus of words, one a line, has elements inside of its <doc>.
    is_page = re.match(rb"<doc [^\n]*\n\s*(?!<[a-z])", _begin(head)) is not None
    return is_page or (named and not is_json_lines(name, head))


def is_wet(name: str, head: bytes) -> bool:
    """Whether these are WARC records of plain text, as in Common Crawl's WET files."""
    types = {type.lower() for type in WARC_TYPE.findall(head)[:3]}
    is_text = types - {b"warcinfo", b"metadata"} == {b"conversion"}
    return _begin(head).startswith(b"WARC/1") and is_text


def _begin(head: bytes) -> bytes:
    return head.removeprefix(BYTE_ORDER_MARK).lstrip()


def list_byte_ranges(whole: Block, block_bytes: int) -> list[Block]:
    """Equal ranges of bytes; a compressed file cannot be cut."""
    return [whole] if whole.compression else cut(whole, range(whole.stop + 1), block_bytes)


def _chunks(block: Block, chunk_bytes: int) -> Iterator[tuple[int, bytes, Documents]]:
    """Offset and bytes of whole documents, and where to put them."""
    stop = sys.maxsize if block.compression else block.stop
    longest = block.max_document_bytes
    with files.open_unpacked(block.path, block.compression) as stream:
        for offset, data in cut_chunks(
            stream,
            _boundary(block),
            start=block.start,
            stop=stop,
            chunk_bytes=chunk_bytes,
            longest=longest,
        ):
            documents = Documents()
            if data is None:
                by_line = "" if block.reading else "; if each line is a document: ?document=line"
                hint = by_line if block.format == "text" else ""
                reason = f"longer than --max-document-bytes {longest:,}{hint}"
                documents.reject(f"{block.path}: byte {offset}", reason)
                data = b""
            elif not offset and data.startswith(BYTE_ORDER_MARK):
                offset, data = len(BYTE_ORDER_MARK), data.removeprefix(BYTE_ORDER_MARK)
            yield offset, data, documents


def _boundary(block: Block) -> re.Pattern[bytes]:
    return BOUNDARIES[next((key for key in block.reading if key in BOUNDARIES), block.format)]


def read_plain_text(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """Documents separated by blank lines.

    With "document=line" each line is one; with "lines=wrapped" a blank line separates paragraphs
    and two or more documents, and the lines of a paragraph are joined.
    """
    boundary = _boundary(block)
    is_wrapped = "lines=wrapped" in block.reading
    for _, data, documents in _chunks(block, chunk_bytes):
        is_plain = boundary is BOUNDARIES["text"] and b"\r" not in data
        for document in (PLAIN_BLANK_LINES if is_plain else boundary).split(data):
            if text := decode_utf8(document).strip():
                documents.keep(_unwrapped(text) if is_wrapped else text)
                if not is_wrapped and is_hard_wrapped(text):
                    documents.count(HARD_WRAPPED)
        yield documents


def _unwrapped(text: str) -> str:
    """ "a\nb\n\nc"  ->  "a b\nc" """
    text = JOINED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    if "-\n" in text:
        words = set(re.findall(r"\w+", text.lower()))
        text = CUT_WORD.sub(lambda cut: _uncut(cut, words), text)
    paragraphs = BLANK_LINES.split(text)
    return "\n".join(" ".join(map(str.strip, part.split("\n"))) for part in paragraphs)


def _uncut(cut: re.Match[str], words: set[str]) -> str:
    """inter-/est  ->  interest, if that is one of the words, else a compound: inter-est"""
    is_word = (cut[1] + cut[2]).lower() in words
    return cut[1] + cut[2] if is_word else f"{cut[1]}-{cut[2]}"


def is_hard_wrapped(text: str) -> bool:
    """Whether most lines end at one width, and in the middle of a sentence."""
    lines = text.splitlines()[:-1]
    if len(lines) < WRAPPED_LINES - 1 or (width := max(map(len, lines))) not in WIDTHS:
        return False
    cut = [line for line in lines if len(line) > 0.8 * width and line.rstrip()[-1:].isalnum()]
    return len(cut) > 0.6 * len(lines)


def read_wet(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The texts of WARC's `conversion` records; others, such as `warcinfo`, are counted."""
    for _, data, documents in _chunks(block, chunk_bytes):
        for record in BOUNDARIES["wet"].split(data):
            head, _, body = record.replace(b"\r\n", b"\n").partition(b"\n\n")
            if (type := WARC_TYPE.search(head)) and type[1].lower() == b"conversion":
                documents.keep(decode_utf8(body).strip())
            elif head.strip():
                documents.count("other_record")
        yield documents


def read_wikiextractor(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """Pages as WikiExtractor writes them, without the line that repeats the title.

    One page is `<doc id=".." url=".." title="..">`, its lines, and `</doc>`.
    """
    for _, data, documents in _chunks(block, chunk_bytes):
        for document in BOUNDARIES["wikiextractor"].split(data):
            head, _, rest = decode_utf8(document).strip().partition("\n")
            body, end, after = rest.rpartition("</doc>")
            title = _unescaped(match[1]) if (match := TITLE.search(head)) else ""
            if head and not head.startswith("<doc "):
                documents.reject(block.path, "text before the first <doc>")
            elif head and not end:
                documents.reject(f"{block.path}: {title}", "no </doc>: the document is truncated")
            elif after.strip():
                documents.reject(f"{block.path}: {title}", "text after </doc>")
            elif head:
                first, _, others = _unescaped(body).lstrip().partition("\n")
                is_title = first.strip() == title
                documents.keep((others if is_title else f"{first}\n{others}").strip())
        yield documents


def _unescaped(text: str) -> str:
    """Decodes entities once, and only whole ones, so that "AT&T" and "&c" stay as they are."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text


def read_json_lines(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The texts of JSON objects, one per line; several columns are joined by line ends."""
    for start, data, documents in _chunks(block, chunk_bytes):
        for line in data.split(b"\n"):
            record = line.lstrip(WHITESPACE)  # a block's first line has none
            if record and not record.isspace():
                try:
                    documents.keep(_text_of(parse_json_object(record), block.text_columns))
                except ValueError as error:
                    at = start + len(line) - len(record)
                    documents.reject(f"{block.path}: byte {at}", str(error))
            start += len(line) + 1
        yield documents


def parse_json_object(line: bytes) -> dict[str, Any]:
    """A line of JSON lines. Raises ValueError with the reason if it is not an object."""
    try:
        record = DECODE_JSON(decode_utf8(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _text_of(record: dict[str, Any], columns: Sequence[str]) -> str:
    for name in columns:
        if not isinstance(record.get(name), str):
            if name in record:
                raise ValueError(f"'{name}' is not text")
            keys = first_names([key[:40] for key in record]) or "none"
            raise ValueError(f"no '{name}' in the JSON object; its keys are {keys}")
    return "\n".join([record[name] for name in columns])


def read_json_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows, unchecked. Raises InputError for a line that is not an object."""
    path = whole.path
    with files.open_unpacked(path, whole.compression) as stream:
        data = stream.read().removeprefix(BYTE_ORDER_MARK)
    rows = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line and not line.isspace():
            try:
                rows.append(parse_json_object(line))
            except ValueError as error:
                raise InputError(f"{path}:{number}: {error}") from error
    check_columns(path, list(dict.fromkeys(name for row in rows for name in row)), columns)
    return pa.table({name: _json_column(path, name, rows) for name in columns})


def _json_column(path: str, name: str, rows: Sequence[dict[str, Any]]) -> pa.Array:
    values = [row.get(name) for row in rows]
    try:
        return pa.array(
            [fix_unicode(value) if isinstance(value, str) else value for value in values]
        )
    except UnicodeEncodeError as error:
        raise InputError(f"{path}: column '{name}' holds lists or objects, not text") from error
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"{path}: column '{name}' has values of more than one type") from error
