"""What a data set left out or cleaned, in words, for the last lines of the terminal.

dropped 3,640 of 12,911 pairs (28.2%): more random pairs than following ones
cleaned 300 of 300 documents (100.0%): bytes that are not UTF-8 became U+FFFD; ...
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from clozeline.pipeline.common.units import counted
from clozeline.pipeline.curation.reasons import FOUND_LATER, REASONS, documents_read
from clozeline.pipeline.dataset.manifest import Manifest, MixedSource

THRESHOLD = 0.01  #: of what was read; smaller counts are in the manifest and the report only

LITTLE = 0.2  #: of the tokens; with more of them in words too long to mask, whole words mean little

#: What was cleaned in documents that were kept, by its count.
CLEANED: Mapping[str, str] = {
    "invalid_utf8": "bytes that are not UTF-8 became U+FFFD; LC_ALL=C.UTF-8 grep -Hnaxv '.*' FILE "
    "lists the lines, and iconv converts a file in another encoding",
    "nul": "NUL characters were removed",
}
HINTS: Mapping[str, str] = {
    "hard_wrapped": "their lines end at one width and in the middle of sentences; if they are "
    "wrapped, add ?lines=wrapped to the source",
}


def dropped_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each reason that left out or cleaned more than 1 % of what there was of its kind.

    And one for examples without masks, however few. Each total is what was kept plus what was left
    out, where the counts give it.
    """
    read, dropped = Counter(manifest.counts), Counter(manifest.dropped)
    totals = _totals(manifest)
    # Paragraphs of copies, and of documents that are used several times or never, are counted once.
    is_known = not read["repeat"] and not any(dropped[reason] for reason in FOUND_LATER)
    of = {"single_sentence_paragraph": "of" if is_known else "", "cut_tokens": "of about"}
    for reason, (unit, words) in REASONS.items():
        found = dropped[reason], totals[reason]
        yield from _line("dropped", *found, unit, words, of=of.get(reason, "of"))
    for reason, words in CLEANED.items():
        yield from _line("cleaned", read[reason], totals["empty"], "documents", words)
    for reason, words in HINTS.items():
        yield from _line("found", read[reason], totals["empty"], "documents", words)
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


def _totals(manifest: Manifest) -> dict[str, int]:
    """What there was, by the reason that left out a part of it.

    Documents and their short paragraphs are counted once, as they are read; what is left out when
    pairs are made, at each use of a document.
    """
    read, dropped = Counter(manifest.counts), Counter(manifest.dropped)
    in_train = manifest.num_examples("train")
    kept = in_train + manifest.num_examples("validation")
    pairs = kept + sum(dropped[reason] for reason, (unit, _) in REASONS.items() if unit == "pairs")
    uses = manifest.config.dupe_factor * max(read["repeat"], 1)  # at most
    by_unit = {"documents": documents_read(read, dropped), "pairs": pairs}
    return {reason: by_unit[unit] for reason, (unit, _) in REASONS.items() if unit in by_unit} | {
        "short_paragraph": read["paragraphs"] + dropped["short_paragraph"],
        "single_sentence_paragraph": read["paragraphs"] * uses,
        # Counted in training examples, without [UNK]; those of validation are about as long.
        "cut_tokens": sum(manifest.token_counts) * kept // max(in_train, 1) + dropped["cut_tokens"],
    }


def mixture_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each source with a budget of tokens.

    a.jsonl gives 20,394 tokens: 49 of 381 documents once
    """
    for source in manifest.mixture:
        yield f"{source.source} gives {source.used:,} tokens: {uses_in_words(source)}"


def uses_in_words(source: MixedSource) -> str:
    """ "all 12 documents 2 times, 5 of them once more" """
    if not source.repeat:
        return f"{source.more:,} of {source.documents:,} documents once"
    times = "once" if source.repeat == 1 else f"{source.repeat:,} times"
    more = f", {source.more:,} of them once more" if source.more else ""
    return f"all {counted(source.documents, 'document')} {times}{more}"


def _line(
    verb: str, count: int, total: int, unit: str, words: str, *, of: str = "of"
) -> Iterator[str]:
    """`of` says whether the total is exact ("of"), an estimate or, if it is "", not known."""
    if count > THRESHOLD * total:
        share = f"{of} {total:,} {unit} ({count / total:.1%})" if of else unit
        yield f"{verb} {count:,} {share}: {words}"
