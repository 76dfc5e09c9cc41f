"""Mixtures by budget, in two steps after all blocks are tokenized and copies are found.

    count_documents    bucket       ->  5d20....mixed    hash, source and tokens of its documents
    choose_documents   all of them  ->  81fe....mixture  how often documents of a source are used

The second step reads all documents twice. It holds the tokens by the first bits of the hash, and
then the documents of a few of these bins: those in which a source's budget ends.
"""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from clozeline.pipeline.common.json_files import json_values, write_json
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.mixture import (
    DOCUMENT,
    Documents,
    Histogram,
    mixed_sources,
    near_the_cuts,
)
from clozeline.pipeline.curation.near.files import Rows, read_rows, write_rows
from clozeline.pipeline.dataset.cache_file import digest_of
from clozeline.pipeline.dataset.manifest import MixedSource
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.token_cache import TokenCache


def count_documents(
    context: JobContext, cache: TokenCache, bucket: int, drops: Rows | None
) -> None:
    """Write the documents of a training bucket that may be used."""
    copies = context.config.deduplicate == "none"
    rows = cache.mixed(bucket, list(dict(context.budgets)), copies=copies, drops=drops)
    write_rows(documents_path(context, bucket), iter([(0, rows)]), partitions=1)


def choose_documents(context: JobContext) -> None:
    """Write how often documents are used.

    Raises InputError for a source of which no text is left.
    """
    budgets = dict(context.budgets)
    histogram = Histogram.of(_documents(context), len(budgets))
    cuts = histogram.cuts(budgets)
    kept = [near_the_cuts(part, cuts) for part in _documents(context)]
    found = mixed_sources(budgets, histogram, cuts, np.concatenate(kept))
    write_json(mixture_path(context), {"sources": [asdict(source) for source in found]}, seal=True)


def read_mixture(context: JobContext) -> list[MixedSource]:
    """The use of documents of each source with a budget, once that is chosen."""
    if not context.budgets:
        return []
    with json_values(mixture_path(context), "delete it and rerun the command", seal=True) as values:
        return [MixedSource(**source) for source in values["sources"]]


def documents_path(context: JobContext, bucket: int) -> AnyPath:
    copies = context.near.drops_path.name if context.drops_near else context.config.deduplicate
    parts = [sorted(context.inputs), context.buckets, list(dict(context.budgets)), copies, bucket]
    return context.cache_dir / f"{digest_of(parts)}.mixed"


def mixture_path(context: JobContext) -> AnyPath:
    parts = [documents_path(context, 0).name, context.budgets]
    return context.cache_dir / f"{digest_of(parts)}.mixture"


def _documents(context: JobContext) -> Iterator[Documents]:
    paths = [documents_path(context, bucket) for bucket in range(context.buckets.num_train)]
    return read_rows(paths, 0, DOCUMENT)
