"""The texts of --exclude: read once into a file, which every worker that tokenizes loads.

test.parquet  ->  5b2c....excluded  ->  Excluded: 13-grams, hashes of the texts, their sources
"""

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.exclusion import Excluded, grams_of, texts_digest
from clozeline.pipeline.curation.near.files import HASH, read_rows, write_rows
from clozeline.pipeline.curation.near.search import NEAR_VERSION
from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.dataset.cache_file import digest_of, read_counts
from clozeline.pipeline.dataset.manifest import ExcludedSource
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.documents import TRUNCATED
from clozeline.pipeline.sources.formats import check_whole, not_whole, read_block
from clozeline.pipeline.sources.source_query import portable_names

GRAM: Final = np.dtype([("gram", "<u8"), ("row", "<u4")])
TEXT: Final = np.dtype([("hash", HASH), ("source", "<u4")])
LISTED: Final = 1000  #: texts found in the corpus that the manifest lists, for each source


@dataclass(frozen=True, kw_only=True)
class ExcludedTexts:
    """The sources of --exclude, and how their texts are searched for."""

    folder: AnyPath  #: of the token cache
    sources: tuple[tuple[str, tuple[Block, ...]], ...]
    ngram: int  #: words
    allow_truncated: bool

    @property
    def path(self) -> AnyPath:
        """The texts, once they are read."""
        blocks = [
            (number, block.identity, block.text_columns, block.max_document_bytes)
            for number, (_, blocks) in enumerate(self.sources)
            for block in blocks
        ]
        return self.folder / f"{digest_of([NEAR_VERSION, self.ngram, *blocks])}.excluded"


def read_excluded(asked: ExcludedTexts) -> Excluded:
    """The excluded texts of a job; raises as `write_excluded` does."""
    path = asked.path
    if not path.exists():
        write_excluded(asked)
    [counts] = read_counts([path])
    # Another job, with this token cache, may have allowed it.
    check_whole(counts, allow_truncated=asked.allow_truncated)
    [grams], [texts] = (list(read_rows([path], n, kind)) for n, kind in enumerate((GRAM, TEXT)))
    return Excluded(
        asked.ngram,
        grams["gram"].astype(np.uint64),
        grams["row"].astype(np.int64),
        hashes=[f"{high:016x}{low:016x}" for high, low in texts["hash"].tolist()],
        sources=texts["source"].tolist(),
    )


def write_excluded(asked: ExcludedTexts) -> None:
    """Write the file. Raises InputError, and JobFailedError for a source that ends early."""
    found, sources, counts = [], [], Counts()
    for number, (source, blocks) in enumerate(asked.sources):
        texts = []
        for block in blocks:
            for chunk in read_block(block):
                for bad in chunk.rejected:
                    if bad.kind != TRUNCATED:
                        raise InputError(f"--exclude: {bad.where}: {bad.reason}; fix it first.")
                    if not asked.allow_truncated:
                        raise not_whole(block.path, bad.reason)
                    counts.read[TRUNCATED] += 1
                    counts.rejected.append(asdict(bad))
                texts += chunk.texts
        if not texts:
            raise InputError(f"--exclude {source} has no text; check its columns (?text=..).")
        found += texts
        sources += [number] * len(texts)
    size = asked.ngram
    hashes, texts_of = grams_of(found, size)
    if not len(hashes):
        raise InputError(
            f"--exclude: no text has {size} words, so nothing would be excluded; give a smaller "
            "--exclude-ngram."
        )
    grams, rows = np.zeros(len(hashes), GRAM), np.zeros(len(found), TEXT)
    grams["gram"], grams["row"] = hashes, texts_of
    rows["hash"]["high"], rows["hash"]["low"] = hash_documents(found)
    rows["source"] = sources
    parts = iter([(0, grams), (1, rows)])
    write_rows(asked.path, parts, partitions=2, counts=counts)


def excluded_sources(
    asked: ExcludedTexts, excluded: Excluded, counts: Counts
) -> list[ExcludedSource]:
    searched = set(excluded.rows.tolist())
    entries = []
    names = portable_names([source for source, _ in asked.sources])
    for number, source in enumerate(names):
        rows = [row for row, own in enumerate(excluded.sources) if own == number]
        prefix = f"{number}:"
        hits = {
            key.removeprefix(prefix): count
            for key, count in sorted(counts.hits.items())
            if key.startswith(prefix) and key != prefix
        }
        entries.append(
            ExcludedSource(
                source=source,
                digest=texts_digest([excluded.hashes[row] for row in rows]),
                texts=len(rows),
                searched=sum(row in searched for row in rows),
                documents=counts.hits[prefix],
                found=sum(excluded.hashes[row] in hits for row in rows),
                hits=dict(list(hits.items())[:LISTED]),
            )
        )
    return entries
