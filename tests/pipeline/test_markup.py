"""Markup to text: what a reader sees, on any input, in linear time."""

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.sources.mediawiki.markup import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_OPEN,
    MAX_OPEN_IN_LINE,
    MAX_PARSED,
    over_budget,
    strip_markup,
)
from tests.support.hostile_markup import LONG, STUBBORN, UNITS

LITERALS = {
    # links
    "[[a]] [[a|b]] [[a b#c|d]]s [[:Category:e]]": "a b ds Category:e",
    "[[a|''b'']] ''[[c|''d'']]'' [[e|]]": "b d e",
    "[[a|b [c] d]] [[a|b|c]]": "b [c] d b|c",
    "[http://x.y/z a b] [//x c] [mailto:d@e f] [http://x] http://y.z g": "a b c f http://y.z g",
    "[[wikisource:File:a.pdf|b]] [[wikisource:a.pdf|c]]": "b",
    "[[a\n|b]] c\n[[d\n|e": "b c\nd",
    # what stands before something that vanishes is not lost where a parser has to help
    "'''a'''{{b}} [[c|d [e] f]] g ''h''<ref>i</ref> j": "a d [e] f g h j",
    "array[0][1] and [sic] and x]]": "array[0][1] and [sic] and x]]",
    # links that show nothing, with captions that hold links, in many languages
    "[[File:a.jpg|thumb|b [[c|d]] e [[f]] {{g}} [http://h i]]]j": "j",
    "a [[Category:b]] [[Категория:c|d]]\n[[category : e]]": "a",
    "[[Datei:a.svg|mini|b]]c [[Attēls:d.JPG|e]]f [[Unknown:g.png]]h": "c f h",
    "[[File:a.jpg|thumb|[[File:b.jpg|c]] d]]e": "e",
    "[[File:a.jpg|thumb|never closed [[b]]\nc": "c",
    "a\n[[de:A]]\n[[zh-min-nan:A]]\n[[s:b]] [[fr:c|d]]": "a\ns:b d",
    # templates, parameters, tables
    "a {{b|{{c}}|[[d]]|{|}} e": "a e",
    "a {{b\n|c\n|}} d": "a d",
    "{{{a|b}}}c {{{{d}}|e}} {{{{{f}}}|g}} h": "c h",
    "a\n{|\n! b\n|-\n| c {{d}}\n{|\n| e\n|}\n| f\n|}\ng": "a\ng",
    "a\n{{b\n|c=\n{|\n| d\n|}}}\ne": "a\ne",
    ":{| class=x\n| a\n|}\nb\n<table><tr><td>c<table>d</table></td></table>e": "b\ne",
    "{|\n| a\n|-\n| table without an end\nb": "b",
    "a }} b {{{{c}} d": "a b d",
    "a {{b c\n|d=e\nf": "a b c\nf",
    # elements
    "a<ref>b {{c</ref> d<ref name=e/> f<REF name='g'>h\n\ni</ref >.": "a d f.",
    "a<!-- b\n {{ --> c <!-- to the end [[": "a c",
    "<math>\\frac{{a}}{b</math>c <gallery>\nFile:d|e\n</gallery>f": "c f",
    "<source lang=c>\n{{a}}\n</source><references/>b<references group=x></references>": "b",
    "<nowiki>''[[a]]'' {{b}} &lt; <ref></nowiki>": "''[[a]]'' {{b}} < <ref>",
    "a<br>b<br />c<sup>2</sup><div class='x'>d</div>e <span>f": "a b c2\nd\ne f",
    "if a < b and c > d or <x> then": "if a < b and c > d or <x> then",
    "a</ref> b</div> <i>c": "a b\nc",
    "a <source lang=c inline>{{b}}</source> c <source lang=inline>d</source>.": "a {{b}} c.",
    # quotes
    "'''a''' ''b'' '''''c''''' '''''d'' e''' it's": "a b c d e it's",
    "L'''amour'' est ''mort''": "L'amour est mort",
    "'''a\n''b": "a\nb",
    "''{{a}}''b '''''{{c}}'''''": "b",
    "is called ''{{a}}'', in '''{{b}}''' or ''{{c}} d''.": "is called, in or d.",
    "'''#1''' and '''|a'''\n''':b'''\n''*'' c": "#1 and |a\n:b\n* c",
    # MediaWiki's own rules for what is unbalanced, as its parser tests have them
    "plain l'''italic''plain": "plain l'italicplain",
    "plain l''''bold''' plain": "plain l'bold plain",
    "'''a'' ''b''' ''''c'''' ''''''d''''''": "a b 'c' 'd'",
    "in ''A'''s b and 'c ''d''', e": "in As b and 'c d, e",
    "in ''A'''s b": "in A's b",
    "one ''a l'''b''' c": "one a lb c",
    "''one a'''b ''c'' be'''d''' e": "one a'b c bed e",
    # lines
    "== A ==\n=B=\n=== C==\n====": "A\nB\n= C",
    "* a\n**b\n# c\n: d\n:* e\n;f: g\n----\n h": "a\nb\nc\nd\ne\nf: g\nh",
    "a\n\n\nb  \n \n . \n—": "a\nb",
    "__NOTOC__a __init__ __ДВИСТ__ b": "a __init__ b",
    # entities, once
    "&amp;lt; &lt;ref&gt; &#228;&#xE4; a&nbsp;b": "&lt; <ref> ää a\xa0b",
    "&foo; &ampx &copy &notit; &AMP;": "&foo; &ampx &copy &notit; &",
    "&#0;&#xD800;&#x110000;&#99999999; a&#10;b \0c": "\ufffd\ufffd\ufffd&#99999999; a b c",
    # what templates leave behind
    "A ({{b}}; {{c}}) is ({{d}}; born 1; {{e}}) f( ) g() (h).": "A is (born 1) f() g() (h).",
    "a {{b}}, c {{d}} {{e}}. f ({{g}} h {{i}}); j {{k}}; l": "a, c. f (h); j; l",
    "(a , ) (b \xa0) (, ; c; ) ( ;d) (e ; )": "(a) (b) (c) (;d) (e)",
}


