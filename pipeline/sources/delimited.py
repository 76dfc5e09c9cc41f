"""CSV and TSV files: blocks are ranges of bytes between rows, documents are rows.

a.csv, 40 MB  ->  Block(start=0, stop=13_981_010), Block(start=13_981_010, stop=27_961_887), ...

The first row names the columns. CSV has no types, so all columns are text. A field that begins with
a quotation mark must end with one: Arrow would take all up to the next mark, rows later, as one
field. A mark inside an unquoted field is text.
"""

import io
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from clozeline.pipeline.common.errors import InputError, escaped, one_line
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.sources import files
from clozeline.pipeline.sources.block import Block, cut_at, rows_per_chunk
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.encoding import conversion
from clozeline.pipeline.sources.text_columns import CHOOSE, check_columns, documents_of_rows

FILE_NAME = r"\.(csv|tsv)$"
MAX_CSV_BLOCK = (1 << 31) - 1  #: bytes, Arrow's limit
DELIMITERS = {"csv": ",", "tsv": "\t"}
NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
LINE_END = re.compile(rb"\r\n|\r|\n")
HEADER_BYTES = 1 << 16  #: at most
SHOWN_BYTES = 40  #: of a bad field
SCAN_BYTES = 16 << 20  #: of a file at once, or more if a row is longer

Spans = list[tuple[int, int]]
OnBadRow = Callable[[pa_csv.InvalidRow], str]


