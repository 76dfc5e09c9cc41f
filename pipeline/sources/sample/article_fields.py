"""The facts of sample articles, column by column: drawn once, so they agree wherever they are told.

    rows 0, 5, 12 of the seed  ->  {"town": ["Vestvik", "Königsheim", "Borice"],
                                    "founded": ["1312", "1240", "1533"], ...}

Every column is drawn from a stream of its own, named after its field, at the article's own number:
so an article owes nothing to its neighbours, and a new field leaves the old ones as they were.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.common.counter_rng import (
    UInt64Array,
    random_bits,
    stream_key,
    uniform_below,
    with_probability,
)
from pipeline.sources.sample import themes as sample_themes
from pipeline.sources.sample import words as sample_words

Integers = NDArray[np.int64]
Columns = dict[str, list[str]]
T = TypeVar("T")

#: what the themes of `sample_themes` allow: body length in mm, years in which a thing can happen
SPECIES_MM = np.array([[90, 300], [60, 600], [4, 60], [50, 600], [30, 120], [50, 300]])
WORK_YEARS = np.array([[1800, 1988], [1905, 1988], [1780, 1930], [1958, 1988], [1790, 1988]])
EVENT_YEARS = np.array(
    [[1480, 1860], [1600, 1920], [1870, 1920], [1885, 1920], [1790, 1920], [1640, 1900]]
)


class Draw:
    """The draws of some rows: each stream by its name, one number a row.

    With a `skew` above 1 options are unequal, like the words of real text: of eight options the
    first is taken 1, 3 or 4 times in eight at a skew of 1, 2 or 3.
    """

    def __init__(self, *, seed: int, scope: str, rows: Integers, skew: int) -> None:
        self.seed, self.scope, self.rows, self.skew = seed, scope, rows, skew

    def evenly(self) -> "Draw":
        """The same draws without a skew."""
        return Draw(seed=self.seed, scope=self.scope, rows=self.rows, skew=1)

    def words(self, name: str, lanes: int) -> UInt64Array:
        """Uniform words, uint64 [rows, lanes]."""
        key = stream_key(self.seed, f"{self.scope}/{name}")
        return random_bits(key, self.rows[:, None], np.arange(lanes))

    def below(self, name: str, limit: ArrayLike) -> Integers:
        """Whole numbers in [0, limit): int64 [rows]."""
        return uniform_below(self.words(name, 1)[:, 0], limit)

    def between(self, name: str, low: ArrayLike, high: ArrayLike) -> Integers:
        """Whole numbers in [low, high): int64 [rows]."""
        return np.asarray(low) + self.below(name, np.asarray(high) - np.asarray(low))

    def chance(self, name: str, probability: float) -> NDArray[np.bool_]:
        return with_probability(self.words(name, 1)[:, 0], probability)

    def options(self, name: str, limits: ArrayLike) -> Integers:
        """Skewed whole numbers below `limits` [rows, lanes], one of each: int64 [rows, lanes]."""
        limits = np.asarray(limits)
        # A product of floats is the same on every machine; a power need not be.
        uniform = (self.words(name, limits.shape[1]) >> np.uint64(11)) * 2.0**-53
        skewed = uniform.copy()
        for _ in range(self.skew - 1):
            skewed *= uniform
        scaled: NDArray[np.float64] = skewed * limits
        return scaled.astype(np.int64)

    def pick(self, name: str, options: Sequence[str]) -> list[str]:
        limits = np.full((len(self.rows), 1), len(options))
        return [options[i] for i in self.options(name, limits)[:, 0].tolist()]

    def pick_of(self, name: str, tables: Sequence[Sequence[T]], which: Integers) -> list[T]:
        """One option of tables[which[row]] for each row."""
        limits = np.array([len(table) for table in tables])
        chosen = self.options(name, limits[which][:, None])[:, 0].tolist()
        return [tables[t][i] for t, i in zip(which.tolist(), chosen, strict=True)]


def drawn_order(draw: Draw, name: str, size: int) -> Integers:
    """An order of `size` things for each row: int64 [rows, size]."""
    return np.argsort(draw.words(name, size), axis=1, kind="stable")


def with_article(noun: str) -> str:
    """'oak' -> 'an oak', 'Rhenian' -> 'a Rhenian', '1850' -> 'an 1850' (eighteen)."""
    return f"an {noun}" if noun[0] in "aeioAEIO" or noun.startswith("18") else f"a {noun}"


def strings(numbers: Integers) -> list[str]:
    return [str(number) for number in numbers.tolist()]


def grouped(numbers: Integers) -> list[str]:
    """12345 -> '12,345'."""
    return [f"{number:,}" for number in numbers.tolist()]


def world_facts(draw: Draw) -> Columns:
    """What every kind of article may speak of: a land, its places, and two of its people."""
    land = draw.below("land", len(sample_words.COUNTRIES))
    style = land // 2
    countries = [sample_words.COUNTRIES[i] for i in land.tolist()]
    regions = [sample_words.words(row[2]) for row in sample_words.COUNTRIES]
    nations = [nation for _, nation, _ in countries]
    heading = draw.below("heading", 8)
    seasons = draw.pick("season", sample_words.SEASONS)
    abroad = (land + draw.between("abroad", 1, 12)) % 12
    return {
        "country": [country for country, _, _ in countries],
        "nation": nations,
        "a_nation": [with_article(nation) for nation in nations],
        "region": draw.pick_of("region", regions, land),
        "town": names(draw, "town", style, "towns"),
        "near": names(draw, "near", style, "towns"),
        "river": names(draw, "river", style, "rivers"),
        "saint": draw.pick("saint", sample_words.SAINTS),
        "side": [sample_words.DIRECTIONS[i] for i in heading.tolist()],
        "other_side": [sample_words.DIRECTIONS[(i + 4) % 8] for i in heading.tolist()],
        "foreign": [sample_words.COUNTRIES[i][0] for i in abroad.tolist()],
        "father": draw.pick("father", sample_words.FATHERS),
        "near_name": names(draw, "near_name", style, "surnames"),
        "month": draw.pick("month", sample_words.MONTHS),
        "month2": draw.pick("month2", sample_words.MONTHS),
        "season": seasons,
        "a_season": [with_article(season) for season in seasons],
        "day": strings(draw.between("day", 1, 29)),
        "km": strings(draw.between("km", 6, 90)),
        **person(draw, "p", style),
        **person(draw, "q", style),
    }


def names(draw: Draw, field: str, style: Integers, endings: str) -> list[str]:
    """Invented names: head + middle + ending, in the sound of each row's style."""
    draw = draw.evenly()  # names are many, so that few articles share one
    heads = draw.pick_of(f"{field}/head", [s.heads for s in sample_words.STYLES], style)
    middles = draw.pick_of(f"{field}/middle", [s.middles for s in sample_words.STYLES], style)
    tails = [getattr(s, endings) for s in sample_words.STYLES]
    parts = zip(heads, middles, draw.pick_of(f"{field}/ending", tails, style), strict=True)
    return [joined(head, middle, ending) for head, middle, ending in parts]


