"""One pass over a page with a stack: its comments, elements, tables, templates, what they leave."""

import html
import html.entities
import re
from collections import Counter

from clozeline.pipeline.sources.mediawiki.templates import (
    MAX_ARGUMENTS,
    MAX_SHOWN,
    Part,
    is_shown,
    leaves_a_hole,
    shown_parts,
    template_name,
)

# Elements removed with their content. It is opaque: braces in a formula are not a template.
DROPPED_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|score|hiero|graph|imagemap|inputbox|categorytree"
    "|templatedata|templatestyles|syntaxhighlight|source|pre|mapframe|maplink|includeonly|indicator"
    "|section|pages|pagelist|pagequality|quiz|charinsert|dynamicpagelist|rss"
)

TOKEN = re.compile(
    rf"<!--|<(?P<tag>nowiki|{DROPPED_TAGS})(?=[\s/>])[^<>]*>|<(?P<table>/?table)(?=[\s/>])[^<>]*>"
    r"|(?P<open>\{\{+)|(?P<close>\}\}+)"
    # "|}" at the start of a line ends a table, but "|}}" ends a template.
    r"|\n[ \t:*#]*(?P<begin>\{\|)|\n[ \t]*(?P<end>\|\})(?!\}(?!\}))",
    re.IGNORECASE,
)
END_TAG = {
    tag: re.compile(rf"</{tag}\s*>", re.IGNORECASE) for tag in ("nowiki", *DROPPED_TAGS.split("|"))
}
INLINE_CODE = re.compile(r"<(?:syntaxhighlight|source)\s(?:[^<>]*\s)?inline\b", re.IGNORECASE)
ENTITY = re.compile(r"&(?:(#[0-9]{1,7};|#[xX][0-9a-fA-F]{1,6};)|([A-Za-z][A-Za-z0-9]{1,31};))")
LITERAL = str.maketrans({mark: f"&#{ord(mark)};" for mark in "&[]{}<>|'=*#:;_-"})

HOLE = "\1"  # in place of a template whose words are missing from a sentence

Span = tuple[int, int, str]  # start, stop, and the replacement


