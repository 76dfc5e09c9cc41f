"""Labelled rows for fine-tuning, by the names of columns: the same files as sources, and CSV, TSV.

    read_table("train.csv", ["label", "text"])  ->  label: ["1", "0", ..]  text: ["Good.", ..]

Unlike a corpus a table is small and every row counts: it is read whole, and the first bad row is an
error that names it. CSV has no types, so its columns are text, labels also: compare labels as text.
"""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pipeline.common.errors import InputError
from pipeline.sources.documents import fix_unicode, is_string, one_line, strings
from pipeline.sources.files import (
    File,
    bare_name,
    compression_by_name,
    damage,
    find_files,
    open_file,
    open_unpacked,
)
from pipeline.sources.formats import recognize
from pipeline.sources.source_query import HUB, SAMPLE, load_hub_dataset, parse_sample
from pipeline.sources.text_files import BYTE_ORDER_MARK, parse_json_object

MAX_CSV_BLOCK = (1 << 31) - 1  #: bytes, Arrow's limit
DELIMITERS = {"csv": ",", "tsv": "\t"}


def read_table(source: str, columns: Sequence[str]) -> pa.Table:
    """The columns, in this order, of all rows of a file, glob, `hf://` or `sample:reviews` source.

    Several files are one table, in the order of their names. Text is valid Unicode. A CSV cell that
    is empty without quotes is null.

    Raises InputError for a missing file or column (naming those found), a file that cannot be
    read, no rows, and a null, with its row (from 1, without the header).
    """
    if source.startswith(SAMPLE):
        tables = [_checked(source, _sample_rows(source, columns))]
    elif source.startswith(HUB):
        tables = [_checked(source, _hub_rows(source, columns))]
    else:
        files = find_files([source])
        tables = [_checked(file.path, _read_file(file, columns)) for file in files]
    try:
        whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise InputError(
            f"{source}: files with columns of different types: {one_line(error)}"
        ) from error
    if not len(whole):
        raise InputError(f"{source} has no rows")
    return whole


def _read_file(file: File, columns: Sequence[str]) -> pa.Table:
    ending = bare_name(file.path).rpartition(".")[2].lower()
    if ending in DELIMITERS:
        return _read_delimited(file.path, DELIMITERS[ending], columns)
    format, compression = recognize(file)
    if format == "parquet":
        return _read_parquet(file.path, columns)
    if format == "jsonl":
        return _read_json_lines(file.path, compression, columns)
    raise InputError(f"{file.path} is no table; those are .csv, .tsv, .jsonl and .parquet files")


def _read_delimited(path: str, delimiter: str, columns: Sequence[str]) -> pa.Table:
    data = _read_whole(path, compression_by_name(path))
    if not data.strip():
        raise InputError(f"{path} has no rows")
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # One block where it can be: no row may be longer than a block.
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
    return _select(path, table, columns)


def _read_json_lines(path: str, compression: str | None, columns: Sequence[str]) -> pa.Table:
    data = _read_whole(path, compression).removeprefix(BYTE_ORDER_MARK)
    rows = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line and not line.isspace():
            try:
                rows.append(parse_json_object(line))
            except ValueError as error:
                raise InputError(f"{path}:{number}: {error}") from error
    _check_names(path, list(dict.fromkeys(name for row in rows for name in row)), columns)
    return pa.table({name: _json_column(path, name, rows) for name in columns})


def _json_column(path: str, name: str, rows: Sequence[dict[str, Any]]) -> pa.Array:
    values = [row.get(name) for row in rows]
    try:
        return pa.array(
            [fix_unicode(value) if isinstance(value, str) else value for value in values]
        )
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"{path}: column '{name}' has values of more than one type") from error


def _read_parquet(path: str, columns: Sequence[str]) -> pa.Table:
    try:
        with open_file(path) as stream, pq.ParquetFile(stream) as table:
            _check_names(path, table.schema_arrow.names, columns)
            return table.read(columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is no Parquet file that can be read: {one_line(error)}"
        ) from error


def _hub_rows(source: str, columns: Sequence[str]) -> pa.Table:
    dataset = load_hub_dataset(source)
    _check_names(source, dataset.column_names, columns)
    return _select(source, dataset.with_format("arrow")[:], columns)


def _sample_rows(source: str, columns: Sequence[str]) -> pa.Table:
    from pipeline.sources.sample.articles import make_reviews

    spec = parse_sample(source)
    if spec.kind != "reviews":
        raise InputError(f"{source} has no labels; sample:reviews has")
    made = make_reviews(spec.seed, spec.start, spec.stop)
    table = pa.table(
        {
            "label": made.labels,
            "title": pa.array(made.titles, pa.string()),
            "content": pa.array(made.contents, pa.string()),
        }
    )
    return _select(source, table, columns)


def _read_whole(path: str, compression: str | None) -> bytes:
    with open_unpacked(path, compression) as stream:
        data = stream.read()
        if reason := damage(stream):
            raise InputError(f"{path}: {reason}; fetch it again")
    return data


def _select(where: str, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    _check_names(where, table.schema.names, columns)
    return table.select(list(columns))


def _check_names(where: str, found: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if found.count(name) != 1:
            problem = "more than one" if name in found else "no"
            names = ", ".join(found) or "none"
            raise InputError(f"{where} has {problem} column '{name}'; its columns are {names}")


def _checked(where: str, table: pa.Table) -> pa.Table:
    """The table with valid text. Raises InputError for a null."""
    for position, name in enumerate(table.schema.names):
        column = table.column(name)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py() + 1
            raise InputError(f"{where}: row {row} has no '{name}'")
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
