"""The fields of sample articles, column by column: drawn once, so they agree wherever they occur.

    rows 0, 5, 12 of the seed  ->  {"town": ["Vestvik", "Königsheim", "Borice"],
                                    "founded": ["1312", "1240", "1533"], ...}

Every column has a random stream of its own, named after its field, with the article's number as
counter: so an article does not depend on others, and a new field leaves the old ones unchanged.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.counter_rng import (
    UInt64Array,
    random_bits,
    stream_key,
    uniform_below,
    with_probability,
)
from clozeline.pipeline.sources.sample.prose import COUNTRIES, STYLES, THEMES, WORDS, Words

Integers = NDArray[np.int64]
Columns = dict[str, list[str]]
T = TypeVar("T")

#: What the themes allow, in their order: body length in mm, years in which a thing can happen.
SPECIES_MM = np.array([[90, 300], [60, 600], [4, 60], [50, 600], [30, 120], [50, 300]])
WORK_YEARS = np.array([[1800, 1988], [1905, 1988], [1780, 1930], [1958, 1988], [1790, 1988]])
EVENT_YEARS = np.array(
    [[1480, 1860], [1600, 1920], [1870, 1920], [1885, 1920], [1790, 1920], [1640, 1900]]
)


class RowRng:
    """Random numbers of some rows: a stream for each name, with the row as counter.

    With a `skew` above 1 options are unequal, like the words of real text: of eight options the
    first is chosen 1, 3 or 4 times in eight at a skew of 1, 2 or 3.
    """

    def __init__(self, *, seed: int, scope: str, rows: Integers, skew: int) -> None:
        self.seed, self.scope, self.rows, self.skew = seed, scope, rows, skew

    def evenly(self) -> "RowRng":
        """The same streams without a skew."""
        return RowRng(seed=self.seed, scope=self.scope, rows=self.rows, skew=1)

    def bits(self, name: str, width: int) -> UInt64Array:
        """Random bits, uint64 [rows, width]."""
        key = stream_key(self.seed, f"{self.scope}/{name}")
        return random_bits(key, self.rows[:, None], np.arange(width))

    def below(self, name: str, limit: ArrayLike) -> Integers:
        """Whole numbers in [0, limit): int64 [rows]."""
        return uniform_below(self.bits(name, 1)[:, 0], limit)

    def between(self, name: str, low: ArrayLike, high: ArrayLike) -> Integers:
        """Whole numbers in [low, high): int64 [rows]."""
        return np.asarray(low) + self.below(name, np.asarray(high) - np.asarray(low))

    def chance(self, name: str, probability: float) -> NDArray[np.bool_]:
        return with_probability(self.bits(name, 1)[:, 0], probability)

    def options(self, name: str, limits: ArrayLike) -> Integers:
        """Skewed whole numbers below `limits`, which broadcast to [rows, width]: int64."""
        limits = np.asarray(limits)
        # A product of floats is the same on every machine; a power need not be.
        uniform = (self.bits(name, limits.shape[1]) >> np.uint64(11)) * 2.0**-53
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


def random_order(rng: RowRng, name: str, size: int) -> Integers:
    """A random permutation of `size` things for each row: int64 [rows, size]."""
    return np.argsort(rng.bits(name, size), axis=1, kind="stable")


def with_article(noun: str) -> str:
    """'oak' -> 'an oak', 'Rhenian' -> 'a Rhenian', '1850' -> 'an 1850' (eighteen)."""
    return f"an {noun}" if noun[0] in "aeioAEIO" or noun.startswith("18") else f"a {noun}"


def strings(numbers: Integers) -> list[str]:
    return [str(number) for number in numbers.tolist()]


def grouped(numbers: Integers) -> list[str]:
    """12345 -> '12,345'."""
    return [f"{number:,}" for number in numbers.tolist()]


def world_fields(rng: RowRng) -> Columns:
    """What every kind of article may mention: a country, its places, and two of its people."""
    land = rng.below("land", len(COUNTRIES))
    style = land // 2
    countries = [COUNTRIES[i] for i in land.tolist()]
    nations = [country.adjective for country in countries]
    heading = rng.below("heading", 8)
    seasons = rng.pick("season", WORDS["seasons"])
    abroad = (land + rng.between("abroad", 1, 12)) % 12
    return {
        "country": [country.name for country in countries],
        "nation": nations,
        "a_nation": [with_article(nation) for nation in nations],
        "region": rng.pick_of("region", [country.regions for country in COUNTRIES], land),
        "town": names(rng, "town", style, "towns"),
        "near": names(rng, "near", style, "towns"),
        "river": names(rng, "river", style, "rivers"),
        "saint": rng.pick("saint", WORDS["saints"]),
        "side": [WORDS["directions"][i] for i in heading.tolist()],
        "other_side": [WORDS["directions"][(i + 4) % 8] for i in heading.tolist()],
        "foreign": [COUNTRIES[i].name for i in abroad.tolist()],
        "father": rng.pick("father", WORDS["fathers"]),
        "near_name": names(rng, "near_name", style, "surnames"),
        "month": rng.pick("month", WORDS["months"]),
        "month2": rng.pick("month2", WORDS["months"]),
        "season": seasons,
        "a_season": [with_article(season) for season in seasons],
        "day": strings(rng.between("day", 1, 29)),
        "km": strings(rng.between("km", 6, 90)),
        **person(rng, "p", style),
        **person(rng, "q", style),
    }


def names(rng: RowRng, field: str, style: Integers, endings: str) -> list[str]:
    """Invented names: head + middle + ending, in the sound of each row's style."""
    rng = rng.evenly()  # so that few articles share a name
    heads = rng.pick_of(f"{field}/head", [s.heads for s in STYLES], style)
    middles = rng.pick_of(f"{field}/middle", [s.middles for s in STYLES], style)
    tails = [getattr(s, endings) for s in STYLES]
    parts = zip(heads, middles, rng.pick_of(f"{field}/ending", tails, style), strict=True)
    return [joined(head, middle, ending) for head, middle, ending in parts]


