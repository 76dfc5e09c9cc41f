"""Links that show nothing: files, categories, and links to the page in other languages.

    [[Datei:a.jpg|thumb|..]]  [[श्रेणी:नगर]]  [[de:Rom]] on a line of its own

A dump's header names the namespaces in the language of its wiki. A page may also use the English
names, and names that its wiki accepts without naming them in the header, such as older ones; those
of many languages are listed here. The names of other languages are recognized, too, so that a dump
without a header gives the same text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

FILE_NAMES = (
    "File|Image|Media|Datei|Bild|Fichier|Archivo|Imagen|Immagine|Ficheiro|Imagem|Ficheru|Fitxer"
    "|Imatge|Bestand|Afbeelding|Fil|Billede|Mynd|Tiedosto|Kuva|Plik|Grafika|Soubor|Súbor|Fájl|Kép"
    "|Fișier|Fişier|Imagine|Datoteka|Slika|Датотека|Слика|Файл|Изображение|Картинка|Зображення"
    "|Картина|Αρχείο|Εικόνα|Attēls|Fails|Vaizdas|Pilt|Dosya|Resim|Tập tin|Hình|Berkas|Gambar"
    "|Dosiero|Fitxategi|Irudi|ملف|صورة|پرونده|تصویر|קובץ|תמונה|ファイル|画像|파일|그림|文件|图像|檔案|圖像"
    "|चित्र|ไฟล์|ภาพ"
    # Asturian to Vietnamese, by alphabet.
    "|Arquivo|Imaxe|Bilde|Skrá|Obrázok|Lêer|Beeld|Delwedd|Íomhá|Skeda|Figura|Fasciculus|Imago"
    "|Picha|Faili|Fail|Imej|Talaksan|Payl|Fayl|Şəkil|Tasvir|Wêne|Dosye|Restr|Skeudenn|Fichièr|Imatge"
    "|Выява|Сурет|Сүрөт|\u0417\u0443\u0440\u0430\u0433|Рәсем|Акс|Файли|Պատկեր|Ֆայլ|ფაილი|სურათი|טעקע|בילד|وسائط|مدیا|رسانه|وسيط"
    "|فائل|فایل|دوتنه|انځور|پەڕگە|وێنە|ھۆججەت|عکس|चित्रम्|फाइल|फ़ाइल|संचिका|सञ्चिका|মিডিয়া|চিত্র|ছবি"
    "|ਤਸਵੀਰ|ચિત્ર|ଫାଇଲ|படிமம்|కోశం|దస్త్రం|బొమ్మ|ಚಿತ್ರ|ಫೈಲ್|ഫയൽ|പ്രമാണം|ചിത്രം|ගොනුව|රූපය|สื่อ|ຮູບ|ສື່|ဖိုင်|ပုံ|ឯកសារ|រូបភាព"
    "|ཡིག་ཆ|ስዕል|ፋይል|メディア|媒体|媒體|檔|미디어"
)
CATEGORY_NAMES = (
    "Category|Kategorie|Kategoria|Kategori|Kategória|Kategorija|Kategoreja|Kategorio|Kategooria"
    "|Catégorie|Categoría|Categoria|Categorie|Luokka|Flokkur|Thể loại|Категория|Категорія"
    "|Категорија|Катэгорыя|Санат|Κατηγορία|Կատեգորիա|კატეგორია|تصنيف|رده|קטגוריה|श्रेणी|বিষয়শ্রেণী"
    "|หมวดหมู่|カテゴリ|분류|分类|分類"
    "|Kategorya|Kategoriya|Kateqoriya|Turkum|Kategorî|Rummad|Categori|Catagóir|Jamii|Rumpun|Bólkur"
    "|Ангилал|Төркем|Гурӯҳ|קאַטעגאָריע|קאטעגאריע|זמרה|زمرہ|زمره|وېشنيزه|پۆل|تۈر|वर्ग|वर्गः|বিষয়শ্ৰেণী|শ্রেণী"
    "|ਸ਼੍ਰੇਣੀ|શ્રેણી|ଶ୍ରେଣୀ|பகுப்பு|వర్గం|ವರ್ಗ|വർഗ്ഗം|ප්‍රවර්ගය|ໝວດ|ကဏ္ဍ|ចំណាត់ថ្នាក់ក្រុម|དཀར་ཆག|መደብ|カテゴリー"
)
#: The namespaces of the names above: Media, File, Category.
HIDDEN_KEYS = frozenset((-2, 6, 14))
FILE_EXTENSIONS = (
    "jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|og[agv]|opus|webm|mp[34]|flac|wav|midi?|stl"
)
FILLING = r"[ _\u200e\u200f]*"  # blanks and direction marks, which MediaWiki ignores around a name


@dataclass(frozen=True)
class LinkPatterns:
    """Expressions for the links of one wiki."""

    hidden: re.Pattern[str]  #: how a link that shows nothing begins
    unclosed: re.Pattern[str]  #: such a link to the end of its line
    shown: re.Pattern[str]  #: any other link, with what it shows as group 1


@cache
def link_patterns(names: frozenset[str] = frozenset()) -> LinkPatterns:
    """The expressions for a wiki with these names of hidden namespaces besides the listed ones."""
    # Targets; the last kind is a link to the page in another language. The lookahead for a colon
    # saves most links from the long list.
    hidden = (
        r"(?=[^|\[\]:\n]{1,40}:)"
        rf"(?:{FILLING}(?:{_alternatives(names)}){FILLING}:"
        # A file name has no colon: [[wikisource:File:a.pdf|b]] is a link to a page.
        rf"|[^|\[\]:\n]+:[^|\[\]:\n]*\.(?:{FILE_EXTENSIONS})[ _]*(?:\||\]\])"
        r"|(?<=\n\[\[)[a-z]{2,3}(?:-[a-z]{2,8}){0,2}:[^|\[\]\n]*\]\][ \t]*(?=\n))"
    )
    return LinkPatterns(
        hidden=re.compile(rf"\[\[{hidden}", re.IGNORECASE),
        unclosed=re.compile(rf"\[\[{hidden}[^\n]*", re.IGNORECASE),
        shown=re.compile(
            rf"\[\[(?::|(?!{hidden}))(?:[^\[\]|\n]*\n?\|(?!\]\]))?([^\[\]|]*)\|?\]\]",
            re.IGNORECASE,
        ),
    )


def _alternatives(names: Iterable[str]) -> str:
    """An expression for the listed names and these; "_" is a space."""
    listed = f"{FILE_NAMES}|{CATEGORY_NAMES}".split("|")
    known = {name.lower() for name in listed}
    new = sorted(name for name in names if name.lower() not in known and name.strip(" _"))
    words = (re.split("[ _]+", name.strip(" _")) for name in (*listed, *new))
    return "|".join("[ _]+".join(map(re.escape, parts)) for parts in words)