@pytest.mark.parametrize(("markup", "text"), LITERALS.items())
def test_markup_gives_the_text_that_a_reader_sees(markup, text):
    assert strip_markup(markup) == text


#: Pieces of markup, whole and broken; laws hold for any sequence of them.
PIECES = [
    *("{{", "}}", "{{{", "}}}", "[[", "]]", "[", "]", "|", "\n{|", "\n|}", "\n|-", "\n", " ", "("),
    *("<ref>", "</ref>", "<ref/>", "<nowiki>", "</nowiki>", "<!--", "-->", "<math>", "</math>"),
    *("<table>", "</table>", "<", ">", "''", "'''", "'''''", "http://a.b", "File:c.jpg", "<br>"),
    *("=", "==", "*", "#", ":", ";", "----", "__TOC__", "&amp;", "&#91;", "&", "\0", "\r", "\x85"),
    *("word", "Two words", "{{a|b}}", "[[c|d]]", "<i>", "</i>", "<x y=", "mailto:", "Category:d"),
    ")",
]
SOUP = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
WORDS = st.from_regex(r"[a-zé]{1,6}( [a-zé]{1,6}){0,3}", fullmatch=True)


@given(st.text() | SOUP)
def test_any_page_gives_clean_lines_or_nothing(markup):
    text = strip_markup(markup)
    assert over_budget(markup) is None
    assert text == "" or all(line and line == line.strip() for line in text.split("\n"))
    assert "\0" not in text
    assert strip_markup(markup) == text


