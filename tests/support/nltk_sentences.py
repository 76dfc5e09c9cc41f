"""NLTK's own splitter, and the spans of ours in its units."""

from collections import defaultdict
from itertools import accumulate
from typing import Any

from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.sources.documents import fix_unicode


def nltk_splitter(parameters: PunktData) -> Any:
    """NLTK's own splitter with the parameters of our splitter."""
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    theirs = PunktParameters()
    theirs.abbrev_types = set(parameters.abbrev_types)
    theirs.collocations = {(first, second) for first, second in parameters.collocations}
    theirs.sent_starters = set(parameters.sent_starters)
    theirs.ortho_context = defaultdict(int, parameters.ortho_context)
    return PunktSentenceTokenizer(theirs)


def line_of(text: str) -> str:
    """The text as a line of a document: valid Unicode without NUL, and no space around it."""
    return fix_unicode(text).replace("\0", "").replace("\n", " ").strip()


def spans_of(splitter: SentenceSplitter, line: str, *, cut: bool = True) -> list[tuple[int, int]]:
    """(start, end) of each sentence in characters, as NLTK's `span_tokenize` gives them."""
    found, _ = splitter.split(line.encode(), cut=cut)
    sizes = [len(character.encode()) for character in line]
    places = dict(zip(accumulate([0, *sizes]), range(len(line) + 1), strict=True))
    return [
        (places[a], places[b])
        for a, b in zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    ]
