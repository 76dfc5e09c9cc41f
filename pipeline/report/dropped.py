"""What a data set left out, in words, for the last lines of the terminal.

dropped 3,640 of 12,911 pairs (28.2 %): more random pairs than following ones
"""

from collections.abc import Iterator, Mapping

from pipeline.dataset.manifest import Manifest

THRESHOLD = 0.01  #: of what was read; what is below is in the manifest and the report only

#: What each reason counts, and what it means.
REASONS: Mapping[str, tuple[str, str]] = {
    "empty": ("documents", "no text in them"),
    "redirect": ("documents", "redirects"),
    "other_namespace": ("documents", "pages that are not articles"),
    "short_document": ("documents", "every paragraph is shorter than --min-characters"),
    "no_tokens": ("documents", "nothing but control characters"),
    "duplicate_document": ("documents", "the same text as another document"),
    "short_paragraph": ("paragraphs", "shorter than --min-characters"),
    "single_sentence_paragraph": ("paragraphs", "a single sentence, so no pair"),
    "surplus_random_pair": ("pairs", "more random pairs than following ones; see --pairs"),
    "no_other_document": ("pairs", "no other document in the shard for a random B"),
    "lone_sentence": ("pairs", "a single sentence, which has no order"),
    "nothing_to_mask": ("pairs", "no token that may be masked"),
    "cut_tokens": ("tokens", "cut off pairs that are longer than --max-seq-length"),
}


def dropped_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each reason that left out more than 1 % of what there was of its kind."""
    dropped, copies = manifest.dropped, manifest.config.dupe_factor
    kept = {
        # A duplicate was counted as read before it was found.
        "documents": manifest.counts.get("documents", 0) - dropped.get("duplicate_document", 0),
        "paragraphs": manifest.counts.get("paragraphs", 0) * copies,
        "pairs": manifest.num_examples("train") + manifest.num_examples("validation"),
        "tokens": (manifest.counts.get("tokens", 0)) * copies - dropped.get("cut_tokens", 0),
    }
    for reason, (unit, words) in REASONS.items():
        count = dropped.get(reason, 0)
        same_unit = (dropped.get(name, 0) for name, (kind, _) in REASONS.items() if kind == unit)
        total = max(kept[unit] + sum(same_unit), count)
        if count > THRESHOLD * total:
            yield f"dropped {count:,} of {total:,} {unit} ({count / total:.1%}): {words}"