def joined(head: str, middle: str, ending: str) -> str:
    """Syllables as one word, without a middle that repeats the head or makes vowels meet."""
    vowels = "aeiouyåäöøáéíóúıü"  # noqa: RUF001
    clash = (middle[-1:] in vowels and ending[0] in vowels) or head.endswith(middle)
    return head + ending if clash else head + middle + ending


def person(rng: RowRng, who: str, style: Integers) -> Columns:
    """A person: full name, last name, initial and the pronouns that go with them."""
    rng = rng.evenly()
    woman = rng.chance(f"{who}/woman", 0.5).tolist()
    women = rng.pick_of(f"{who}/women", [s.women for s in STYLES], style)
    men = rng.pick_of(f"{who}/men", [s.men for s in STYLES], style)
    first = [w if is_woman else m for is_woman, w, m in zip(woman, women, men, strict=True)]
    last = names(rng, f"{who}/last", style, "surnames")
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


def theme_fields(rng: RowRng, themes: Sequence[dict[str, Words]]) -> Columns:
    """The words of each row's theme, and the first of them with its article."""
    theme = rng.below("theme", len(themes))
    fields = {
        field: rng.pick_of(field, [options[field] for options in themes], theme)
        for field in themes[0]
    }
    first = next(iter(themes[0]))
    return fields | {f"a_{first}": [with_article(noun) for noun in fields[first]]}


def place_fields(rng: RowRng) -> Columns:
    size = rng.below("size", 3)
    kind = [("village", "town", "city")[i] for i in size.tolist()]
    people = rng.between("people", np.array([300, 3_000, 40_000])[size],
                          np.array([3_000, 40_000, 600_000])[size])  # fmt: skip
    growth = rng.between("growth", -25, 35)
    earlier = people * 100 // (100 + growth)
    founded = rng.between("founded", 1080, 1600)
    disaster = founded + rng.between("disaster", 60, 230)
    return theme_fields(rng, THEMES["place"]) | {
        "type": kind,
        "a_type": [with_article(noun) for noun in kind],
        "people": grouped(people),
        "earlier": grouped(earlier),
        "change": ["up from" if now > then else "down from"
                   for now, then in zip(people.tolist(), earlier.tolist(), strict=True)],
        "census": strings(rng.between("census", 1998, 2022)),
        "founded": strings(founded),
        "charter": strings(founded + rng.between("charter", 5, 55)),
        "disaster": strings(disaster),
        "rebuilt": strings(disaster + rng.between("rebuilt", 3, 25)),
        "railway": strings(rng.between("railway", 1846, 1912)),
        "modern": strings(rng.between("modern", 1919, 1990)),
        "metres": strings(rng.between("metres", 12, 980)),
        "area": [f"{n / 10:.1f}" for n in rng.between("area", 80, 2400).tolist()],
        "degrees": strings(rng.between("degrees", 14, 27)),
        "schools": rng.pick("schools", WORDS["counts"]),
    }  # fmt: skip


