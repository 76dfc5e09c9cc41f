"""What there is to read: sources become blocks, the unit of work and of retry.

    "data/*.parquet" "more.jsonl" "sample:articles?size=1GB"
    ->  [Block(index=0, path="/../a.parquet", format="parquet", start=0, stop=4, ...), ...]

A block is a few megabytes, so that a lost worker costs little, and says where it is, not what it
holds. Formats that can be entered in the middle (row groups, lines, streams of a dump) are cut;
a compressed file is one block. How large blocks are changes neither the documents nor the sum of
`text_bytes`, from which the number of shards is computed.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.common.errors import InputError
from pipeline.sources.documents import is_string, one_line
from pipeline.sources.files import (
    COMPRESSIONS,
    File,
    bare_name,
    compression_by_magic,
    compression_by_name,
    find_files,
    open_file,
    open_unpacked,
)
from pipeline.sources.mediawiki.dump import index_name, read_index
from pipeline.sources.source_query import HUB, SAMPLE, load_hub_dataset, parse_sample

BLOCK_BYTES = 16 << 20  #: of text, roughly
HEAD_BYTES = 1 << 16  #: read to know the format of a file whose name does not tell it

FORMATS_BY_NAME = {
    "parquet": r"\.parquet$",
    "jsonl": r"\.(jsonl|ndjson|json)$",
    "text": r"\.(txt|text)$",
    "mediawiki": r"\.xml(-p[0-9]+p[0-9]+)?$",
}
WIKIEXTRACTOR_NAME = re.compile(r"^wiki_[0-9]+$")  # WikiExtractor --json gives the same names
INDEX_NAME = re.compile(r"-multistream-index[0-9]*\.txt(-p[0-9]+p[0-9]+)?$")

#: Bytes of text in a byte of file, in percent: an estimate, and a constant.
UNPACKED_PERCENT = {None: 100, "gz": 280, "zst": 290, "xz": 370, "bz2": 370}
TEXT_PERCENT = {"jsonl": 100, "text": 100, "wikiextractor": 100, "mediawiki": 50}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A slice of a source. Plain values: it travels to any worker."""

    index: int  #: ordinal over the whole job, from 0
    path: str  #: a file, a URL, or a `sample:` or `hf://` source
    format: str  #: "parquet" "jsonl" "text" "wikiextractor" "mediawiki" "hf" "sample"
    compression: str | None  #: "bz2" "gz" "xz" "zst"
    start: int  #: row groups, bytes of the file, rows or articles: what the format counts in
    stop: int
    text_bytes: int  #: an estimate; its sum over a job does not depend on the size of blocks
    version: str  #: changes when the file does

    @property
    def identity(self) -> str:
        """All that the documents of the block depend on, apart from the text columns asked for."""
        where = f"{self.start}-{self.stop}"
        return "|".join([self.path, self.format, self.compression or "", where, self.version])


def list_blocks(
    sources: Sequence[str],
    *,
    block_bytes: int = BLOCK_BYTES,
    text_columns: tuple[str, ...] = ("text",),
) -> list[Block]:
    """The blocks of all sources, in the order of the sources, about `block_bytes` of text each.

    Raises InputError for a missing file, a glob without a match, a format that is not known, a
    Parquet file or data set without one of the text columns, and if there is nothing to read.
    """
    blocks: list[Block] = []
    files: set[File] = set()  # two globs may name the same file
    for source in dict.fromkeys(sources):
        if source.startswith(SAMPLE):
            blocks += _sample_blocks(source, block_bytes)
        elif source.startswith(HUB):
            blocks += _hub_blocks(source, block_bytes, text_columns)
        else:
            found = [file for file in find_files([source]) if file not in files]
            files.update(found)
            for file in found:
                blocks += _file_blocks(file, block_bytes, text_columns)
    if not blocks:
        named = ", ".join(sources) or "no source"
        raise InputError(f"nothing to read in {named}; give a source that is not empty.")
    return [replace(block, index=index) for index, block in enumerate(blocks)]