class Scan:
    """The spans that are dropped with their content, in order, none inside another.

    A closing token ends the nearest opening one of its kind and forgets those in between, so that
    every token is pushed and popped once, whatever the page.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans: list[Span] = []
        self.stack: list[tuple[str, int, int]] = []  # kind, start, length of a run of braces
        self.open: Counter[str] = Counter()  # kinds on the stack
        self.endless: set[str] = set()  # elements without an end tag from here on
        position = 0
        while token := TOKEN.search(text, position):
            position = self.read(token)

    def read(self, token: re.Match[str]) -> int:
        """Processes one token. Returns where to search for the next one."""
        kind = token.lastgroup
        if kind is None:
            return self.drop_comment(token)
        if kind == "tag":
            return self.drop_element(token)
        if kind == "close":
            self.close_braces(token.end(), len(token[0]))
        elif kind == "end" or token[0].startswith("</"):
            opening = "begin" if kind == "end" else "table"
            if self.open[opening]:
                self.drop(self.pop(opening)[0], token.end())
        else:
            start = token.start() if kind == "table" else token.start(kind)
            self.push(kind, start, len(token[kind]))
        return token.end()

    def push(self, kind: str, start: int, length: int) -> None:
        self.stack.append((kind, start, length))
        self.open[kind] += 1

    def pop(self, kind: str) -> tuple[int, int]:
        """Start and length of the nearest opening token of a kind, which is on the stack."""
        while True:
            top, start, length = self.stack.pop()
            self.open[top] -= 1
            if top == kind:
                return start, length

    def close_braces(self, stop: int, length: int) -> None:
        """Pairs runs as MediaWiki does: {{{ }}} where both have three left, else {{ }}."""
        while length >= 2 and self.open["open"]:
            start, run = self.pop("open")
            taken = 3 if min(run, length) == 3 else 2
            run, length = run - taken, length - taken
            if taken == 3:
                self.drop(start + run, stop - length)
            else:
                self.drop_template(start + run, stop - length)
            if run >= 2:
                self.push("open", start, run)

    def drop_template(self, start: int, stop: int) -> None:
        """Drops {{..}}, but for what it shows."""
        name = template_name(self.text, start + 2, stop - 2)
        if is_shown(name) and stop - start <= MAX_SHOWN:
            first = len(self.spans)
            while first and self.spans[first - 1][0] >= start:
                first -= 1
            inside = self.spans[first:]
            cuts = _argument_cuts(self.text, start + 2, stop - 2, inside)
            parts = shown_parts(name, self.text, cuts, stop - 2) if cuts is not None else None
            if parts:
                del self.spans[first:]
                self.show(start, stop, parts, inside)
                return
        self.drop(start, stop, HOLE if leaves_a_hole(self.text, start, stop) else "")

    def show(self, start: int, stop: int, parts: list[Part], inside: list[Span]) -> None:
        """Drops a template but for these parts; the spans inside of them stay."""
        position = start
        for part in parts:
            if part.instead is not None:
                self.spans.append((position, part.stop, part.instead))
            else:
                if part.start > position:
                    self.spans.append((position, part.start, ""))
                self.spans += [
                    span for span in inside if part.start <= span[0] and span[1] <= part.stop
                ]
            position = part.stop
        if stop > position:
            self.spans.append((position, stop, ""))

    def drop_comment(self, token: re.Match[str]) -> int:
        end = self.text.find("-->", token.end())
        stop = end + len("-->") if end >= 0 else len(self.text)  # MediaWiki: to the end of the page
        self.drop(token.start(), stop)
        return stop

    def drop_element(self, token: re.Match[str]) -> int:
        """Drops <tag ...> with its content, but keeps that of <nowiki> and inline code as it is."""
        tag = token["tag"].lower()
        if token[0].endswith("/>"):
            self.drop(token.start(), token.end())
            return token.end()
        end = None if tag in self.endless else END_TAG[tag].search(self.text, token.end())
        if end is None:
            self.endless.add(tag)
            return token.end()
        kept = tag == "nowiki" or INLINE_CODE.match(token[0])
        content = self.text[token.end() : end.start()] if kept else ""
        literal = ENTITY.sub(character, content).translate(LITERAL)
        self.drop(token.start(), end.end(), literal)
        return end.end()

    def drop(self, start: int, stop: int, instead: str = "") -> None:
        while self.spans and self.spans[-1][0] >= start:
            self.spans.pop()
        if self.spans and self.spans[-1][1] == start:  # neighbours: one gap, not two
            *_, before = self.spans[-1]
            if {before, instead} <= {"", HOLE}:
                start, instead = self.spans.pop()[0], max(before, instead)
        self.spans.append((start, stop, instead))


def _argument_cuts(text: str, start: int, stop: int, inside: list[Span]) -> list[int] | None:
    """Where the arguments of a template begin, behind its bars; None if there are too many.

    The bars of links and of what stands in removed spans are none of its own.
    """
    if text.count("|", start, stop) > MAX_ARGUMENTS:
        return None
    cuts = [start + len("formatnum:")] if text.startswith("formatnum:", start) else []
    position = start
    spans = iter([*inside, (stop, stop, "")])
    left, right, _ = next(spans)
    begin = start
    while (bar := text.find("|", position, stop)) >= 0:
        while right <= bar:
            left, right, _ = next(spans)
        if left > bar and text.count("[[", begin, bar) <= text.count("]]", begin, bar):
            cuts.append(bar + 1)
            begin = bar + 1
        position = bar + 1
    return cuts


def character(entity: re.Match[str]) -> str:
    """&amp;  ->  &,   &#228;  ->  ä,   &nonsense;  ->  &nonsense;"""
    if entity[2]:
        return html.entities.html5.get(entity[2], entity[0])
    character = html.unescape(entity[0])
    return " " if character in ("\n", "\r", "\t") else character
