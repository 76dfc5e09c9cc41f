"""Labelled rows for fine-tuning, by the names of columns: the same files as sources, and CSV, TSV.

    read_table("train.csv", ["label", "text"])  ->  label: ["1", "0", ..]  text: ["Good.", ..]

Unlike a corpus a table is small and every row counts: it is read whole, and the first bad row is an
error that names it. CSV has no types, so its columns are text, labels also: compare labels as text.
"""

import io
import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pipeline.errors import InputError
from pipeline.files import File, base_name, damage, find_files, open_file, open_unpacked
from pipeline.lines import parse_json_object
from pipeline.sources import bare_name, recognize
from pipeline.specs import HUB, SAMPLE, load_hub_dataset, parse_sample
from pipeline.texts import is_string, strings, valid

DELIMITERS = {"csv": ",", "tsv": "\t"}


def read_table(source: str, columns: Sequence[str]) -> pa.Table:
    """The columns, in this order, of all rows of a file, glob, `hf://` or `sample:reviews` source.

    Several files are one table, in the order of their names. Text is valid Unicode; a cell that a
    CSV leaves empty without quotes is null.

    Raises InputError for a missing file or column (naming those found), a file that cannot be
    read, no rows, and a null, with its row (from 1, without the header).
    """
    if source.startswith(SAMPLE):
        parts = [(source, _sample_rows(source))]
    elif source.startswith(HUB):
        parts = [(source, load_hub_dataset(source).with_format("arrow")[:])]
    else:
        parts = [(file.path, _read_file(file, columns)) for file in find_files([source])]
    tables = [_checked(where, table, columns) for where, table in parts]
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"the files of {source} have columns of different types: {error}") from error
    if not len(whole):
        raise InputError(f"{source} has no rows")
    return whole.combine_chunks()


def _read_file(file: File, columns: Sequence[str]) -> pa.Table:
    ending = bare_name(file.path).rpartition(".")[2].lower()
    if ending in DELIMITERS:
        return _read_delimited(file, DELIMITERS[ending])
    format, compression = recognize(file)
    if format == "parquet":
        return _read_parquet(file, columns)
    if format == "jsonl":
        return _read_json_lines(file, compression, columns)
    raise InputError(f"{file.path} is no table; those are .csv, .tsv, .jsonl and .parquet files")
