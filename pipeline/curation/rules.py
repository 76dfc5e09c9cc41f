"""Quality rules: a measure, a bound and a threshold. Texts that break one are dropped.

    --quality gopher --quality min_words=20    the rules of Gopher, but from 20 words
    "Too short."  ->  ("min_words", 2.0)

A later value replaces an earlier one. Rules are tried in the order of RULES; the first that a text
breaks is the reason that is counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clozeline.pipeline.common.errors import InputError, did_you_mean
from clozeline.pipeline.curation.measures import MEASURES, Text, without_boilerplate

#: The bounds that a measure may have; one that is not listed has a maximum only.
BOUNDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("words", "mean_word_length"), ("min", "max")),
    **dict.fromkeys(("alphabetic_words", "stop_words", "sentences", "terminal_lines"), ("min",)),
}
#: Every rule: its name says whether its threshold is the least or the most that may be.
RULES: Final = {
    f"{bound}_{name}": measure
    for name, measure in MEASURES.items()
    for bound in BOUNDS.get(name, ("max",))
}
#: Rules that measure a share, which is 1 at most.
SHARES: Final = {rule for rule in RULES if rule.startswith(("max_repeated", "max_top"))} | {
    *("max_bullet_lines", "max_ellipsis_lines", "max_short_lines"),
    *("min_alphabetic_words", "min_terminal_lines"),
}
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
                found = float(RULES[rule](measured))
                if found < threshold if rule.startswith("min_") else found > threshold:
                    return text, rule, found
        return text, "", 0.0


def quality_of(names: Sequence[str]) -> Quality:
    """The rules that the names of sets and `rule=threshold` give.

    Raises InputError for an unknown rule and for a threshold that is not a number from 0 on,
    or to 1 for a share.
    """
    chosen: dict[str, float] = {}
    for name in names:
        rule, _, value = name.partition("=")
        if not value and rule in SETS:
            chosen = {**chosen, **SETS[rule]} if SETS[rule] else {}
        elif rule in RULES or rule == BOILERPLATE:
            chosen[rule] = _threshold(rule, value)
        else:
            known = [*SETS, *RULES, BOILERPLATE]
            raise InputError(
                f"--quality {name}: there is no such rule{did_you_mean(rule, known)} "
                f"Sets are {', '.join(SETS)}; "
                f"rules are {', '.join(known[len(SETS) :])}."
            )
    return Quality({rule: chosen[rule] for rule in (BOILERPLATE, *RULES) if rule in chosen})


def _threshold(rule: str, value: str) -> float:
    try:
        threshold = float(value)
    except ValueError:
        threshold = math.nan
    if rule in SHARES and not 0 <= threshold <= 1:
        raise InputError(f"--quality {rule}={value}: give a share from 0 to 1, as in {rule}=0.2.")
    if not 0 <= threshold < math.inf:
        raise InputError(f"--quality {rule}={value}: give a number from 0 on, as in {rule}=20.")
    return threshold
