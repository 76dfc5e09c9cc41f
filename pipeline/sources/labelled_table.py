"""Labelled rows for fine-tuning, by column name: the same files as sources, and CSV and TSV.

    read_table("train.csv", ["label", "text"])  ->  label: ["1", "0", ..]  text: ["Good.", ..]

Unlike a corpus, a table is small and every row counts: it is read whole; the first bad row is an
error that names it. CSV has no types, so all its columns are text; compare labels as text. A field
of a CSV or TSV file that begins with a quotation mark must end with one.
"""

import io
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from clozeline.pipeline.common.errors import InputError, escaped, one_line
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import fix_unicode
from clozeline.pipeline.sources.encoding import check_utf8
from clozeline.pipeline.sources.files import (
    File,
    bare_name,
    find_files,
    read_unpacked,
    unpacked_head,
)
from clozeline.pipeline.sources.formats import BY_NAME, find_sources, has_scheme, whole_file
from clozeline.pipeline.sources.source_query import SourceOptions, split_options
from clozeline.pipeline.sources.text_columns import check_columns, is_string, strings

MAX_CSV_BLOCK = (1 << 31) - 1  #: bytes, Arrow's limit
DELIMITERS = {"csv": ",", "tsv": "\t"}
LINE_END = re.compile(rb"\r\n|\r|\n")
SHOWN_BYTES = 40  #: of a bad field


def read_table(source: str, columns: Sequence[str]) -> pa.Table:
    """The columns, in this order, of all rows of a file, glob, `hf://` or `sample:reviews` source.

    Several files are one table, in the order of their names; `?limit=1000` keeps its first rows.
    Text is valid Unicode. A CSV cell that is empty without quotes is null.

    Raises InputError for a missing file or column (naming those found), a file that cannot be
    read, no rows, and a null, with its row (from 1, without the header).
    """
    is_url = has_scheme(source) is not None
    name, options = split_options(source, is_url=is_url)
    if options.query and options != SourceOptions(limit=options.limit, query=options.query):
        raise InputError(f"{source}: a table is read with limit= only; leave out text= and repeat=")
    if is_url:
        tables = [_checked(source, _read(whole, columns)) for whole in find_sources(name)]
    else:
        files = find_files([name])
        tables = [_checked(file.path, _read_file(file, columns)) for file in files]
    try:
        whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise InputError(
            f"{source}: files with columns of different types: {one_line(error)}"
        ) from error
    if not len(whole):
        raise InputError(f"{source} has no rows")
    return whole if options.limit is None else whole.slice(0, options.limit)


def _read_file(file: File, columns: Sequence[str]) -> pa.Table:
    extension = bare_name(file.path).rpartition(".")[2].lower()
    if extension in DELIMITERS:
        return _read_delimited(file.path, DELIMITERS[extension], columns)
    return _read(whole_file(file), columns)


def _read(whole: Block, columns: Sequence[str]) -> pa.Table:
    reader = BY_NAME[whole.format].read_table
    if reader is None:
        raise InputError(f"{whole.path} is not a table; give a .csv, .tsv, .jsonl or .parquet file")
    return reader(whole, columns)


def _read_delimited(path: str, delimiter: str, columns: Sequence[str]) -> pa.Table:
    head, compression = unpacked_head(path)
    check_utf8(path, head)
    data = read_unpacked(path, compression)
    if not data.strip():
        raise InputError(f"{path} has no rows")
    _check_quotes(path, data, delimiter)
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # One block where possible, since no row may be longer than a block.
    read = pa_csv.ReadOptions(block_size=min(len(data) + 1, MAX_CSV_BLOCK))
    convert = pa_csv.ConvertOptions(
        check_utf8=False,
        column_types=dict.fromkeys(columns, pa.large_string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        table = pa_csv.read_csv(
            io.BytesIO(data), read_options=read, parse_options=parse, convert_options=convert
        )
    except pa.ArrowException as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    try:
        names = table.schema.names
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the names of its columns are not UTF-8; convert it") from error
    check_columns(path, names, columns)
    return table.select(list(columns))


def _check_quotes(path: str, data: bytes, delimiter: str) -> None:
    """Raises InputError for a field that begins with a quotation mark and does not end with one.

    Arrow takes all up to the next mark, rows later, as one field. A mark in an unquoted field is
    text.
    """
    begins = rb'\A"', rb'\A\xef\xbb\xbf"', rb'[%s\r\n]"' % delimiter.encode()
    quoted = rb'"(?:%s)(?:[^"]++|"")*+' % b"|".join(rb"(?<=%s)" % begin for begin in begins)
    fields = re.compile(rb'%s("(?=[%s\r\n]|\Z))?' % (quoted, delimiter.encode()))
    bad = next((field for field in fields.finditer(data) if field[1] is None), None)
    if bad is None:
        return
    before = fields.sub(b"x", data[: bad.start()])  # line ends in quoted fields begin no row
    row = sum(map(bool, LINE_END.split(before)[:-1]))
    shown = LINE_END.split(data[bad.start() : bad.start() + SHOWN_BYTES])[0].decode(errors="ignore")
    raise InputError(
        f"{path}: {f'row {row}' if row else 'the header'} has a field that begins with a quotation "
        f"mark and does not end with one: {escaped(shown)} ... Quote the whole field and double "
        'the marks in it: """Well"", she said."'
    )


def _checked(where: str, table: pa.Table) -> pa.Table:
    """The table with valid text. Raises InputError for a null."""
    for position, name in enumerate(table.schema.names):
        column = table.column(name)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py() + 1
            raise InputError(f"{where}: row {row} has no '{name}'; fill it in or remove the row")
        if is_string(column.type) and not _is_valid(column):
            values = [fix_unicode(value) for value in strings(column) if value is not None]
            table = table.set_column(position, name, pa.array(values, pa.large_string()))
    return table


def _is_valid(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