def _file_blocks(file: File, block_bytes: int, text_columns: tuple[str, ...]) -> list[Block]:
    if INDEX_NAME.search(bare_name(file.path)):
        return []  # a glob that names a dump often names its index also
    format, compression = recognize(file)
    if format == "parquet":
        return _parquet_blocks(file, block_bytes, text_columns)
    if not file.size and not compression:
        return []
    whole = Block(
        index=0,
        path=file.path,
        format=format,
        compression=compression,
        start=0,
        stop=file.size,
        text_bytes=0,
        version=file.version,
    )
    text_bytes = file.size * UNPACKED_PERCENT[compression] * TEXT_PERCENT[format] // 10_000
    if format == "mediawiki":
        edges = _stream_edges(file)
        text_upto = [text_bytes * edge // max(file.size, 1) for edge in edges]
        return _grouped(whole, edges, text_upto, block_bytes)
    if compression:
        return [replace(whole, text_bytes=text_bytes)]
    return _evenly(whole, text_bytes, block_bytes)


def recognize(file: File) -> tuple[str, str | None]:
    """Format and compression, by the name, else by the first bytes. Raises InputError."""
    name, compression = bare_name(file.path), compression_by_name(file.path)
    for format, pattern in FORMATS_BY_NAME.items():
        if re.search(pattern, name, re.IGNORECASE):
            return format, compression
    if not compression:
        with open_file(file.path, buffer_bytes=HEAD_BYTES) as stream:
            compression = compression_by_magic(stream.read(8))
    with open_unpacked(file.path, compression) as stream:
        head = stream.read(HEAD_BYTES)
    found = _format_by_head(head)
    if WIKIEXTRACTOR_NAME.search(name):
        return "jsonl" if found == "jsonl" else "wikiextractor", compression
    if found is None or re.search(r"\.[ct]sv$", name, re.IGNORECASE):
        raise InputError(
            f"{file.path}: unknown format; read are Parquet, .jsonl, .txt, WikiExtractor's wiki_00 "
            f"and MediaWiki's .xml, and .{' .'.join(COMPRESSIONS)} of them"
        )
    return found, compression


def _format_by_head(head: bytes) -> str | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"<doc "):
        return "wikiextractor"
    if re.search(rb"<\0?m\0?e\0?d\0?i\0?a\0?w\0?i\0?k\0?i", begin[:1024]):  # UTF-16 or UTF-8
        return "mediawiki"
    if begin.startswith(b"{"):
        return "jsonl"
    is_text = b"\0" not in head and not begin.startswith((b"<", b"%PDF", b"["))
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        is_text = is_text and error.start > len(head) - 4  # a character cut in two
    return "text" if is_text else None


