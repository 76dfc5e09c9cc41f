"""The fields of sample articles, column by column: drawn once, so they agree wherever they occur.

    rows 0, 5, 12 of the seed  ->  {"town": ["Vestvik", "Königsheim", "Borice"],
                                    "founded": ["1312", "1240", "1533"], ...}

Every column has a random stream of its own, named after its field, with the article's number as
counter: so an article does not depend on others, and a new field leaves the old ones unchanged.
"""

from collections.abc import Iterable, Sequence
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
from clozeline.pipeline.sources.sample.prose import COUNTRIES, STYLES, THEMES, WORDS

Integers = NDArray[np.int64]
Columns = dict[str, list[str]]
T = TypeVar("T")

#: Inhabitants of a village, a town and a city.
PLACE_PEOPLE = np.array([[300, 3_000], [3_000, 40_000], [40_000, 600_000]])
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
        return [options[i] for i in self.options(name, [[len(options)]])[:, 0].tolist()]

    def pick_of(self, name: str, tables: Sequence[Sequence[T]], which: Integers) -> list[T]:
        """One option of tables[which[row]] for each row."""
        limits = np.array([len(table) for table in tables])
        chosen = self.options(name, limits[which][:, None])[:, 0].tolist()
        return [tables[t][i] for t, i in zip(which.tolist(), chosen, strict=True)]


def random_order(rng: RowRng, name: str, size: int) -> Integers:
    """A random permutation of `size` things for each row: int64 [rows, size]."""
    return np.argsort(rng.bits(name, size), axis=1, kind="stable")


def capitalized(texts: list[str]) -> list[str]:
    """'the lid' -> 'The lid'; the other letters stay."""
    return [text[0].upper() + text[1:] for text in texts]


def filled(templates: Iterable[str], fields: Columns) -> list[str]:
    """Each row's template with the row's fields in its braces."""
    rows = zip(*fields.values(), strict=True)
    return [
        template.format_map(dict(zip(fields, row, strict=True)))
        for template, row in zip(templates, rows, strict=True)
    ]


def strings(numbers: Integers) -> list[str]:
    return [str(number) for number in numbers.tolist()]


def grouped(numbers: Integers) -> list[str]:
    """12345 -> '12,345'."""
    return [f"{number:,}" for number in numbers.tolist()]


def numbers(rng: RowRng, start: Integers | int = 0, **limits: tuple[int, int]) -> Columns:
    """A column for each name: numbers in [low, high), counted from `start`."""
    return {name: strings(start + rng.between(name, *limits[name])) for name in limits}


def picks(rng: RowRng, **lists: str) -> Columns:
    """A column for each name: words of a list in words.toml."""
    return {name: rng.pick(name, WORDS[words]) for name, words in lists.items()}


def world_fields(rng: RowRng) -> Columns:
    """What every kind of article may mention: a country, its places, and two of its people."""
    land = rng.below("land", len(COUNTRIES))
    style = land // 2
    countries = [COUNTRIES[i] for i in land.tolist()]
    heading = rng.below("heading", 8)
    abroad = (land + rng.between("abroad", 1, 12)) % 12
    return {
        "country": [country["name"] for country in countries],
        "nation": [country["adjective"] for country in countries],
        "region": rng.pick_of("region", [country["regions"] for country in COUNTRIES], land),
        "town": names(rng, "town", style, "towns"),
        "near": names(rng, "near", style, "towns"),
        "river": names(rng, "river", style, "rivers"),
        "side": [WORDS["directions"][i] for i in heading.tolist()],
        "other_side": [WORDS["directions"][(i + 4) % 8] for i in heading.tolist()],
        "foreign": [COUNTRIES[i]["name"] for i in abroad.tolist()],
        "near_name": names(rng, "near_name", style, "surnames"),
        **picks(rng, saint="saints", father="fathers", season="seasons"),
        **picks(rng, month="months", month2="months"),
        **numbers(rng, day=(1, 29), km=(6, 90)),
        **person(rng, "p", style),
        **person(rng, "q", style),
    }


def names(rng: RowRng, field: str, style: Integers, endings: str) -> list[str]:
    """Invented names: head + middle + ending, in the sound of each row's style."""
    rng = rng.evenly()  # so that few articles share a name
    kinds = {"head": "heads", "middle": "middles", "ending": endings}
    parts = [rng.pick_of(f"{field}/{part}", STYLES[kind], style) for part, kind in kinds.items()]
    return [joined(*syllables) for syllables in zip(*parts, strict=True)]


def joined(head: str, middle: str, ending: str) -> str:
    """Syllables as one word, without a middle that repeats the head or makes vowels meet."""
    vowels = "aeiouyåäöøáéíóúıü"  # noqa: RUF001
    clash = (middle[-1:] in vowels and ending[0] in vowels) or head.endswith(middle)
    return head + ending if clash else head + middle + ending


def person(rng: RowRng, who: str, style: Integers) -> Columns:
    """A person: full name, last name, initial and the pronouns that go with them."""
    rng = rng.evenly()
    woman = rng.chance(f"{who}/woman", 0.5).tolist()
    women = rng.pick_of(f"{who}/women", STYLES["women"], style)
    men = rng.pick_of(f"{who}/men", STYLES["men"], style)
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


def theme_fields(rng: RowRng, kind: str) -> Columns:
    """The words of each row's theme."""
    themes = THEMES[kind]
    theme = rng.below("theme", len(themes))
    return {
        field: rng.pick_of(field, [words[field] for words in themes], theme) for field in themes[0]
    }