def person_fields(rng: RowRng) -> Columns:
    born = rng.between("born", 1760, 1901)
    age = rng.between("age", 48, 93)
    died = born + age
    debut = born + rng.between("debut", 22, 31)
    moved = debut + rng.between("moved", 2, 8)
    prized = moved + rng.between("prized", 2, 9)
    fields = theme_fields(rng, THEMES["person"])
    return fields | {
        "a_thing": [with_article(thing) for thing in fields["thing"]],
        "born": strings(born),
        "died": strings(died),
        "age": strings(age),
        "school": strings(born + rng.between("school", 16, 20)),
        "debut": strings(debut),
        "moved": strings(moved),
        "married": strings(debut + rng.between("married", 0, 10)),
        "prized": strings(prized),
        "late": strings(np.minimum(prized + rng.between("late", 1, 9), died - 1)),
        "renamed": strings(died + rng.between("renamed", 5, 32)),
        "title": titles(rng, "title"),
        "title2": titles(rng, "title2"),
        "child": strings(rng.between("child", 9, 15)),
        "debut_age": strings(debut - born),
    }  # fmt: skip


def species_fields(rng: RowRng) -> Columns:
    fields = theme_fields(rng, THEMES["species"])
    heads = rng.pick("genus", WORDS["genus_heads"])
    endings = fields["ending"]
    genus = [joined(head, "o", ending) for head, ending in zip(heads, endings, strict=True)]
    latin = rng.pick("latin", WORDS["latin_epithets"])
    theme = rng.below("theme", len(SPECIES_MM))
    length = rng.between("length", *SPECIES_MM[theme].T)
    colour = rng.below("colour", len(WORDS["colours"]))
    colour2 = (colour + rng.between("colour2", 1, len(WORDS["colours"]))) % len(WORDS["colours"])
    found = rng.between("found", 1758, 1925)
    marked_nouns = zip(fields["mark"], fields["noun"], strict=True)
    return fields | {
        "name": [f"{mark} {noun}" for mark, noun in marked_nouns],
        "genus": genus,
        "latin": latin,
        "short": [f"{g[0]}. {epithet}" for g, epithet in zip(genus, latin, strict=True)],
        "length": [f"{n / 10:.1f}" for n in length.tolist()],
        "longest": [f"{n / 10:.1f}" for n in (length * 3 // 2).tolist()],
        "found": strings(found),
        "revised": strings(found + rng.between("revised", 30, 95)),
        "listed": strings(rng.between("listed", 1979, 2021)),
        "left": grouped(rng.between("left", 4, 90) * 100),
        "low": strings(rng.between("low", 1, 9) * 100),
        "high": strings(rng.between("high", 10, 26) * 100),
        "years": rng.pick("years", WORDS["counts"]),
        "young": strings(rng.between("young", 2, 60)),
        "colour": [WORDS["colours"][i] for i in colour.tolist()],
        "colour2": [WORDS["colours"][i] for i in colour2.tolist()],
        "spot": rng.pick("spot", WORDS["spots"]),
    }  # fmt: skip


def work_fields(rng: RowRng) -> Columns:
    begun = rng.between("begun", *WORK_YEARS[rng.below("theme", len(WORK_YEARS))].T)
    land = rng.below("land", len(COUNTRIES))
    year = begun + rng.between("year", 1, 7)
    return theme_fields(rng, THEMES["work"]) | {
        "title": titles(rng, "title"),
        "title2": titles(rng, "title2"),
        "title3": titles(rng, "title3"),
        "title4": titles(rng, "title4"),
        "begun": strings(begun),
        "year": strings(year),
        "a_year": [with_article(number) for number in strings(year)],
        "prized": strings(year + rng.between("prized", 1, 4)),
        "again": strings(year + rng.between("again", 12, 30)),
        "number": rng.pick("number", WORDS["counts"][1:6]),
        "copies": grouped(rng.between("copies", 3, 90) * 500),
        "subject": rng.pick("subject", WORDS["subjects"]),
        "hero": rng.evenly().pick_of("hero", [s.women for s in STYLES], land // 2),
    }  # fmt: skip


def event_fields(rng: RowRng) -> Columns:
    year = rng.between("year", *EVENT_YEARS[rng.below("theme", len(EVENT_YEARS))].T)
    return theme_fields(rng, THEMES["event"]) | {
        "year": strings(year),
        "before": strings(year - rng.between("before", 1, 6)),
        "after": strings(year + rng.between("after", 1, 8)),
        "book": strings(year + rng.between("book", 20, 70)),
        "century": strings(year + 100),
        "victims": grouped(rng.between("victims", 11, 900)),
        "crowd": grouped(rng.between("crowd", 12, 240) * 50),
        "money": grouped(rng.between("money", 3, 95) * 1000),
        "hour": rng.pick("hour", WORDS["hours"]),
        "days": rng.pick("days", WORDS["counts"]),
    }  # fmt: skip


def titles(rng: RowRng, field: str) -> list[str]:
    """Titles of works: 'The Silent Orchard'."""
    adjectives = rng.pick(f"{field}/adjective", WORDS["title_adjectives"])
    nouns = rng.pick(f"{field}/noun", WORDS["title_nouns"])
    return [f"The {adjective} {noun}" for adjective, noun in zip(adjectives, nouns, strict=True)]