def joined(head: str, middle: str, ending: str) -> str:
    """Syllables in one word; a middle that stammers or makes vowels clash is left out."""
    vowels = "aeiouyåäöøáéíóúıü"  # noqa: RUF001
    clash = (middle[-1:] in vowels and ending[0] in vowels) or head.endswith(middle)
    return head + ending if clash else head + middle + ending


def person(draw: Draw, who: str, style: Integers) -> Columns:
    """A person: full name, last name, initial and the pronouns that go with them."""
    draw = draw.evenly()
    woman = draw.chance(f"{who}/woman", 0.5).tolist()
    women = draw.pick_of(f"{who}/women", [s.women for s in sample_words.STYLES], style)
    men = draw.pick_of(f"{who}/men", [s.men for s in sample_words.STYLES], style)
    first = [w if is_woman else m for is_woman, w, m in zip(woman, women, men, strict=True)]
    last = names(draw, f"{who}/last", style, "surnames")
    pronouns = {
        "he": ("he", "she"), "his": ("his", "her"), "him": ("him", "her"),
        "son": ("son", "daughter"), "man": ("man", "woman"),
    }  # fmt: skip
    return {
        who: [f"{a} {b}" for a, b in zip(first, last, strict=True)],
        f"{who}_first": first,
        f"{who}_last": last,
        f"{who}_initial": [f"{a[0]}. {b}" for a, b in zip(first, last, strict=True)],
        **{f"{who}_{key}": [pair[w] for w in woman] for key, pair in pronouns.items()},
    }


