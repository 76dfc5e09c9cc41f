"""What a data set left out or cleaned, and why: the names of its counts, and a line for each.

dropped 3,640 of 12,911 pairs (28.2%): more random pairs than following ones; see --pairs
cleaned 300 of 300 documents (100.0%): NUL characters were removed
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.curation.rules import RULES
from clozeline.pipeline.dataset.manifest import Manifest, MixedSource

THRESHOLD = 0.01  #: of what was read; smaller counts are in the manifest and the report only
LITTLE = 0.2  #: of the tokens; with more of them in words too long to mask, whole words mean little

#: What each reason counts, and what it means.
REASONS: Mapping[str, tuple[str, str]] = {
    "empty": ("documents", "no text in them"),
    "redirect": ("pages", "redirects"),
    "other_namespace": ("pages", "pages that are not articles"),
    "other_model": ("pages", "pages that are not wikitext"),
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
SKIPPED = "pages"  #: what a dump has besides articles, which no training needs
#: Documents that were counted as read before they were found.
FOUND_LATER = ("duplicate_document", "near_duplicate", "beyond_budget")
#: Counted at each use of a document, so their number may exceed what was read.
AT_EACH_USE = ("single_sentence_paragraph", "cut_tokens")
#: What was cleaned or found in documents that were kept, by its count.
CLEANED: Mapping[str, str] = {
    "invalid_utf8": "bytes that are not UTF-8 became U+FFFD; LC_ALL=C.UTF-8 grep -Hnaxv '.*' FILE "
    "lists the lines, and iconv converts a file in another encoding",
    "nul": "NUL characters were removed",
}
HARD_WRAPPED = (
    "their lines end at one width and in the middle of sentences; if they are wrapped, add "
    "?lines=wrapped to the source"
)


def documents_read(read: Mapping[str, int], dropped: Mapping[str, int]) -> int:
    """All documents: those counted as read, and those that were dropped before.

    read {"documents": 90}, dropped {"empty": 10, "near_duplicate": 5}  ->  100
    """
    return read.get("documents", 0) + sum(
        dropped.get(reason, 0)
        for reason, (unit, _) in REASONS.items()
        if unit in ("documents", SKIPPED) and reason not in FOUND_LATER
    )


def dropped_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each reason that left out or cleaned more than 1 % of what there was of its kind.

    And one for examples without masks, however few.
    """
    read, dropped = Counter(manifest.counts), Counter(manifest.dropped)
    documents = documents_read(read, dropped)
    rows = sum(shard.rows for shard in manifest.shards)
    pairs = sum(dropped[reason] for reason, (unit, _) in REASONS.items() if unit == "pairs")
    totals = {
        "documents": documents,
        SKIPPED: documents,
        "paragraphs": read["paragraphs"] + dropped["short_paragraph"],
        "pairs": rows + pairs,
        "tokens": sum(manifest.token_counts) + dropped["cut_tokens"],
    }
    for reason, (unit, words) in REASONS.items():
        total = 0 if reason in AT_EACH_USE else totals[unit]
        if dropped[reason] > THRESHOLD * totals[unit]:
            verb = "skipped" if unit == SKIPPED else "dropped"
            yield f"{verb} {_part(dropped[reason], total, unit)}: {words}"
    for reason, words in CLEANED.items():
        if read[reason] > THRESHOLD * documents:
            yield f"cleaned {_part(read[reason], documents, 'documents')}: {words}"
    if (number := read["hard_wrapped"]) > THRESHOLD * documents:
        yield f"found {_part(number, documents, 'documents')}: {HARD_WRAPPED}"
    yield from unmasked_lines(manifest)
    shards = len(manifest.of_split("train"))
    has_random = manifest.config.pairs in ("segments", "sentences")
    if has_random and 0 < read["documents"] <= shards:
        yield (
            f"{counted(read['documents'], 'document')} in {counted(shards, 'shard')}: where a "
            "shard has one document, no B is random and each next_sentence_label is 0; separate "
            "documents by blank lines, add ?document=line to the source if each line is one, give "
            "fewer --num-shards, or choose other --pairs"
        )


def unmasked_lines(manifest: Manifest) -> Iterator[str]:
    """A line for examples without masks, and one where whole words mean little."""
    if unmasked := manifest.counts.get("without_masks", 0):
        rows = sum(shard.rows for shard in manifest.shards)
        yield (
            f"{unmasked:,} of {counted(rows, 'example')} ({unmasked / rows:.1%}) have no masks: "
            "all of their tokens are special or unknown"
        )
    split, tokens = manifest.counts.get("in_long_words", 0), sum(manifest.token_counts)
    if split > LITTLE * tokens:
        yield (
            f"{split / tokens:.0%} of the tokens are in words too long to be masked whole, and are "
            "masked one by one; in text without spaces --masking whole-words means little"
        )


def mixture_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each source with a budget of tokens.

    a.jsonl gives 20,394 tokens: 49 of 381 documents once
    """
    for source in manifest.mixture:
        yield f"{source.source} gives {source.used:,} tokens: {_uses(source)}"


def _uses(source: MixedSource) -> str:
    """ "all 12 documents 2 times, 5 of them once more" """
    if not source.repeat:
        return f"{source.more:,} of {source.documents:,} documents once"
    times = "once" if source.repeat == 1 else f"{source.repeat:,} times"
    more = f", {source.more:,} of them once more" if source.more else ""
    return f"all {counted(source.documents, 'document')} {times}{more}"


def _part(count: int, total: int, unit: str) -> str:
    """ "3 of 100 documents (3.0%)"; without the total if that is 0."""
    return f"{count:,} of {total:,} {unit} ({count / total:.1%})" if total else f"{count:,} {unit}"
