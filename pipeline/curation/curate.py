"""Texts as they are read to those that are tokenized: quality rules, then exclusion.

Each dropped text is counted under its reason, and some are kept to show.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.curation.exclusion import Excluded
from clozeline.pipeline.curation.rules import Quality

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
