"""The token cache: a file of tokenized documents for each block, grouped by bucket.

Beam moves the names of these files instead of tokens: a gigabyte of text through its local
GroupByKey takes 4 to 6 GB of memory. A file is named by a digest of everything its content depends
on, so a file that exists is complete and is never written again: not after a crash, not for other
pairs or masks, not when a source is added.

    0f3a....tokens    the documents of a block
    77c1....merged    the documents of several blocks, merged when there are so many blocks that a
                      shard would make too many requests
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counts import Counts, release_memory
from clozeline.pipeline.common.folders import remove_files
from clozeline.pipeline.common.json_files import MALFORMED, file_sha256, sealed, unsealed
from clozeline.pipeline.common.paths import PARTIAL, AnyPath, names_in, whole_file
from clozeline.pipeline.common.ragged import offsets_of
from clozeline.pipeline.curation.mixture import DOCUMENT, Documents, mixture_hashes, uses_of
from clozeline.pipeline.curation.near.steps import Rows
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.cache_file import (
    ENTRY,
    CacheFileEnd,
    CacheFileWriter,
    Entries,
    digest_of,
    read_counts,
    read_ends,
    read_index,
    read_runs,
    read_slices,
)
from clozeline.pipeline.dataset.manifest import MixedSource, ShardEntry
from clozeline.pipeline.examples.columns import BucketDocuments
from clozeline.pipeline.tokenization.documents import TokenizedDocuments, from_pieces, pieces_of

#: Suffixes of all files that a job keeps in the folder.
SUFFIXES: Final = (
    ".tokens", ".merged", ".shard.json", ".mixed", ".mixture",
    ".near", ".words", ".pairs", ".edges", ".drops",
)  # fmt: skip
MAX_FILES: Final = 500  #: most files a shard reads; if there are more, they are merged
INDEX_BYTES: Final = 64 << 20  #: memory for the part of the indexes that a process holds


class TokenFile(NamedTuple):
    """A file of the token cache that a job reads."""

    name: str
    repeat: int = 1  #: its documents make this many times as many training examples
    share: str = ""  #: the source with ?tokens= whose budget its documents share


class Loaded(NamedTuple):
    documents: BucketDocuments
    duplicates: int  #: copies that are left out
    unused: int  #: documents beyond the tokens of their source
    repeat: int  #: the most often that one is used


def merged_name(names: Sequence[str]) -> str:
    """The name of the file that the files of these names are merged into; of one, its own name."""
    return names[0] if len(names) == 1 else f"{digest_of(sorted(names))}.merged"


def group_files(files: Iterable[TokenFile]) -> dict[TokenFile, list[str]]:
    """What shards read, and the names of the neighbouring files that are merged into each.

    At most MAX_FILES, plus one for each different use. Group sizes are powers of two, so that files
    added at the end leave most groups as they are.
    """
    by_use: dict[tuple[int, str], list[str]] = {}
    for name, repeat, share in dict.fromkeys(files):
        by_use.setdefault((repeat, share), []).append(name)
    number, size = sum(map(len, by_use.values())), 1
    while size * MAX_FILES < number:
        size *= 2
    return {
        TokenFile(merged_name(group), *use): group
        for use, names in by_use.items()
        for group in (names[start : start + size] for start in range(0, len(names), size))
    }


def write_cache_file(
    path: AnyPath,
    chunks: Iterable[tuple[TokenizedDocuments, Counts]],
    *,
    buckets: Buckets,
    vocab_size: int,
) -> Counts:
    """Write the documents of a block, chunk by chunk; return the sum of their counts."""
    total = Counts()
    with whole_file(path) as file:
        writer = CacheFileWriter(file, len(buckets))
        for documents, counts in chunks:
            total.add(counts)
            for bucket, piece in pieces_of(documents, buckets, vocab_size):
                writer.add(bucket, piece)
        writer.finish(total)
    return total


def merge_cache_files(folder: AnyPath, names: Sequence[str], *, num_buckets: int) -> None:
    """Write the file that these are merged into."""
    total = Counts()
    with whole_file(folder / merged_name(names)) as file:
        writer = CacheFileWriter(file, num_buckets)
        for name in names:
            for bucket, piece in read_runs(folder / name, num_buckets):
                writer.add(bucket, piece)
        for counts in read_counts([folder / name for name in names]):
            total.add(counts)
        writer.finish(total)


def clear_cache(folder: AnyPath) -> None:
    """Remove the files of a token cache, and the folder if nothing else is in it."""
    ours = [name for name in names_in(folder) if name.endswith(SUFFIXES) or PARTIAL.fullmatch(name)]
    remove_files(folder, ours)


class TokenCache:
    """The files that a job reads, as its shards see them: the documents of a bucket."""

    def __init__(
        self, folder: AnyPath, inputs: Iterable[TokenFile], *, num_buckets: int, vocab_size: int
    ) -> None:
        self.inputs = sorted(inputs)
        self.num_buckets, self.vocab_size = num_buckets, vocab_size
        self._paths = [folder / part.name for part in self.inputs]
        self._indexed = range(0)
        self._index: list[Entries] = []

    def forget_index(self) -> None:
        """Read the index again: it may be that of a damaged file, which was made again since."""
        self._indexed, self._index = range(0), []

    def inputs_of(self, bucket: int) -> list[TokenFile]:
        """The inputs that have documents of the bucket."""
        return [part for part, _, entries in self._entries(bucket) if entries["length"].any()]

    def counts(self) -> Counts:
        """What was counted when all blocks were tokenized."""
        total = Counts()
        for counts in read_counts(self._paths):
            total.add(counts)
        return total

    def documents(
        self,
        bucket: int,
        *,
        above: int = 0,
        copies: bool = False,
        drops: Rows | None = None,
        mixture: Sequence[MixedSource] = (),
    ) -> Loaded:
        """The bucket's documents in the order of their hashes.

        Only those used more than `above` times; with all `copies`, and without the `drops`, which
        have sorted HASHes. Raises CorruptDataError for a file that is missing or damaged.
        """
        rows, shares, uses, duplicates = self._kept(bucket, copies, drops)
        for source in mixture:
            own = shares == source.source
            uses[own] = uses_of(mixture_hashes(rows.high[own], rows.low[own]), source)
        if not (chosen := uses > above).all():
            rows = rows.take(np.flatnonzero(chosen))
        unused, repeat = int((uses == 0).sum()), int(uses.max(initial=1))
        return Loaded(_documents(rows), duplicates, unused, repeat)

    def mixed(
        self, bucket: int, names: Sequence[str], *, copies: bool, drops: Rows | None
    ) -> Documents:
        """The bucket's documents that are in a share of these names."""
        rows, shares, _, _ = self._kept(bucket, copies, drops)
        documents = np.zeros(len(shares), DOCUMENT)
        documents["hash"] = mixture_hashes(rows.high, rows.low)
        documents["tokens"] = rows.input_ids.lengths
        for number, name in enumerate(names):
            documents["share"][shares == name] = number
        return documents[np.isin(shares, names)]

    def _kept(
        self, bucket: int, copies: bool, drops: Rows | None
    ) -> tuple[TokenizedDocuments, NDArray[np.str_], NDArray[np.int64], int]:
        """Documents that are not dropped, by hash; their shares, uses, and the copies left out.

        Of copies, the first share by name counts, and the highest `repeat`.
        """
        parts = list(self._entries(bucket))
        slices = read_slices([(path, entries) for _, path, entries in parts], bucket)
        rows, starts = from_pieces(slices, self.vocab_size)
        ends = np.cumsum([int(entries["length"].sum()) for _, _, entries in parts])
        numbers = np.searchsorted(ends, starts, "right")  # of the inputs
        shares = np.array([part.share for part, _, _ in parts])[numbers]
        uses = np.array([part.repeat for part, _, _ in parts])[numbers]
        order = np.lexsort((shares, rows.low, rows.high))
        high, low, shares, uses = rows.high[order], rows.low[order], shares[order], uses[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = copies | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        firsts, duplicates = np.flatnonzero(is_first), int((~is_first).sum())
        if len(firsts):
            uses = np.maximum.reduceat(uses, firsts)
        if drops is not None:
            hashes = np.zeros(len(firsts), drops.dtype)
            hashes["high"], hashes["low"] = high[firsts], low[firsts]
            stays = ~np.isin(hashes, drops)
            firsts, uses = firsts[stays], uses[stays]
        return rows.take(order[firsts]), shares[firsts], uses, duplicates

    @cached_property
    def _ends(self) -> list[CacheFileEnd]:
        return read_ends(self._paths)

    def _entries(self, bucket: int) -> Iterator[tuple[TokenFile, AnyPath, Entries]]:
        """Each input, its path, and where it has the bucket's slices, [runs]."""
        if bucket not in self._indexed:
            release_memory()  # of tokenizing; shards use the memory of those before them again
            per_bucket = ENTRY.itemsize * sum(end.runs for end in self._ends)
            size = max(1, INDEX_BYTES // max(1, per_bucket))
            first = bucket // size * size
            indexed = range(first, min(first + size, self.num_buckets))
            self._index = read_index(self._paths, self._ends, indexed)
            self._indexed = indexed
        row = bucket - self._indexed.start
        rows = (entries[row] for entries in self._index)
        return zip(self.inputs, self._paths, rows, strict=True)


def _documents(rows: TokenizedDocuments) -> BucketDocuments:
    paragraphs = rows.paragraph_lengths.values.astype(np.int64)
    return BucketDocuments(
        ids=rows.input_ids.values,
        sentence_offsets=offsets_of(rows.sentence_lengths.values),
        document_offsets=rows.sentence_lengths.offsets,
        paragraphs=np.repeat(np.arange(len(paragraphs)), paragraphs),
        hashes=rows.high,
    )


@dataclass(frozen=True)
class ShardRecord:
    """What is known about a finished shard."""

    bucket: int
    entry: ShardEntry
    counts: Counts
    token_counts: NDArray[np.int64]  #: [V]; [0] for validation, which is not counted
    repeat: int = 1  #: the highest among its sources

    def to_json(self) -> str:
        values = {
            **vars(self),
            "entry": asdict(self.entry),
            "counts": self.counts.to_json(),
            "token_counts": self.token_counts.tolist(),
        }
        return json.dumps(sealed(values))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises ValueError where the text has changed since `to_json` wrote it."""
        values = unsealed(json.loads(text))
        values["entry"] = ShardEntry(**values["entry"])
        values["counts"] = Counts.from_json(values["counts"])
        values["token_counts"] = np.array(values["token_counts"], dtype=np.int64)
        return cls(**values)


def write_record(path: AnyPath, record: ShardRecord) -> None:
    with whole_file(path) as file:
        file.write(record.to_json().encode())


def finished_record(record_path: AnyPath, shard_path: AnyPath) -> ShardRecord | None:
    """The record of a shard that an earlier process finished, if its bytes have not changed."""
    if not (record_path.exists() and shard_path.exists()):
        return None
    try:
        record = ShardRecord.from_json(record_path.read_bytes())
    except MALFORMED:
        return None  # the shard is built again
    return record if file_sha256(shard_path) == record.entry.sha256 else None