def _evenly(whole: Block, text_bytes: int, block_bytes: int) -> list[Block]:
    """The block cut into equal parts of about `block_bytes`; none of no size."""
    size = whole.stop - whole.start
    parts = min(size, max(1, round(text_bytes / block_bytes)))
    edges = [size * part // parts for part in range(parts + 1)] if size else [0]
    return _cut(whole, edges, text_bytes)


def _cut(whole: Block, edges: Sequence[int], text_bytes: int) -> list[Block]:
    """The block cut at edges counted from its start; the text is spread evenly over it."""
    size = edges[-1]
    return [
        replace(
            whole,
            start=whole.start + start,
            stop=whole.start + stop,
            text_bytes=text_bytes * stop // size - text_bytes * start // size,
        )
        for start, stop in pairwise(edges)
    ]


def _grouped(
    whole: Block, edges: Sequence[int], text_upto: Sequence[int], block_bytes: int
) -> list[Block]:
    """Blocks of about `block_bytes`, as equal as can be, out of parts that cannot be cut.

    Part i is [edges[i], edges[i + 1]); `text_upto[i]` is the text before edge i. Equal, because
    a local runner deals its workers the same number of blocks, and the last one is waited for.
    """
    total = text_upto[-1]
    count = min(max(1, round(total / block_bytes)), len(edges) - 1)
    cuts = (_nearest(text_upto, total * number // count) for number in range(1, count))
    chosen = sorted({0, *cuts, len(edges) - 1})
    return [
        replace(whole, start=edges[i], stop=edges[j], text_bytes=text_upto[j] - text_upto[i])
        for i, j in pairwise(chosen)
    ]


def _nearest(rising: Sequence[int], wanted: int) -> int:
    """The index of the number that is nearest; `wanted` lies between the first and the last."""
    above = bisect_left(rising, wanted)
    return above - (wanted - rising[above - 1] < rising[above] - wanted) if above else 0


def _stream_edges(file: File) -> list[int]:
    """Where a dump may be cut: between the streams of its index, if that lies beside it."""
    whole = [0, file.size]
    name = index_name(file.path)
    if name is None:
        return whole
    try:
        index_file = find_files([name])[0]
        with (
            open_unpacked(index_file.path, "bz2") as index,
            open_file(file.path, buffer_bytes=64) as dump,
        ):
            return [0, *(stop for _, stop in read_index(index, dump))]
    except InputError:
        # No index, or one that does not fit, as that of a dump whose end is missing: what there is
        # of it can still be read from the beginning.
        return whole


def _parquet_blocks(file: File, block_bytes: int, text_columns: tuple[str, ...]) -> list[Block]:
    try:
        with open_file(file.path, buffer_bytes=HEAD_BYTES) as stream:
            metadata = pq.read_metadata(stream)
            schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file.path} is no Parquet file that can be read: {one_line(error)}"
        ) from error
    check_text_columns(file.path, schema, text_columns)
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    wanted = [i for i, path in enumerate(paths) if path in text_columns]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [sum(group.column(i).total_uncompressed_size for i in wanted) for group in groups]
    whole = Block(
        index=0,
        path=file.path,
        format="parquet",
        compression=None,
        start=0,
        stop=len(groups),
        text_bytes=sum(sizes),
        version=file.version,
    )
    edges = range(len(groups) + 1)
    return _grouped(whole, edges, [*accumulate(sizes, initial=0)], block_bytes)


def check_text_columns(source: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises InputError where a column is missing or holds no text."""
    for name in columns:
        if name not in schema.names:
            found = ", ".join(schema.names) or "none"
            raise InputError(f"{source} has no column '{name}'; its columns are {found}")
        type = schema.field(name).type
        if pa.types.is_dictionary(type):
            type = type.value_type
        if not (is_string(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type)):
            raise InputError(f"{source}: column '{name}' holds {type}, not text")


def _hub_blocks(source: str, block_bytes: int, text_columns: tuple[str, ...]) -> list[Block]:
    dataset = load_hub_dataset(source)
    check_text_columns(source, dataset.features.arrow_schema, text_columns)
    rows = len(dataset)
    # Only the offsets are touched: the text stays on the disk.
    columns = [dataset.data.column(name) for name in text_columns]
    lengths = [pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns]
    whole = Block(
        index=0,
        path=source,
        format="hf",
        compression=None,
        start=0,
        stop=rows,
        text_bytes=sum(lengths),
        version=dataset._fingerprint,
    )
    return _evenly(whole, sum(lengths), block_bytes)


def _sample_blocks(source: str, block_bytes: int) -> list[Block]:
    from pipeline.sources.sample.articles import count_articles, make_reviews

    spec = parse_sample(source)
    text_bytes, step = spec.size, count_articles(block_bytes)
    if spec.kind == "reviews":
        few = make_reviews(spec.seed, 0, 64)
        characters = sum(map(len, few.titles + few.contents))
        text_bytes = characters * (spec.stop - spec.start) // 64
        step = max(1, 64 * block_bytes // characters)
    whole = Block(
        index=0,
        path=f"{SAMPLE}{spec.kind}?seed={spec.seed}",
        format="sample",
        compression=None,
        start=spec.start,
        stop=spec.stop,
        text_bytes=text_bytes,
        version="",
    )
    # Blocks of a fixed number of rows: a larger sample begins with the blocks of a smaller one.
    rows = spec.stop - spec.start
    return _cut(whole, [*range(0, rows, step), rows], text_bytes)