def theme_facts(draw: Draw, themes: Sequence[sample_themes.Theme]) -> Columns:
    """The words of each row's theme, and the first of them with its article."""
    theme = draw.below("theme", len(themes))
    facts = {
        field: draw.pick_of(field, [options[field] for options in themes], theme)
        for field in themes[0]
    }
    first = next(iter(themes[0]))
    return facts | {f"a_{first}": [with_article(noun) for noun in facts[first]]}


def place_facts(draw: Draw) -> Columns:
    size = draw.below("size", 3)
    kind = [("village", "town", "city")[i] for i in size.tolist()]
    people = draw.between("people", np.array([300, 3_000, 40_000])[size],
                          np.array([3_000, 40_000, 600_000])[size])  # fmt: skip
    growth = draw.between("growth", -25, 35)
    earlier = people * 100 // (100 + growth)
    founded = draw.between("founded", 1080, 1600)
    disaster = founded + draw.between("disaster", 60, 230)
    return theme_facts(draw, sample_themes.PLACE_THEMES) | {
        "type": kind,
        "a_type": [with_article(noun) for noun in kind],
        "people": grouped(people),
        "earlier": grouped(earlier),
        "change": ["up from" if now > then else "down from"
                   for now, then in zip(people.tolist(), earlier.tolist(), strict=True)],
        "census": strings(draw.between("census", 1998, 2022)),
        "founded": strings(founded),
        "charter": strings(founded + draw.between("charter", 5, 55)),
        "disaster": strings(disaster),
        "rebuilt": strings(disaster + draw.between("rebuilt", 3, 25)),
        "railway": strings(draw.between("railway", 1846, 1912)),
        "modern": strings(draw.between("modern", 1919, 1990)),
        "metres": strings(draw.between("metres", 12, 980)),
        "area": [f"{n / 10:.1f}" for n in draw.between("area", 80, 2400).tolist()],
        "degrees": strings(draw.between("degrees", 14, 27)),
        "schools": draw.pick("schools", sample_words.COUNTS),
    }  # fmt: skip


def person_facts(draw: Draw) -> Columns:
    born = draw.between("born", 1760, 1901)
    age = draw.between("age", 48, 93)
    died = born + age
    debut = born + draw.between("debut", 22, 31)
    moved = debut + draw.between("moved", 2, 8)
    prized = moved + draw.between("prized", 2, 9)
    facts = theme_facts(draw, sample_themes.PERSON_THEMES)
    return facts | {
        "a_thing": [with_article(thing) for thing in facts["thing"]],
        "born": strings(born),
        "died": strings(died),
        "age": strings(age),
        "school": strings(born + draw.between("school", 16, 20)),
        "debut": strings(debut),
        "moved": strings(moved),
        "married": strings(debut + draw.between("married", 0, 10)),
        "prized": strings(prized),
        "late": strings(np.minimum(prized + draw.between("late", 1, 9), died - 1)),
        "renamed": strings(died + draw.between("renamed", 5, 32)),
        "title": titles(draw, "title"),
        "title2": titles(draw, "title2"),
        "child": strings(draw.between("child", 9, 15)),
        "debut_age": strings(debut - born),
    }  # fmt: skip


