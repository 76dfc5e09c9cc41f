"""Quality rules: a measure, a bound and a threshold. Texts that break one are dropped.

    --quality gopher  ->  min_words 50, max_words 100,000, ...
    "Too short."      ->  ("min_words", 2.0)

Of several sets, a later threshold replaces an earlier one. Rules are tried in the order of RULES;
the first that a text breaks is the reason that is counted. What they measure is one table:

    "A cat.\\nA cat."  ->  words 4, mean_word_length 2.0, repeated_lines 0.5

Rae et al. 2021 is "Scaling Language Models" (Gopher, arXiv 2112.11446), Raffel et al. 2020 the
paper of T5 and C4 (JMLR 21/140), Penedo et al. 2024 "The FineWeb Datasets" (arXiv 2406.17557).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from clozeline.pipeline.common.errors import InputError, did_you_mean
from clozeline.pipeline.curation.words import UNSPACED
from clozeline.pipeline.sentences.marks import MARKS

_ALONE = "".join(f"{chr(start)}-{chr(stop - 1)}" for start, stop in UNSPACED)
# A word with its apostrophes and hyphens, a character of an unspaced script, or a mark.
_PART = rf"(?:(?![{_ALONE}])\w)+"
WORD: Final = re.compile(rf"[{_ALONE}]|{_PART}(?:['\u2019.,\-]{_PART})*|\S")
# A run of marks is tried once, from its first one: a line of dots is read in linear time.
SENTENCE_END: Final = re.compile(
    r"(?<![.?!…])[.?!…]++[\"'\u201d\u2019)\]]*+(?=\s|$)" + rf"|[{MARKS}]"
)
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


#: Every measure by its name, in the order in which rules are tried.
MEASURES: Final[Mapping[str, Callable[[Text], float]]] = {
    # Rae et al. 2021, A.1.1. The mean is in characters; marks are per token; of lines and of tokens
    # with a letter it is the share; stop words are different ones.
    "words": lambda text: len(text.words),
    "mean_word_length": lambda text: _per(sum(map(len, text.words)), text.words),
    "hash_marks": lambda text: _per(text.text.count("#"), text.tokens),
    "ellipses": lambda text: _per(sum(map(text.text.count, ELLIPSES)), text.tokens),
    "bullet_lines": lambda text: _share(line.lstrip().startswith(BULLETS) for line in text.lines),
    "ellipsis_lines": lambda text: _share(line.rstrip().endswith(ELLIPSES) for line in text.lines),
    "alphabetic_words": lambda text: _share(any(map(str.isalpha, one)) for one in text.tokens),
    "stop_words": lambda text: len(STOP_WORDS.intersection(text.tokens)),
    # The same, table A1: shares of the parts that occurred before, and of their characters; for
    # lines also Penedo et al. 2024, 3.6.
    "repeated_paragraphs": lambda text: 1 - _per(len(set(text.paragraphs)), text.paragraphs),
    "repeated_paragraph_characters": lambda text: _repeated_characters(text, text.paragraphs),
    "repeated_lines": lambda text: 1 - _per(len(set(text.lines)), text.lines),
    "repeated_line_characters": lambda text: _repeated_characters(text, text.lines),
    **{f"top_{size}gram": partial(top_ngram, size=size) for size in (2, 3, 4)},
    **{f"repeated_{size}grams": partial(repeated_ngrams, size=size) for size in range(5, 11)},
    # Raffel et al. 2020, 2.2. Code has curly brackets; a line without a mark is a sentence.
    "lorem_ipsum": lambda text: "lorem ipsum" in text.text.lower(),
    "curly_brackets": lambda text: text.text.count("{"),
    "sentences": lambda text: sum(max(len(SENTENCE_END.findall(line)), 1) for line in text.lines),
    # Penedo et al. 2024, 3.6: shares of lines; short ones have up to 30 characters. New lines per
    # token are from FineWeb's code.
    "terminal_lines": lambda text: _share(TERMINAL.search(line) for line in text.lines),
    "short_lines": lambda text: _share(len(line) <= SHORT_LINE for line in text.lines),
    "new_lines": lambda text: _per(text.text.count("\n"), text.tokens),
}


def without_boilerplate(text: str) -> str:
    """The lines that C4 keeps, without citations (Raffel et al. 2020, 2.2, and its code).

    A line has to end with a terminal mark and to have three words, none of 1,000 characters; lines
    about JavaScript, cookies and terms of use go.
    """
    kept = []
    for line in map(str.strip, text.split("\n")):
        words, lower = line.split(), line.lower()
        line = CITATION.sub("", line)
        ends = line.endswith((".", "?", "!", '"', "'")) and not line.endswith("...")
        is_page = "javascript" in lower or any(phrase in lower for phrase in POLICY)
        if ends and len(words) >= 3 and max(map(len, words)) <= 1000 and not is_page:
            kept.append(line)
    return "\n".join(kept)


def _per(number: float, parts: Sized) -> float:
    return number / max(len(parts), 1)


def _share(flags: Iterable[object]) -> float:
    every = list(map(bool, flags))
    return _per(sum(every), every)


def _repeated_characters(text: Text, parts: list[str]) -> float:
    return _per(sum(map(len, parts)) - sum(map(len, set(parts))), text.text)


#: A rule that changes texts: 1 removes the lines that C4 removes.
BOILERPLATE: Final = "remove_boilerplate"

SETS: Final[Mapping[str, Mapping[str, float]]] = {
    "none": {},
    # Rae et al. 2021, A.1.1; its stop words are English.
    "gopher": {
        "min_words": 50,
        "max_words": 100_000,
        "min_mean_word_length": 3,
        "max_mean_word_length": 10,
        "max_hash_marks": 0.1,
        "max_ellipses": 0.1,
        "max_bullet_lines": 0.9,
        "max_ellipsis_lines": 0.3,
        "min_alphabetic_words": 0.8,
        "min_stop_words": 2,
        "max_repeated_paragraphs": 0.3,
        "max_repeated_paragraph_characters": 0.2,
        "max_repeated_lines": 0.3,
        "max_repeated_line_characters": 0.2,
        **{"max_top_2gram": 0.2, "max_top_3gram": 0.18, "max_top_4gram": 0.16},
        **{f"max_repeated_{n}grams": round(0.2 - n / 100, 2) for n in range(5, 11)},
    },
    # Raffel et al. 2020, 2.2, without its list of words.
    "c4": {BOILERPLATE: 1, "max_lorem_ipsum": 0, "max_curly_brackets": 0, "min_sentences": 5},
    # Penedo et al. 2024, 3.6: FineWeb's own rules, which it applies after those of gopher and c4.
    "fineweb": {
        "min_terminal_lines": 0.12,
        "max_short_lines": 0.67,
        "max_repeated_line_characters": 0.01,
        "max_new_lines": 0.3,
    },
}
#: Every rule: its name says whether its threshold is the least or the most that may be.
RULES: Final = [
    f"{bound}_{name}"
    for name in MEASURES
    for bound in ("min", "max")
    if any(f"{bound}_{name}" in rules for rules in SETS.values())
]


@dataclass(frozen=True)
class Quality:
    """The rules of a job, with their thresholds."""

    thresholds: Mapping[str, float]

    def check(self, text: str) -> tuple[str, str, float]:
        """The text as it is kept, the rule that it breaks ("" for none) and what was measured."""
        if self.thresholds.get(BOILERPLATE):
            text = without_boilerplate(text)
        measured = Text(text)
        for rule, threshold in self.thresholds.items():
            if rule != BOILERPLATE:
                bound, _, name = rule.partition("_")
                value = float(MEASURES[name](measured))
                if value < threshold if bound == "min" else value > threshold:
                    return text, rule, value
        return text, "", 0.0


def quality_of(names: Sequence[str]) -> Quality:
    """The rules of the sets of these names. Raises InputError for an unknown one."""
    chosen: dict[str, float] = {}
    for name in names:
        if name not in SETS:
            raise InputError(
                f"--quality {name}: there is no such set{did_you_mean(name, SETS)} "
                f"Sets are {', '.join(SETS)}; single rules were removed, keep= in Python filters "
                "documents."
            )
        chosen = {**chosen, **SETS[name]} if SETS[name] else {}
    return Quality({rule: chosen[rule] for rule in (BOILERPLATE, *RULES) if rule in chosen})
