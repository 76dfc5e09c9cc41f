"""What of a text a vocabulary loses that strips accents, or zero-width joiners.

    é -> e                an accent: the letter is still there
    है -> ह                a vowel is gone
    й -> и,   が -> か    another letter
    má, mà, mã -> ma      other words

Stripping removes every nonspacing mark after decomposition (NFD). In Latin and Greek these marks
are accents. In all other scripts a mark, or a character that contains one, counts as a letter;
combining accents that any script may use do not.

Where accents make words, as in Vietnamese, letters say nothing: there words are counted that get
the form of another common word, which is at least a tenth as frequent as the most frequent one.

Persian and many Indic scripts write words with zero-width joiners, which BERT's WordPiece drops.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from clozeline.pipeline.tokenization.vocabulary import Normalization

#: A vocabulary keeps marks by default if at least this share of the letters would be lost. English
#: Wikipedia loses 0.003 % in foreign names, Bulgarian 0.5 %, Arabic 5 %, Hindi 23 %.
MAX_LOST = 0.001
#: The same, of the running words that merge with another common word: 60 % in Vietnamese, 6 % in
#: French and Romanian, 2 % in Spanish, 0.1 % in English.
MAX_MERGED = 0.1
ALPHABET_COVERS = 0.9995  #: of the characters
COMMON = 0.1  #: of the frequency of the most frequent word of the same form
JOINERS = "\u200c\u200d"
ACCENTED = ("LATIN", "GREEK")
ACCENTS = ("COMBINING", "VARIATION")


class Sample:
    """What is counted in some texts, composed (NFC)."""

    def __init__(self, texts: Iterable[str]) -> None:
        import regex

        word = regex.compile(rf"\p{{L}}[\p{{L}}\p{{M}}{JOINERS}]*")
        self.characters: Counter[str] = Counter()
        self.words: Counter[str] = Counter()  #: in lower case
        for text in texts:
            composed = unicodedata.normalize("NFC", text)
            self.characters.update(composed)
            self.words.update(word.findall(composed.lower()))

    def alphabet(self) -> int:
        """How many characters cover nearly all of the texts."""
        covered = np.cumsum([number for _, number in self.characters.most_common()])
        return int(np.searchsorted(covered, ALPHABET_COVERS * self.characters.total())) + 1

    def accents_make(self) -> str | None:
        """What stripping accents would do, where they make letters or words."""
        lost, letters = count_letters(self.characters)
        if lost > MAX_LOST * letters:
            return f"lose {lost / letters:.1%} of the letters"
        merged, words = count_merged(self.words), self.words.total()
        if merged > MAX_MERGED * words:
            return f"merge {merged / words:.0%} of the words with other common words"
        return None

    def dropped_by(self, flags: Normalization) -> Iterator[str]:
        """Notes of zero-width joiners, in scripts other than Latin and Greek, and of Turkish I."""
        joined = [w for w in self.words if {*JOINERS} & {*w} and _script(w[0]) not in ACCENTED]
        if joined and flags.clean_text:
            most = max(joined, key=lambda word: (self.words[word], word))
            number = sum(map(self.words.__getitem__, joined))
            yield (
                f"{number:,} of {self.words.total():,} words have zero-width joiners, such as "
                f"{most!r}, which WordPiece drops; --model bpe keeps them."
            )
        has_dotless = self.characters["\u0131"] > MAX_LOST * self.characters.total()
        if has_dotless and flags.lowercase:
            number = self.characters["I"] + self.characters["\u0130"]
            yield (
                f"{number:,} letters I and İ become the wrong small letter in this language; "
                "--cased keeps them."
            )


def count_merged(words: Counter[str]) -> int:
    """The running words that stripping accents merges with another common word.

    má 50, mà 90, ma 1  ->  140: "ma" is rare beside "mà"
    """
    forms = defaultdict(list)
    for word, number in words.items():
        marked = unicodedata.normalize("NFD", word)
        forms["".join(c for c in marked if unicodedata.category(c) != "Mn")].append(number)
    common = ([n for n in numbers if n >= COMMON * max(numbers)] for numbers in forms.values())
    return sum(sum(numbers) for numbers in common if len(numbers) > 1)


def count_letters(counts: Counter[str]) -> tuple[int, int]:
    """The letters that stripping accents loses, and all letters: "he है"  ->  1, 4."""
    lost = sum(number for character, number in counts.items() if is_lost(character))
    letters = sum(number for c, number in counts.items() if c.isalpha() or is_lost(c))
    return lost, letters


def is_lost(character: str) -> bool:
    """Whether stripping accents removes this letter, or turns it into another one."""
    first, *others = [*unicodedata.normalize("NFD", character)]
    if unicodedata.category(first) == "Mn":
        return _script(first) not in ACCENTS
    is_marked = any(unicodedata.category(other) == "Mn" for other in others)
    return is_marked and first.isalpha() and _script(first) not in ACCENTED


def _script(character: str) -> str:
    """DEVANAGARI VOWEL SIGN E  ->  DEVANAGARI"""
    return unicodedata.name(character, "").partition(" ")[0]
