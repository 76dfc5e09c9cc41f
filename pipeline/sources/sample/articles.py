"""The built-in sample's encyclopedia articles, generated from a seed.

    fields (drawn once)     {"town": "Vestvik", "founded": "1312", ...}
    statements (drawn)      "{town} is a city in ...", "A deed of {founded} is the first ..."
    article                 the statements in sections, filled with the fields

An article's statements agree, so a sentence predicts something of the others; pronouns and "the
town" stand for names, so that counting shared words is not enough. The text is easier than real
prose: good for trying things, not for judging them.
"""

import re
from functools import cache
from itertools import count, product

import numpy as np

from clozeline.pipeline.sources.sample.fields import (
    FOLDER,
    WORDS,
    Columns,
    RowRng,
    Words,
    article_fields,
    capitalized,
    filled,
)

#: articles made at a time: enough for numpy to pay off, few enough to stay in cache
BATCH = 2_048


#: A heading ("" for the lead), whether the statements keep their order, and the wordings of each.
Section = tuple[str, bool, list[Words]]


def make_articles(seed: int, start: int, stop: int) -> list[str]:
    """Articles start..stop-1 of a seed; a line is a heading or a paragraph.

    Article i is the same in every range that holds it.
    """
    articles: list[str] = []
    for first in range(start, stop, BATCH):
        rows = np.arange(first, min(first + BATCH, stop))
        articles += write_articles(RowRng(seed=seed, scope="sample/article", rows=rows))
    return articles


def write_articles(rng: RowRng) -> list[str]:
    """One article per row: its sections one after another, then its fields into the braces."""
    fields, sections = article_fields(rng), read_sections()
    # One section after the lead is left out, or none: articles differ in what they are about.
    left_out = rng.between("left_out", 0, len(sections)).tolist()
    columns = [
        [text if out != number else "" for text, out in zip(column, left_out, strict=True)]
        for number, column in enumerate((section_column(rng, some) for some in sections), start=-1)
    ]
    names = sorted(set(re.findall(r"{(\w+)}", str(sections))))  # in braces
    used = {name: field_column(rng, fields, name) for name in names}
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
    numbers = count()
    text = (FOLDER / "articles.txt").read_text("utf-8")
    for block in re.split(r"^==", text, flags=re.MULTILINE)[1:]:
        heading, *slots = re.split(r"^\* ", block, flags=re.MULTILINE)
        wordings = [read_slot(slot, next(numbers)) for slot in slots]
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
