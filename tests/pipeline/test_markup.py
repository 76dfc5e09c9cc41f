"""Markup to text: what a reader sees, on any input, in linear time."""

from dataclasses import dataclass

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.sources.mediawiki.dump import read_wiki
from clozeline.pipeline.sources.mediawiki.inline import link_patterns
from clozeline.pipeline.sources.mediawiki.markup import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_OPEN,
    MAX_OPEN_IN_LINE,
    MAX_PARSED,
    over_budget,
    strip_page,
)
from tests.support.hostile_markup import LONG, STUBBORN, UNITS
from tests.support.languages import joined, paragraphs_in
from tests.support.small_sources import page, read, strip_markup, write_multistream

LITERALS = {
    # templates that show an argument
    "the borders are {{convert|1007|km|mi}}, of": "the borders are 1007 km, of",
    "from {{cvt|5|to|9|km2|sqmi|abbr=on}} of": "from 5 to 9 km² of",
    "is {{convert|6|ft|2|in|m}} tall": "is 6 ft 2 in tall",
    "at {{convert|20|C|F}} it": "at 20 °C it",
    "the {{lang|de|[[Rom|Romus]]}} of": "the Romus of",
    "the {{lang-fr|l'été}} of": "the l'été of",
    "{{nowrap|a {{lang|la|b}} c}} d": "a b c d",
    "a {{w|Rome}} and {{w|Rome|the city}}": "a Rome and the city",
    "{{quote|text=Veni, vidi.|author=C}}": "Veni, vidi.",
    "{{blockquote|Veni, vici.}}": "Veni, vici.",
    "{{nihongo|Tokyo|東京|Tōkyō}} is": "Tokyo is",
    "a{{snd}}b{{'}}s c{{ndash}}d": "a – b's c–d",
    "{{as of|2010}} and {{as of|2011|lc=y}}": "As of 2010 and as of 2011",
    "a {{abbr|ca.|circa}} b {{unknown|c}}.": "a ca. b.",
    "[[File:a.jpg|b {{lang|de|c}}]]d": "d",
    "{{lang-el|Ρώμη|Romi}} ({{transl|grc|Rhṓmē}}) {{zh|c=北京|p=Běijīng}}": "Ρώμη (Rhṓmē) 北京",
    "{{font color|red|white|a}} {{template:color|red|b}} {{No wrap|c d}}": "a b c d",
    "5{{x}}3{{±}}1, {{minus}}4{{degree}}, {{frac|3}}, {{sfrac|5|1|2}}": "5×3±1, −4°, 1/3, 5 1/2",
    "{{convert|5|e6acre}}, {{convert|2|by|3|ft}}": "5 million acres, 2 by 3 ft",
    "the {{HMS|A|1765|6}} of {{MV|B}} and {{asof|2011|lc=y}}": "the HMS A of MV B and as of 2011",
    "by {{ship|USS|B|CV-6|2}} {{bibleverse|John|3:16|KJV}} {{e|9}} m": "by USS B John 3:16 ×10^9 m",
    "{{ruby|漢|かん}} {{仮リンク|ローマ|en|Rome}} {{нп5|Рим|Rome|en}}": "漢 ローマ Рим",
    "a {{keypress|Ctrl|C}} {{val|5|e=6|ul=km}} {{val|5.2|u=km}}": "a Ctrl+C 5×10^6 km 5.2 km",
    # language conversion
    "a-{zh-hans:b; zh-hant:c}-d": "abd",
    "a-{zh-hant:c; zh:b;}-d": "abd",
    "a-{b}-c": "abc",
    "a-{R|b}-c": "abc",
    "a-{H|zh-cn:b; zh-tw:c}-d": "ad",
    "-{T|zh-cn:b; zh-tw:c}-d": "d",
    "a-{A|sr-ec:b; sr-el:c}-d": "abd",
    "a-{zh-hans:-{b}-c; zh-hant:d}-e": "abce",
    "a-{zh-hans|b}-c": "abc",
    "a-{|zh-hant:b;zh-hans:c}-": "ac",
    "-{kk-tr:a;kk-kz:b}- -{sh-cyrl:c;sh-latn:d}-": "b d",
    "-{zh-hans:[[a|b]]; zh-hant:c}- CO-{2}-": "b CO2",
    "no -{ end of it": "no -{ end of it",
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
    "a [[de:A b]] c [[ru:Рим]], [[WP:A]] [[:fr:D]] [[Is: A]] [[it:E|F]]": "a c, WP:A fr:D F",
    "a [[als:A]] [[zh-yue:A]], [[roa-rup:A]] [[simple:A]] [[mw:A]] [[MOS:B]]": "a, mw:A MOS:B",
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
    "<translate>a <tvar|x>5</> <tvar name=y>b</tvar></translate><pages index=c />d": "a 5 bd",
    "if a < b and c > d or <x> then": "if a < b and c > d or <x> then",
    "a</ref> b</div> <i>c": "a b\nc",
    "a <source lang=c inline>{{b}}</source> c <source lang=inline>d</source>.": "a {{b}} c.",
    "<translate>a <tvar n=1>b</tvar></translate> <phonos file=x>c</phonos><maplink />d": "a b cd",
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
    "__목차숨김__a __بی\u200cفهرست__ b__目次非表示__": "a b",
    "a __A_B__ __x__ __123__ __ 目次 __ __Init__": "a __A_B__ __x__ __123__ __ 目次 __ __Init__",
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


# Dumps of many languages: files, categories, redirects and magic words by their wikis' names


@dataclass(frozen=True)
class Wiki:
    """The names in a wiki's header, and what its pages may use without naming it there."""

    media: str
    file: str
    category: str
    redirect: str
    magic: str
    aliases: tuple[str, ...] = ()


WIKIS = {
    "zh": Wiki("Media", "File", "Category", "#重定向", "__无目录__", ("文件", "分类")),
    "ja": Wiki("メディア", "ファイル", "Category", "#転送", "＿＿目次強制＿＿", ("画像",)),
    "hi": Wiki("मीडिया", "चित्र", "श्रेणी", "#अनुप्रेषित", "__विषयसूचीहीन__", ("Image",)),
    "th": Wiki("สื่อ", "ไฟล์", "หมวดหมู่", "#เปลี่ยนทาง", "__ไม่มีสารบัญ__", ("ภาพ",)),
    "ar": Wiki("ميديا", "ملف", "تصنيف", "#تحويل", "__لافهرس__", ("صورة", "category")),
    "ru": Wiki("Медиа", "Файл", "Категория", "#перенаправление", "__БЕЗОГЛ__", ("Изображение",)),
    "am": Wiki("ፋይል", "ስዕል", "መደብ", "#REDIRECT", "__NOTOC__", ("Image", "Category")),
    "my": Wiki("မီဒီယာ", "ဖိုင်", "ကဏ္ဍ", "#REDIRECT", "__NOTOC__", ("File", "Category")),
    "ka": Wiki("მედია", "ფაილი", "კატეგორია", "#გადამისამართება", "__უგალერეო__", ("სურათი",)),
    "he": Wiki("מדיה", "קובץ", "קטגוריה", "#הפניה", "__ללא_תוכן_עניינים__", ("תמונה",)),
    "bn": Wiki("মিডিয়া", "চিত্র", "বিষয়শ্রেণী", "#পুনর্নির্দেশ", "__কোন_সূচী_নয়__", ("ছবি",)),
    "vi": Wiki("Phương tiện", "Tập tin", "Thể loại", "#đổi", "__KHÔNGMỤCMỤC__", ("Hình",)),
}  # fmt: skip

# A wiki whose names are in no list: only its header has them.
INVENTED = Wiki("Mooz", "Qoof ayl", "Turqum.ak", "#QAYTA", "__YOQ__")


def header(wiki):
    names = {-2: wiki.media, 1: "Talk", 6: wiki.file, 14: wiki.category}
    lines = (
        f'<namespace key="{key}" case="first-letter">{n}</namespace>' for key, n in names.items()
    )
    return f"<mediawiki><siteinfo><namespaces>{''.join(lines)}</namespaces></siteinfo>\n"


def article(wiki, first, second):
    """A page of two paragraphs, and everything that shows nothing; no file has an extension."""
    files = "".join(
        f"[[{name}:a b|thumb|caption [[link]] and [[{name}:c|d]]]]"
        for name in (wiki.file, wiki.file.replace(" ", "_"), wiki.media)
    )
    links = "\n".join(
        f"[[{name}:x|y]]" for name in (wiki.category, *wiki.aliases, "Category", "File")
    )
    return (
        f"{wiki.magic}\n{files}'''{first}'''[[ {wiki.category.lower()} :x]]\n\n"
        f"[[\u200f{wiki.file}:z|caption]]{second}[[:{wiki.category}:shown|]]\n{links}\n[[de:Rom]]\n"
    )


def dump(wiki, code):
    """Header, pages, footer; and the text of the articles."""
    pages = [
        page(f"A{number}", article(wiki, first, second))
        for number, (first, second) in enumerate(texts(code), start=1)
    ]
    pages.append(page("B", f"{wiki.redirect} [[A1]]\n[[{wiki.category}:C]]"))
    pages.append(page("B", f"{wiki.redirect}: [[A2]]"))
    pages.append(page(f"{wiki.category}:C", "text", ns=14))
    return [header(wiki), *pages, "</mediawiki>\n"]


def texts(code):
    code = code if code in WIKIS and code != "vi" else "ru"
    pairs = [joined(code, sentences) for sentences in paragraphs_in(code, 8, sentences=3)]
    return list(zip(pairs[::2], pairs[1::2], strict=True))


def expected(wiki, code):
    return [f"{first}\n{second}{wiki.category}:shown" for first, second in texts(code)]


CASES = [*WIKIS.items(), ("invented", INVENTED)]


@pytest.mark.parametrize(("code", "wiki"), CASES, ids=[code for code, _ in CASES])
def test_a_dump_gives_the_text_that_a_reader_of_its_wiki_sees(code, wiki, tmp_path):
    path = tmp_path / "x.xml"
    path.write_text("".join(dump(wiki, code)))
    found = read(path)
    assert found.texts == expected(wiki, code)
    assert found.counts == {"redirect": 2, "other_namespace": 1}
    assert not found.rejected


def test_every_range_of_a_multistream_dump_knows_the_names_in_the_header(tmp_path):
    source, _ = write_multistream(tmp_path, dump(INVENTED, "ru"))
    assert len(list_blocks([source], block_bytes=1)) > 3
    assert read(source, block_bytes=1).texts == expected(INVENTED, "ru")


@pytest.mark.parametrize("codec", ["utf-8", "utf-16"])
def test_the_names_of_hidden_namespaces_are_in_the_header(codec, tmp_path):
    path = tmp_path / "x.xml"
    path.write_bytes("".join(dump(INVENTED, "ru")).encode(codec))
    with path.open("rb") as file:
        assert read_wiki(file) == link_patterns(
            frozenset([INVENTED.media, INVENTED.file, INVENTED.category])
        )
    path.write_text(page("A", '<namespace key="14">a</namespace>'))
    with path.open("rb") as file:
        assert read_wiki(file) == link_patterns()


@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ('<mediawiki xml:lang="zh-tw">', "b"),
        ('<mediawiki xml:lang="zh">', "a"),
        ("<mediawiki><dbname>zhwiki</dbname>", "a"),
        ("<mediawiki>", "a"),
    ],
)
def test_a_conversion_shows_the_variant_of_the_wiki_in_the_header(root, shown, tmp_path):
    text = "-{zh-tw:b; zh-cn:a}- -{sr-el:c; sr-ec:d}-"
    (tmp_path / "x.xml").write_text(f"{root}<siteinfo></siteinfo>{page('A', text)}</mediawiki>")
    assert read(tmp_path / "x.xml").texts == [f"{shown} c" if "zh" in root else f"{shown} d"]


