"""The built-in sample: encyclopedia articles and product reviews, made on the spot from a seed.

    facts (drawn once)      {"town": "Vestvik", "founded": "1312", ...}
    statements (drawn)      "{town} is a city in ...", "A deed of {founded} is the first ..."
    article                 the statements in sections, told with the facts

With it every stage runs without a network. An article keeps to its facts, so a sentence tells
something about the others; pronouns and "the town" stand for names, so that counting common words
is not enough. The text is easier than real prose: good for trying things, not for judging them.

Article i (review i) is a pure function of (seed, i); a range is worked on column by column.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count, product

import numpy as np

from pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from pipeline.sources.sample import article_fields as sample_facts
from pipeline.sources.sample import templates as sample_templates
from pipeline.sources.sample.article_fields import Columns, Draw, Integers, drawn_order
from pipeline.sources.sample.reviews import Reviews, make_reviews
from pipeline.sources.sample.words import COUNTS

__all__ = ["Reviews", "count_articles", "make_articles", "make_reviews"]

#: bytes of the average article in UTF-8, measured over 100,000 of them
MEAN_ARTICLE_BYTES = 1_537
#: articles made at a time: enough for numpy to be worth it, few enough to stay in cache
BATCH = 2_048
#: how much the first of several words or wordings is preferred: see `Draw`
SKEW = 2

Slot = tuple[str, ...]  # the ways to tell one statement

KINDS: tuple[tuple[str, Callable[[Draw], Columns], str], ...] = (
    ("place", sample_facts.place_facts, sample_templates.PLACE),
    ("person", sample_facts.person_facts, sample_templates.PERSON),
    ("species", sample_facts.species_facts, sample_templates.SPECIES),
    ("work", sample_facts.work_facts, sample_templates.WORK),
    ("event", sample_facts.event_facts, sample_templates.EVENT),
)


@dataclass(frozen=True)
class Section:
    """A heading ('' for the lead), the slot that opens, and those that follow."""

    heading: str
    in_order: bool
    opening: Slot
    body: tuple[Slot, ...]


def count_articles(size_bytes: int) -> int:
    """How many articles make about `size_bytes` of UTF-8 text (within 5 % from 1 MB on)."""
    return max(1, round(size_bytes / MEAN_ARTICLE_BYTES))


def make_articles(seed: int, start: int, stop: int) -> list[str]:
    """Articles start..stop-1 of a seed; a line is a heading or a paragraph.

    Article i is the same in every range that holds it.
    """
    articles: list[str] = []
    for first in range(start, stop, BATCH):
        articles += article_batch(seed, np.arange(first, min(first + BATCH, stop)))
    return articles


def article_batch(seed: int, numbers: Integers) -> list[str]:
    """The articles with these numbers, made kind by kind and put back in their places."""
    words = random_bits(stream_key(seed, "sample/kind"), numbers)
    kinds = uniform_below(words, len(KINDS))
    articles = [""] * len(numbers)
    for index, (name, own_facts, templates) in enumerate(KINDS):
        places = np.flatnonzero(kinds == index)
        draw = Draw(seed=seed, scope=f"sample/{name}", rows=numbers[places], skew=SKEW)
        facts = sample_facts.world_facts(draw) | own_facts(draw)
        for place, article in zip(places.tolist(), tell(draw, facts, templates), strict=True):
            articles[place] = article
    return articles


def tell(draw: Draw, facts: Columns, templates: str) -> list[str]:
    """One article a row: its sections side by side, then its facts into the braces."""
    lead, *sections = read_templates(templates)
    columns = [section_column(draw, lead, with_heading=[False] * len(draw.rows))]
    with_heading = draw.chance("headings", 0.5).tolist()
    # One section is left out, or none: articles differ in what they speak of.
    left_out = draw.below("left_out", len(sections) + 1)
    for number, section in enumerate(sections):
        column = section_column(draw, section, with_heading)
        kept = (left_out != number).tolist()
        columns.append([text if keep else "" for text, keep in zip(column, kept, strict=True)])
    fields = {field: field_column(draw, facts, field) for field in fields_of(templates)}
    rows = zip(zip(*columns, strict=True), zip(*fields.values(), strict=True), strict=True)
    return [
        "\n".join(filter(None, texts)).format_map(dict(zip(fields, values, strict=True)))
        for texts, values in rows
    ]


def field_column(draw: Draw, facts: Columns, field: str) -> list[str]:
    """{trade} is a fact, {trade_} the same with a capital, {any7} a small number."""
    if field.endswith("_"):
        plain = field_column(draw, facts, field.removesuffix("_"))
        return [value[0].upper() + value[1:] for value in plain]
    return draw.pick(field, COUNTS) if field.startswith("any") else facts[field]


def section_column(draw: Draw, section: Section, with_heading: list[bool]) -> list[str]:
    """The section's template for each row: the opening, then some of the body in drawn order."""
    name = section.heading
    slots = (section.opening, *section.body)
    limits = [len(slot) for slot in slots]
    wordings = draw.options(f"{name}/wordings", [limits]).tolist()
    orders = drawn_order(draw, f"{name}/order", len(section.body))
    told_counts = draw.between(f"{name}/told", len(section.body) - 1, len(section.body) + 1)
    column = []
    for wording, order, told_count, heading in zip(
        wordings, orders.tolist(), told_counts.tolist(), with_heading, strict=True
    ):
        sentences = [slots[0][wording[0]]]
        told = sorted(order[:told_count]) if section.in_order else order[:told_count]
        sentences += [slots[i + 1][wording[i + 1]] for i in told]
        column.append((f"{name}\n" if heading else "") + " ".join(sentences))
    return column


@cache
def fields_of(templates: str) -> tuple[str, ...]:
    """The names in braces, each once, sorted."""
    slots = [slot for s in read_templates(templates) for slot in (s.opening, *s.body)]
    return tuple(sorted(set(re.findall(r"{(\w+)}", str(slots)))))


@cache
def read_templates(templates: str) -> tuple[Section, ...]:
    """The sections of a kind, from the notation that `sample_templates` explains."""
    sections: list[Section] = []
    numbers = count()
    for block in re.split(r"^==", templates, flags=re.MULTILINE)[1:]:
        heading, *slots = re.split(r"^\* ", block, flags=re.MULTILINE)
        opening, *body = (read_slot(slot, next(numbers)) for slot in slots)
        title = heading.strip(" >\n")
        sections.append(Section(title, ">" in heading, opening, tuple(body)))
    return tuple(sections)


def read_slot(text: str, number: int) -> Slot:
    """All wordings of a slot: 'a [b|c]' and '- d' give ('a b', 'a c', 'd', 'd').

    A line that branches less is repeated, so that each is told about as often. {any} is named
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
    pieces = re.split(r"\[(.*?)\]", line)
    choices = [piece.split("|") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(chosen).replace(" ,", ",") for chosen in product(*choices)]
