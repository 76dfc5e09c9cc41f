"""What a data set left out or cleaned, in words, for the last lines of the terminal.

dropped 3,640 of 12,911 pairs (28.2%): more random pairs than following ones
cleaned 300 of 300 documents (100.0%): bytes that are not UTF-8 became U+FFFD; ...
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from clozeline.pipeline.curation.reasons import REASONS, documents_read
from clozeline.pipeline.dataset.manifest import Manifest, MixedSource

THRESHOLD = 0.01  #: of what was read; smaller counts are in the manifest and the report only

#: What was cleaned in documents that were kept, by its count.
CLEANED: Mapping[str, str] = {
    "invalid_utf8": "bytes that are not UTF-8 became U+FFFD; if the text is in another encoding, "
    "convert the sources with iconv",
    "nul": "NUL characters were removed",
}


def dropped_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each reason that left out or cleaned more than 1 % of what there was of its kind.

    Each total is what was kept plus what was left out.
    """
    read, dropped = Counter(manifest.counts), Counter(manifest.dropped)
    copies = manifest.config.dupe_factor
    totals = Counter(
        paragraphs=read["paragraphs"] * copies,
        pairs=manifest.num_examples("train") + manifest.num_examples("validation"),
        tokens=read["tokens"] * copies - dropped["cut_tokens"],
    )
    for reason, (unit, _) in REASONS.items():
        totals[unit] += dropped[reason]
    totals["documents"] = documents_read(read, dropped)
    for reason, (unit, words) in REASONS.items():
        yield from _line("dropped", dropped[reason], totals[unit], unit, words)
    for reason, words in CLEANED.items():
        yield from _line("cleaned", read[reason], totals["documents"], "documents", words)


def mixture_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each source with a budget of tokens.

    wiki gives 210,010 tokens (70.0%): 497 of 1,933 documents once
    """
    total = sum(source.used for source in manifest.mixture)
    for source in manifest.mixture:
        yield (
            f"{source.source} gives {source.used:,} tokens ({source.used / total:.1%}): "
            f"{uses_in_words(source)}"
        )


def uses_in_words(source: MixedSource) -> str:
    """ "all 12 documents 2 times, 5 of them once more" """
    if not source.repeat:
        return f"{source.more:,} of {source.documents:,} documents once"
    times = "once" if source.repeat == 1 else f"{source.repeat:,} times"
    more = f", {source.more:,} of them once more" if source.more else ""
    return f"all {source.documents:,} documents {times}{more}"


def _line(verb: str, count: int, total: int, unit: str, words: str) -> Iterator[str]:
    total = max(total, count)
    if count > THRESHOLD * total:
        yield f"{verb} {count:,} of {total:,} {unit} ({count / total:.1%}): {words}"
