"""Labelled rows for fine-tuning, by column name, from the files that sources are.

    read_table("train.csv", ["label", "text"])  ->  label: ["1", "0", ..]  text: ["Good.", ..]

Unlike a corpus, a table is small and every row counts: it is read whole; the first bad row is an
error that names it. CSV has no types, so all its columns are text; compare labels as text.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.sources.documents import fix_unicode
from clozeline.pipeline.sources.formats import BY_NAME, find_sources, has_scheme
from clozeline.pipeline.sources.source_query import SourceOptions, split_options
from clozeline.pipeline.sources.tables import is_string, strings


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
        raise InputError(f"{source}: a table is read with limit= only; leave out the others")
    tables = []
    for whole in find_sources(name):
        if (reader := BY_NAME[whole.format].read_table) is None:
            wanted = "give a .csv, .tsv, .jsonl or .parquet file"
            raise InputError(f"{whole.path} is not a table; {wanted}")
        tables.append(_checked(whole.path, reader(whole, columns)))
    try:
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise InputError(
            f"{source}: files with columns of different types: {one_line(error)}"
        ) from error
    if not len(table):
        raise InputError(f"{source} has no rows")
    return table if options.limit is None else table.slice(0, options.limit)


def _checked(where: str, table: pa.Table) -> pa.Table:
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
