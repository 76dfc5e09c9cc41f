"""The built-in sample's encyclopedia articles, generated from a seed.

    fields (drawn once)     {"town": ["Vestvik", ...], "founded": ["1312", ...], ...}
    statements (drawn)      "{town} is a city in ...", "A deed of {founded} is the first ..."
    article                 the statements in sections, filled with the fields

An article's statements agree, so a sentence predicts something of the others; pronouns and "the
town" stand for names, so that counting shared words is not enough. The text is easier than real
prose: good for trying things, not for judging them.

Every column has a random stream of its own, named after its field, with the text's number as
counter: so a text does not depend on others, and a new field leaves the old ones unchanged.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import count, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.counter_rng import (
    UInt64Array,
    random_bits,
    stream_key,
    uniform_below,
)

Integers = NDArray[np.int64]
Words = Sequence[str]
Columns = dict[str, list[str]]
#: A heading ("" for the lead), whether the statements keep their order, and the wordings of each.
Section = tuple[str, bool, list[Words]]
T = TypeVar("T")

FOLDER = files("clozeline.pipeline.sources.sample")
WORDS: dict[str, Any] = tomllib.loads((FOLDER / "words.toml").read_text("utf-8"))
#: Inhabitants of a village, a town and a city.
PLACE_PEOPLE = np.array([[300, 3_000], [3_000, 40_000], [40_000, 600_000]])


class RowRng:
    """Random numbers of some rows: a stream for each name, with the row as counter.

    Options are skewed, like the words of real text: of eight the first is chosen 3 times in eight.
    """

    def __init__(self, *, seed: int, scope: str, rows: Integers, is_skewed: bool = True) -> None:
        self.seed, self.scope, self.rows, self.is_skewed = seed, scope, rows, is_skewed

    def evenly(self) -> "RowRng":
        """The same streams without the skew."""
        return RowRng(seed=self.seed, scope=self.scope, rows=self.rows, is_skewed=False)

    def bits(self, name: str, width: int = 1) -> UInt64Array:
        """Random bits, uint64 [rows, width]."""
        key = stream_key(self.seed, f"{self.scope}/{name}")
        return random_bits(key, self.rows[:, None], np.arange(width))

    def between(self, name: str, low: ArrayLike, high: ArrayLike) -> Integers:
        """Whole numbers in [low, high): int64 [rows]."""
        first = np.asarray(low, dtype=np.int64)
        return first + uniform_below(self.bits(name)[:, 0], np.subtract(high, first))

    def options(self, name: str, limits: ArrayLike) -> Integers:
        """Whole numbers below `limits`, which broadcast to [rows, width]: int64."""
        # A product of floats is the same on every machine; a power need not be.
        uniform = (self.bits(name, np.shape(limits)[1]) >> np.uint64(11)) * 2.0**-53
        skewed = uniform * uniform if self.is_skewed else uniform
        chosen: Integers = (skewed * np.asarray(limits)).astype(np.int64)
        return chosen

    def pick(self, name: str, options: Sequence[T]) -> list[T]:
        return self.pick_of(name, [options], np.zeros_like(self.rows))

    def pick_of(self, name: str, tables: Sequence[Sequence[T]], which: Integers) -> list[T]:
        """One option of tables[which[row]] for each row."""
        limits = np.array([len(table) for table in tables])
        chosen = self.options(name, limits[which][:, None])[:, 0].tolist()
        return [tables[t][i] for t, i in zip(which.tolist(), chosen, strict=True)]

    def order(self, name: str, size: int) -> Integers:
        """A random permutation of `size` things for each row: int64 [rows, size]."""
        return np.argsort(self.bits(name, size), axis=1, kind="stable")


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


def numbers(rng: RowRng, start: Integers | int = 0, **limits: tuple[int, int]) -> Columns:
    """A column for each name: numbers in [low, high), counted from `start`."""
    return {
        name: list(map(str, (start + rng.between(name, *limits[name])).tolist())) for name in limits
    }


def picks(rng: RowRng, **lists: str) -> Columns:
    """A column for each name: words of a list in words.toml."""
    return {name: rng.pick(name, WORDS[words]) for name, words in lists.items()}


def article_fields(rng: RowRng) -> Columns:
    """All fields of some places: of their country, of their theme, and their numbers."""
    countries, themes = WORDS["countries"], WORDS["themes"]
    land, theme = rng.between("land", 0, len(countries)), rng.between("theme", 0, len(themes))
    abroad = (land + rng.between("abroad", 1, len(countries))) % len(countries)
    heading = rng.between("heading", 0, 8)
    first = rng.pick_of("first", [country["first"] for country in countries], land)
    founder = names(rng, "founder", land, "surnames")
    return {
        **{name: rng.pick_of(name, [some[name] for some in themes], theme) for name in themes[0]},
        "country": [countries[i]["name"] for i in land.tolist()],
        "nation": [countries[i]["adjective"] for i in land.tolist()],
        "foreign": [countries[i]["name"] for i in abroad.tolist()],
        "region": rng.pick_of("region", [country["regions"] for country in countries], land),
        "town": names(rng, "town", land, "towns"),
        "near": names(rng, "near", land, "towns"),
        "river": names(rng, "river", land, "rivers"),
        "side": [WORDS["directions"][i] for i in heading.tolist()],
        "other_side": [WORDS["directions"][(i + 4) % 8] for i in heading.tolist()],
        **picks(rng, saint="saints", season="seasons", month="months"),
        "founder": founder,
        "founder_full": [f"{a} {b}" for a, b in zip(first, founder, strict=True)],
        "guest": names(rng, "guest", land, "surnames"),
        **place_fields(rng),
    }


def names(rng: RowRng, field: str, land: Integers, endings: str) -> list[str]:
    """Invented names: head + middle + ending, in the sound of each row's country."""
    rng = rng.evenly()  # so that few articles share a name
    parts = [
        rng.pick_of(f"{field}/{part}", [country[part] for country in WORDS["countries"]], land)
        for part in ("heads", "middles", endings)
    ]
    return [joined(*syllables) for syllables in zip(*parts, strict=True)]


