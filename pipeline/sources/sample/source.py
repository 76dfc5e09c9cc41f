"""The built-in sample as a source: blocks are ranges of articles or reviews.

    sample:articles?size=250MB&seed=0    sample:reviews?rows=5000&seed=0&start=100000&turning=0.1

`start` skips the first rows, so that held-out reviews come from the same seed. `turning` is the
fraction of reviews in which only the order of the clauses tells the label; `words=even` and
`words=odd` have no opinion in common (of adjectives, names and so on, every second one).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from clozeline.pipeline.common.config_checks import byte_size, size_in_words
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.block import Block, rows_per_chunk
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.source_query import fraction, parse_query, whole_number
from clozeline.pipeline.sources.tables import check_columns

if TYPE_CHECKING:  # importing it reads the prose, which takes time
    from clozeline.pipeline.sources.sample.reviews import Reviews

SCHEME = "sample:"
LABELS = ("negative", "positive")
OTHERS = ("repeat", "limit", "tokens")  #: options of every source
#: Mean bytes of UTF-8 of an article and of a review, over 100,000 of each.
MEAN_BYTES = {"articles": 1_297, "reviews": 229}
MOST_BYTES = 10**12  #: of text; the list of its blocks is in memory
MOST_ROWS = 1_000_000  #: of a table, which is in memory: about 4 GB while it is made


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Articles or reviews [start, stop) of a seed."""

    kind: str  #: "articles" or "reviews"
    start: int
    stop: int
    seed: int
    size: int = 0  #: of the articles, bytes
    turning: float = 0.0  #: fraction of turning reviews
    words: str = "all"  #: of the opinions: all, or the even or odd ones


def parse_sample(source: str) -> Sample:
    """What a `sample:` source asks for. Raises InputError, which lists the options."""
    kind, _, query = source.removeprefix(SCHEME).partition("?")
    if kind == "articles":
        options = parse_query(source, query, {"size": "10MB", "seed": "0"}, others=OTHERS)
        size = byte_size(options["size"], f"{source}: size")
        seed = whole_number(source, "seed", options["seed"])
        return Sample(kind=kind, start=0, stop=count_articles(size), seed=seed, size=size)
    if kind != "reviews":
        raise InputError(f"{source}: unknown sample; give sample:articles or sample:reviews")
    from clozeline.pipeline.sources.sample.reviews import HALVES, TURNING

    defaults = {"rows": "5000", "seed": "0", "start": "0", "turning": str(TURNING), "words": "all"}
    options = parse_query(source, query, defaults, others=OTHERS)
    rows, seed, start = (
        whole_number(source, name, options[name]) for name in ("rows", "seed", "start")
    )
    turning, words = fraction(source, "turning", options["turning"]), options["words"]
    if words not in HALVES:
        raise InputError(f"{source}: words is {', '.join(HALVES)}, not {words!r}")
    ends = {"start": start, "stop": start + rows}
    return Sample(kind=kind, **ends, seed=seed, turning=turning, words=words)


def count_articles(size_bytes: int) -> int:
    """How many articles make about `size_bytes` of text (within 5 % from 1 MB on).

    One at least, but none for 0 bytes.
    """
    return max(min(size_bytes, 1), round(size_bytes / MEAN_BYTES["articles"]))


def _reviews(sample: Sample, start: int, stop: int) -> "Reviews":
    from clozeline.pipeline.sources.sample.reviews import make_reviews

    return make_reviews(sample.seed, start, stop, turning=sample.turning, words=sample.words)


def list_samples(whole: Block, block_bytes: int) -> list[Block]:
    """Blocks of a fixed number of rows: a larger sample begins with the blocks of a smaller one."""
    sample = parse_sample(whole.path)
    rows, mean = sample.stop - sample.start, MEAN_BYTES[sample.kind]
    text_bytes, step = sample.size or rows * mean, max(1, block_bytes // mean)
    if text_bytes > MOST_BYTES:
        most = size_in_words(MOST_BYTES)
        raise InputError(f"{whole.path} is more than {most} of text; ask for less")
    # A block's path does not name the size of the sample, on which its rows do not depend.
    is_reviews = sample.kind == "reviews"
    options = f"&turning={sample.turning}&words={sample.words}" if is_reviews else ""
    path = f"{SCHEME}{sample.kind}?seed={sample.seed}{options}"
    ends = [*range(step, rows, step), rows] if rows else []
    return [
        replace(
            whole,
            path=path,
            start=sample.start + start,
            stop=sample.start + stop,
            text_bytes=text_bytes * stop // rows - text_bytes * start // rows,
        )
        for start, stop in pairwise([0, *ends])
    ]


def read_sample(block: Block, chunk_bytes: int) -> Iterator[Documents]:
    """The articles, or the reviews with their titles, of a block."""
    from clozeline.pipeline.sources.sample.articles import make_articles

    sample = parse_sample(block.path)
    rows = rows_per_chunk(block, block.stop - block.start, chunk_bytes)
    for start in range(block.start, block.stop, rows):
        stop = min(start + rows, block.stop)
        if sample.kind == "articles":
            texts = make_articles(sample.seed, start, stop)
        else:
            made = _reviews(sample, start, stop)
            pairs = zip(made.titles, made.contents, strict=True)
            texts = [f"{title}\n{content}" for title, content in pairs]
        yield Documents(texts=texts)


def read_review_table(whole: Block, columns: Sequence[str]) -> pa.Table:
    """Columns of labelled reviews: label, title, content, turning. Raises InputError."""
    sample = parse_sample(whole.path)
    if sample.kind != "reviews":
        raise InputError(f"{whole.path} has no labels; sample:reviews has")
    if (rows := sample.stop - sample.start) > MOST_ROWS:
        limits = f"a table has at most {MOST_ROWS:,} rows, not {rows:,}"
        raise InputError(f"{whole.path}: {limits}; ask for fewer")
    made = _reviews(sample, sample.start, sample.stop)
    table = pa.table(
        {
            "label": [LABELS[label] for label in made.labels.tolist()],
            "title": pa.array(made.titles, pa.string()),
            "content": pa.array(made.contents, pa.string()),
            "turning": made.turning,
        }
    )
    check_columns(whole.path, table.schema.names, columns)
    return table.select(list(columns))
