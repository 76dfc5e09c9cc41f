"""Columns of text: Parquet files, and data sets of the Hugging Face Hub; documents are rows.

a.parquet, 10 row groups   ->  Block(start=0, stop=4), Block(start=4, stop=7), ...
hf://FOLDER?split=train    ->  Block(start=0, stop=20_000), ...    (rows)
title: ["Rome"]  text: ["A city."]   ->   Documents(texts=["Rome\\nA city."])
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clozeline.pipeline.common.errors import InputError, check_packages, one_line
from clozeline.pipeline.sources.block import Block, cut, rows_per_chunk
from clozeline.pipeline.sources.documents import Documents, decode_utf8, fix_unicode
from clozeline.pipeline.sources.files import RawFile
from clozeline.pipeline.sources.source_query import COMMON, parse_query, whole_number

#: Advice on how to choose a corpus's text columns.
CHOOSE = "; choose with --text-columns NAME, or ?text=NAME after the source"
PARQUET_NAME = r"\.parquet$"
CHECKSUMS = {"page_checksum_verification": True}  #: of the pages that have one
#: What a bad file raises; the last one, a column whose name is not UTF-8.
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
LIMIT = re.compile("encrypt|decrypt|not supported|not implemented|not built", re.IGNORECASE)
HUB_SCHEME = "hf://"


class MissingColumnError(InputError):
    """A column that is not there, or more than once; the message ends with those that are."""


def check_columns(
    source: str, existing: Sequence[str], columns: Sequence[str], *, advice: str = ""
) -> None:
    """Raises InputError where a column is missing or its name occurs more than once.

    Without `advice`, where there are others to choose from, it is a MissingColumnError.
    """
    for name in columns:
        if existing.count(name) != 1:
            problem = "more than one" if name in existing else "no"
            names = ", ".join(existing) + advice if existing else "none"
            kind = MissingColumnError if existing else InputError
            raise kind(f"{source} has {problem} column '{name}'; its columns are {names}")


def check_text_columns(source: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises InputError where a column is missing or does not hold text."""
    check_columns(source, schema.names, columns, advice=CHOOSE)
    for name in columns:
        type = schema.field(name).type
        type = type.value_type if pa.types.is_dictionary(type) else type
        if not (is_string(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type)):
            raise InputError(f"{source}: column '{name}' holds {type}, not text{CHOOSE}")


