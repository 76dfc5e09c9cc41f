"""Columns of text in Arrow tables: checked when a source is listed, joined to documents when read.

title: ["Rome"]  text: ["A city."]   ->   Documents(texts=["Rome\nA city."])
"""

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.documents import Documents, decode_utf8

#: Advice on how to choose a corpus's text columns.
CHOOSE = "; choose with --text-columns NAME, or ?text=NAME after the source"


class MissingColumnError(InputError):
    """A column that is not there, or more than once; the message ends with those that are."""


def check_columns(
    source: str, found: Sequence[str], columns: Sequence[str], *, advice: str = ""
) -> None:
    """Raises InputError where a column is missing or its name occurs more than once.

    Without `advice`, where there are others to choose from, it is a MissingColumnError.
    """
    for name in columns:
        if found.count(name) != 1:
            problem = "more than one" if name in found else "no"
            names = ", ".join(found) + advice if found else "none"
            kind = MissingColumnError if found else InputError
            raise kind(f"{source} has {problem} column '{name}'; its columns are {names}")


def check_text_columns(source: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises InputError where a column is missing or does not hold text."""
    check_columns(source, schema.names, columns, advice=CHOOSE)
    for name in columns:
        type = schema.field(name).type
        type = type.value_type if pa.types.is_dictionary(type) else type
        if not (is_string(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type)):
            raise InputError(f"{source}: column '{name}' holds {type}, not text{CHOOSE}")


def documents_of_rows(
    columns: Sequence[pa.Array], first_row: int, path: str, *, longest: int, done: float
) -> Documents:
    """Rows of text columns as documents; `first_row` counts from 0, row names from 1."""
    documents = Documents(done=done)
    for number, parts in enumerate(zip(*map(strings, columns), strict=True), first_row + 1):
        keep_row(documents, f"{path}: row {number}", parts, longest=longest)
    return documents


def keep_row(
    documents: Documents, where: str, parts: Sequence[str | None], *, longest: int
) -> None:
    """Keep the text of a row; one with a null, or of more than `longest` bytes, is rejected."""
    texts = [part for part in parts if part is not None]
    if len(texts) < len(parts):
        documents.reject(where, "null text")
    elif _is_longer(text := "\n".join(texts), longest):
        documents.reject(where, f"longer than --max-document-bytes {longest:,}")
    else:
        documents.keep(text)


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


def _is_longer(text: str, longest: int) -> bool:
    """Whether the text has over `longest` bytes of UTF-8; a character has at most four."""
    return len(text) * 4 > longest and len(text.encode(errors="surrogatepass")) > longest
