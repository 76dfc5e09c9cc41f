"""CSV and TSV files: blocks are ranges of bytes between rows, documents are rows.

a.csv, 40 MB  ->  Block(start=0, stop=13_981_010), Block(start=13_981_010, stop=27_961_887), ...

The first row names the columns. CSV has no types, so all columns are text. A field that begins with
a quotation mark must end with one: Arrow would take all up to the next mark, rows later, as one
field. A mark inside an unquoted field is text.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import pyarrow as pa
import pyarrow.csv as pa_csv

from clozeline.pipeline.common.errors import InputError, escaped, one_line
from clozeline.pipeline.sources.block import Block, cut_at, rows_per_chunk
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.files import (
    bare_name,
    estimate_unpacked,
    open_file,
    read_unpacked,
)
from clozeline.pipeline.sources.text_columns import CHOOSE, check_columns, documents_of_rows

FILE_NAME = r"\.(csv|tsv)$"
MAX_CSV_BLOCK = (1 << 31) - 1  #: bytes, Arrow's limit
DELIMITERS = {"csv": ",", "tsv": "\t"}
NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
LINE_END = re.compile(rb"\r\n|\r|\n")
HEADER_BYTES = 1 << 16  #: at most
SHOWN_BYTES = 40  #: of a bad field

OnBadRow = Callable[[pa_csv.InvalidRow], str]


def list_row_ranges(whole: Block, block_bytes: int) -> list[Block]:
    """Ranges of whole rows, the first with the header; a compressed file cannot be cut.

    Raises InputError where the file cannot be read, lacks a text column or has a field that is not
    closed.
    """
    data = read_unpacked(whole.path, whole.compression)
    names, _, quoted = _header(whole.path, data)
    check_columns(whole.path, names, whole.text_columns, advice=CHOOSE)
    whole = replace(whole, text_bytes=estimate_unpacked(whole.stop, whole.compression))
    if whole.compression:
        return [whole]
    parts = max(1, round(len(data) / block_bytes))
    cuts = (_row_end(data, quoted, len(data) * part // parts) for part in range(1, parts))
    return cut_at(whole, sorted({0, *cuts, len(data)}))


def read_rows(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The rows of a block; one with another number of fields than the header is rejected."""
    head, where = b"", block.path
    if block.compression:
        data = read_unpacked(block.path, block.compression)
    else:
        with open_file(block.path) as stream:
            if block.start:
                head = stream.read(min(block.start, HEADER_BYTES))
                head = head[: _header(block.path, head, is_part=True)[1]]
                where += f": after byte {block.start:,}"
            stream.seek(block.start)
            data = head + stream.read(block.stop - block.start)
    bad: list[tuple[int, str]] = []

    def reject(row: pa_csv.InvalidRow) -> str:
        reason = f"{row.actual_columns} fields, not {row.expected_columns}"
        bad.append(((row.number or 1) - 1, reason))  # the header is row 0
        return "skip"

    table = _parse(block.path, data, block.text_columns, on_bad_row=reject)
    size = rows_per_chunk(block, len(table), chunk_bytes)
    for start in range(0, max(len(table), 1), size):
        columns = [column.combine_chunks() for column in table.slice(start, size).columns]
        documents = documents_of_rows(columns, start, where, longest=block.max_document_bytes)
        for number, reason in bad if start == 0 else ():
            documents.reject(f"{where}: row {number}", reason)
        yield documents


