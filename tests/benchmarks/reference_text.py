"""Our text of a dump compared with mwparserfromhell's `strip_code`, paragraph by paragraph.

`strip_code` is a tool, not a reader's view: it keeps references, tables and captions as running
text. So its text is compared as it is, then again after each class of such differences has been
taken out of its tree (the page is parsed once). What a class brings into agreement is its count.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mwparserfromhell

from clozeline.pipeline.sources.mediawiki.markup import BLOCK_TAGS
from clozeline.pipeline.sources.mediawiki.templates import is_shown, template_name
from tests.support.small_sources import strip_markup

BLOCK = re.compile(BLOCK_TAGS)
HIDDEN = re.compile(r"\[\[\s*(?:File|Image|Category)\s*:", re.IGNORECASE)
OTHER_LANGUAGE = re.compile(r"[a-z-]{2,12}:\s?\S")
MARKS = re.compile(r"^[|!]|''|\[\[|\{\{|\{\||</?\w|__[A-Z]+__")
WORD = re.compile(r"[^\W_]")
LINE_END = "\v"  # strip_code takes "\n" away at the ends of an element
GAP = re.compile(r"[\s,.;:()]+")

AS_IT_IS = "strip_code as it is"
GAPS = "blanks and marks around what is gone"


@dataclass
class Comparison:
    """Our paragraphs, those of strip_code, and those found in both, as multisets, page by page."""

    name: str
    ours: int = 0
    theirs: int = 0
    same: int = 0


def comparisons(pages: Iterable[tuple[str, str]]) -> tuple[list[Comparison], Counter[str]]:
    """One row per class, for pages of (markup, our text); and the rest of strip_code's, by kind.

    The remains are keyed by a name, or "name: example" for those that no class explains.
    """
    rows = [Comparison(AS_IT_IS), *map(Comparison, CLASSES), Comparison(GAPS)]
    remains: Counter[str] = Counter()
    for markup, text in pages:
        ours = text.split("\n")
        states = list(_states(markup))
        for row, theirs in zip(rows, states, strict=False):
            _add(row, ours, theirs)
        bare = [[GAP.sub("", line) for line in lines] for lines in (ours, states[-1])]
        _add(rows[-1], bare[0], bare[1])
        remains.update(map(_remaining, _missing(states[-1], bare[1], bare[0])))
    return rows, remains


def _states(markup: str) -> Iterator[list[str]]:
    """The paragraphs of plain `strip_code`, then after each class."""
    tree = mwparserfromhell.parse(markup)
    yield _paragraphs(tree)
    for take_out in CLASSES.values():
        take_out(tree)
        yield _paragraphs(tree)


def _paragraphs(tree: Any) -> list[str]:
    text = tree.strip_code().replace(LINE_END, "\n")
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n"))
    return [line for line in lines if WORD.search(line)]


def _empty(*names: str) -> Callable[[Any], None]:
    def take_out(tree: Any) -> None:
        for tag in tree.filter_tags(matches=lambda tag: tag.tag.strip().lower() in names):
            tag.contents, tag.self_closing = "", True

    return take_out


def _hide_links(tree: Any) -> None:
    for link in tree.filter_wikilinks(matches=lambda link: HIDDEN.match(str(link))):
        link.title, link.text = "", None


def _end_lines(tree: Any) -> None:
    for tag in tree.filter_tags(matches=lambda tag: BLOCK.fullmatch(tag.tag.strip().lower())):
        if tag.wiki_markup is None and tag.contents is not None:
            tag.contents.insert(0, LINE_END)
            tag.contents.append(LINE_END)


#: What strip_code keeps and a reader would not miss, and the lines that it runs together.
def _show_templates(tree: Any) -> None:
    for template in tree.filter_templates(recursive=tree.RECURSE_OTHERS):
        markup = str(template)
        if is_shown(template_name(markup, 2, len(markup) - 2)):
            tree.replace(template, strip_markup(f"x{markup}x")[1:-1])


CLASSES: dict[str, Callable[[Any], None]] = {
    "text of references": _empty("ref", "references"),
    "cells of tables": _empty("table"),
    "captions of files, categories": _hide_links,
    "blocks of code": _empty("source", "syntaxhighlight", "pre"),
    "block elements run into one line": _end_lines,
    "templates that show an argument": _show_templates,
}


def _add(row: Comparison, ours: list[str], theirs: list[str]) -> None:
    row.ours += len(ours)
    row.theirs += len(theirs)
    row.same += (Counter(ours) & Counter(theirs)).total()


def _missing(lines: Sequence[str], keys: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    left = Counter(known)
    for line, key in zip(lines, keys, strict=True):
        left[key] -= 1
        if left[key] < 0:
            yield line


def _remaining(paragraph: str) -> str:
    if MARKS.search(paragraph):
        return "markup that strip_code leaves standing"
    if OTHER_LANGUAGE.match(paragraph):
        return "links to the page in other languages"
    return f"other: {paragraph}"
