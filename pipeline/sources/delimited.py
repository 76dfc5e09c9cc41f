"""CSV and TSV files: a file is one block, read in pieces of whole rows; documents are rows.

title,text      ->  Documents(texts=["A city."])
Rome,A city.

The first row names the columns. CSV has no types, so all columns are text. A field that begins with
a quotation mark must end with one: Arrow would take all up to the next mark, rows later, as one
field. A mark inside an unquoted field is text. Where a row ends depends on all quotation marks
before it, so a file cannot be cut into blocks without reading it first.
"""

import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from clozeline.pipeline.common.errors import InputError, escaped, one_line
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.sources import files
from clozeline.pipeline.sources.block import BATCH_ROWS, Block
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.encoding import conversion
from clozeline.pipeline.sources.text_columns import CHOOSE, check_columns, documents_of_rows

FILE_NAME = r"\.(csv|tsv)$"
MAX_CSV_BLOCK = (1 << 31) - 1  #: bytes, Arrow's limit
DELIMITERS = {"csv": ",", "tsv": "\t"}
NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
LINE_END = re.compile(rb"\r\n|\r|\n")
DECLARED = re.compile(rb"(?:\xef\xbb\xbf)?sep=([,\t;|])(?:\r\n|\r|\n)")  # spreadsheets' first line
SHOWN_BYTES = 40  #: of a bad field or a header
READ_BYTES = 16 << 20  #: of a file at once, or more if a row is longer

Spans = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A piece of a file: the columns of its good rows, and why the others are bad, by number."""

    table: pa.Table
    bad: dict[int, str]
    first: int  #: number of rows before the piece
    offset: int  #: of the first byte after the piece


def list_table(whole: Block, block_bytes: int) -> list[Block]:
    """One block, or none for a file that has a header and no rows.

    Raises InputError where the file cannot be read, lacks a text column, or begins with a field
    that is not closed.
    """
    with files.open_unpacked(whole.path, whole.compression) as stream:
        pieces = _read_rows(whole.path, stream, whole.text_columns, advice=CHOOSE)
        has_rows = next(pieces, None) is not None
        return [whole] if has_rows or files.damage(stream) else []


def read_rows(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The rows of a file; one with another number of fields than the header is rejected.

    A compressed file that is damaged ends with the last whole row before that.
    """
    end = 0
    with files.open_unpacked(block.path, block.compression) as stream:
        for rows in _read_rows(block.path, stream, block.text_columns):
            done, end = min(files.bytes_taken(stream) / block.stop, 1.0), rows.offset
            yield from _documents(rows, block, chunk_bytes, done)
        if reason := files.damage(stream):
            documents = Documents()
            documents.reject_rest(block.path, f"{reason}; the rows after byte {end:,} are missing")
            yield documents


