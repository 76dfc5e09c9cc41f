"""The formats of sources: a table, and the functions that use it.

    list_blocks(["data/*.parquet", "sample:articles?size=1GB"])
    ->  [Block(index=0, path="/../a.parquet", format="parquet", start=0, stop=4, ...), ...]
    read_block(block)
    ->  Documents(texts=["Rome is a city.\nIt is old.", ...],
                  rejected=[Rejected("/a.jsonl: byte 16", "not a JSON object")],
                  counts={"nul": 1, "empty": 2})

To add a format, write a file like delimited.py and a row of `FORMATS`. A source is recognized by
its scheme, else by its first bytes, else by its file name; the first row that matches counts, and
UTF-8 that is of no known format is plain text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.sources import delimited, files, tables, text_files
from clozeline.pipeline.sources.block import BLOCK_BYTES, Block
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.encoding import check_running_text, check_utf8, is_utf8
from clozeline.pipeline.sources.mediawiki import dump as mediawiki
from clozeline.pipeline.sources.sample import source as sample
from clozeline.pipeline.sources.source_query import SourceOptions, check_reading, split_options

CHUNK_BYTES = 16 << 20  #: of text per chunk, roughly
#: Columns of a labelled table are named by options of the command, not in its path.
OF_COLUMNS = re.compile(r"[?&](text|text_pair|label)=")


@dataclass(frozen=True)
class Format:
    """A row of the table: how sources of a format are recognized, cut into blocks and read."""

    name: str  #: as in `Block.format`
    list_blocks: Callable[[Block, int], list[Block]]  #: (whole source, block_bytes) -> its blocks
    read_block: Callable[[Block, int], Iterator[Documents]]  #: (block, chunk_bytes) -> chunks
    #: (whole source, columns) -> all rows, unchecked, for formats that have columns.
    read_table: Callable[[Block, Sequence[str]], pa.Table] | None = None
    scheme: str | None = None  #: the beginning of a source that is not a file
    file_name: str | None = None  #: a pattern for names, without the extension of a compression
    matches: Callable[[str, bytes], bool] | None = None  #: (name, first bytes) -> whether it fits

    @property
    def has_columns(self) -> bool:
        """Whether `?text=` may name columns; those of the sample are fixed."""
        return self.read_table is not None and self.scheme != sample.SCHEME


def _lines(name: str, read: Any, **more: Any) -> Format:
    """A format whose documents are separated by line ends, so that any bytes are a block."""
    return Format(name, text_files.list_byte_ranges, read, **more)


FORMATS = (
    Format(
        "parquet",
        tables.list_row_groups,
        tables.read_row_groups,
        tables.read_parquet_table,
        file_name=tables.PARQUET_NAME,
        matches=lambda name, head: head.startswith(b"PAR1"),
    ),
    _lines("wikiextractor", text_files.read_wikiextractor, matches=text_files.is_wikiextractor),
    _lines("wet", text_files.read_wet, matches=text_files.is_wet),
    Format(
        "mediawiki",
        mediawiki.list_stream_ranges,
        mediawiki.read_articles,
        file_name=mediawiki.INDEX_NAME,
        matches=mediawiki.is_dump,
    ),
    _lines(
        "jsonl",
        text_files.read_json_lines,
        matches=text_files.is_json_lines,
        read_table=text_files.read_json_table,
        file_name=text_files.JSON_LINES_NAME,
    ),
    Format(
        "csv",
        delimited.list_table,
        delimited.read_rows,
        delimited.read_delimited_table,
        file_name=delimited.FILE_NAME,
    ),
    _lines("text", text_files.read_plain_text, file_name=text_files.PLAIN_TEXT_NAME),
    Format(
        "hf",
        tables.list_hub_rows,
        tables.read_hub_rows,
        tables.read_hub_table,
        scheme=tables.HUB_SCHEME,
    ),
    Format(
        "sample",
        sample.list_samples,
        sample.read_sample,
        sample.read_review_table,
        scheme=sample.SCHEME,
    ),
)
BY_NAME = {format.name: format for format in FORMATS}


def list_blocks(
    sources: Sequence[str],
    *,
    block_bytes: int = BLOCK_BYTES,
    text_columns: tuple[str, ...] = ("text",),
    max_document_bytes: int = Block.max_document_bytes,
) -> list[Block]:
    """The blocks of all sources, in the order of the sources, about `block_bytes` of text each.

    `text_columns` name the columns of a table or the fields of a JSON line, for sources that name
    none themselves (`a.parquet?text=title,content`); several are joined by line ends.

    Raises InputError for a missing file, a glob without a match, a file of an unknown format, a
    table without one of the text columns, a wrong option, and if there is nothing to read.
    """
    # Of each file, which two globs may name: is it whole, how many bytes of text, and its blocks.
    listed: dict[Block, tuple[bool, int, list[Block]]] = {}
    for source in sources:
        name, options = split_options(source, is_url=has_scheme(source) is not None)
        chosen: dict[str, Any] = {
            "text_columns": options.text_columns or text_columns,
            "max_document_bytes": max_document_bytes,
            "repeat": options.repeat,
            "share": name if options.tokens else "",
            "tokens": options.tokens,
            "reading": options.reading,
            "query": options.query,
        }
        wholes = [replace(whole, **chosen) for whole in find_sources(name, options.reading)]
        for whole in wholes:
            check_reading(whole.path, whole.format, whole.reading)
            if options.text_columns and not BY_NAME[whole.format].has_columns:
                raise InputError(f"{whole.path} has no columns; give it without text=")
        for whole, blocks in _cut(wholes, block_bytes, options.limit).items():
            part = options.limit is None, sum(block.text_bytes for block in blocks), blocks
            file = replace(whole, query="")  # one file with ?limit= and without
            if file not in listed or part[:2] > listed[file][:2]:
                listed[file] = part
    blocks = [block for *_, of_file in listed.values() for block in of_file]
    if not blocks:
        named = ", ".join(sources) or "no source"
        is_table = re.search(r"\.[ct]sv\b", named, re.IGNORECASE)
        why = " (a table has a header and no rows)" if is_table else ""
        raise InputError(f"nothing to read in {named}{why}; give a source that is not empty.")
    return [replace(block, index=index) for index, block in enumerate(blocks)]


def check_columns_used(text_columns: Sequence[str], blocks: Iterable[Block]) -> None:
    """Raises InputError for text columns other than the default that no source is read by.

    Such as plain text, which has none, and sources that name their own.
    """
    own = (BY_NAME[block.format].has_columns and "text=" not in block.query for block in blocks)
    if tuple(text_columns) != Block.text_columns and not any(own):
        raise InputError(
            f"--text-columns {text_columns[0]} does nothing: each source is plain text, or names "
            "its own columns with ?text=; leave it out."
        )


def _cut(wholes: Sequence[Block], block_bytes: int, limit: int | None) -> dict[Block, list[Block]]:
    """The blocks of each file of a source; with a limit, of those that hold the first documents."""
    by_file: dict[Block, list[Block]] = {}
    for whole in wholes:
        if limit == 0:  # before the next file is opened
            break
        blocks = BY_NAME[whole.format].list_blocks(whole, block_bytes)
        if limit is not None:
            blocks, limit = _first_documents(blocks, limit)
        if blocks:
            by_file[whole] = blocks
    return by_file


def _first_documents(blocks: Iterable[Block], limit: int) -> tuple[list[Block], int]:
    """The blocks that hold the first `limit` documents that are kept, and how many are missing.

    Reads them, since no format knows beforehand which documents are kept. So `text_bytes` are exact
    here, and their sum does not depend on the size of blocks either. The last one is cut short.
    """
    used: list[Block] = []
    for block in blocks:
        count = text_bytes = 0
        for chunk in read_block(block):
            texts = chunk.texts[: limit - count]
            count += len(texts)
            text_bytes += sum(len(text.encode()) for text in texts)
            if count == limit:
                return [*used, replace(block, documents=count, text_bytes=text_bytes)], 0
        limit -= count
        used.append(replace(block, text_bytes=text_bytes))
    return used, limit


def read_block(block: Block, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Documents]:
    """The documents of a block, chunk by chunk, in the order of the file.

    One bad document is rejected and named, and never ends the job. Raises InputError where a file
    is truncated or corrupt, cannot be read, or is not the one that was listed.
    """
    left = block.documents
    try:
        for chunk in BY_NAME[block.format].read_block(block, chunk_bytes):
            yield chunk if left is None else chunk.first(left)
            if left is not None and (left := left - len(chunk.texts)) <= 0:
                break
    except InputError:
        _check_unchanged(block)  # then this is the cause
        raise
    _check_unchanged(block)


def read_table(source: str, columns: Sequence[str]) -> pa.Table:
    """The columns, in this order, of all rows of a file, glob, `hf://` or `sample:reviews` source.

        read_table("train.csv", ["label", "text"])  ->  label: ["1", "0", ..]  text: ["Good.", ..]

    Unlike a corpus, a table is read whole, and its first bad row is an error that names it. Several
    files are one table, in the order of their names; `?limit=1000` keeps its first rows. Text is
    valid Unicode; CSV has no types, so all its columns are text. A cell that is empty without
    quotes is null.

    Raises InputError for a missing file or column (naming those found), a file that cannot be
    read, no rows, and a null, with its row (from 1, without the header).
    """
    wrong = InputError(
        f"{source}: a table is read with limit= only; leave out the others (options of the "
        "command name columns)"
    )
    is_url = has_scheme(source) is not None
    if OF_COLUMNS.search(source) and not is_url:
        raise wrong
    name, options = split_options(source, is_url=is_url)
    if options.query and options != SourceOptions(limit=options.limit, query=options.query):
        raise wrong
    parts = []
    for whole in find_sources(name):
        if (reader := BY_NAME[whole.format].read_table) is None:
            wanted = "give a .csv, .tsv, .jsonl or .parquet file"
            raise InputError(f"{whole.path} is not a table; {wanted}")
        parts.append(tables.checked_rows(whole.path, reader(whole, columns)))
    try:
        table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise InputError(
            f"{source}: files with columns of different types: {one_line(error)}"
        ) from error
    if not len(table):
        raise InputError(f"{source} has no rows")
    return table if options.limit is None else table.slice(0, options.limit)


def all_rejected(number: int, where: str, reason: str, *, of: str = "document") -> InputError:
    """The error for sources without a document that can be read; the first is there."""
    return InputError(
        f"every {of} was rejected, {number:,} in all; the first is {where} ({reason}). Check "
        "--text-columns and the format of the sources."
    )


def _check_unchanged(block: Block) -> None:
    """Raises InputError where the file was replaced, or written to, since it was listed."""
    if has_scheme(block.path):
        return
    try:
        is_same = [file.version for file in files.find_files(block.path)] == [block.version]
    except InputError as error:
        raise InputError(
            f"{block.path} was removed while it was read; restore it and run the command again."
        ) from error
    if not is_same:
        raise InputError(
            f"{block.path} changed while it was read; run the command again when it is complete."
        )


def find_sources(source: str, reading: Sequence[str] = ()) -> list[Block]:
    """What a path, glob or URL names: one block for each file, of all its bytes.

    Raises InputError for a missing file, a glob without a match and an unknown format.
    """
    if format := has_scheme(source):
        return [Block(path=source, format=format.name, stop=0, version="")]
    is_text = "format=text" in reading
    return [whole_file(file, is_text=is_text) for file in files.find_files(source)]


def has_scheme(source: str) -> Format | None:
    """The format of a source that is not a file, such as `sample:reviews`."""
    return next((row for row in FORMATS if row.scheme and source.startswith(row.scheme)), None)


def whole_file(file: files.File, *, is_text: bool = False) -> Block:
    """All bytes of a file as one block; its format by the first bytes, else by name.

    With `is_text` it is plain text, whatever it looks like.

    Raises InputError for another format, Parquet that is packed, and text that is not UTF-8.
    """
    name = files.bare_name(file.path)
    head, compression = files.unpacked_head(file.path)
    by_head = (row for row in FORMATS if row.matches and row.matches(name, head))
    format = BY_NAME["text"] if is_text else next(by_head, None)
    if format is None:
        check_running_text(file.path, head)
        named = (f for f in FORMATS if f.file_name and re.search(f.file_name, name, re.IGNORECASE))
        format = next(named, BY_NAME["text"] if is_utf8(head) else None)
    if format is None:
        raise InputError(
            f"{file.path}: unknown format; give Parquet, .jsonl, .csv, .tsv, .txt, WET, "
            f"WikiExtractor's wiki_00 or MediaWiki's .xml, or as .{' .'.join(files.COMPRESSIONS)}; "
            "?format=text reads UTF-8 of any kind as plain text"
        )
    if format.name != "parquet" or compression:
        check_utf8(file.path, head, or_utf16=format.name == "mediawiki")
    return Block(
        path=file.path,
        format=format.name,
        compression=compression,
        stop=file.size,
        text_bytes=file.size * files.UNPACKED_PERCENT[compression] // 100,
        version=file.version,
    )