def dropped(inner):
    """What is dropped around what is dropped, to any depth; comments and references do not nest."""
    shapes = (
        "{{t|%s}}",
        "\n{|\n| %s\n|}\n",
        "[[File:x.png|%s]]",
        "{{t|<ref>a {{</ref>%s<!-- ]] -->}}",
    )
    parts = st.lists(inner, max_size=3).map(" ".join)
    return st.builds(str.__mod__, st.sampled_from(shapes), parts)


@given(
    st.recursive(st.just("hidden"), dropped, max_leaves=12).filter("hidden".__ne__), WORDS, WORDS
)
def test_balanced_markup_is_removed_with_its_content(hidden, left, right):
    assert strip_markup(f"{left} {hidden} {right}").split() == [*left.split(), *right.split()]
    assert strip_markup(f"<ref>{hidden.replace('/ref', 'ref')}</ref>{left}") == left


SIMPLE = st.lists(
    WORDS
    | st.builds("[[{}]]".format, WORDS)
    | st.builds("[[{}|{}]]".format, WORDS, WORDS)
    | st.builds("[http://a.b/c {}]".format, WORDS)
    | st.builds("''{}''".format, WORDS)
    | st.builds("'''[[{}|{}]]'''".format, WORDS, WORDS)
    | st.sampled_from(
        ["&amp;", "&lt;b&gt;", "a&nbsp;b", "it's", "a < b", "{{t|[[u]]}}", "<!-- c -->"]
    ),
    min_size=1,
    max_size=10,
).map(lambda pieces: "word " + " ".join(pieces))


@settings(max_examples=50)
@given(SIMPLE)
def test_plain_markup_reads_as_mwparserfromhell_reads_it(markup):
    assert strip_markup(markup).split() == mwparserfromhell.parse(markup).strip_code().split()


@pytest.mark.parametrize("unit", UNITS)
def test_a_hostile_page_ends(unit):
    strip_markup(unit * (250_000 // len(unit)))


@pytest.mark.parametrize("unit", ["{{", "[[", "<ref>", "\n{|", "'''''", "[http://a "])
def test_a_hostile_megabyte_ends_even_over_the_budget(unit):
    strip_markup(unit * (1_000_000 // len(unit)))


MISLEADING = [
    f"{line} [[ ]]\n" * min(MAX_OPEN // 300, MAX_BYTES // (len(line) + 7)) for line in STUBBORN
]


@pytest.mark.parametrize("page", [*LONG, *MISLEADING], ids=range(len(LONG) + len(MISLEADING)))
def test_a_page_of_one_long_run_or_of_lines_that_mislead_a_parser_ends(page):
    assert over_budget(page) is None
    strip_markup(page)


def test_the_parser_sees_no_more_of_a_page_than_its_limit():
    hard = "[[a|b [c] d]]"  # the parser gives the label, rubbing out gives it all
    lines = strip_markup(f"{hard}\n" * (MAX_PARSED // len(hard) + 2)).split("\n")
    assert lines == ["b [c] d"] * (MAX_PARSED // len(hard)) + ["a|b [c] d"] * 2
    spare = "[x] " * (MAX_OPEN_IN_LINE - 3)
    assert strip_markup(spare + hard) == spare + "b [c] d"
    assert strip_markup(f"[x] {spare}{hard}") == f"[x] {spare}a|b [c] d"


def test_the_budget_names_its_reason_just_past_each_limit():
    deep = "{{[[" * (MAX_DEPTH // 2)
    assert over_budget("") is None
    assert over_budget("a" * MAX_BYTES) is None
    assert over_budget("a" * (MAX_BYTES + 1)) == "markup_bytes"
    assert over_budget("é" * (MAX_BYTES // 2 + 1)) == "markup_bytes"
    assert over_budget("[a] " * MAX_OPEN) is None
    assert over_budget("[a] " * MAX_OPEN + "<") == "open_braces"
    assert over_budget(deep) is None
    assert over_budget(deep + "{{") == "nesting_depth"
    assert over_budget(deep + "]]{{") is None
    assert over_budget("}}" * 999 + deep + "{{") == "nesting_depth"
