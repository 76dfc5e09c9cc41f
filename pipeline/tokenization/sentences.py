"""Text to sentences: the same spans as NLTK's Punkt (Kiss & Strunk 2006), several times faster.

In scripts other than Latin, Greek and Cyrillic, `sentence_marks` cuts these spans further.

At every `.`, `?` or `!` inside a text, Punkt decides whether a sentence ends there, from the
*chunk* that ends with the mark and the *follower*: the next chunk, or one closing mark.

    text      Dr. Oz came (at 5 p.m.) today!  He left.
    chunk     Dr.              p.m.      today!            starts after the last space
    follower  Oz                )     He

Most chunks end a sentence whatever follows: any plain word that is not an abbreviation. So a
decision is one look-up of the chunk, sometimes followed by a look-up of its relevant properties
and the follower; only unseen chunks are tokenized and decided, by NLTK's rules, quirks and all.

A chunk with a non-ASCII space (such as NBSP) is never memoized: NLTK's token pattern can match
across that space, so its whole context is tokenized each time. NLTK matches with the `regex`
package, whose letters and digits differ from those of `re`: the two patterns that use them are
compiled with it here as well. The packages also disagree about spaces, so those are listed.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import offsets_of
from clozeline.pipeline.tokenization.punkt import PunktData
from clozeline.pipeline.tokenization.sentence_marks import SPACE, cut_sentence

QUOTES = "\u2018\u2019\u201c\u201d\xab\xbb"
CLOSING = rf"!\"'():;?@\[\]*{{}}{QUOTES}"  # ends a word in any position
RUN = rf"(?:-{{2,}}|\.{{2,}}|(?:\.[{SPACE}]){{2,}}\.)"  # dashes, dots, and ". . ."
WORD_END = rf"[{SPACE}]|$|[{CLOSING}]|{RUN}"

#: A mark and the space up to the follower (none before a closing mark).
CANDIDATE = re.compile(rf"[.?!](?:[{SPACE}]+(?=[^{SPACE}])|(?=[{CLOSING}]))")
CHUNK = re.compile(rf"[^{SPACE}]+")
TOKEN = re.compile(
    rf"{RUN}|[^{SPACE}\"#&()*,:;@\[\]`{{}}\-][^{SPACE}]*?(?={WORD_END}|,(?:{WORD_END}))|[^{SPACE}]"
)
#: Closing marks at the start of a sentence that belong to the one before.
STRAY = re.compile(rf"([\"')\]}}{QUOTES}]+?)(?:[{SPACE}]+|(?=--)|$)")
STRAY_MARKS = frozenset("\"')]}" + QUOTES)
#: Between paragraphs that are split as one text. No candidate is before it, no chunk goes across.
SEPARATOR = "\0"
SLAB_CHARACTERS = 1 << 18

# Where training saw a type. Upper case: bits 1 to 3, at the beginning of a sentence, in the middle,
# or in an unknown position. Lower case: bits 4 to 6.
MIDDLE_UPPER, BEGIN_LOWER, UPPER, LOWER = 0b100, 0b10000, 0b1110, 0b1110000

#: Size of each memo, about 20 MB; a full memo is cleared.
MEMO_ENTRIES = 100_000
MEMO_CHARACTERS = 64  # longer chunks are not memoized


class Token(NamedTuple):
    """A token after Punkt's first pass, which does not depend on its neighbours."""

    text: str
    type: str
    ends: bool  # the first pass says that a sentence ends here
    marked: bool  # it is an abbreviation or an ellipsis

    @property
    def type_no_period(self) -> str:
        return self.type[:-1] if len(self.type) > 1 and self.type[-1] == "." else self.type


class Ending(NamedTuple):
    """The properties of a token that decide, in the second pass, whether a sentence ends there."""

    ends: bool
    marked: bool
    initial: bool
    number: bool
    collocating: str | None  # the type, if some collocation starts with it


#: A sentence ends, or does not end, here whatever follows.
CERTAIN = Ending(ends=True, marked=False, initial=False, number=False, collocating=None)
CONTINUES = CERTAIN._replace(ends=False)


