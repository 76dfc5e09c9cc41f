"""Wiki markup to plain text: a linear scan first, a real parser for the little that is left.

    '''Rome''' ({{IPA|x}}) is a [[city|big city]].<ref>a</ref>  ->  Rome is a big city.

What a reader of the text would not miss (comments, references, tables, templates, formulas,
galleries, code, files, categories) is removed first, in one pass over the page with a stack. Then
bold and italics are removed line by line, as MediaWiki reads them. Then links, external links,
tags, headings and bullets are rewritten by expressions that agree with mwparserfromhell on them.
Only a line that still holds markup goes to that parser: one in thousands.

Every step is linear in the page except the parser, which takes twice as long for each further
bracket left open, so that 400 characters can cost it two seconds. What it sees is therefore
limited, by counts and not by time, so that every machine gives the same text. With these limits the
slowest of all pages that were designed to be slow takes two seconds
(`tests/benchmarks/markup_speed.py --worst`), so no page needs a timeout.

Templates are not expanded, but those that show an argument show it (`templates`); any other leaves
a gap, and gaps inside sentences are counted. Unlike with mwparserfromhell, a reference ends at its
end tag whatever it holds, markup that was never closed loses only its marks, a block element begins
a line, and what a template leaves in parentheses, "(; born", is cleaned up.

Hidden namespaces are recognized by the names in the dump's header and those of `namespaces`.
"""

import html
import html.entities
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from clozeline.pipeline.sources.mediawiki.emphasis import strip_emphasis
from clozeline.pipeline.sources.mediawiki.namespaces import LinkPatterns, link_patterns
from clozeline.pipeline.sources.mediawiki.templates import (
    MAX_ARGUMENTS,
    MAX_SHOWN,
    Part,
    is_shown,
    leaves_a_hole,
    shown_parts,
    template_name,
)

MAX_BYTES = 2 << 20  #: of UTF-8 per page; MediaWiki saves no larger one
MAX_DEPTH = 100  #: of nested braces and brackets; MediaWiki expands 40
MAX_OPEN = 100_000  #: characters [ { < in a page
# Limits on what goes to the parser; other lines only lose their marks. Real pages stay far below.
MAX_OPEN_IN_LINE = 8  #: characters [ { <
MAX_PARSED = 50_000  #: characters per page

