"""Files of the token cache that are gone or damaged, and are made again by whoever needs them."""

from collections.abc import Callable
from typing import TypeVar

from clozeline.pipeline.common.errors import DamagedFileError
from clozeline.pipeline.common.paths import AnyPath, make_folder
from clozeline.pipeline.curation.excluded_texts import write_excluded
from clozeline.pipeline.curation.near.steps import (
    compare_documents,
    connect_documents,
    pair_documents,
)
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.steps.mixture import choose_documents, documents_path
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.steps.token_cache import merged_name

Made = TypeVar("Made")


def with_files(steps: Steps, make: Callable[[], Made]) -> Made:
    """What `make` gives; a file of the token cache that is gone or damaged is made again.

    Raises DamagedFileError for one that is damaged again after that.
    """
    made_again = set[str]()
    while True:
        try:
            return make()
        except DamagedFileError as error:
            if error.path.name in made_again:
                raise
            made_again.add(error.path.name)
            _make_again(steps, error.path)
            steps.cache.forget_index()


def _make_again(steps: Steps, path: AnyPath) -> None:
    """Write a file of the token cache, whatever is there; other processes may do the same."""
    context, name = steps.context, path.name
    make_folder(context.cache_dir)
    if name.endswith(".merged"):
        names = next(names for names in context.merged if merged_name(names) == name)
        with_files(steps, lambda: steps.merge(names))
    elif name.endswith((".tokens", ".near", ".words")):
        found = (b for b in context.blocks if path in context.files_of(b))
        block = next(found)
        steps.cache_tokens(context.cache_path(block), read_block(block))
    elif name.endswith(".excluded"):
        write_excluded(context.excluded_texts)
    else:
        with_files(steps, lambda: _choose_again(steps, path))


def _choose_again(steps: Steps, path: AnyPath) -> None:
    context, near = steps.context, steps.context.near
    parts = range(context.partitions)
    if path.name.endswith(".drops"):
        connect_documents(context.near)
    elif path.name.endswith(".mixed"):
        shards = range(context.buckets.num_train)
        steps.count_documents(next(n for n in shards if documents_path(context, n) == path))
    elif path.name.endswith(".pairs"):
        pair_documents(near, next(n for n in parts if near.pairs_path(n) == path))
    else:
        compare_documents(near, next(n for n in parts if near.edges_path(n) == path))


def choose(steps: Steps) -> None:
    """Which documents stay: what the graph does with near-duplicates and budgets, in a row.

    For a text that no other process works on: the sample of a dry run, and a data set that is
    verified.
    """
    context = steps.context
    if context.drops_near:
        for work in (pair_documents, compare_documents):
            for partition in range(context.partitions):
                work(context.near, partition)
        connect_documents(context.near)
    if context.budgets:
        for bucket in range(context.buckets.num_train):
            steps.count_documents(bucket)
        choose_documents(context)