def read_delimited_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows, unchecked; a cell that is empty without quotes is null."""
    data = read_unpacked(whole.path, whole.compression)
    names, _, _ = _header(whole.path, data)
    check_columns(whole.path, names, columns)
    return _parse(whole.path, data, columns, has_nulls=True)


def _delimiter(path: str) -> str:
    return DELIMITERS[bare_name(path).rpartition(".")[2].lower()]


def _parse(
    path: str,
    data: bytes,
    columns: Sequence[str],
    *,
    has_nulls: bool = False,
    on_bad_row: OnBadRow | None = None,
) -> pa.Table:
    """The columns of all rows. Raises InputError for a bad row if nothing else is asked for."""
    parse = pa_csv.ParseOptions(
        delimiter=_delimiter(path), newlines_in_values=True, invalid_row_handler=on_bad_row
    )
    # One block where possible, since no row may be longer than a block; one thread counts rows.
    size = min(len(data) + 1, MAX_CSV_BLOCK)
    read = pa_csv.ReadOptions(block_size=size, use_threads=on_bad_row is None)
    convert = pa_csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(columns, pa.large_string()),
        include_columns=list(columns),
        null_values=[""],
        strings_can_be_null=has_nulls,
        quoted_strings_can_be_null=False,
    )
    try:
        return pa_csv.read_csv(
            _native(data), read_options=read, parse_options=parse, convert_options=convert
        )
    except pa.ArrowException as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error


def _native(data: bytes) -> pa.BufferReader:
    """A stream of a copy of the data that holds no Python object.

    Arrow reads ahead in a thread of its own. If that still holds a Python stream when the
    interpreter ends, as right after an error, the process aborts.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return pa.BufferReader(buffer)


def _header(
    path: str, data: bytes, *, is_part: bool = False
) -> tuple[list[str], int, list[tuple[int, int]]]:
    """The names of the columns, the byte after the header, the spans of all quoted fields.

    With `is_part` the data may end inside a field. Raises InputError for a field that is not closed
    and for columns that something else separates.
    """
    if not data.strip():
        raise InputError(f"{path} has no rows")
    delimiter = _delimiter(path)
    first = LINE_END.split(data.lstrip()[:HEADER_BYTES], maxsplit=1)[0]
    others = [other for other in NAMES if other.encode() in first]
    if others and delimiter.encode() not in first:
        raise InputError(
            f"{path}: its columns seem to be separated by {NAMES[others[0]]}, not by "
            f"{NAMES[delimiter]} as in .{bare_name(path).rpartition('.')[2].lower()}; convert it"
        )
    quoted = _quoted_fields(path, data, is_part=is_part)
    start = len(data) - len(data.lstrip())  # Arrow skips empty lines
    end = _row_end(data, quoted, start)
    options = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        table = pa_csv.read_csv(_native(data[:end]), parse_options=options)
        return table.schema.names, end, quoted
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the names of its columns are not UTF-8; convert it") from error
    except pa.ArrowException as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error


def _quoted_fields(path: str, data: bytes, *, is_part: bool) -> list[tuple[int, int]]:
    """The spans of the quoted fields. Raises InputError for one that is not closed."""
    delimiter = _delimiter(path).encode()
    begins = rb'\A"', rb'\A\xef\xbb\xbf"', rb'[%s\r\n]"' % delimiter
    quoted = rb'"(?:%s)(?:[^"]++|"")*+' % b"|".join(rb"(?<=%s)" % begin for begin in begins)
    fields = re.compile(rb'%s("(?=[%s\r\n]|\Z))?' % (quoted, delimiter))
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
    shown = LINE_END.split(data[bad.start() : bad.start() + SHOWN_BYTES])[0].decode(errors="ignore")
    raise InputError(
        f"{path}: {f'row {row}' if row else 'the header'} has a field that begins with a quotation "
        f"mark and does not end with one: {escaped(shown)} ... Quote the whole field and double "
        'the marks in it: """Well"", she said."'
    )


def _row_end(data: bytes, quoted: Sequence[tuple[int, int]], position: int) -> int:
    """The byte after the first line end, from a position on, that is in no quoted field."""
    while found := LINE_END.search(data, position):
        field = bisect_right(quoted, found.start(), key=itemgetter(0)) - 1
        if field < 0 or found.start() >= quoted[field][1]:
            return found.end()
        position = quoted[field][1]
    return len(data)