# Elements removed with their content. It is opaque: braces in a formula are not a template.
DROPPED_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|score|hiero|graph|imagemap|inputbox|categorytree"
    "|templatedata|templatestyles|syntaxhighlight|source|pre|mapframe|maplink|includeonly|indicator|section"
)
# Elements of which only the tags are removed; unknown ones are text, as MediaWiki shows them.
BLOCK_TAGS = "p|div|center|blockquote|ul|ol|li|dl|dt|dd|tr|td|th|caption|h[1-6]|hr|poem"
INLINE_TAGS = (
    "abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|langconvert|mark|noinclude"
    "|nowiki|onlyinclude|q|rb|rp|rt|rtc|ruby|s|samp|small|span|strike|strong|sub|sup|table|tbody"
    "|thead|time|tt|u|var|wbr|phonos|translate|tvar|languages"
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
BRACKETS = re.compile(r"\[\[|\]\]")
EXTERNAL_LINK = re.compile(
    r"\[(?:(?:https?:|ftps?:|ircs?:|news:|git:|gopher:|svn:|ssh:|telnet:)?//|mailto:|tel:)"
    r"[^\s\[\]<>\"]*+[ \t]*+([^\[\]\n]*+)\]",
    re.IGNORECASE,
)
BLOCK_TAG = re.compile(rf"</?(?:{BLOCK_TAGS})(?=[\s/>])[^<>]*>", re.IGNORECASE)
BREAK_TAG = re.compile(r"</?br(?=[\s/>\\])[^<>]*>", re.IGNORECASE)
OTHER_TAG = re.compile(rf"</?(?:{INLINE_TAGS}|{DROPPED_TAGS})(?=[\s/>])[^<>]*>", re.IGNORECASE)
#: Words that switch something, such as __NOTOC__: capitals, or scripts without them.
MAGIC_WORD = re.compile(
    r"__[^\W_]{3,}__|__(?=[^\s_])[^\s<>\[\]{}|=]{1,60}?[^\s_]__|\uff3f{2}[^\s\uff3f]{2,60}\uff3f{2}"
)

RESIDUE = re.compile(r"\[\[|\[[a-z]*:?//|\{\{|\}\}", re.IGNORECASE)
BARE = re.compile(r"\[\[|\]\]|\{\{+|\}\}+")
ENTITY = re.compile(r"&(?:(#[0-9]{1,7};|#[xX][0-9a-fA-F]{1,6};)|([A-Za-z][A-Za-z0-9]{1,31};))")
LITERAL = str.maketrans({mark: f"&#{ord(mark)};" for mark in "&[]{}<>|'=*#:;_-"})
BLANKS = re.compile(r"[ \t]{2,}")
EMPTY_PARENTHESES = re.compile(r"(?:^|\s)\([\s,;:]*\)")
JUNK_IN_PARENTHESES = re.compile(
    r"(?<=\()(?:(?:\s*[,;:])+\s+|\s+)(?=\S)|(?<!\s)(?:\s*[,;])?\s++(?=\))"
)

WORD = re.compile(r"[^\W_]")  # a line of punctuation alone is what templates left behind

HOLE = "\1"  # in place of a template whose words are missing from a sentence
SENTENCE_END = re.compile(r"(?<=[^\W\d_]{3}[.!?]) +(?=[^\Wa-z])|(?<=[。!?।])(?=[^\W\d_])")

# -{text}-, -{zh-hans:A; zh-hant:B}-, -{A|zh-cn:A; zh-tw:B}-, -{H|X=>zh-hans:A}-
CONVERSION = re.compile(r"-\{(?!\{)((?:(?!-\{(?!\{)|\}-).){0,4000})\}-", re.DOTALL)
CONVERSION_FLAGS = re.compile(r"\s*([A-Z+-](?:\s*;\s*[A-Z+-])*|[a-z]{2,3}(?:-[a-z;\s-]*)?)\s*\|")
VARIANT = re.compile(r"(?:^|;)\s*(?:[^;:]*=>\s*)?([a-z]{2,3}(?:-[a-z]{2,8})*)\s*:", re.DOTALL)
HIDING_FLAGS = frozenset("HT-")

Span = tuple[int, int, str]  # start, stop, and the replacement


def over_budget(markup: str) -> str | None:
    """Why a page is too costly to strip: "markup_bytes", "open_braces", "nesting_depth", or None.

    A pure function of the page. The cheapest check comes first.
    """
    if len(markup) > MAX_BYTES or len(markup.encode(errors="replace")) > MAX_BYTES:
        return "markup_bytes"
    if sum(map(markup.count, "[{<")) > MAX_OPEN:
        return "open_braces"
    depth = 0
    for match in re.finditer(r"\{\{|\[\[|\}\}|\]\]", markup):
        depth = depth + 1 if match[0] in ("{{", "[[") else max(depth - 1, 0)
        if depth > MAX_DEPTH:
            return "nesting_depth"
    return None


def strip_markup(markup: str, links: LinkPatterns | None = None) -> str:
    """The text that a reader of the page sees: a line is a paragraph, a list item or a heading.

    No empty lines, no spaces around a line. Linear in the page, except for the parser's part, which
    `over_budget` bounds: call that first. `links` has the names of the page's wiki.
    """
    return strip_page(markup, links)[0]


def strip_page(
    markup: str, links: LinkPatterns | None = None, *, drop_holes: bool = False
) -> tuple[str, int]:
    """The text as by `strip_markup`, and how many templates were removed inside sentences.

    With `drop_holes`, the text is without those sentences.
    """
    links = links or link_patterns()
    text = "\n" + markup.replace("\0", "").replace(HOLE, "") + "\n"
    spans = _Scan(text).spans
    holes = sum(instead == HOLE for *_, instead in spans)
    text = _without(text, spans, hole=HOLE if drop_holes else "")
    if "-{" in text:
        text = _converted(text)
    text = _text_of(text, links)
    if drop_holes and HOLE in text:
        text = "\n".join(filter(WORD.search, map(_without_holes, text.split("\n"))))
    return text, holes


def _without_holes(line: str) -> str:
    """The line without the sentences in which a template was removed."""
    if HOLE not in line:
        return line
    ends = [end.end() for end in SENTENCE_END.finditer(line)]
    sentences = (line[i:j] for i, j in pairwise([0, *ends, len(line)]))
    return "".join(sentence for sentence in sentences if HOLE not in sentence).strip()


def _converted(text: str) -> str:
    """Without the marks of language conversion, innermost first, as MediaWiki shows them.

    -{zh-hans:A; zh-hant:B}-  ->  A,    -{H|zh-cn:A; zh-tw:B}-  ->  (nothing)
    """
    for _ in range(MAX_DEPTH // 10):
        text, found = CONVERSION.subn(_variant, text)
        if not found:
            break
    return text


def _variant(conversion: re.Match[str]) -> str:
    """What a conversion shows: the variant of the wiki as such ("zh"), else the first one."""
    rule = conversion[1]
    if flags := CONVERSION_FLAGS.match(rule):
        if HIDING_FLAGS & set(map(str.strip, flags[1].split(";"))):
            return ""
        rule = rule[flags.end() :]
    variants = list(VARIANT.finditer(rule))
    if not variants:
        return rule
    stops = [*(variant.start() for variant in variants[1:]), len(rule)]
    texts = {
        variant[1]: rule[variant.end() : stop].strip().rstrip(";").rstrip()
        for variant, stop in reversed(list(zip(variants, stops, strict=True)))
    }
    return texts[min(reversed(texts), key=lambda code: "-" in code)]


def _text_of(text: str, links: LinkPatterns) -> str:
    """The text of a page whose templates, elements and tables are removed."""
    if "''" in text:  # before links: a link with a quoted label may stand in quotes
        text = "\n".join(map(strip_emphasis, text.split("\n")))
    text = links.shown.sub(r"\1", text)
    text = EXTERNAL_LINK.sub(r"\1", text)
    if "[[" in text:
        text = links.unclosed.sub("", _without(text, _hidden_links(text, links)))
    if "<" in text:
        text = OTHER_TAG.sub("", BREAK_TAG.sub(" ", BLOCK_TAG.sub("\n", text)))
    if "__" in text or "\uff3f\uff3f" in text:
        text = MAGIC_WORD.sub(_without_magic, text)
    return "\n".join(line for line in _plain_lines(text) if WORD.search(line))


class _Scan:
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
        literal = ENTITY.sub(_character, content).translate(LITERAL)
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


def _without_magic(word: re.Match[str]) -> str:
    """__NOTOC__, __目次非表示__, __ללא_תוכן__  ->  (nothing),   __init__, __A_B__  ->  the same"""
    name = word[0].strip("_\uff3f")
    if any(c.islower() or c.isupper() for c in name if not "\u10a0" <= c <= "\u10ff"):
        return "" if name.isupper() and name.isalnum() else word[0]
    return "" if any(map(str.isalpha, name)) else word[0]  # Georgian has no capitals in text


def _hidden_links(text: str, links: LinkPatterns) -> list[Span]:
    """The spans of links such as [[File:...]], whose captions may hold further links."""
    spans: list[Span] = []
    stack: list[int] = []
    for token in BRACKETS.finditer(text):
        if token[0] == "[[":
            stack.append(token.start())
        elif stack and links.hidden.match(text, start := stack.pop()):
            while spans and spans[-1][0] >= start:
                spans.pop()
            spans.append((start, token.end(), ""))
    return spans


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


def _without(text: str, spans: list[Span], hole: str = "") -> str:
    """The text with its spans replaced; one of the spaces around a removed span is left."""
    parts: list[str] = []
    position = 0
    for start, stop, instead in spans:
        instead = hole if instead == HOLE else instead
        if text[start - 1] == " " and text[stop : stop + 1] in " ,.;" and not instead:
            start -= 1
        elif text[start - 1] == "'":
            instead += "\0"  # so that ''{{a}}'' does not become a run of four
        parts += text[position:start], instead
        position = stop
    parts.append(text[position:])
    return "".join(parts)


def _plain_lines(text: str) -> Iterator[str]:
    left = MAX_PARSED
    for line in map(_without_prefix, text.split("\n")):
        if RESIDUE.search(line):
            if len(line) <= left and sum(map(line.count, "[{<")) <= MAX_OPEN_IN_LINE:
                left -= len(line)
                line = _parsed(line)
            line = BARE.sub("", line)
        yield _tidied(line)


def _tidied(line: str) -> str:
    """Decodes entities, and removes superfluous spaces and what gaps left in parentheses."""
    if "&" in line:
        line = ENTITY.sub(_character, line)
    if "(" in line:
        line = JUNK_IN_PARENTHESES.sub("", EMPTY_PARENTHESES.sub("", line))
    if "  " in line:
        line = BLANKS.sub(" ", line)
    return line.strip()


def _without_prefix(line: str) -> str:
    """== A ==  ->  A,   *: a  ->  a,   | cell of a table that never ended  ->  (nothing)"""
    line = line.strip()
    if line.startswith(("|", "{|")):
        line = ""
    elif line.startswith("----"):
        line = line.lstrip("-")
    elif line.startswith("="):
        level = min(len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("=")), 6)
        line = line[level : len(line) - level].strip()
    elif line.startswith(("*", "#", ":", ";")):
        line = line.lstrip("*#:; \t")
    return line.replace("\0", "")  # the parser takes it for the end of the text


def _parsed(line: str) -> str:
    """The line as mwparserfromhell strips it; entities stay, so that they are decoded only once."""
    import mwparserfromhell

    return mwparserfromhell.parse(line).strip_code(normalize=False, collapse=False)


def _character(entity: re.Match[str]) -> str:
    """&amp;  ->  &,   &#228;  ->  ä,   &nonsense;  ->  &nonsense;"""
    if entity[2]:
        return html.entities.html5.get(entity[2], entity[0])
    character = html.unescape(entity[0])
    return " " if character in ("\n", "\r", "\t") else character
