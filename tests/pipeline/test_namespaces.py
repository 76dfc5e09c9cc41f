"""Dumps of many languages: files, categories, redirects and magic words by their wikis' names."""

import bz2
from dataclasses import dataclass

import pytest

from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.sources.mediawiki.dump import hidden_names
from clozeline.pipeline.sources.mediawiki.markup import strip_markup
from clozeline.pipeline.sources.mediawiki.namespaces import (
    link_patterns,
)
from tests.pipeline.test_markup import LITERALS
from tests.support.languages import joined, paragraphs_in
from tests.support.small_sources import page, read


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
    parts = dump(INVENTED, "ru")
    packed = [bz2.compress(part.encode()) for part in parts]
    path = tmp_path / "x-multistream.xml.bz2"
    path.write_bytes(b"".join(packed))
    offset, index = len(packed[0]), ""
    for number, stream in enumerate(packed[1:-1]):
        index += f"{offset}:{number}:A\n"
        offset += len(stream)
    (tmp_path / "x-multistream-index.txt.bz2").write_bytes(bz2.compress(index.encode()))
    blocks = list_blocks([str(path)], block_bytes=1, text_columns=("text",))
    assert len(blocks) > 3
    assert read(path, block_bytes=1).texts == expected(INVENTED, "ru")


@pytest.mark.parametrize("codec", ["utf-8", "utf-16"])
def test_the_names_of_hidden_namespaces_are_in_the_header(codec, tmp_path):
    path = tmp_path / "x.xml"
    path.write_bytes("".join(dump(INVENTED, "ru")).encode(codec))
    with path.open("rb") as file:
        assert hidden_names(file) == {INVENTED.media, INVENTED.file, INVENTED.category}
    path.write_text(page("A", '<namespace key="14">a</namespace>'))
    with path.open("rb") as file:
        assert hidden_names(file) == frozenset()


def test_a_dump_that_is_truncated_in_its_header_is_rejected_not_raised(tmp_path):
    path = tmp_path / "x.xml.bz2"
    path.write_bytes(bz2.compress(header(INVENTED).encode() * 50)[:-20])
    found = read(path)
    assert found.texts == []
    assert len(found.rejected) == 1


def test_names_of_one_wiki_change_nothing_else():
    links = link_patterns(frozenset(["Turqum.ak", "File", "Qoof ayl"]))
    for markup, text in LITERALS.items():
        assert strip_markup(markup, links) == text
    markup = "[[Turqumxak:a]] [[Turqum.ak:a]] [[QOOF_ayl:b|c]] [[Qoof  ayl:b]]"
    assert strip_markup(markup, links) == "Turqumxak:a"
    assert strip_markup("[[Turqum.ak:a]]") == "Turqum.ak:a"


@pytest.mark.parametrize(
    "word",
    [
        "__NOTOC__", "__БЕЗОГЛ__", "__目次非表示__", "＿＿目次強制＿＿", "__بی‌فهرست__",
        "__ללא_תוכן__", "__ไม่มีสารบัญ__", "__უგალერეო__", "__विषयसूचीहीन__", "__목차숨김__",
    ],
)  # fmt: skip
def test_magic_words_of_every_script_are_removed(word):
    assert strip_markup(f"{word}a {word} b{word}\nc") == "a b\nc"


@pytest.mark.parametrize(
    "word", ["__init__", "__A_B__", "__x__", "__123__", "__ 目次 __", "__Init__"]
)
def test_other_words_between_underscores_stay(word):
    assert strip_markup(f"a {word} b") == f"a {word} b"
