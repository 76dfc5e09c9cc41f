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

Hidden namespaces are recognized by the names in the dump's header and those of `inline`.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from clozeline.pipeline.sources.mediawiki.inline import (
    LinkPatterns,
    converted,
    link_patterns,
    strip_emphasis,
)
from clozeline.pipeline.sources.mediawiki.scan import (
    DROPPED_TAGS,
    ENTITY,
    HOLE,
    Scan,
    Span,
    character,
)

MAX_BYTES = 2 << 20  #: of UTF-8 per page; MediaWiki saves no larger one
MAX_DEPTH = 100  #: of nested braces and brackets; MediaWiki expands 40
MAX_OPEN = 100_000  #: characters [ { < in a page
# Limits on what goes to the parser; other lines only lose their marks. Real pages stay far below.
MAX_OPEN_IN_LINE = 8  #: characters [ { <
MAX_PARSED = 50_000  #: characters per page

# Elements of which only the tags are removed; unknown ones are text, as MediaWiki shows them.
BLOCK_TAGS = "p|div|center|blockquote|ul|ol|li|dl|dt|dd|tr|td|th|caption|h[1-6]|hr|poem"
INLINE_TAGS = (
    "abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|langconvert|mark|noinclude"
    "|nowiki|onlyinclude|q|rb|rp|rt|rtc|ruby|s|samp|small|span|strike|strong|sub|sup|table|tbody"
    "|thead|time|tt|u|var|wbr|phonos|translate|tvar|languages"
)

BRACKETS = re.compile(r"\[\[|\]\]")
EXTERNAL_LINK = re.compile(
    r"\[(?:(?:https?:|ftps?:|ircs?:|news:|git:|gopher:|svn:|ssh:|telnet:)?//|mailto:|tel:)"
    r"[^\s\[\]<>\"]*+[ \t]*+([^\[\]\n]*+)\]",
    re.IGNORECASE,
)
BLOCK_TAG = re.compile(rf"</?(?:{BLOCK_TAGS})(?=[\s/>])[^<>]*>", re.IGNORECASE)
BREAK_TAG = re.compile(r"</?br(?=[\s/>\\])[^<>]*>", re.IGNORECASE)
OTHER_TAG = re.compile(
    rf"</?(?:{INLINE_TAGS}|{DROPPED_TAGS})(?=[\s/>])[^<>]*>|<tvar\|[^<>]*>|</>", re.IGNORECASE
)
#: Words that switch something, such as __NOTOC__: capitals, or scripts without them.
MAGIC_WORD = re.compile(
    r"__[^\W_]{3,}__|__(?=[^\s_])[^\s<>\[\]{}|=]{1,60}?[^\s_]__|\uff3f{2}[^\s\uff3f]{2,60}\uff3f{2}"
)

RESIDUE = re.compile(r"\[\[|\[[a-z]*:?//|\{\{|\}\}", re.IGNORECASE)
BARE = re.compile(r"\[\[|\]\]|\{\{+|\}\}+")
BLANKS = re.compile(r"[ \t]{2,}")
EMPTY_PARENTHESES = re.compile(r"(?:^|\s)\([\s,;:]*\)")
JUNK_IN_PARENTHESES = re.compile(
    r"(?<=\()(?:(?:\s*[,;:])+\s+|\s+)(?=\S)|(?<!\s)(?:\s*[,;])?\s++(?=\))"
)

WORD = re.compile(r"[^\W_]")  # a line of punctuation alone is what templates left behind

SENTENCE_END = re.compile(r"(?<=[^\W\d_]{3}[.!?]) +(?=[^\Wa-z])|(?<=[。!?।])(?=[^\W\d_])")


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


def strip_page(
    markup: str, links: LinkPatterns | None = None, *, drop_holes: bool = False
) -> tuple[str, int]:
    """The text that a reader of the page sees, and how many templates were removed in sentences.

    A line is a paragraph, a list item or a heading; there are no empty lines and no spaces around a
    line. With `drop_holes`, the text is without those sentences. Linear in the page, except for the
    parser's part, which `over_budget` bounds: call that first. `links` has the names of the page's
    wiki.
    """
    links = links or link_patterns()
    text = "\n" + markup.replace("\0", "").replace(HOLE, "") + "\n"
    spans = Scan(text).spans
    holes = sum(instead == HOLE for *_, instead in spans)
    text = _without(text, spans, hole=HOLE if drop_holes else "")
    if "-{" in text:
        text = converted(text, links.language)
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
                import mwparserfromhell

                left -= len(line)
                tree = mwparserfromhell.parse(line)
                line = tree.strip_code(normalize=False, collapse=False)  # entities stay
            line = BARE.sub("", line)
        yield _tidied(line)


def _tidied(line: str) -> str:
    """Decodes entities, and removes superfluous spaces and what gaps left in parentheses."""
    if "&" in line:
        line = ENTITY.sub(character, line)
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
