"""CSV and TSV files: a file is one block, whose rows are read one after another.

title,text      ->  Documents(texts=["A city."])
Rome,A city.

The first row names the columns. CSV has no types, so all columns are text. A field that begins with
a quotation mark must end with one, or it would take the rows up to the next mark. A mark inside an
unquoted field is text.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa

from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.errors import InputError, escaped
from clozeline.pipeline.sources import files
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import Documents, fix_unicode
from clozeline.pipeline.sources.encoding import conversion
from clozeline.pipeline.sources.tables import CHOOSE, check_columns, keep_row

DELIMITERS = {"csv": ",", "tsv": "\t", "tab": "\t", "psv": "|"}
FILE_NAME = rf"\.({'|'.join(DELIMITERS)})$"
DECLARED = re.compile(r"""(["']?)sep=([^\w\s"']|\t)\1\s*\Z""", re.IGNORECASE)  # spreadsheets' line
CUT = 40  #: characters of a bad row that are shown
csv.field_size_limit((1 << 31) - 1)  # --max-document-bytes is the limit

#: The cells of a row, of which an empty one without quotes is None; or what is wrong with it.
Row = list[str | None] | str


def list_table(whole: Block, block_bytes: int) -> list[Block]:
    """One block, or none for a file that has a header and no rows.

    Raises InputError where the file cannot be read or lacks a text column.
    """
    with files.open_unpacked(whole.path, whole.compression) as stream:
        rows = _rows(whole.path, stream, whole.text_columns, advice=CHOOSE)
        return [whole] if next(rows, None) is not None else []


def read_rows(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The rows of a file; one with another number of fields than the header is rejected."""
    documents, size = Documents(), 0
    with files.open_unpacked(block.path, block.compression) as stream:
        for number, row in enumerate(_rows(block.path, stream, block.text_columns), start=1):
            where = f"{block.path}: row {number}"
            if isinstance(row, str):
                documents.reject(where, row)
                continue
            parts = [cell or "" for cell in row]
            keep_row(documents, where, parts, longest=block.max_document_bytes)
            size += sum(map(len, parts))
            if size >= chunk_bytes:
                yield documents
                documents, size = Documents(), 0
    yield documents


def read_delimited_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows; a cell that is empty without quotes is null.

    Raises InputError for a row with another number of fields than the header.
    """
    rows: list[list[str | None]] = []
    with files.open_unpacked(whole.path, whole.compression) as stream:
        for row in _rows(whole.path, stream, columns):
            if isinstance(row, str):
                raise InputError(
                    f"{whole.path}: row {len(rows) + 1} has {row}; give it as many as the header, "
                    "and quote fields that hold what separates the columns"
                )
            rows.append([cell and fix_unicode(cell) for cell in row])
    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.table([pa.array(column, pa.large_string()) for column in cells], list(columns))


def _rows(
    path: str, stream: io.BufferedReader, columns: Sequence[str], *, advice: str = ""
) -> Iterator[Row]:
    """The columns of a file, row by row. Raises InputError."""
    taken: list[str] = []  # lines of the present row
    lines = _lines(stream, taken)
    delimiter, first = _delimiter(path, lines)
    reader = csv.reader(chain(first, lines), delimiter=delimiter, strict=True)
    rows = _parsed(path, reader, taken)
    names = [name.strip() for name in next(rows, [])]
    if any(fix_unicode(name) != name for name in names):
        raise InputError(
            f"{path}: the names of its columns are not UTF-8; if they are in Latin-1 or "
            f"Windows-1252, convert it: {conversion('WINDOWS-1252', path)}"
        )
    check_columns(path, names, columns, advice=advice)
    chosen = [names.index(name) for name in columns]
    mark = re.escape(delimiter)
    written = re.compile(rf'("(?:[^"]|"")*"|[^"{mark}\r\n][^{mark}\r\n]*|)(?:{mark}|[\r\n]*\Z)')
    for row in rows:
        if len(row) != len(names):
            yield f"{counted(len(row), 'field')}, not {len(names)}"
            continue
        cells = [row[column] for column in chosen]
        quoted = written.findall("".join(taken)) if "" in cells else row
        yield [cell if quoted[i] else None for i, cell in zip(chosen, cells, strict=True)]


def _lines(stream: io.BufferedReader, taken: list[str]) -> Iterator[str]:
    """The lines of a file, which are added to `taken`."""
    for line in io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=""):
        taken.append(line)
        yield line


def _delimiter(path: str, lines: Iterator[str]) -> tuple[str, Iterable[str]]:
    """What separates the columns, by the file's first line or its name, and the line to parse.

    a.csv: "sep=;"      ->  ";", []
    a.csv: "text,label"  ->  ",", ["text,label"]
    a.csv: "text;label"  ->  ";", ["text;label"]

    Raises InputError where there are no rows.
    """
    first = next(filter(str.strip, lines), None)
    if first is None:
        raise InputError(f"{path} has no rows")
    if declared := DECLARED.match(first):
        return declared[2], []
    usual = DELIMITERS[files.bare_name(path).rpartition(".")[2].lower()]
    others = [mark for mark in ";\t,|" if mark in first]  # spreadsheets of many countries have ";"
    return usual if usual in first or not others else others[0], [first]


def _parsed(path: str, reader: Iterator[list[str]], taken: list[str]) -> Iterator[list[str]]:
    """The header and the rows, without empty lines. Raises InputError for an open field."""
    number = 0  # the header
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            named, shown = f"row {number}" if number else "the header", taken[0].rstrip()[:CUT]
            raise InputError(
                f"{path}: {named} has a field that begins with a quotation mark and does not end "
                f"with one: {escaped(shown)} ... Quote the whole field and double the marks in "
                'it: """Well"", she said."'
            ) from error
        if row is None:
            return
        if row:
            yield row
            number += 1
        taken.clear()