def list_row_ranges(whole: Block, block_bytes: int) -> list[Block]:
    """Ranges of whole rows, the first with the header; none of a file without other rows.

    A compressed file cannot be cut.

    Raises InputError where the file cannot be read, lacks a text column or has a field that is not
    closed.
    """
    parts = 1 if whole.compression else max(1, round(whole.stop / block_bytes))
    wanted = [whole.stop * part // parts for part in range(1, parts)]
    edges, offset, size, has_rows = {0}, 0, 0, False
    with files.open_unpacked(whole.path, whole.compression) as stream:
        for data, quoted in _whole_rows(whole.path, stream):
            if not offset:
                names, size = _header(whole.path, data, quoted)
                if size > HEADER_BYTES and parts > 1:  # then not every block could read it again
                    raise InputError(
                        f"{whole.path}: its header has {size:,} bytes, more than {HEADER_BYTES:,}; "
                        "the first row must name the columns, so add it, or shorten the names"
                    )
                check_columns(whole.path, names, whole.text_columns, advice=CHOOSE)
            while wanted and wanted[0] < offset + len(data):
                edges.add(offset + _row_end(data, quoted, wanted.pop(0) - offset))
            has_rows = has_rows or bool(data[0 if offset else size :].strip(b"\r\n"))
            offset += len(data)
        if not (has_rows or files.damage(stream)):
            return []
    return [whole] if whole.compression else cut_at(whole, sorted(edges | {offset}))


def read_rows(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The rows of a block; one with another number of fields than the header is rejected.

    A compressed file that is damaged ends with the last whole row before that.
    """
    head, where, reason = b"", block.path, None
    if block.compression:
        with files.open_unpacked(block.path, block.compression) as stream:
            data = stream.read()
            reason = files.damage(stream)
        if reason:
            data = data[: _last_row_end(data, _quoted_fields(block.path, data, is_part=True))]
    else:
        with files.open_file(block.path) as stream:
            if block.start:
                head = stream.read(min(block.start, HEADER_BYTES))
                quoted = _quoted_fields(block.path, head, is_part=True)
                head = head[: _header(block.path, head, quoted)[1]]
                where += f": after byte {block.start:,}"
            stream.seek(block.start)
            data = head + stream.read(block.stop - block.start)
    table, bad = _read_columns(block.path, data, block.text_columns)
    size = rows_per_chunk(block, len(table), chunk_bytes)
    good = np.setdiff1d(np.arange(len(table) + len(bad)) + 1, list(bad))  # numbers of the rows
    for start in range(0, max(len(table), 1), size):
        columns = [column.combine_chunks() for column in table.slice(start, size).columns]
        first = int(good[start]) - 1 if start else 0
        done, longest = min((start + size) / max(len(table), 1), 1.0), block.max_document_bytes
        yield documents_of_rows(columns, first, where, longest=longest, done=done, bad=bad)
    if reason:
        documents = Documents()
        documents.reject_rest(where, f"{reason}; the rows after byte {len(data):,} are missing")
        yield documents


def read_delimited_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows; a cell that is empty without quotes is null.

    Raises InputError for a row with another number of fields than the header.
    """
    data = files.read_unpacked(whole.path, whole.compression)
    _check_delimiter(whole.path, data)
    names, _ = _header(whole.path, data, _quoted_fields(whole.path, data))
    check_columns(whole.path, names, columns)
    table, bad = _read_columns(whole.path, data, columns, has_nulls=True)
    for number, reason in bad.items():
        marks = NAMES[DELIMITERS[_ending(whole.path)]]
        raise InputError(
            f"{whole.path}: row {number} has {reason}; give it as many as the header, and quote "
            f"fields that hold {marks}"
        )
    return table


def _ending(path: str) -> str:
    return files.bare_name(path).rpartition(".")[2].lower()


def _read_columns(
    path: str, data: bytes, columns: Sequence[str], *, has_nulls: bool = False
) -> tuple[pa.Table, dict[int, str]]:
    """The columns of all rows with as many fields as the header; the others, by number, and why."""
    bad: dict[int, str] = {}

    def reject(row: pa_csv.InvalidRow) -> str:
        number = (row.number or 1) - 1  # the header is row 0
        bad[number] = f"{counted(row.actual_columns, 'field')}, not {row.expected_columns}"
        return "skip"

    # One block where possible, since no row may be longer than a block; one thread counts rows.
    size = min(len(data) + 1, MAX_CSV_BLOCK)
    read = pa_csv.ReadOptions(block_size=size, use_threads=False)
    convert = pa_csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(columns, pa.large_string()),
        include_columns=list(columns),
        null_values=[""],
        strings_can_be_null=has_nulls,
        quoted_strings_can_be_null=False,
    )
    return _read_csv(path, data, reject, read, convert), bad


def _read_csv(
    path: str,
    data: bytes,
    on_bad_row: OnBadRow | None = None,
    read: pa_csv.ReadOptions | None = None,
    convert: pa_csv.ConvertOptions | None = None,
) -> pa.Table:
    """What Arrow reads. Raises InputError."""
    parse = pa_csv.ParseOptions(
        delimiter=DELIMITERS[_ending(path)], newlines_in_values=True, invalid_row_handler=on_bad_row
    )
    # Arrow reads ahead in a thread of its own. If that still holds a Python object when the
    # interpreter ends, as right after an error, the process aborts: so the stream is of a copy.
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    try:
        return pa_csv.read_csv(pa.BufferReader(buffer), read, parse, convert)
    except MemoryError:  # Arrow's, too
        raise
    except pa.ArrowException as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error


def _whole_rows(path: str, stream: io.BufferedReader) -> Iterator[tuple[bytes, Spans]]:
    """The bytes of a file in chunks of whole rows, each with the spans of its quoted fields.

    Of a damaged file, the rows before that. Raises InputError where there are none.
    """
    data, offset, is_last = b"", 0, False
    while not is_last:
        size = max(SCAN_BYTES, len(data))
        more = stream.read(size)
        data, is_last = data + more, len(more) < size
        is_part = not is_last or files.damage(stream) is not None
        if not offset and (data.strip() or not is_part):  # quotes mean nothing between other marks
            _check_delimiter(path, data)
        quoted = _quoted_fields(path, data, offset, is_part=is_part)
        end = _last_row_end(data, quoted) if is_part else len(data)
        if is_last and not offset + end:
            files.check_undamaged(path, stream)
        if end:
            yield data[:end], quoted
        data, offset = data[end:], offset + end


def _check_delimiter(path: str, data: bytes) -> None:
    """Raises InputError for columns that something else separates, and for no rows."""
    if not data.strip():
        raise InputError(f"{path} has no rows")
    ending = _ending(path)
    delimiter = DELIMITERS[ending]
    first = LINE_END.split(data.lstrip()[:HEADER_BYTES], maxsplit=1)[0]
    others = [other for other in NAMES if other.encode() in first]
    if others and delimiter.encode() not in first:
        raise InputError(
            f"{path}: its columns seem to be separated by {NAMES[others[0]]}, not by "
            f"{NAMES[delimiter]} as in .{ending}; convert it"
        )


def _header(path: str, data: bytes, quoted: Spans) -> tuple[list[str], int]:
    """The names of the columns, and the byte after the header."""
    start = len(data) - len(data.lstrip())  # Arrow skips empty lines
    end = _row_end(data, quoted, start)
    try:
        return _read_csv(path, data[:end] + b"\n").schema.names, end  # without one, none to Arrow
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the names of its columns are not UTF-8; if they are in Latin-1 or "
            f"Windows-1252, convert it: {conversion('WINDOWS-1252', path)}"
        ) from error


def _quoted_fields(path: str, data: bytes, offset: int = 0, *, is_part: bool = False) -> Spans:
    """The spans of the quoted fields. Raises InputError for one that is not closed.

    The data begin with a row, at this byte of the file; as a part, they may end inside a field.
    """
    delimiter = DELIMITERS[_ending(path)].encode()
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
