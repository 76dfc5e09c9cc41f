"""Texts that must not be in the corpus: a document that shares a word 13-gram with one is dropped.

    excluded  "... I would not buy this lamp again, not even for half its price"
    document  "A review: I would not buy this lamp again, not even for half its price!"  ->  row 0

The words are those of `words.py`: neither capitals nor punctuation make a difference. A text with
fewer words than the n-gram has nothing to share. The texts are read once, into a file that every
worker loads:

    test.parquet  ->  5b2c....excluded  ->  Excluded: 13-grams, hashes of the texts, their sources
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.ragged import slice_indices
from clozeline.pipeline.curation.near.files import HASH, read_rows, write_rows
from clozeline.pipeline.curation.near.search import NEAR_VERSION
from clozeline.pipeline.curation.rules import Quality
from clozeline.pipeline.curation.words import hash_ngrams, hash_words
from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.dataset.cache_file import digest_of
from clozeline.pipeline.dataset.manifest import ExcludedSource
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.sources.source_query import portable_names

MOST_TEXTS: Final = 1000  #: with one n-gram that are kept; each is listed for each document
TABLE_BITS: Final = 24  #: of a hash; a table of them comes before the search in sorted n-grams
SHIFT: Final = np.uint64(64 - TABLE_BITS)


@dataclass(frozen=True)
class Excluded:
    """The excluded texts of a job, and their n-grams."""

    size: int  #: of the n-grams
    grams: UInt64Array  # [G] sorted; one that several texts have is there once for each of them
    rows: NDArray[np.int64]  # [G] the text that each is from
    hashes: list[str]  #: of each text
    sources: list[int]  #: the number of its source

    @cached_property
    def _table(self) -> NDArray[np.bool_]:
        table = np.zeros(1 << TABLE_BITS, np.bool_)
        table[self.grams >> SHIFT] = True
        return table

    def find(self, texts: Sequence[str]) -> list[list[int]]:
        """The excluded texts that share an n-gram with each of the texts, sorted.

        Rows are collected text by text, each n-gram once, so they are never more than `rows`.
        """
        found = hash_ngrams(hash_words(texts), self.size, pad=False)
        maybe = np.flatnonzero(self._table[found.values >> SHIFT])
        at = np.minimum(np.searchsorted(self.grams, found.values[maybe]), len(self.grams) - 1)
        is_hit = self.grams[at] == found.values[maybe] if len(self.grams) else at > 0
        texts_hit = np.searchsorted(found.offsets, maybe[is_hit], side="right") - 1
        first = at[is_hit]
        hits: list[list[int]] = [[] for _ in texts]
        for text in np.unique(texts_hit).tolist():
            begin = np.unique(first[slice(*np.searchsorted(texts_hit, [text, text + 1]))])
            end = np.searchsorted(self.grams, self.grams[begin], side="right")
            hits[text] = np.unique(self.rows[slice_indices(begin, end - begin)]).tolist()
        return hits


def grams_of(texts: Sequence[str], size: int) -> tuple[UInt64Array, NDArray[np.int64]]:
    """The `grams` and `rows` of `Excluded`; a text with fewer than `size` words has none.

    At most one for each word of the texts: 12 bytes of the file, 16 in each worker. An n-gram that
    very many texts have, as of a template, is there for the first ones only.
    """
    found = hash_ngrams(hash_words(texts), size, pad=False)
    order = np.argsort(found.values, kind="stable")  # so the rows of an n-gram are sorted
    grams, rows = found.values[order], np.repeat(np.arange(len(texts)), found.lengths)[order]
    is_new = np.ones(len(grams), np.bool_)
    is_new[1:] = (grams[1:] != grams[:-1]) | (rows[1:] != rows[:-1])
    grams, rows = grams[is_new], rows[is_new]
    is_kept = np.ones(len(grams), np.bool_)
    is_kept[MOST_TEXTS:] = grams[MOST_TEXTS:] != grams[:-MOST_TEXTS]
    return grams[is_kept], rows[is_kept]


def texts_digest(hashes: Sequence[str]) -> str:
    """A digest of a set of texts from their hashes, whatever their order."""
    return hashlib.blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()


GRAM: Final = np.dtype([("gram", "<u8"), ("row", "<u4")])
TEXT: Final = np.dtype([("hash", HASH), ("source", "<u4")])


@dataclass(frozen=True, kw_only=True)
class ExcludedTexts:
    """The sources of --exclude, and how their texts are searched for."""

    folder: AnyPath  #: of the token cache
    sources: tuple[tuple[str, tuple[Block, ...]], ...]
    ngram: int  #: words

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
    [grams], [texts] = (list(read_rows([path], n, kind)) for n, kind in enumerate((GRAM, TEXT)))
    return Excluded(
        asked.ngram,
        grams["gram"].astype(np.uint64),
        grams["row"].astype(np.int64),
        hashes=[f"{high:016x}{low:016x}" for high, low in texts["hash"].tolist()],
        sources=texts["source"].tolist(),
    )


def write_excluded(asked: ExcludedTexts) -> None:
    """Write the file. Raises InputError."""
    found, sources = [], []
    for number, (source, blocks) in enumerate(asked.sources):
        texts = []
        for block in blocks:
            for chunk in read_block(block):
                for bad in chunk.rejected:
                    raise InputError(f"--exclude: {bad.where}: {bad.reason}; fix it first.")
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
    write_rows(asked.path, parts, partitions=2)


def excluded_sources(
    asked: ExcludedTexts, excluded: Excluded, counts: Counts
) -> list[ExcludedSource]:
    searched = set(excluded.rows.tolist())
    entries = []
    names = portable_names([source for source, _ in asked.sources])
    for number, source in enumerate(names):
        rows = [row for row, own in enumerate(excluded.sources) if own == number]
        entries.append(
            ExcludedSource(
                source=source,
                digest=texts_digest([excluded.hashes[row] for row in rows]),
                texts=len(rows),
                searched=sum(row in searched for row in rows),
                documents=counts.hits[f"{number}:"],
                found=sum(f"{number}:{excluded.hashes[row]}" in counts.hits for row in rows),
            )
        )
    return entries


SHOWN_CHARACTERS: Final = 500


def curate(
    texts: Sequence[str], quality: Quality, excluded: Excluded | None
) -> tuple[list[str], Counts]:
    """The texts that stay, and what was dropped and why.

    ["short", "A long text ..."]  ->  ["A long text ..."],  dropped {"quality_min_words": 1}
    """
    counts, kept = Counts(), []
    for text in texts:
        changed, rule, value = quality.check(text)
        if rule:
            _drop(text, counts, f"quality_{rule}", value=value)
        else:
            kept.append(changed)
    if excluded is not None:
        kept = _without_excluded(kept, excluded, counts)
    return kept, counts


def _without_excluded(texts: list[str], excluded: Excluded, counts: Counts) -> list[str]:
    kept = []
    for text, rows in zip(texts, excluded.find(texts), strict=True):
        if not rows:
            kept.append(text)
            continue
        counts.hits.update({f"{excluded.sources[row]}:{excluded.hashes[row]}" for row in rows})
        counts.hits.update({f"{source}:" for source in {excluded.sources[row] for row in rows}})
        _drop(text, counts, "excluded", value=len(rows), kept=excluded.hashes[rows[0]])
    return kept


def _drop(text: str, counts: Counts, reason: str, **shown: Any) -> None:
    counts.dropped[reason] += 1
    counts.show(reason, document=text_hash(text), text=text[:SHOWN_CHARACTERS], **shown)


def text_hash(text: str) -> str:
    """BLAKE2b-128, as of documents."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
