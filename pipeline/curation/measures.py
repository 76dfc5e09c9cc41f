"""What quality rules measure of a text: counts and shares, each a small function.

    "A cat.\nA cat."  ->  words 4, mean_word_length 2.0, repeated_lines 0.5

Rae et al. 2021 is "Scaling Language Models" (Gopher, arXiv 2112.11446), Raffel et al. 2020 the
paper of T5 and C4 (JMLR 21/140), Penedo et al. 2024 "The FineWeb Datasets" (arXiv 2406.17557).
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from clozeline.pipeline.curation.words import UNSPACED
from clozeline.pipeline.sentences.marks import MARKS

_ALONE = "".join(f"{chr(start)}-{chr(stop - 1)}" for start, stop in UNSPACED)
# A word with its apostrophes and hyphens, a character of an unspaced script, or a mark.
_PART = rf"(?:(?![{_ALONE}])\w)+"
WORD: Final = re.compile(rf"[{_ALONE}]|{_PART}(?:['\u2019.,\-]{_PART})*|\S")
SENTENCE_END: Final = re.compile(r"[.?!…]+[\"'\u201d\u2019)\]]*(?=\s|$)" + rf"|[{MARKS}]")
#: Rae et al. 2021, appendix A.1.1.
STOP_WORDS: Final = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
BULLETS: Final = ("•", "-")
ELLIPSES: Final = ("...", "…")
TERMINAL: Final = re.compile(rf"[.?!{MARKS}]$")
POLICY: Final = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use cookies",
                 "use of cookies")  # fmt: skip
CITATION: Final = re.compile(r"\[(?:\d*|edit|citation needed)\]")
SHORT_LINE: Final = 30  # characters


class Text:
    """A document, cut once for all rules."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def tokens(self) -> list[str]:
        """Words and marks."""
        return WORD.findall(self.text)

    @cached_property
    def words(self) -> list[str]:
        """Tokens with a letter or a digit."""
        return [token for token in self.tokens if any(map(str.isalnum, token))]

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank."""
        return [line for line in self.text.split("\n") if line and not line.isspace()]

    @cached_property
    def paragraphs(self) -> list[str]:
        """What blank lines separate."""
        return re.split(r"\n{2,}", self.text.strip())


def words(text: Text) -> float:
    """Number of words (Rae et al. 2021, A.1.1)."""
    return len(text.words)


def mean_word_length(text: Text) -> float:
    """In characters (Rae et al. 2021, A.1.1)."""
    return sum(map(len, text.words)) / max(len(text.words), 1)


def hash_marks(text: Text) -> float:
    """Hash marks per token (Rae et al. 2021, A.1.1)."""
    return text.text.count("#") / max(len(text.tokens), 1)


def ellipses(text: Text) -> float:
    """Ellipses per token (Rae et al. 2021, A.1.1)."""
    return sum(map(text.text.count, ELLIPSES)) / max(len(text.tokens), 1)


def bullet_lines(text: Text) -> float:
    """Share of lines that begin with a bullet (Rae et al. 2021, A.1.1)."""
    return _share(line.lstrip().startswith(BULLETS) for line in text.lines)


def ellipsis_lines(text: Text) -> float:
    """Share of lines that end with an ellipsis (Rae et al. 2021, A.1.1)."""
    return _share(line.rstrip().endswith(ELLIPSES) for line in text.lines)


def alphabetic_words(text: Text) -> float:
    """Share of tokens with a letter (Rae et al. 2021, A.1.1)."""
    return _share(any(map(str.isalpha, token)) for token in text.tokens)


def stop_words(text: Text) -> float:
    """Number of different English stop words (Rae et al. 2021, A.1.1)."""
    return len(STOP_WORDS.intersection(text.tokens))


def repeated_lines(text: Text) -> float:
    """Share of lines that stood there before (Rae et al. 2021, A.1.1, table A1)."""
    return 1 - len(set(text.lines)) / max(len(text.lines), 1)


def repeated_paragraphs(text: Text) -> float:
    """Share of paragraphs that stood there before (Rae et al. 2021, A.1.1, table A1)."""
    return 1 - len(set(text.paragraphs)) / len(text.paragraphs)


def repeated_line_characters(text: Text) -> float:
    """Share of characters in repeated lines (Rae et al. 2021, A1; Penedo et al. 2024, 3.6)."""
    return _repeated_characters(text.lines) / max(len(text.text), 1)


def repeated_paragraph_characters(text: Text) -> float:
    """Share of characters in repeated paragraphs (Rae et al. 2021, A.1.1, table A1)."""
    return _repeated_characters(text.paragraphs) / max(len(text.text), 1)


def top_ngram(text: Text, size: int) -> float:
    """Share of characters in the most frequent n-gram of tokens (Rae et al. 2021, table A1).

    The first of several that are equally frequent.
    """
    grams = Counter(zip(*(text.tokens[start:] for start in range(size)), strict=False))
    if not grams:
        return 0.0
    [(gram, count)] = grams.most_common(1)
    return count * (sum(map(len, gram)) + size - 1) / len(text.text)


def repeated_ngrams(text: Text, size: int) -> float:
    """Share of characters in n-grams of tokens that stood there before, each character once.

    Rae et al. 2021, A.1.1, table A1.
    """
    tokens, seen = text.tokens, set()
    grams = list(zip(*(tokens[start:] for start in range(size)), strict=False))
    if len(set(grams)) == len(grams):
        return 0.0
    position = characters = 0
    while position < len(grams):
        gram = grams[position]
        if gram in seen:
            characters += sum(map(len, gram))
            position += size
        else:
            seen.add(gram)
            position += 1
    return characters / len(text.text)


def sentences(text: Text) -> float:
    """Number of sentences, by their marks; a line without one counts (Raffel et al. 2020, 2.2)."""
    return sum(max(len(SENTENCE_END.findall(line)), 1) for line in text.lines)


def lorem_ipsum(text: Text) -> float:
    """1 for text with "lorem ipsum" (Raffel et al. 2020, 2.2)."""
    return "lorem ipsum" in text.text.lower()


def curly_brackets(text: Text) -> float:
    """Number of opening curly brackets, which code has (Raffel et al. 2020, 2.2)."""
    return text.text.count("{")


def terminal_lines(text: Text) -> float:
    """Share of lines that end with a mark that ends sentences (Penedo et al. 2024, 3.6)."""
    return _share(TERMINAL.search(line) for line in text.lines)


def short_lines(text: Text) -> float:
    """Share of lines of up to 30 characters (Penedo et al. 2024, 3.6)."""
    return _share(len(line) <= SHORT_LINE for line in text.lines)


def new_lines(text: Text) -> float:
    """New lines per token: lists have many (FineWeb's code, beside Penedo et al. 2024, 3.6)."""
    return text.text.count("\n") / max(len(text.tokens), 1)


def without_boilerplate(text: str) -> str:
    """The lines that C4 keeps, without citations (Raffel et al. 2020, 2.2, and its code).

    A line has to end with a terminal mark and to have three words, none of 1,000 characters; lines
    about JavaScript, cookies and terms of use go.
    """
    kept = []
    for line in map(str.strip, text.split("\n")):
        found, lower = line.split(), line.lower()
        line = CITATION.sub("", line)
        ends = line.endswith((".", "?", "!", '"', "'")) and not line.endswith("...")
        is_page = "javascript" in lower or any(phrase in lower for phrase in POLICY)
        if ends and len(found) >= 3 and max(map(len, found)) <= 1000 and not is_page:
            kept.append(line)
    return "\n".join(kept)


def _share(found: Iterable[object]) -> float:
    every = [bool(one) for one in found]
    return sum(every) / max(len(every), 1)


def _repeated_characters(parts: list[str]) -> int:
    return sum(map(len, parts)) - sum(map(len, set(parts)))
