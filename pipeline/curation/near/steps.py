"""The search for near-duplicates, in three steps after all blocks are tokenized.

    pair_documents     partition of keys   ->  pairs that share a band, by partition of the lower id
    compare_documents  partition of ids    ->  edges: pairs at least as similar as --similarity
    connect_documents  all edges           ->  for each bucket the documents to drop

Which documents are dropped follows from the texts alone, not from blocks or partitions. A pair is
compared once, however many bands it shares. Components take about 150 bytes for each edge; there
are far fewer edges than documents.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from clozeline.pipeline.common.counts import SAMPLES, Counts
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.curation.near.files import (
    ENTRY,
    HASH,
    SPAN,
    NearDocument,
    Rows,
    partitioned,
    read_documents,
    read_rows,
    write_rows,
)
from clozeline.pipeline.curation.near.search import (
    SHINGLE_WORDS,
    NearSearch,
    candidate_pairs,
    components,
    jaccard,
    shingle_sets,
)
from clozeline.pipeline.curation.words import hash_ngrams

PAIR: Final = np.dtype([("left", "<u8"), ("right", "<u8"), ("left_at", SPAN), ("right_at", SPAN)])
EDGE: Final = np.dtype(
    [*PAIR.descr, ("similarity", "<f8"), ("left_hash", HASH), ("right_hash", HASH)]
)
BATCH_BYTES: Final = 64 << 20  #: of documents compared at once


def pair_documents(search: NearSearch, partition: int) -> None:
    """Write the pairs of a partition."""
    parts = []
    for number, part in enumerate(read_rows(search.keys_paths, partition, ENTRY)):
        part = part.copy()
        part["at"]["file"] = number
        parts.append(part)
    entries = np.concatenate(parts)
    left, right = candidate_pairs(entries["key"], entries["following"], entries["id"])
    pairs = np.zeros(len(left), PAIR)
    for side, rows in (("left", left), ("right", right)):
        pairs[side], pairs[f"{side}_at"] = entries["id"][rows], entries["at"][rows]
    path, partitions = search.pairs_path(partition), search.partitions
    write_rows(path, partitioned(pairs, "left", partitions), partitions=partitions)


def compare_documents(search: NearSearch, partition: int) -> None:
    """Write the edges of a partition."""
    paths = [search.pairs_path(number) for number in range(search.partitions)]
    pairs = np.concatenate(list(read_rows(paths, partition, PAIR)))
    pairs = pairs[np.lexsort((pairs["right"], pairs["left"]))]
    left, right = pairs["left"], pairs["right"]
    differs = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    is_new = np.append(True, differs)[: len(pairs)]
    edges = (_compared(batch, search) for batch in _batches(pairs[is_new]))
    write_rows(search.edges_path(partition), ((0, part) for part in edges), partitions=1)


def connect_documents(search: NearSearch) -> None:
    """Write which documents of each bucket are dropped."""
    paths = [search.edges_path(number) for number in range(search.partitions)]
    edges = np.concatenate(list(read_rows(paths, 0, EDGE)))
    ids, kept = components(edges["left"], edges["right"])
    is_dropped = ids != kept
    counts = Counts()
    counts.read.update(
        near_duplicate_pairs=len(edges), near_duplicate_components=int((~is_dropped).sum())
    )
    _, first = np.unique(np.concatenate([edges["left"], edges["right"]]), return_index=True)
    of_ids = {
        part: np.concatenate([edges[f"left_{part}"], edges[f"right_{part}"]])[first]
        for part in ("hash", "at")
    }
    twins = np.zeros(min(int(is_dropped.sum()), SAMPLES), PAIR)  # of the lowest ids, to show
    for side, chosen in (("left", kept[is_dropped]), ("right", ids[is_dropped])):
        twins[side] = chosen[: len(twins)]
        twins[f"{side}_at"] = of_ids["at"][np.searchsorted(ids, twins[side])]
    _show(twins, search, counts)
    hashes = np.sort(of_ids["hash"][is_dropped], order=("high", "low"))
    buckets = search.buckets.of(hashes["high"], hashes["low"])
    parts = ((int(bucket), hashes[buckets == bucket]) for bucket in np.unique(buckets))
    write_rows(search.drops_path, parts, partitions=len(search.buckets), counts=counts)


def _show(twins: Rows, search: NearSearch, counts: Counts) -> None:
    """Show some dropped documents, each with the kept one, which may be unlike it in a chain."""
    if not len(twins):
        return
    similarity, documents, numbers = _similarities(twins, search)
    for value, kept, dropped in zip(similarity, *numbers, strict=True):
        counts.show(
            "near_duplicate",
            document=documents[dropped].hash,
            text=documents[dropped].head,
            value=round(float(value), 4),
            kept=documents[kept].hash,
            kept_text=documents[kept].head,
        )


def _compared(pairs: Rows, search: NearSearch) -> Rows:
    similarity, documents, numbers = _similarities(pairs, search)
    edges = np.zeros(len(pairs), EDGE)
    for name in PAIR.names or ():
        edges[name] = pairs[name]
    edges["similarity"] = similarity
    hashes = np.array([(document.high, document.low) for document in documents], HASH)
    edges["left_hash"], edges["right_hash"] = hashes[numbers]
    return edges[similarity >= search.similarity]


def _similarities(pairs: Rows, search: NearSearch) -> tuple[Rows, list[NearDocument], Rows]:
    """The similarity of each pair, the documents, and the numbers of the pairs' in them, [2, P]."""
    ids = np.concatenate([pairs["left"], pairs["right"]])
    spans = np.concatenate([pairs["left_at"], pairs["right_at"]])
    _, first, numbers = np.unique(ids, return_index=True, return_inverse=True)
    documents = read_documents(search.words_paths, spans[first])
    values = np.concatenate([document.words for document in documents])
    words = Ragged(values, offsets_of([len(document.words) for document in documents]))
    sets = shingle_sets(hash_ngrams(words, SHINGLE_WORDS, pad=True))
    numbers = numbers.reshape(2, -1)
    found = [jaccard(sets[a], sets[b]) for a, b in numbers.T.tolist()]
    return np.array(found), documents, numbers


def _batches(pairs: Rows) -> Iterator[Rows]:
    """Pairs of about BATCH_BYTES of documents; documents of several pairs count each time."""
    sizes = pairs["left_at"]["length"].astype(np.int64) + pairs["right_at"]["length"]
    number = np.cumsum(sizes) // BATCH_BYTES
    for batch in np.unique(number):
        yield pairs[number == batch]
