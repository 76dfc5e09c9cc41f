"""Parquet files: blocks are row groups, documents are rows, text columns are read by name.

a.parquet, 10 row groups  ->  Block(start=0, stop=4), Block(start=4, stop=7), ...
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.sources.block import Block, group_parts, rows_per_chunk
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.files import open_ranges
from clozeline.pipeline.sources.text_columns import (
    check_columns,
    check_text_columns,
    documents_of_rows,
)

FILE_NAME = r"\.parquet$"
CHECKED = {"page_checksum_verification": True}  #: of the pages that have one
#: What a bad file raises; the last one, a column whose name is not UTF-8.
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def has_parquet_magic(name: str, head: bytes) -> bool:
    return head.startswith(b"PAR1")


def list_row_groups(whole: Block, block_bytes: int) -> list[Block]:
    """Blocks of whole row groups, with about `block_bytes` of text each.

    Raises InputError where the file cannot be read or lacks a text column.
    """
    try:
        with open_ranges(whole.path) as stream:
            metadata = pq.read_metadata(stream)
            schema = metadata.schema.to_arrow_schema()
    except DAMAGE as error:
        raise _unreadable(whole.path, error) from error
    check_text_columns(whole.path, schema, whole.text_columns)
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    wanted = [i for i, path in enumerate(paths) if path in whole.text_columns]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [sum(group.column(i).total_uncompressed_size for i in wanted) for group in groups]
    text_before = [*accumulate(sizes, initial=0)]
    whole = replace(whole, stop=len(groups))
    return group_parts(whole, range(len(groups) + 1), text_before, block_bytes)


def read_row_groups(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The rows of a block. Raises InputError where the file is corrupt."""
    row, columns = None, list(block.text_columns)
    try:
        with open_ranges(block.path) as stream, pq.ParquetFile(stream, **CHECKED) as table:
            groups = [table.metadata.row_group(i).num_rows for i in range(block.stop)]
            row = first = sum(groups[: block.start])
            for batch in table.iter_batches(
                batch_size=rows_per_chunk(block, sum(groups) - row, chunk_bytes),
                row_groups=list(range(block.start, block.stop)),
                columns=columns,
            ):
                texts = [batch.column(name) for name in columns]
                done = (row + len(batch) - first) / max(sum(groups) - first, 1)
                longest = block.max_document_bytes
                yield documents_of_rows(texts, row, block.path, longest=longest, done=done)
                row += len(batch)
    except MemoryError:  # Arrow's, too
        raise
    except DAMAGE as error:
        where = f"near row {row + 1}" if row is not None else "at its end"
        raise InputError(f"{block.path} is corrupt {where}: {one_line(error)}") from error


def read_parquet_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows, unchecked. Raises InputError."""
    try:
        with open_ranges(whole.path) as stream, pq.ParquetFile(stream, **CHECKED) as table:
            check_columns(whole.path, table.schema_arrow.names, columns)
            return table.read(columns=list(columns))
    except MemoryError:  # Arrow's, too
        raise
    except DAMAGE as error:
        raise _unreadable(whole.path, error) from error


def _unreadable(path: str, error: Exception) -> InputError:
    return InputError(
        f"{path} is not a readable Parquet file ({one_line(error)}); copy it again or leave it out"
    )
