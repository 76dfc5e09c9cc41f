"""The held-out split against training, exactly: every pair of documents that share a shingle.

The search for near-duplicates finds a pair with a probability (`Bands.recall`). Held-out documents
are few, so here all of their shingles are searched in every training document.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.curation.near.files import HASH, NearDocument, all_documents, read_rows
from clozeline.pipeline.curation.near.pairs import shingle_sets
from clozeline.pipeline.curation.near.signatures import SHINGLE_WORDS
from clozeline.pipeline.curation.words import hash_ngrams
from clozeline.pipeline.steps.steps import Steps

DOCUMENTS: Final = 1000  #: compared at once


def held_out_copies(steps: Steps) -> Iterator[tuple[int, int, float]]:
    """Pairs of kept documents, held out and of training, that are as similar as near-duplicates.

    Each as (high half of the hash of the one, of the other, similarity).
    """
    context = steps.context
    held_out = list(_kept(steps, held_out=True))
    sets = shingle_sets(_shingles(held_out))
    sizes = np.array([len(one) for one in sets], np.int64)
    owners = np.repeat(np.arange(len(sets)), sizes)
    values = np.concatenate([*sets, np.zeros(0, np.uint64)])
    order = np.argsort(values, kind="stable")
    known, owners = values[order], owners[order]
    training = _kept(steps, held_out=False)
    for batch in iter(lambda: list(islice(training, DOCUMENTS)), []):
        for document, own in zip(batch, shingle_sets(_shingles(batch)), strict=True):
            first, last = known.searchsorted(own, "left"), known.searchsorted(own, "right")
            found = first < last
            rows = [owners[a:b] for a, b in zip(first[found], last[found], strict=True)]
            shared = np.bincount(np.concatenate([*rows, owners[:0]]), minlength=len(sets))
            similarity = shared / (sizes + len(own) - shared)
            for row in np.flatnonzero(similarity >= context.config.similarity).tolist():
                yield held_out[row].high, document.high, float(similarity[row])


def _kept(steps: Steps, *, held_out: bool) -> Iterator[NearDocument]:
    """The documents of a split that have words and were not dropped, copies once."""
    context, seen = steps.context, set()
    drops = [read_rows([context.near.drops_path], n, HASH) for n in range(len(context.buckets))]
    dropped = {row for [rows] in drops for row in rows.tolist()}
    for name in context.tokenized:
        for document in all_documents(context.near.paths(name)[1]):
            key = (document.high, document.low)
            high, low = np.array([key], np.uint64).T
            is_train = context.buckets.of(high, low)[0] < context.buckets.num_train
            if is_train == held_out or key in dropped or key in seen or not len(document.words):
                continue
            seen.add(key)
            yield document


def _shingles(documents: list[NearDocument]) -> Ragged:
    words = [document.words for document in documents]
    values = np.concatenate([*words, np.zeros(0, np.uint32)])
    return hash_ngrams(Ragged(values, offsets_of(list(map(len, words)))), SHINGLE_WORDS, pad=True)