def species_facts(draw: Draw) -> Columns:
    facts = theme_facts(draw, sample_themes.SPECIES_THEMES)
    heads = draw.pick("genus", sample_words.GENUS_HEADS)
    genus = [joined(head, "o", ending) for head, ending in zip(heads, facts["ending"], strict=True)]
    latin = draw.pick("latin", sample_words.words(
        "montana|minor|elegans|vulgaris|obscura|sylvatica|borealis|maculata|gracilis|rupestris"
        "|palustris|nivalis|serotina|pallida|robusta|orientalis|fluvialis|tenuis"))  # fmt: skip
    theme = draw.below("theme", len(SPECIES_MM))
    length = draw.between("length", *SPECIES_MM[theme].T)
    colour = draw.below("colour", len(sample_words.COLOURS))
    colour2 = (colour + draw.between("colour2", 1, len(sample_words.COLOURS))) % len(
        sample_words.COLOURS
    )
    found = draw.between("found", 1758, 1925)
    return facts | {
        "name": [f"{mark} {noun}" for mark, noun in zip(facts["mark"], facts["noun"], strict=True)],
        "genus": genus,
        "latin": latin,
        "short": [f"{g[0]}. {epithet}" for g, epithet in zip(genus, latin, strict=True)],
        "length": [f"{n / 10:.1f}" for n in length.tolist()],
        "longest": [f"{n / 10:.1f}" for n in (length * 3 // 2).tolist()],
        "found": strings(found),
        "revised": strings(found + draw.between("revised", 30, 95)),
        "listed": strings(draw.between("listed", 1979, 2021)),
        "left": grouped(draw.between("left", 4, 90) * 100),
        "low": strings(draw.between("low", 1, 9) * 100),
        "high": strings(draw.between("high", 10, 26) * 100),
        "years": draw.pick("years", sample_words.COUNTS),
        "young": strings(draw.between("young", 2, 60)),
        "colour": [sample_words.COLOURS[i] for i in colour.tolist()],
        "colour2": [sample_words.COLOURS[i] for i in colour2.tolist()],
        "spot": draw.pick("spot", sample_words.words(
            "a pale stripe|a row of dark dots|a yellow edge|a faint metallic sheen|a white patch")),
    }  # fmt: skip


def work_facts(draw: Draw) -> Columns:
    begun = draw.between("begun", *WORK_YEARS[draw.below("theme", len(WORK_YEARS))].T)
    land = draw.below("land", len(sample_words.COUNTRIES))
    year = begun + draw.between("year", 1, 7)
    return theme_facts(draw, sample_themes.WORK_THEMES) | {
        "title": titles(draw, "title"),
        "title2": titles(draw, "title2"),
        "title3": titles(draw, "title3"),
        "title4": titles(draw, "title4"),
        "begun": strings(begun),
        "year": strings(year),
        "a_year": [with_article(number) for number in strings(year)],
        "prized": strings(year + draw.between("prized", 1, 4)),
        "again": strings(year + draw.between("again", 12, 30)),
        "number": draw.pick("number", sample_words.COUNTS[1:6]),
        "copies": grouped(draw.between("copies", 3, 90) * 500),
        "subject": draw.pick("subject", sample_words.SUBJECTS),
        "hero": draw.evenly().pick_of("hero", [s.women for s in sample_words.STYLES], land // 2),
    }  # fmt: skip


def event_facts(draw: Draw) -> Columns:
    year = draw.between("year", *EVENT_YEARS[draw.below("theme", len(EVENT_YEARS))].T)
    return theme_facts(draw, sample_themes.EVENT_THEMES) | {
        "year": strings(year),
        "before": strings(year - draw.between("before", 1, 6)),
        "after": strings(year + draw.between("after", 1, 8)),
        "book": strings(year + draw.between("book", 20, 70)),
        "century": strings(year + 100),
        "victims": grouped(draw.between("victims", 11, 900)),
        "crowd": grouped(draw.between("crowd", 12, 240) * 50),
        "money": grouped(draw.between("money", 3, 95) * 1000),
        "hour": draw.pick("hour", sample_words.words(
            "at dawn|shortly after noon|at about 4 p.m.|before midnight|at nightfall")),
        "days": draw.pick("days", sample_words.COUNTS),
    }  # fmt: skip


def titles(draw: Draw, field: str) -> list[str]:
    """Titles of works: 'The Silent Orchard'."""
    adjectives = draw.pick(f"{field}/adjective", sample_words.TITLE_ADJECTIVES)
    nouns = draw.pick(f"{field}/noun", sample_words.TITLE_NOUNS)
    return [f"The {adjective} {noun}" for adjective, noun in zip(adjectives, nouns, strict=True)]