def place_fields(rng: RowRng) -> Columns:
    size = rng.below("size", 3)
    people = rng.between("people", *PLACE_PEOPLE[size].T)
    growth = rng.between("growth", -25, 35)
    earlier = people * 100 // (100 + growth)
    founded = rng.between("founded", 1080, 1600)
    disaster = founded + rng.between("disaster", 60, 230)
    return {
        **theme_fields(rng, "place"),
        "type": [("village", "town", "city")[i] for i in size.tolist()],
        "people": grouped(people),
        "earlier": grouped(earlier),
        "change": np.where(people > earlier, "up from", "down from").tolist(),
        "founded": strings(founded),
        "disaster": strings(disaster),
        "area": [f"{n / 10:.1f}" for n in rng.between("area", 80, 2400).tolist()],
        **numbers(rng, founded, charter=(5, 55)),
        **numbers(rng, disaster, rebuilt=(3, 25)),
        **numbers(rng, census=(1998, 2022), railway=(1846, 1912), modern=(1919, 1990)),
        **numbers(rng, metres=(12, 980), degrees=(14, 27)),
        **picks(rng, schools="counts"),
    }


def person_fields(rng: RowRng) -> Columns:
    born = rng.between("born", 1760, 1901)
    age = rng.between("age", 48, 93)
    died = born + age
    debut = born + rng.between("debut", 22, 31)
    moved = debut + rng.between("moved", 2, 8)
    prized = moved + rng.between("prized", 2, 9)
    return {
        **theme_fields(rng, "person"),
        **titles(rng, "title", "title2"),
        "born": strings(born),
        "died": strings(died),
        "age": strings(age),
        "debut": strings(debut),
        "debut_age": strings(debut - born),
        "moved": strings(moved),
        "prized": strings(prized),
        "late": strings(np.minimum(prized + rng.between("late", 1, 9), died - 1)),
        **numbers(rng, child=(9, 15)),
        **numbers(rng, born, school=(16, 20)),
        **numbers(rng, debut, married=(0, 10)),
        **numbers(rng, died, renamed=(5, 32)),
    }


def species_fields(rng: RowRng) -> Columns:
    fields = theme_fields(rng, "species")
    heads = rng.pick("genus", WORDS["genus_heads"])
    endings = fields["ending"]
    genus = [joined(head, "o", ending) for head, ending in zip(heads, endings, strict=True)]
    latin = rng.pick("latin", WORDS["latin_epithets"])
    theme = rng.below("theme", len(SPECIES_MM))
    length = rng.between("length", *SPECIES_MM[theme].T)
    colours = WORDS["colours"]
    colour = rng.below("colour", len(colours))
    colour2 = (colour + rng.between("colour2", 1, len(colours))) % len(colours)
    found = rng.between("found", 1758, 1925)
    marked_nouns = zip(fields["mark"], fields["noun"], strict=True)
    return {
        **fields,
        "name": [f"{mark} {noun}" for mark, noun in marked_nouns],
        "genus": genus,
        "latin": latin,
        "short": [f"{g[0]}. {epithet}" for g, epithet in zip(genus, latin, strict=True)],
        "length": [f"{n / 10:.1f}" for n in length.tolist()],
        "longest": [f"{n / 10:.1f}" for n in (length * 3 // 2).tolist()],
        "found": strings(found),
        "left": grouped(rng.between("left", 4, 90) * 100),
        "low": strings(rng.between("low", 1, 9) * 100),
        "high": strings(rng.between("high", 10, 26) * 100),
        "colour": [colours[i] for i in colour.tolist()],
        "colour2": [colours[i] for i in colour2.tolist()],
        **numbers(rng, found, revised=(30, 95)),
        **numbers(rng, listed=(1979, 2021), young=(2, 60)),
        **picks(rng, years="counts", spot="spots"),
    }


def work_fields(rng: RowRng) -> Columns:
    begun = rng.between("begun", *WORK_YEARS[rng.below("theme", len(WORK_YEARS))].T)
    land = rng.below("land", len(COUNTRIES))
    year = begun + rng.between("year", 1, 7)
    return {
        **theme_fields(rng, "work"),
        **titles(rng, "title", "title2", "title3", "title4"),
        "begun": strings(begun),
        "year": strings(year),
        "number": rng.pick("number", WORDS["counts"][1:6]),
        "copies": grouped(rng.between("copies", 3, 90) * 500),
        "hero": rng.evenly().pick_of("hero", STYLES["women"], land // 2),
        **numbers(rng, year, prized=(1, 4), again=(12, 30)),
        **picks(rng, subject="subjects"),
    }


def event_fields(rng: RowRng) -> Columns:
    year = rng.between("year", *EVENT_YEARS[rng.below("theme", len(EVENT_YEARS))].T)
    return {
        **theme_fields(rng, "event"),
        "year": strings(year),
        "before": strings(year - rng.between("before", 1, 6)),
        "century": strings(year + 100),
        "victims": grouped(rng.between("victims", 11, 900)),
        "crowd": grouped(rng.between("crowd", 12, 240) * 50),
        "money": grouped(rng.between("money", 3, 95) * 1000),
        **numbers(rng, year, after=(1, 8), book=(20, 70)),
        **picks(rng, hour="hours", days="counts"),
    }


def titles(rng: RowRng, *fields: str) -> Columns:
    """Titles of works, a column for each name: 'The Silent Orchard'."""
    columns = {}
    for field in fields:
        adjectives = rng.pick(f"{field}/adjective", WORDS["title_adjectives"])
        nouns = rng.pick(f"{field}/noun", WORDS["title_nouns"])
        columns[field] = [f"The {a} {noun}" for a, noun in zip(adjectives, nouns, strict=True)]
    return columns
