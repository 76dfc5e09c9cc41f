"""Why a job leaves out documents, paragraphs, pairs and tokens: the names of its counts.

read {"documents": 90}, dropped {"empty": 10, "near_duplicate": 5}  ->  100 documents were read
"""

from collections import Counter
from collections.abc import Mapping

from clozeline.pipeline.curation.rules import RULES

#: What each reason counts, and what it means.
REASONS: Mapping[str, tuple[str, str]] = {
    "empty": ("documents", "no text in them"),
    "redirect": ("documents", "redirects"),
    "other_namespace": ("documents", "pages that are not articles"),
    "other_model": ("documents", "pages that are not wikitext"),
    "other_record": ("documents", "WARC records that are not text"),
    "short_document": ("documents", "every paragraph is shorter than --min-characters"),
    "no_tokens": ("documents", "nothing but control characters"),
    "duplicate_document": ("documents", "the same text as another document"),
    "near_duplicate": ("documents", "near copies of another document; see --similarity"),
    "beyond_budget": ("documents", "beyond the tokens of their source"),
    "excluded": ("documents", "words in a row with a text of --exclude"),
    **{f"quality_{rule}": ("documents", f"--quality {rule}") for rule in RULES},
    "short_paragraph": ("paragraphs", "shorter than --min-characters"),
    "single_sentence_paragraph": ("paragraphs", "a single sentence, so no pair"),
    "surplus_random_pair": ("pairs", "more random pairs than following ones; see --pairs"),
    "no_other_document": ("pairs", "no other document in the shard for a random B"),
    "lone_sentence": ("pairs", "a single sentence, which has no order"),
    "nothing_to_mask": ("pairs", "no token that may be masked"),
    "cut_tokens": ("tokens", "cut off pairs that are longer than --max-seq-length"),
}
#: Documents that were counted as read before they were found.
FOUND_LATER = ("duplicate_document", "near_duplicate", "beyond_budget")


def documents_read(read: Counter[str], dropped: Counter[str]) -> int:
    """All documents: those counted as read, and those that were dropped before."""
    return read["documents"] + sum(
        dropped[reason]
        for reason, (unit, _) in REASONS.items()
        if unit == "documents" and reason not in FOUND_LATER
    )
