"""Mixtures by budget: how often documents are used, so that each source gives its tokens.

    wiki    budget 140M, has 400M  ->  documents up to a hash `last` once, the others not
    reviews budget 60M, has 25M    ->  every document twice, those up to `last` a third time

Documents are taken in the order of a hash of their own, so neither the split nor the choice among
near-duplicates decides which ones are taken. A document of several sources belongs to the first of
them by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, random_bits, stream_key
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import MixedSource
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.source_query import MAX_REPEAT

NONE: Final = -1  #: `MixedSource.last` if every document is used equally often

#: A training document of a source with a budget.
DOCUMENT: Final = np.dtype([("hash", "<u8"), ("share", "<u4"), ("tokens", "<u4")])
Documents = NDArray[Any]  # of DOCUMENT


def mixture_hashes(high: UInt64Array, low: UInt64Array) -> UInt64Array:
    """The hashes by which documents are taken, [D], from the halves of those of their texts."""
    return random_bits(random_bits(stream_key(0, "mixture"), high), low)


def budgets_of(blocks: Sequence[Block]) -> dict[str, int]:
    """The tokens of each source that has a budget, by name.

    Raises InputError for two budgets of one source, and for one that its text cannot fill.
    """
    by_share: dict[str, tuple[int | None, tuple[str, ...]]] = {}
    for block in blocks:
        tokens, columns = by_share.setdefault(block.share, (block.tokens, block.text_columns))
        if block.share and columns != block.text_columns:
            raise InputError(
                f"{block.share} is given twice with tokens=, for the columns {','.join(columns)} "
                f"and {','.join(block.text_columns)}, which would share one budget; give the "
                "columns together, as in ?text=title,content, or make a data set of each."
            )
        if tokens != block.tokens:
            raise InputError(f"{block.share}: two numbers of tokens; give one.")
    budgets = {name: tokens for name, (tokens, _) in sorted(by_share.items()) if tokens is not None}
    for name, tokens in budgets.items():  # before shards are planned for that many
        size = sum(block.text_bytes for block in blocks if block.share == name)
        _check_uses(f"{name} has about {size:,} bytes of text", size, tokens)
    return budgets


def _check_uses(known: str, has: int, budget: int) -> None:
    if budget > MAX_REPEAT * has:
        raise InputError(
            f"{known}, and {budget:,} tokens would use each more than {MAX_REPEAT:,} times; give "
            "fewer tokens."
        )


def choose_mixture(budgets: Mapping[str, int], documents: Documents) -> list[MixedSource]:
    """The number of uses of each source's documents. Raises InputError where no text is left.

    The last document is the first with which a source gives its tokens; copies count together.
    """
    chosen = []
    for share, (name, budget) in enumerate(budgets.items()):
        rows = documents[documents["share"] == share]
        rows = rows[np.argsort(rows["hash"])]
        reached = np.cumsum(rows["tokens"], dtype=np.int64)
        if not len(rows) or not reached[-1]:
            raise InputError(f"{name}: no training text is left, so it gives no tokens.")
        has = int(reached[-1])
        _check_uses(f"{name} has {has:,} tokens", has, budget)
        last, more, rest = NONE, 0, budget % has
        if rest:
            last = int(rows["hash"][np.searchsorted(reached, rest)])
            more = int(np.searchsorted(rows["hash"], np.uint64(last), "right"))
            rest = int(reached[more - 1])
        chosen.append(
            MixedSource(
                source=name,
                budget=budget,
                available=has,
                documents=len(rows),
                used=budget // has * has + rest,
                repeat=budget // has,
                more=more,
                last=last,
            )
        )
    return chosen


def uses_of(hashes: UInt64Array, source: MixedSource) -> NDArray[np.int64]:
    """The number of uses of documents of a source, [D]."""
    if source.last == NONE:
        return np.full(len(hashes), source.repeat)
    return source.repeat + (hashes <= np.uint64(source.last))
