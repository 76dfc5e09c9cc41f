"""Marks inside lines: links that show nothing, bold and italics, language conversion.

[[Datei:a.jpg|thumb|..]]  [[श्रेणी:नगर]]  [[de:Rom]] on a line of its own
'''A''' ''b'' it's  ->  A b it's
-{zh-hans:A; zh-hant:B}-  ->  A
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

# What wikis call files and categories besides the name in their dump's header: in English, or as
# they did before.
FILE_NAMES = (
    "File|Image|Media|Bild|Datei|Fichier|Archivo|Imagen|Immagine|Ficheiro|Imagem|Imatge|Afbeelding"
    "|Billede|Kuva|Plik|Grafika|Soubor|Kép|Imagine|Slika|Слика|Файл|Изображение|Картинка|Картина"
    "|Зображення|Εικόνα|Attēls|Dosya|Resim|Hình|Gambar|صورة|تصویر|תמונה|画像|ファイル|그림|文件|图像|檔案"
    "|圖像|चित्र|ภาพ|ছবি|სურათი"
)
CATEGORY_NAMES = (
    "Category|Kategorie|Kategoria|Kategori|Kategorija|Catégorie|Categoría|Categoria|Категория"
    "|Категорія|تصنيف|カテゴリ|분류|分类|分類"
)
#: The namespaces of these names: Media, File, Category.
HIDDEN_KEYS = frozenset((-2, 6, 14))
FILE_EXTENSIONS = (
    "jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|og[agv]|opus|webm|mp[34]|flac|wav|midi?|stl"
)
#: Codes of Wikipedias: [[de:Rom]] inside a line links to the same page in another language. All of
#: two letters but mw:, which is MediaWiki's, all with a hyphen, and these.
LANGUAGES = (
    "(?!mw)(?-i:[A-Za-z][a-z])|[a-z]{2,4}-[a-z-]{2,10}"
    "|als|ang|arc|arz|ast|azb|bar|bcl|bpy|ceb|chr|ckb|crh|csb|diq|dsb|eml|frr|fur|gan|haw|hif|hsb"
    "|ilo|jbo|kab|koi|krc|ksh|lad|lij|lmo|ltg|mhr|mrj|mwl|myv|mzn|nah|nap|nds|nov|nrm|pam|pap|pcd"
    "|pdc|pms|pnb|rue|sah|scn|sco|simple|stq|szl|tet|tpi|tyv|udm|vec|vep|vls|war|wuu|xal|xmf|zea"
)
FILLING = r"[ _\u200e\u200f]*"  # blanks and direction marks, which MediaWiki ignores around a name


@dataclass(frozen=True)
class LinkPatterns:
    """Expressions for the links of one wiki, and its language."""

    hidden: re.Pattern[str]  #: how a link that shows nothing begins
    unclosed: re.Pattern[str]  #: such a link to the end of its line
    shown: re.Pattern[str]  #: any other link, with what it shows as group 1
    language: str = ""  #: of the wiki, such as "zh"; empty where it is unknown


@cache
def link_patterns(names: frozenset[str] = frozenset(), language: str = "") -> LinkPatterns:
    """The expressions for a wiki with these names of hidden namespaces besides the listed ones."""
    # Targets; the last two kinds link to the page in another language. The lookahead for a colon
    # saves most links from the long list.
    hidden = (
        r"(?=[^|\[\]:\n]{1,40}:)"
        rf"(?:{FILLING}(?:{_alternatives(names)}){FILLING}:"
        # A file name has no colon: [[wikisource:File:a.pdf|b]] is a link to a page.
        rf"|[^|\[\]:\n]+:[^|\[\]:\n]*\.(?:{FILE_EXTENSIONS})[ _]*(?:\||\]\])"
        rf"|(?:{LANGUAGES}):[^|\[\]\n]*\]\]"
        r"|(?<=\n\[\[)[a-z]{2,3}(?:-[a-z]{2,8}){0,2}:[^|\[\]\n]*\]\][ \t]*(?=\n))"
    )
    return LinkPatterns(
        hidden=re.compile(rf"\[\[{hidden}", re.IGNORECASE),
        unclosed=re.compile(rf"\[\[{hidden}[^\n]*", re.IGNORECASE),
        shown=re.compile(
            rf"\[\[(?::|(?!{hidden}))(?:[^\[\]|\n]*\n?\|(?!\]\]))?([^\[\]|]*)\|?\]\]", re.IGNORECASE
        ),
        language=language,
    )


def _alternatives(names: Iterable[str]) -> str:
    """An expression for the listed names and these; "_" is a space."""
    listed = f"{FILE_NAMES}|{CATEGORY_NAMES}".split("|")
    known = {name.lower() for name in listed}
    new = sorted(name for name in names if name.lower() not in known and name.strip(" _"))
    words = (re.split("[ _]+", name.strip(" _")) for name in (*listed, *new))
    return "|".join("[ _]+".join(map(re.escape, parts)) for parts in words)


RUN = re.compile(r"''+")
EMPTY_EMPHASIS = re.compile(r" (''+)\0\1(?=[ ,.])")


def strip_emphasis(line: str) -> str:
    """The line without its marks, by the rules of MediaWiki's `Parser::doQuotes`.

    A line that began with marks begins with "\\0".

    In a run of four apostrophes, one is text; in a run of more than five, all but five are. If bold
    and italics are both left open, one ''' is an apostrophe and italics. The "\\0" keeps what
    follows from beginning the line: '''#1''' is not a list.
    """
    if "''" not in line:
        return line
    line = EMPTY_EMPHASIS.sub("", line)
    texts = RUN.split(line)
    runs = list(map(len, RUN.findall(line)))
    marks = [3 if run == 4 else min(run, 5) for run in runs]
    for i, (run, mark) in enumerate(zip(runs, marks, strict=True)):
        texts[i] += "'" * (run - mark)
    bold = [i for i, mark in enumerate(marks) if mark == 3]
    both = marks.count(5)
    if bold and (len(bold) + both) % 2 and (marks.count(2) + both) % 2:
        texts[min(bold, key=lambda i: _likely_bold(texts[i]))] += "'"
    if not texts[0].strip():
        texts[0] += "\0"
    return "".join(texts)


def _likely_bold(before: str) -> int:
    """How likely ''' is bold, by what precedes it: least after a single letter, most after a space.

    L'''a  ->  0 where a space is before the L,    be'''a  ->  1,    a '''b  ->  2
    """
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] == " " else 1


# -{text}-, -{zh-hans:A; zh-hant:B}-, -{A|zh-cn:A; zh-tw:B}-, -{H|X=>zh-hans:A}-
CONVERSION = re.compile(r"-\{(?!\{)((?:(?!-\{(?!\{)|\}-).){0,4000})\}-", re.DOTALL)
CONVERSION_FLAGS = re.compile(r"\s*([A-Z+-](?:\s*;\s*[A-Z+-])*|[a-z]{2,3}(?:-[a-z;\s-]*)?|)\s*\|")
VARIANT = re.compile(r"(?:^|;)\s*(?:[^;:]*=>\s*)?([a-z]{2,3}(?:-[a-z]{2,8})*)\s*:", re.DOTALL)
HIDING_FLAGS = frozenset("HT-")
MAX_NESTED = 10  #: levels; deeper ones stay as they are, so that a page takes linear time


#: What a wiki shows where a conversion has no text for the wiki's own language.
FALLBACKS = {
    "zh": ("zh-hans", "zh-hant", "zh-cn", "zh-tw"),
    "gan": ("gan-hans", "gan-hant"),
    "sr": ("sr-ec", "sr-cyrl"),
    "sh": ("sh-latn",),
    "kk": ("kk-cyrl", "kk-kz"),
    "ku": ("ku-latn",),
    "uz": ("uz-latn",),
    "tg": ("tg-cyrl", "tg"),
    "crh": ("crh-latn",),
}


def converted(text: str, language: str = "") -> str:
    """Without the marks of language conversion, innermost first, as MediaWiki shows them.

    -{zh-hans:A; zh-hant:B}-  ->  A,    -{H|zh-cn:A; zh-tw:B}-  ->  (nothing)
    """
    for _ in range(MAX_NESTED):
        text, replaced = CONVERSION.subn(lambda rule: _variant(rule[1], language), text)
        if not replaced:
            break
    return text


def _variant(rule: str, language: str) -> str:
    """What a conversion shows: the text for the wiki's language, its fallbacks, or the first."""
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
    base = (language or variants[0][1]).partition("-")[0]
    wanted = (language, base, *FALLBACKS.get(base, ()), variants[0][1])
    return next(texts[code] for code in wanted if code in texts)