def _documents(rows: Rows, block: Block, chunk_bytes: int, done: float) -> Iterator[Documents]:
    """The rows of a piece, about `chunk_bytes` at once, the bad ones where they stand."""
    table, bad = rows.table, rows.bad
    size = max(1, min(BATCH_ROWS, chunk_bytes * len(table) // max(table.nbytes, 1)))
    numbers = np.arange(len(table) + len(bad)) + rows.first + 1
    good = np.setdiff1d(numbers, list(bad))
    for start in range(0, max(len(table), 1), size):
        columns = [column.combine_chunks() for column in table.slice(start, size).columns]
        first, longest = int(good[start]) - 1 if start else rows.first, block.max_document_bytes
        yield documents_of_rows(columns, first, block.path, longest=longest, done=done, bad=bad)


def read_delimited_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows; a cell that is empty without quotes is null.

    Raises InputError for a row with another number of fields than the header.
    """
    tables = []
    with files.open_unpacked(whole.path, whole.compression) as stream:
        for rows in _read_rows(whole.path, stream, columns, has_nulls=True):
            for number, reason in rows.bad.items():
                raise InputError(
                    f"{whole.path}: row {number} has {reason}; give it as many as the header, and "
                    "quote fields that hold what separates the columns"
                )
            tables.append(rows.table)
        files.check_undamaged(whole.path, stream)
    schema = pa.schema([(name, pa.large_string()) for name in columns])
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _read_rows(
    path: str,
    stream: io.BufferedReader,
    columns: Sequence[str],
    *,
    advice: str = "",
    has_nulls: bool = False,
) -> Iterator[Rows]:
    """The columns of a file, piece by piece. Raises InputError."""
    first, offset, delimiter, names = 0, 0, "", [""]
    for piece in _whole_rows(path, stream):
        data, start = piece, 0
        if not offset:
            delimiter, start = _delimiter(path, data)
            names, start = _header(path, data, start, delimiter)
            check_columns(path, names, columns, advice=advice)
        offset += len(data)
        if data[start:].strip(b"\r\n"):
            table, bad = _parse(path, data[start:], delimiter, names, columns, has_nulls=has_nulls)
            bad = {first + number: reason for number, reason in bad.items()}
            yield Rows(table=table, bad=bad, first=first, offset=offset)
            first += len(table) + len(bad)


def _parse(
    path: str,
    data: bytes,
    delimiter: str,
    names: Sequence[str],
    columns: Sequence[str],
    *,
    has_nulls: bool,
) -> tuple[pa.Table, dict[int, str]]:
    """The columns of all rows with as many fields as there are names; the others, and why.

    Rows are numbered from 1. Raises InputError.
    """
    bad: dict[int, str] = {}

    def reject(row: pa_csv.InvalidRow) -> str:
        bad[row.number or 1] = f"{counted(row.actual_columns, 'field')}, not {row.expected_columns}"
        return "skip"

    # One block where possible, since no row may be longer than a block; one thread counts rows.
    size = min(len(data) + 1, MAX_CSV_BLOCK)
    read = pa_csv.ReadOptions(block_size=size, use_threads=False, column_names=names)
    parse = pa_csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, invalid_row_handler=reject
    )
    convert = pa_csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(columns, pa.large_string()),
        include_columns=list(columns),
        null_values=[""],
        strings_can_be_null=has_nulls,
        quoted_strings_can_be_null=False,
    )
    # Arrow reads ahead in a thread of its own. If that still holds a Python object when the
    # interpreter ends, as right after an error, the process aborts: so the stream is of a copy.
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    try:
        return pa_csv.read_csv(pa.BufferReader(buffer), read, parse, convert), bad
    except MemoryError:  # Arrow's, too
        raise
    except pa.ArrowException as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error


def _whole_rows(path: str, stream: io.BufferedReader) -> Iterator[bytes]:
    """The bytes of a file in pieces of whole rows; of a damaged file, the rows before that.

    Raises InputError for a field that is not closed, and for a file without rows.
    """
    data, offset, is_last, delimiter = b"", 0, False, ""
    while not is_last:
        size = max(READ_BYTES, len(data))
        more = stream.read(size)
        data, is_last = data + more, len(more) < size
        is_part = not is_last or files.damage(stream) is not None
        if not offset and (data.strip() or not is_part):
            delimiter, _ = _delimiter(path, data)
        quoted = _quoted_fields(path, data, delimiter, offset, is_part=is_part)
        end = _last_row_end(data, quoted) if is_part else len(data)
        if is_last and not offset + end:
            files.check_undamaged(path, stream)
        if end:
            yield data[:end]
        data, offset = data[end:], offset + end


def _delimiter(path: str, data: bytes) -> tuple[str, int]:
    """What separates the columns, by the file's name or its first line, and where the header is.

    a.csv: "sep=;\ntext;label"  ->  ";", 6

    Raises InputError for columns that something else separates, and for no rows.
    """
    if declared := DECLARED.match(data):
        return declared[1].decode(), declared.end()
    if not data.strip():
        raise InputError(f"{path} has no rows")
    ending = files.bare_name(path).rpartition(".")[2].lower()
    delimiter = DELIMITERS[ending]
    first = LINE_END.split(data.lstrip()[:READ_BYTES], maxsplit=1)[0]
    others = [other for other in NAMES if other.encode() in first]
    if others and delimiter.encode() not in first:
        raise InputError(
            f"{path}: its columns seem to be separated by {NAMES[others[0]]}, not by "
            f"{NAMES[delimiter]} as in .{ending}; convert it"
        )
    return delimiter, len(data) - len(data.lstrip())  # Arrow skips empty lines


def _header(path: str, data: bytes, start: int, delimiter: str) -> tuple[list[str], int]:
    """The names of the columns without blanks around them, and the byte after the header."""
    end = _row_end(data, _quoted_fields(path, data, delimiter, is_part=True), start)
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        table = pa_csv.read_csv(pa.py_buffer(data[start:end] + b"\n"), parse_options=parse)
        return [name.strip() for name in table.schema.names], end
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the names of its columns are not UTF-8; if they are in Latin-1 or "
            f"Windows-1252, convert it: {conversion('WINDOWS-1252', path)}"
        ) from error
    except pa.ArrowException as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error


def _quoted_fields(
    path: str, data: bytes, delimiter: str, offset: int = 0, *, is_part: bool = False
) -> Spans:
    """The spans of the quoted fields. Raises InputError for one that is not closed.

    The data begin with a row, at this byte of the file; as a part, they may end inside a field.
    """
    mark = delimiter.encode()
    begins = rb'\A"', rb'\A\xef\xbb\xbf"', rb'[%s\r\n]"' % re.escape(mark)
    quoted = rb'"(?:%s)(?:[^"]++|"")*+' % b"|".join(rb"(?<=%s)" % begin for begin in begins)
    fields = re.compile(rb'%s("(?=[%s\r\n]|\Z))?' % (quoted, re.escape(mark)))
    spans, bad = [], None
    for field in fields.finditer(data):
        spans.append(field.span())
        if field[1] is None:
            bad = field
            break
    if bad is None or (is_part and bad.end() == len(data)):
        return spans
    before = fields.sub(b"x", data[: bad.start()])  # line ends in quoted fields begin no row
    row = sum(map(bool, LINE_END.split(before)[:-1]))
    named = f"row {row + bool(offset)}" if row or offset else "the header"
    where = f"{path}: after byte {offset:,}" if offset else path
    shown = LINE_END.split(data[bad.start() : bad.start() + SHOWN_BYTES])[0].decode(errors="ignore")
    raise InputError(
        f"{where}: {named} has a field that begins with a quotation "
        f"mark and does not end with one: {escaped(shown)} ... Quote the whole field and double "
        'the marks in it: """Well"", she said."'
    )


def _row_end(data: bytes, quoted: Spans, position: int) -> int:
    """The byte after the first line end, from a position on, that is in no quoted field."""
    while found := LINE_END.search(data, position):
        field = bisect_right(quoted, found.start(), key=itemgetter(0)) - 1
        if field < 0 or found.start() >= quoted[field][1]:
            return found.end()
        position = quoted[field][1]
    return len(data)


def _last_row_end(data: bytes, quoted: Spans) -> int:
    """The byte after the last line end that is in no quoted field; 0 if there is none.

    A carriage return at the end may be half of a line end.
    """
    stop = len(data)
    for start, end in [*reversed(quoted), (0, 0)]:
        found = max(data.rfind(b"\n", end, stop), data.rfind(b"\r", end, min(stop, len(data) - 1)))
        if found >= 0:
            return found + 1
        stop = start
    return 0
