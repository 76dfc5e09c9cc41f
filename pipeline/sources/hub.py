"""Data sets of the Hugging Face Hub, through the `datasets` library: blocks are ranges of rows.

hf://wikimedia/wikipedia?name=20231101.en&split=train    hf://FOLDER
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.common.packages import check_packages
from clozeline.pipeline.sources.block import Block, cut_evenly, rows_per_chunk
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.source_query import COMMON, parse_query
from clozeline.pipeline.sources.text_columns import (
    check_columns,
    check_text_columns,
    documents_of_rows,
)

SCHEME = "hf://"


def list_dataset(whole: Block, block_bytes: int) -> list[Block]:
    """Ranges of rows. Raises InputError where the data set cannot be loaded or lacks a column."""
    dataset = load_hub_dataset(whole.path)
    check_text_columns(whole.path, dataset.features.arrow_schema, whole.text_columns)
    columns = [dataset.data.column(name) for name in whole.text_columns]
    text_bytes = sum(_text_bytes(part) for column in columns for part in column.chunks)
    version = dataset._fingerprint
    found = replace(whole, stop=len(dataset), text_bytes=text_bytes, version=version)
    return cut_evenly(found, block_bytes)


def _text_bytes(column: pa.Array) -> int:
    """Reads only the offsets of most columns: the text stays on the disk."""
    if pa.types.is_string_view(column.type):  # Arrow has no lengths of these
        column = column.cast(pa.large_string())
    return pc.sum(pc.binary_length(column)).as_py() or 0


def read_rows(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    columns = list(block.text_columns)
    dataset = load_hub_dataset(block.path).select_columns(columns).with_format("arrow")
    rows = rows_per_chunk(block, block.stop - block.start, chunk_bytes)
    for row in range(block.start, block.stop, rows):
        stop = min(row + rows, block.stop)
        table, done = dataset[row:stop], (stop - block.start) / (block.stop - block.start)
        texts = [table.column(name) for name in columns]
        longest = block.max_document_bytes
        yield documents_of_rows(texts, row, block.path, longest=longest, done=done)


def read_hub_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of all rows, unchecked. Raises InputError."""
    dataset = load_hub_dataset(whole.path)
    check_columns(whole.path, dataset.column_names, columns)
    return dataset.select_columns(list(columns)).with_format("arrow")[:]


@lru_cache  # otherwise each block of a data set would ask the Hub again
def load_hub_dataset(source: str) -> Any:
    """The `datasets.Dataset` that an `hf://` source names, downloaded if it is not there yet.

    Raises InputError, with the library's own reason, where it cannot be loaded.
    """
    name, _, query = source.removeprefix(SCHEME).partition("?")
    options = parse_query(source, query, {"name": "", "split": "train"}, others=COMMON)
    subset, split = options["name"] or None, options["split"]
    check_packages("an hf:// source", "datasets")
    from datasets import load_dataset

    try:
        return load_dataset(name, subset, split=split)
    except Exception as error:  # the library's errors have no common class
        raise InputError(
            f"hf://{name} (name {subset}, split {split}) cannot be loaded: {one_line(error)}"
        ) from error