def is_string(type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's string types."""
    return bool(
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def strings(column: pa.Array) -> list[str | None]:
    """The values of a text column; bytes that are not valid UTF-8 become lone surrogates."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_string(column.type):
        with suppress(UnicodeDecodeError):  # Arrow does not check what it reads
            return list(column.to_pylist())
    values = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else decode_utf8(value) for value in values]


def checked_rows(where: str, table: pa.Table) -> pa.Table:
    """The table with valid text. Raises InputError for a null."""
    for position, name in enumerate(table.schema.names):
        column = table.column(name)
        if pa.types.is_dictionary(column.type):  # as of pandas' categories
            column = column.cast(column.type.value_type)
            table = table.set_column(position, name, column)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py() + 1
            raise InputError(f"{where}: row {row} has no '{name}'; fill it in or remove the row")
        if is_string(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                values = [fix_unicode(value) for value in strings(column) if value is not None]
                table = table.set_column(position, name, pa.array(values, pa.large_string()))
    return table


def keep_row(
    documents: Documents, where: str, parts: Sequence[str | None], *, longest: int
) -> None:
    """Keep the text of a row; one with a null, or of more than `longest` bytes, is rejected."""
    texts = [part for part in parts if part is not None]
    text = "\n".join(texts)
    if len(texts) < len(parts):
        documents.reject(where, "null text")
    # A character has at most four bytes of UTF-8.
    elif len(text) * 4 > longest and len(text.encode(errors="surrogatepass")) > longest:
        documents.reject(where, f"longer than --max-document-bytes {longest:,}")
    else:
        documents.keep(text)


def _rows(columns: Sequence[pa.Array], first: int, block: Block) -> Documents:
    """Rows of a block's text columns as documents; `first` counts from 0, row names from 1."""
    documents = Documents()
    for number, parts in enumerate(zip(*map(strings, columns), strict=True), first + 1):
        where = f"{block.path}: row {number}"
        keep_row(documents, where, parts, longest=block.max_document_bytes)
    return documents


def list_row_groups(whole: Block, block_bytes: int) -> list[Block]:
    """Blocks of whole row groups, with about `block_bytes` of text each.

    Raises InputError where the file cannot be read or lacks a text column.
    """
    with _opened(whole.path) as table:
        metadata, schema = table.metadata, table.schema_arrow
    check_text_columns(whole.path, schema, whole.text_columns)
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    wanted = [i for i, path in enumerate(paths) if path in whole.text_columns]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [sum(group.column(i).total_uncompressed_size for i in wanted) for group in groups]
    text_before = [*accumulate(sizes, initial=0)]
    return cut(whole, range(len(groups) + 1), block_bytes, text_before)


def read_row_groups(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The rows of a block. Raises InputError where the file is corrupt."""
    row, columns = -1, list(block.text_columns)

    def problem() -> str:
        return f"is corrupt near row {row + 1}" if row >= 0 else "is corrupt at its end"

    with _opened(block.path, problem) as table:
        groups = [table.metadata.row_group(i).num_rows for i in range(block.stop)]
        row = sum(groups[: block.start])
        for batch in table.iter_batches(
            batch_size=rows_per_chunk(block, sum(groups) - row, chunk_bytes),
            row_groups=list(range(block.start, block.stop)),
            columns=columns,
        ):
            documents = _rows([batch.column(name) for name in columns], row, block)
            row += len(batch)
            yield documents


def read_parquet_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows, unchecked. Raises InputError."""
    with _opened(whole.path) as table:
        check_columns(whole.path, table.schema_arrow.names, columns)
        return table.read(columns=list(columns))


@contextmanager
def _opened(
    path: str, problem: Callable[[], str] = lambda: "is not a readable Parquet file"
) -> Iterator[pq.ParquetFile]:
    """An open file. Raises InputError where it, or a part that is read of it, cannot be read."""
    try:
        with RawFile(path) as stream, pq.ParquetFile(stream, **CHECKSUMS) as table:
            yield table
    except MemoryError:  # Arrow's, too
        raise
    except DAMAGE as error:
        if LIMIT.search(str(error)):
            raise InputError(
                f"{path} uses a feature of Parquet that pyarrow cannot read ({one_line(error)}); "
                "write it anew without that, as with compression zstd and no encryption"
            ) from error
        reason = one_line(error)
        raise InputError(f"{path} {problem()} ({reason}); copy it again or leave it out") from error


def list_hub_rows(whole: Block, block_bytes: int) -> list[Block]:
    """Ranges of rows. Raises InputError where the data set cannot be loaded or lacks a column."""
    dataset = load_hub_dataset(whole.path)
    check_text_columns(whole.path, dataset.features.arrow_schema, whole.text_columns)
    # As binary, only the offsets of most columns are read: the text stays on the disk.
    chunks = (chunk for name in whole.text_columns for chunk in dataset.data.column(name).chunks)
    lengths = (pc.binary_length(chunk.cast(pa.large_binary())) for chunk in chunks)
    text_bytes = sum(pc.sum(of_chunk).as_py() or 0 for of_chunk in lengths)
    version = dataset._fingerprint
    block = replace(whole, text_bytes=text_bytes, version=version)
    return cut(block, range(len(dataset) + 1), block_bytes)


def read_hub_rows(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    columns, size = list(block.text_columns), block.stop - block.start
    dataset = load_hub_dataset(block.path).select_columns(columns).with_format("arrow")
    rows = rows_per_chunk(block, size, chunk_bytes)
    for row in range(block.start, block.stop, rows):
        stop = min(row + rows, block.stop)
        yield _rows([dataset[row:stop].column(name) for name in columns], row, block)


def read_hub_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows, unchecked. Raises InputError."""
    dataset = load_hub_dataset(whole.path)
    check_columns(whole.path, dataset.column_names, columns)
    return dataset.select_columns(list(columns)).with_format("arrow")[:]


@lru_cache  # otherwise each block of a data set would ask the Hub again
def load_hub_dataset(source: str) -> Any:
    """The `datasets.Dataset` that an `hf://` source names, downloaded if it is not there yet.

    With "limit=", only its first rows: they are streamed, and kept in the cache of `datasets`.

    Raises InputError, with the library's own reason, where it cannot be loaded.
    """
    name, _, query = source.removeprefix(HUB_SCHEME).partition("?")
    defaults = {"name": "", "split": "train", "limit": ""}
    options = parse_query(source, query, defaults, others=COMMON)
    subset, split = options["name"] or None, options["split"]
    limit = whole_number(source, "limit", options["limit"], least=1) if options["limit"] else None
    check_packages("an hf:// source", "datasets")
    from datasets import Dataset, load_dataset, load_dataset_builder

    try:
        if limit is None:
            return load_dataset(name, subset, split=split)
        # The name of its folder in the cache changes with the files of the data set.
        version = load_dataset_builder(name, subset).cache_dir
        chosen = {"name": name, "subset": subset, "split": split, "limit": limit}
        return Dataset.from_generator(_first_rows, gen_kwargs=chosen | {"version": version})
    except Exception as error:  # the library's errors have no common class
        reason = one_line(error.__cause__ or error)
        raise InputError(
            f"hf://{name} (name {subset}, split {split}) cannot be loaded: {reason}"
        ) from error


def _first_rows(
    name: str, subset: str | None, split: str, limit: int, version: str
) -> Iterator[dict[str, Any]]:
    from datasets import load_dataset

    yield from islice(load_dataset(name, subset, split=split, streaming=True), limit)