class SentenceSplitter:
    """Punkt for one language, cut further at the sentence ends of other scripts."""

    def __init__(self, parameters: PunktData) -> None:
        import regex

        self._is_number = regex.compile(r"-?[.,]?\d[\d,.-]*\.?").fullmatch
        self._is_initial = regex.compile(r"[^\W\d]\.").fullmatch
        self._abbreviations = set(parameters.abbrev_types)
        self._collocations = {(first, second) for first, second in parameters.collocations}
        self._collocating = {first for first, _ in parameters.collocations}
        self._starters = set(parameters.sent_starters)
        self._contexts = parameters.ortho_context
        self._endings: dict[str, Ending] = {}
        self._decisions: dict[tuple[Ending, str], bool] = {}

    def split(
        self, paragraphs: Iterable[str], *, cut: Iterable[bool] = repeat(True)
    ) -> tuple[list[str], NDArray[np.int64]]:
        """All sentences in order, and the number of sentences per paragraph: int64 [paragraphs].

        ["It is. So there!", "", "Yes"]  ->  ["It is.", "So there!", "Yes"],  [2, 0, 1]

        Where `cut` is False, sentences end only where Punkt ends them.
        """
        sentences: list[str] = []
        counts = [np.zeros(0, np.int64)]
        for slab, further in _slabs(paragraphs, cut):
            text, starts, ends, of_paragraph = self._split_slab(slab)
            spans = zip(starts, ends, strict=True)
            if further and not text.isascii():
                parts = [cut_sentence(text, start, end) for start, end in spans]
                sentences += [text[start:end] for part in parts for start, end in part]
                cuts = offsets_of(np.fromiter(map(len, parts), np.int64, len(parts)))
                of_paragraph = np.diff(cuts[offsets_of(of_paragraph)])
            else:
                sentences += [text[start:end] for start, end in spans]
            counts.append(of_paragraph)
        return sentences, np.concatenate(counts)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each sentence of a text, without the space between sentences."""
        return [
            part for start, end in self.punkt_spans(text) for part in cut_sentence(text, start, end)
        ]

    def punkt_spans(self, text: str) -> list[tuple[int, int]]:
        """A faster `PunktSentenceTokenizer(parameters).span_tokenize(text)`."""
        _, starts, ends, _ = self._split_slab([text])
        return list(zip(starts, ends, strict=True))

    def _split_slab(
        self, paragraphs: list[str]
    ) -> tuple[str, list[int], list[int], NDArray[np.int64]]:
        """The paragraphs joined, where each sentence starts and ends there, and how many each has.

        ["It is. So!", "Yes"]  ->  "It is. So!\\0Yes",  [0 7 11],  [6 10 14],  [2 1]
        """
        text, spaced = SEPARATOR.join(paragraphs), _with_one_kind_of_space(paragraphs)
        stops = np.cumsum(np.fromiter(map(len, paragraphs), np.int64, len(paragraphs)) + 1) - 1
        ends, followers = self._breaks(text, spaced, stops.tolist())
        stops[-1] = len(text.rstrip())
        at = np.searchsorted(ends, stops, side="right")
        ends = np.insert(ends, at, stops)
        starts = np.insert(np.insert(followers, at, stops + 1), 0, 0)[:-1]
        # Closing marks may be all that follows the last break.
        last = at + np.arange(len(at))
        is_there = np.ones(len(ends), bool)
        is_there[last] = starts[last] < ends[last]
        counts = np.diff(np.cumsum(is_there)[last], prepend=0)
        return text, starts[is_there].tolist(), ends[is_there].tolist(), counts

    def _breaks(
        self, text: str, spaced: str, stops: list[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The end of the sentence before each break, and the start of the one after it."""
        ends, followers = [], []
        known = self._endings.get
        for start, end, follower in _candidates(text, spaced):
            chunk = text[start:end]
            ending = known(chunk) or self._ending_of_chunk(chunk)
            certain = ending is CERTAIN and text[follower] >= " "  # see _decide
            if certain or self._decide(ending, text, start, end, follower, stops):
                ends.append(end)
                followers.append(follower)
        strays = [i for i, follower in enumerate(followers) if text[follower] in STRAY_MARKS]
        ends.append(len(text.rstrip()))
        for i in strays:
            stop = min(ends[i + 1], stops[bisect_left(stops, followers[i])])
            if stray := STRAY.match(text, followers[i], stop):
                ends[i], followers[i] = stray.end(1), stray.end()
        return np.array(ends[:-1], np.int64), np.array(followers, np.int64)

    def _decide(
        self, ending: Ending | None, text: str, start: int, end: int, at: int, stops: list[int]
    ) -> bool:
        """Whether a sentence ends after the chunk text[start:end]; the follower starts at `at`."""
        stop = end + 1 if at == end else stops[bisect_left(stops, at)]
        follower = CHUNK.match(text, at, stop)[0]  # type: ignore[index]
        # NLTK treats a line of \x1c to \x1f as blank, so whether it is a whole line matters here.
        if ending is None or follower.isspace():
            return self._breaks_inside(self._tokens(text[start:at] + follower))
        known = self._decisions.get((ending, follower))
        if known is None:
            tokens = self._tokens(follower)
            known = self._ends_sentence(ending, tokens[0]) or self._breaks_inside(tokens)
            if len(follower) <= MEMO_CHARACTERS:
                _remember(self._decisions, (ending, follower), known)
        return known

    def _ending_of_chunk(self, chunk: str) -> Ending | None:
        """The chunk's ending, CERTAIN if it decides alone; None if the follower is needed."""
        if not CHUNK.fullmatch(chunk):
            return None  # it contains a non-ASCII space
        ending, stem = CERTAIN, chunk[:-1].lower()
        is_word = chunk[-1] == "." and len(stem) > 1 and chunk.isascii() and stem.isalpha()
        if not is_word or stem in self._abbreviations or stem in self._collocating:
            tokens = self._tokens(chunk)
            ending = self._ending(tokens[-1])
            # "what?!" has a break after "what?" already, so it is certain whatever follows "!".
            if ending == CERTAIN or self._breaks_inside(tokens):
                ending = CERTAIN
        if len(chunk) <= MEMO_CHARACTERS:
            _remember(self._endings, chunk, ending)
        return ending

    def _breaks_inside(self, tokens: list[Token]) -> bool:
        """Whether a sentence ends at any token but the last."""
        return any(self._ends_sentence(self._ending(a), b) for a, b in pairwise(tokens))

    def _tokens(self, text: str) -> list[Token]:
        """The tokens of a text after Punkt's first pass; blank lines have none."""
        lines = [line for line in text.split("\n") if line.strip()]
        return [self._token(word) for line in lines for word in TOKEN.findall(line)]

    def _token(self, word: str) -> Token:
        lower = word.lower()
        type_ = "##number##" if self._is_number(lower) else lower
        ends = marked = False
        if word in (".", "?", "!"):
            ends = True
        elif word.endswith(".."):
            marked = not word.strip(".")
        elif word.endswith("."):
            stem = word[:-1].lower()
            marked = not self._abbreviations.isdisjoint((stem, stem.rpartition("-")[2]))
            ends = not marked
        return Token(word, type_, ends, marked)

    def _ending(self, token: Token) -> Ending:
        if not token.text.endswith("."):
            return CERTAIN if token.ends else CONTINUES
        type_ = token.type_no_period
        initial = self._is_initial(token.text) is not None
        collocating = type_ if type_ in self._collocating else None
        return Ending(token.ends, token.marked, initial, type_ == "##number##", collocating)

    def _ends_sentence(self, ending: Ending, token: Token) -> bool:
        """Punkt's second pass: whether a sentence ends between `ending` and the token after it."""
        type_ = token.type_no_period if token.ends else token.type
        if (ending.collocating, type_) in self._collocations:
            return False
        upper = token.text[0].isupper()
        starts = self._starts_sentence(token, type_)
        if ending.marked and not ending.initial and (starts or (upper and type_ in self._starters)):
            return True
        if (ending.initial or ending.number) and starts is False:
            return False
        seen_lower = self._contexts.get(type_, 0) & LOWER
        if ending.initial and starts is None and upper and not seen_lower:
            return False
        return ending.ends

    def _starts_sentence(self, token: Token, type_: str) -> bool | None:
        """Whether the token's case says that it starts a sentence (section 4.1.1).

        Yes for "The" if training saw "the", and never "The" in the middle of a sentence;
        no for "the" if training saw "The", or never "the" at the beginning; else None.
        """
        if token.text in (";", ":", ",", ".", "!", "?"):
            return False
        seen = self._contexts.get(type_, 0)
        if token.text[0].isupper() and seen & LOWER and not seen & MIDDLE_UPPER:
            return True
        if token.text[0].islower() and (seen & UPPER or not seen & BEGIN_LOWER):
            return False
        return None