def joined(head: str, middle: str, ending: str) -> str:
    """Syllables as one word, without a middle that repeats the head or makes vowels meet."""
    vowels = "aeiouyåäöø"
    clash = (middle[-1:] in vowels and ending[0] in vowels) or head.endswith(middle)
    return head + ending if clash else head + middle + ending


def place_fields(rng: RowRng) -> Columns:
    """What numbers an article has; "type" agrees with the people, "change" with their number."""
    size = rng.between("size", 0, 3)
    people = rng.between("people", *PLACE_PEOPLE[size].T)
    earlier = people * 100 // (100 + rng.between("growth", -25, 35))
    founded = rng.between("founded", 1080, 1600)
    disaster = founded + rng.between("disaster", 60, 230)
    return {
        "type": [("village", "town", "city")[i] for i in size.tolist()],
        "people": [f"{number:,}" for number in people.tolist()],
        "earlier": [f"{number:,}" for number in earlier.tolist()],
        "change": np.where(people > earlier, "up from", "down from").tolist(),
        "founded": list(map(str, founded.tolist())),
        "disaster": list(map(str, disaster.tolist())),
        **numbers(rng, founded, charter=(5, 55)),
        **numbers(rng, disaster, rebuilt=(3, 25)),
        **numbers(rng, census=(1998, 2022), railway=(1846, 1912), modern=(1919, 1990)),
        **numbers(rng, km=(6, 90), metres=(12, 980), degrees=(14, 27), area=(8, 240)),
    }


def make_articles(seed: int, start: int, stop: int) -> list[str]:
    """Articles start..stop-1 of a seed; a line is a heading or a paragraph.

    Article i is the same in every range that holds it: its sections one after another, with its
    fields in the braces.
    """
    rng = RowRng(seed=seed, scope="sample/article", rows=np.arange(start, stop))
    fields, sections = article_fields(rng), read_sections()
    # One section after the lead is left out, or none: articles differ in what they are about.
    left_out = rng.between("left_out", 0, len(sections)).tolist()
    columns = [
        [text if out != number else "" for text, out in zip(column, left_out, strict=True)]
        for number, column in enumerate((section_column(rng, some) for some in sections), start=-1)
    ]
    in_braces = sorted(set(re.findall(r"{(\w+)}", str(sections))))
    used = {name: field_column(rng, fields, name) for name in in_braces}
    return filled(("\n".join(filter(None, texts)) for texts in zip(*columns, strict=True)), used)


def field_column(rng: RowRng, fields: Columns, name: str) -> list[str]:
    """{tool} is a field, {a_tool} has an article, {tool_} a capital; {any7} is a small number."""
    if name.endswith("_"):
        return capitalized(field_column(rng, fields, name.removesuffix("_")))
    if name.startswith("a_"):
        nouns = fields[name.removeprefix("a_")]
        return [f"an {noun}" if noun[0] in "aeioAEIO" else f"a {noun}" for noun in nouns]
    return rng.pick(name, WORDS["counts"]) if name.startswith("any") else fields[name]


def section_column(rng: RowRng, section: Section) -> list[str]:
    """The section's template for each row: the opening, then some of the body in random order."""
    name, in_order, slots = section
    wordings = rng.options(f"{name}/wordings", [[len(slot) for slot in slots]]).tolist()
    orders = rng.order(f"{name}/order", len(slots) - 1).tolist()
    sizes = rng.between(f"{name}/told", len(slots) - 2, len(slots)).tolist()
    heading, column = f"{name}\n" if name else "", []
    for wording, order, size in zip(wordings, orders, sizes, strict=True):
        chosen = sorted(order[:size]) if in_order else order[:size]
        sentences = [slots[i][wording[i]] for i in (0, *(body + 1 for body in chosen))]
        column.append(heading + " ".join(sentences))
    return column


@cache
def read_sections() -> tuple[Section, ...]:
    """The sections of an article, from articles.txt.

        == History >          a section with its heading (none for the lead); >: in this order
        * The {type} ...      a slot: one statement of the section
        - In {founded} ...    another wording of the same statement
          [a|b] ...           a continued line; either of two wordings

    The first slot opens its section. Most of the others are used, so each must stand alone; their
    order is random unless ">" fixes it. `field_column` explains the names in braces. Definite
    descriptions and pronouns often stand for the name, as in real prose: word overlap alone must
    not tell which sentence follows which.
    """
    sections: list[Section] = []
    slot_numbers = count()
    text = (FOLDER / "articles.txt").read_text("utf-8")
    for block in re.split(r"^==", text, flags=re.MULTILINE)[1:]:
        heading, *slots = re.split(r"^\* ", block, flags=re.MULTILINE)
        wordings = [read_slot(slot, next(slot_numbers)) for slot in slots]
        sections.append((heading.strip(" >\n"), ">" in heading, wordings))
    return tuple(sections)


def read_slot(text: str, number: int) -> Words:
    """All wordings of a slot: 'a [b|c]' and '- d' give ('a b', 'a c', 'd').

    {any} is named after the slot, so no two statements of an article share their small number.
    """
    wordings = []
    for line in re.split(r"^- ", text.replace("{any", f"{{any{number}"), flags=re.MULTILINE):
        parts = re.split(r"\[(.*?)\]", " ".join(line.split()))
        choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
        wordings += ["".join(chosen) for chosen in product(*choices)]
    return wordings