def test_names_of_one_wiki_change_nothing_else():
    links = link_patterns(frozenset(["Turqum.ak", "File", "Qoof ayl"]))
    for markup, text in LITERALS.items():
        assert strip_markup(markup, links) == text
    markup = "[[Turqumxak:a]] [[Turqum.ak:a]] [[QOOF_ayl:b|c]] [[Qoof  ayl:b]]"
    assert strip_markup(markup, links) == "Turqumxak:a"
    assert strip_markup("[[Turqum.ak:a]]") == "Turqum.ak:a"


@pytest.mark.parametrize(
    ("markup", "holes", "rest"),
    [
        ("The town has {{population|7}} people. It is old.", 1, "It is old."),
        ("A hill of {{height}}, as they say. Yes, it is.", 1, "Yes, it is."),
        ("A fact.{{cn}} Another fact.{{sfn|a}}", 0, "A fact. Another fact."),
        ("It is old {{cite web|a}} and known.", 0, "It is old and known."),
        ("{{infobox|a}}\nThe town is old.", 0, "The town is old."),
        ("One of {{a}} and {{b}} here. Two of {{c}} there. Three.", 3, "Three."),
    ],
)
def test_what_is_missing_in_sentences_is_counted_and_such_sentences_can_be_left_out(
    markup, holes, rest
):
    assert strip_page(markup)[1] == holes
    assert strip_page(markup, drop_holes=True) == (rest, holes)
