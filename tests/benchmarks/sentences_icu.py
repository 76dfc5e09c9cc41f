"""Sentence ends in scripts other than Latin, compared with those of ICU.

    python tests/benchmarks/sentences_icu.py [FILE...]

A line of each text file is a paragraph; without files the text is generated. The ends after marks
other than `. ? !` are compared by the number of letters before them, because ICU gives the opening
bracket after a mark to the sentence before it. Needs `pip install icu4py`.
"""

import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from clozeline.pipeline.sentences.marks import MARKS
from clozeline.pipeline.sentences.punkt import PunktData, find_punkt
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from tests.support.languages import LANGUAGES, joined, paragraphs_in
from tests.support.nltk_sentences import spans_of
from tests.support.small import PUNKT

#: A mark before an end, and the brackets, quotes and spaces between them.
MARKED = re.compile(rf"[{MARKS}]\W*\Z")
LETTERS = "LMN"  # letters, the marks on them, numbers


def compare(splitter: SentenceSplitter, text: str) -> Counter[str]:
    """The numbers of ends inside a paragraph that are found by both, by us only, by ICU only."""
    from icu4py.breakers import SentenceBreaker

    ours = _ends(text, (end for _, end in spans_of(splitter, text)))
    icus = _ends(text, accumulate(map(len, SentenceBreaker(text, "en"))))
    return Counter(both=len(ours & icus), ours=len(ours - icus), icus=len(icus - ours))


def _ends(text: str, stops: Iterable[int]) -> set[int]:
    letters = [0, *accumulate(unicodedata.category(c)[0] in LETTERS for c in text)]
    marked = {letters[stop] for stop in stops if MARKED.search(text, max(stop - 20, 0), stop)}
    return marked - {0, letters[-1]}


def main() -> None:
    """Print the agreement for each script, named by the first word of its letters' names."""
    splitter = SentenceSplitter(find_punkt("english") or PunktData.from_json(PUNKT))
    files = list(map(Path, sys.argv[1:]))
    lines = [line for file in files for line in file.read_text().split("\n")]
    lines = lines or [joined(code, p) for code in LANGUAGES for p in paragraphs_in(code, 100)]
    scripts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        words = (unicodedata.name(c, "?").split()[0] for c in line if c.isalpha())
        for script, _ in Counter(words).most_common(1):
            scripts[script].update(compare(splitter, line.strip()))
    total: Counter[str] = Counter()
    for script, counts in sorted(scripts.items(), key=lambda item: -item[1]["both"]):
        total.update(counts)
        if counts.total():
            print(_line(script, counts))
    print(_line("all", total))
    sys.exit(_share(total) < 0.98)


def _share(counts: Counter[str]) -> float:
    return counts["both"] / max(counts.total(), 1)


def _line(name: str, counts: Counter[str]) -> str:
    return (
        f"{name:<12} {counts['both']:7,} ends in both, {counts['ours']} only here, "
        f"{counts['icus']} only in ICU: {_share(counts):.1%}"
    )


if __name__ == "__main__":
    main()