def _slabs(paragraphs: Iterable[str], cut: Iterable[bool]) -> Iterator[tuple[list[str], bool]]:
    """Runs of paragraphs that are split as one text, and whether they are cut further.

    An empty paragraph, or one with space around it or the separator in it, is alone.
    """
    slab: list[str] = []
    size, before = 0, False
    for text, further in zip(paragraphs, cut, strict=False):
        is_alone = not text or text.strip() != text or SEPARATOR in text
        if slab and (is_alone or further != before or size > SLAB_CHARACTERS):
            yield slab, before
            slab, size = [], 0
        slab.append(text)
        size, before = SLAB_CHARACTERS + 1 if is_alone else size + len(text), further
    if slab:
        yield slab, before


def _with_one_kind_of_space(paragraphs: list[str]) -> str:
    """The paragraphs joined, where each ASCII space and each border is " "."""
    text = " ".join(paragraphs)
    for space in "\t\n\r\v\f":
        if space in text:
            text = text.replace(space, " ")
    return text


def _candidates(text: str, spaced: str) -> list[tuple[int, int, int]]:
    """(start of the chunk, its end, start of the follower) for each candidate of NLTK."""
    candidates: list[tuple[int, int, int]] = []
    start, previous = 0, 1
    for match in CANDIDATE.finditer(text):
        mark, follower = match.span()
        space = spaced.rfind(" ", previous, mark)
        if space >= 0:
            start = space + 1
        elif start < previous - 1:
            candidates.pop()  # of two marks in a chunk NLTK considers only the later one
        previous = mark + 1
        candidates.append((start, previous, follower))
    return candidates


def _remember(memo: dict[Any, Any], key: object, value: object) -> None:
    if len(memo) >= MEMO_ENTRIES:
        memo.clear()
    memo[key] = value
