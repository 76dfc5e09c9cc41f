"""A block to its documents: texts, what was rejected and why, and what was counted.

    Block(path="/a.jsonl", start=0, stop=4096)  ->  Documents(
        texts=["Rome is a city.\nIt is old.", ...],
        rejected=[Rejected("/a.jsonl:17", "no JSON: Expecting value at character 1")],
        counts={"nul": 1, "empty": 2})

One bad document is rejected and named; it never ends the job.
"""

import io
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.common.errors import InputError
from pipeline.sources.documents import Documents, Rejected, one_line, strings
from pipeline.sources.files import damage, open_file, unpack
from pipeline.sources.formats import Block
from pipeline.sources.mediawiki.dump import Page, TruncatedDump, read_pages, read_range
from pipeline.sources.mediawiki.markup import over_budget, strip_markup
from pipeline.sources.source_query import load_hub_dataset, parse_sample
from pipeline.sources.text_files import read_json_lines, read_plain_text, read_wikiextractor

__all__ = ["Documents", "Rejected", "read_block"]

PIECE_BYTES = 16 << 20  #: of text handed out at once, about
BATCH_ROWS = 8192  #: of a table read at once, at most


def read_block(
    block: Block, *, text_columns: tuple[str, ...] = ("text",), piece_bytes: int = PIECE_BYTES
) -> Iterator[Documents]:
    """The documents of a block, piece by piece, in the order of the file.

    `text_columns` name the columns of a table or the fields of a JSON line; several are joined by
    line ends. A file that is cut or corrupt ends early, with one rejection. Raises InputError where
    a file cannot be read.
    """
    match block.format:
        case "jsonl":
            return read_json_lines(block, text_columns, piece_bytes)
        case "text":
            return read_plain_text(block, piece_bytes)
        case "wikiextractor":
            return read_wikiextractor(block, piece_bytes)
        case "mediawiki":
            return _read_dump(block, piece_bytes)
        case "parquet":
            return _read_parquet(block, text_columns, piece_bytes)
        case "hf":
            return _read_hub(block, text_columns, piece_bytes)
        case "sample":
            return _read_sample(block, piece_bytes)
    raise AssertionError(block.format)


def _read_dump(block: Block, piece_bytes: int) -> Iterator[Documents]:
    documents, size, cut = Documents(), 0, None
    with open_file(block.path) as file:
        whole = (block.start, block.stop) == (0, file.seek(0, io.SEEK_END))
        file.seek(0)
        stream = unpack(file, block.compression)
        try:
            for page in read_pages(stream) if whole else read_range(file, block.start, block.stop):
                _take_page(page, documents, block.path)
                size += len(page.text)
                if size >= piece_bytes:
                    yield documents
                    documents, size = Documents(), 0
        except TruncatedDump as error:
            cut = str(error)
        if reason := damage(stream) or cut:
            documents.reject(block.path, reason)
    yield documents


def _take_page(page: Page, documents: Documents, path: str) -> None:
    if page.redirect:
        documents.counts["redirect"] += 1
    elif page.namespace:
        documents.counts["other_namespace"] += 1
    elif reason := over_budget(page.text):
        documents.reject(f"{path}: {page.title}", f"over the page budget: {reason}")
    else:
        try:
            documents.keep(strip_markup(page.text))
        except Exception as error:  # whatever a parser trips over, it is one page of a dump
            documents.reject(f"{path}: {page.title}", f"markup: {one_line(error)}")


def _read_parquet(block: Block, columns: Sequence[str], piece_bytes: int) -> Iterator[Documents]:
    row = None
    try:
        with open_file(block.path) as stream, pq.ParquetFile(stream) as table:
            groups = [table.metadata.row_group(i).num_rows for i in range(block.stop)]
            row = sum(groups[: block.start])
            for batch in table.iter_batches(
                batch_size=_rows_at_once(block, sum(groups) - row, piece_bytes),
                row_groups=list(range(block.start, block.stop)),
                columns=list(columns),
            ):
                yield _take_rows([batch.column(name) for name in columns], row, block.path)
                row += len(batch)
    except (pa.ArrowException, OSError) as error:
        where = f"near row {row + 1}" if row is not None else "at its end"
        raise InputError(f"{block.path} is corrupt {where}: {one_line(error)}") from error


def _read_hub(block: Block, columns: Sequence[str], piece_bytes: int) -> Iterator[Documents]:
    dataset = load_hub_dataset(block.path).select_columns(list(columns)).with_format("arrow")
    rows = _rows_at_once(block, block.stop - block.start, piece_bytes)
    for row in range(block.start, block.stop, rows):
        table = dataset[row : min(row + rows, block.stop)]
        yield _take_rows([table.column(name) for name in columns], row, block.path)


def _read_sample(block: Block, piece_bytes: int) -> Iterator[Documents]:
    from pipeline.sources.sample.articles import make_articles, make_reviews

    spec = parse_sample(block.path)
    rows = _rows_at_once(block, block.stop - block.start, piece_bytes)
    for start in range(block.start, block.stop, rows):
        stop = min(start + rows, block.stop)
        if spec.kind == "articles":
            yield Documents(texts=make_articles(spec.seed, start, stop))
        else:
            made = make_reviews(spec.seed, start, stop)
            pairs = zip(made.titles, made.contents, strict=True)
            yield Documents(texts=[f"{title}\n{content}" for title, content in pairs])


def _rows_at_once(block: Block, rows: int, piece_bytes: int) -> int:
    return max(1, min(BATCH_ROWS, piece_bytes * rows // max(block.text_bytes, 1)))


def _take_rows(columns: Sequence[pa.Array], first_row: int, path: str) -> Documents:
    """Rows of text columns as documents; `first_row` counts from 0, the names of rows from 1."""
    documents = Documents()
    rows = zip(*map(strings, columns), strict=True)
    for number, parts in enumerate(rows, start=first_row + 1):
        if None in parts:
            documents.reject(f"{path}: row {number}", "null text")
        else:
            documents.keep("\n".join(parts))
    return documents
