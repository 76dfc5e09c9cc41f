"""The built-in sample's encyclopedia articles, generated from a seed.

    fields (drawn once)     {"town": "Vestvik", "founded": "1312", ...}
    statements (drawn)      "{town} is a city in ...", "A deed of {founded} is the first ..."
    article                 the statements in sections, filled with the fields

An article's statements agree, so a sentence predicts something of the others; pronouns and "the
town" stand for names, so that counting shared words is not enough. The text is easier than real
prose: good for trying things, not for judging them.

Article i is a pure function of (seed, i); a range is computed column by column.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count, product

import numpy as np

from clozeline.pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from clozeline.pipeline.sources.sample import article_fields
from clozeline.pipeline.sources.sample.article_fields import (
    Columns,
    Integers,
    RowRng,
    capitalized,
    filled,
    random_order,
)
from clozeline.pipeline.sources.sample.prose import WORDS, Words, read_templates

#: bytes of the average article in UTF-8, measured over 100,000 of them
MEAN_ARTICLE_BYTES = 1_537
#: articles made at a time: enough for numpy to pay off, few enough to stay in cache
BATCH = 2_048
#: how much the first of several words or wordings is preferred: see `RowRng`
SKEW = 2

KINDS: tuple[tuple[str, Callable[[RowRng], Columns]], ...] = (
    ("place", article_fields.place_fields),
    ("person", article_fields.person_fields),
    ("species", article_fields.species_fields),
    ("work", article_fields.work_fields),
    ("event", article_fields.event_fields),
)


@dataclass(frozen=True)
class Section:
    """A heading ('' for the lead) and statements in all their wordings, first the opening."""

    heading: str
    in_order: bool
    slots: list[Words]


def count_articles(size_bytes: int) -> int:
    """How many articles make about `size_bytes` of UTF-8 text (within 5 % from 1 MB on).

    One at least, but none for 0 bytes.
    """
    return max(min(size_bytes, 1), round(size_bytes / MEAN_ARTICLE_BYTES))


def make_articles(seed: int, start: int, stop: int) -> list[str]:
    """Articles start..stop-1 of a seed; a line is a heading or a paragraph.

    Article i is the same in every range that holds it.
    """
    articles: list[str] = []
    for first in range(start, stop, BATCH):
        articles += article_batch(seed, np.arange(first, min(first + BATCH, stop)))
    return articles


def article_batch(seed: int, numbers: Integers) -> list[str]:
    """The articles with these numbers, made kind by kind and put back in order."""
    bits = random_bits(stream_key(seed, "sample/kind"), numbers)
    kinds = uniform_below(bits, len(KINDS))
    articles = [""] * len(numbers)
    for index, (kind, own_fields) in enumerate(KINDS):
        rows = np.flatnonzero(kinds == index)
        rng = RowRng(seed=seed, scope=f"sample/{kind}", rows=numbers[rows], skew=SKEW)
        fields = article_fields.world_fields(rng) | own_fields(rng)
        for row, article in zip(rows.tolist(), write_articles(rng, fields, kind), strict=True):
            articles[row] = article
    return articles


def write_articles(rng: RowRng, fields: Columns, kind: str) -> list[str]:
    """One article per row: its sections one after another, then its fields into the braces."""
    sections, columns = sections_of(kind), []
    with_heading = rng.chance("headings", 0.5).tolist()
    # One section after the lead is left out, or none: articles differ in what they are about.
    left_out = rng.below("left_out", len(sections))
    for number, section in enumerate(sections, start=-1):
        column = section_column(rng, section, with_heading)
        kept = (left_out != number).tolist()
        columns.append([text if keep else "" for text, keep in zip(column, kept, strict=True)])
    used = {name: field_column(rng, fields, name) for name in names_of(kind)}
    return filled(("\n".join(filter(None, texts)) for texts in zip(*columns, strict=True)), used)


def field_column(rng: RowRng, fields: Columns, name: str) -> list[str]:
    """{tool} is a field, {a_tool} has an article, {tool_} a capital; {any7} is a small number."""
    if name.endswith("_"):
        return capitalized(field_column(rng, fields, name.removesuffix("_")))
    if name.startswith("a_"):
        return [with_article(noun) for noun in fields[name.removeprefix("a_")]]
    return rng.pick(name, WORDS["counts"]) if name.startswith("any") else fields[name]


def with_article(noun: str) -> str:
    """'oak' -> 'an oak', 'Rhenian' -> 'a Rhenian', '1850' -> 'an 1850' (eighteen)."""
    return f"an {noun}" if noun[0] in "aeioAEIO" or noun.startswith("18") else f"a {noun}"


def section_column(rng: RowRng, section: Section, with_heading: list[bool]) -> list[str]:
    """The section's template for each row: the opening, then some of the body in random order."""
    name, slots = section.heading, section.slots
    limits = [len(slot) for slot in slots]
    wordings = rng.options(f"{name}/wordings", [limits]).tolist()
    orders = random_order(rng, f"{name}/order", len(slots) - 1)
    sizes = rng.between(f"{name}/told", len(slots) - 2, len(slots))
    column = []
    for wording, order, size, heading in zip(
        wordings, orders.tolist(), sizes.tolist(), with_heading, strict=True
    ):
        sentences = [slots[0][wording[0]]]
        chosen = sorted(order[:size]) if section.in_order else order[:size]
        sentences += [slots[i + 1][wording[i + 1]] for i in chosen]
        column.append((f"{name}\n" if heading and name else "") + " ".join(sentences))
    return column


@cache
def names_of(kind: str) -> Words:
    """The names in braces, each once, sorted."""
    slots = [section.slots for section in sections_of(kind)]
    return tuple(sorted(set(re.findall(r"{(\w+)}", str(slots)))))


@cache
def sections_of(kind: str) -> tuple[Section, ...]:
    """The sections of a kind of articles, from a file such as place.txt.

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
    numbers = count()
    for block in re.split(r"^==", read_templates(kind), flags=re.MULTILINE)[1:]:
        heading, *slots = re.split(r"^\* ", block, flags=re.MULTILINE)
        wordings = [read_slot(slot, next(numbers)) for slot in slots]
        sections.append(Section(heading.strip(" >\n"), ">" in heading, wordings))
    return tuple(sections)


def read_slot(text: str, number: int) -> Words:
    """All wordings of a slot: 'a [b|c]' and '- d' give ('a b', 'a c', 'd', 'd').

    A line with fewer branches is repeated, so that each line is used about as often. {any} is named
    after the slot, so no two statements of an article share their small number.
    """
    text = text.replace("{any", f"{{any{number}")
    lines = [
        branches(" ".join(line.split())) for line in re.split(r"^- ", text, flags=re.MULTILINE)
    ]
    most = max(len(line) for line in lines)
    return tuple(wording for line in lines for wording in line * (most // len(line)))


def branches(line: str) -> list[str]:
    """'a [b|c] d' -> ['a b d', 'a c d']."""
    parts = re.split(r"\[(.*?)\]", line)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen).replace(" ,", ",") for chosen in product(*choices)]
