"""The built-in sample as a source: blocks are ranges of articles or reviews.

    sample:articles?size=250MB&seed=0    sample:reviews?rows=5000&seed=0&start=100000

`start` skips the first rows, so that held-out reviews come from the same seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.common.errors import InputError
from pipeline.sources.block import Block, cut_at, rows_per_chunk
from pipeline.sources.documents import Documents
from pipeline.sources.source_query import byte_size, parse_query, whole_number
from pipeline.sources.text_columns import check_columns

SCHEME = "sample:"
OPTIONS = {
    "articles": {"size": "10MB", "seed": "0"},
    "reviews": {"rows": "5000", "seed": "0", "start": "0"},
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Articles or reviews [start, stop) of a seed."""

    kind: str  #: "articles" or "reviews"
    start: int
    stop: int
    seed: int
    size: int  #: of the articles, bytes; 0 for reviews


def parse_sample(source: str) -> Sample:
    """What a `sample:` source asks for. Raises InputError, which lists the options."""
    from pipeline.sources.sample.articles import count_articles

    kind, _, query = source.removeprefix(SCHEME).partition("?")
    if kind not in OPTIONS:
        raise InputError(f"{source}: unknown sample; give sample:articles or sample:reviews")
    options = parse_query(source, query, OPTIONS[kind])
    seed = whole_number(source, "seed", options["seed"])
    if kind == "articles":
        size = byte_size(source, "size", options["size"])
        return Sample(kind=kind, start=0, stop=count_articles(size), seed=seed, size=size)
    start = whole_number(source, "start", options["start"])
    rows = whole_number(source, "rows", options["rows"])
    return Sample(kind=kind, start=start, stop=start + rows, seed=seed, size=0)


def list_samples(whole: Block, block_bytes: int) -> list[Block]:
    """Blocks of a fixed number of rows: a larger sample begins with the blocks of a smaller one."""
    from pipeline.sources.sample.articles import count_articles, make_reviews

    sample = parse_sample(whole.path)
    text_bytes, step = sample.size, count_articles(block_bytes)
    rows = sample.stop - sample.start
    if sample.kind == "reviews":
        few = make_reviews(sample.seed, 0, 64)
        characters = sum(map(len, few.titles + few.contents))
        text_bytes = characters * rows // 64
        step = max(1, 64 * block_bytes // characters)
    # Only the seed is in a block's path: its rows do not depend on the size of the sample.
    found = replace(
        whole,
        path=f"{SCHEME}{sample.kind}?seed={sample.seed}",
        start=sample.start,
        stop=sample.stop,
        text_bytes=text_bytes,
    )
    return cut_at(found, [*range(0, rows, step), rows])


def read_sample(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The articles, or the reviews with their titles, of a block."""
    from pipeline.sources.sample.articles import make_articles, make_reviews

    sample = parse_sample(block.path)
    rows = rows_per_chunk(block, block.stop - block.start, chunk_bytes)
    for start in range(block.start, block.stop, rows):
        stop = min(start + rows, block.stop)
        if sample.kind == "articles":
            yield Documents(texts=make_articles(sample.seed, start, stop))
        else:
            made = make_reviews(sample.seed, start, stop)
            pairs = zip(made.titles, made.contents, strict=True)
            yield Documents(texts=[f"{title}\n{content}" for title, content in pairs])


def read_review_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """The columns of labelled reviews. Raises InputError for articles and unknown columns."""
    from pipeline.sources.sample.articles import make_reviews

    sample = parse_sample(whole.path)
    if sample.kind != "reviews":
        raise InputError(f"{whole.path} has no labels; sample:reviews has")
    made = make_reviews(sample.seed, sample.start, sample.stop)
    table = pa.table(
        {
            "label": made.labels,
            "title": pa.array(made.titles, pa.string()),
            "content": pa.array(made.contents, pa.string()),
        }
    )
    check_columns(whole.path, table.schema.names, columns)
    return table.select(list(columns))
