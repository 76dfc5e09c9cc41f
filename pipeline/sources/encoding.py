"""Whether a file is running text in UTF-8, by its first bytes; any other file is refused.

b"\\xff\\xfeA\\0"  ->  "a.txt is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 a.txt > FILE"
"""

import codecs
import re
import shlex
from collections.abc import Iterable

from clozeline.pipeline.common.errors import InputError

BYTE_ORDER_MARKS = {  # UTF-32 comes first, for its longer mark
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
#: A head with a few bad bytes is accepted; with this many or more, the file is refused.
MIN_INVALID = 20  #: bytes
INVALID_SHARE = 0.001  #: of all bytes

EXPORT = "export its text, as to Parquet"
#: How files begin that are not text, what they are, and what turns them into text.
BINARY = (
    (rb"PK\x03\x04", "a zip archive", "unpack it or, as a book or document, convert it"),
    (rb"7z\xbc\xaf|Rar!\x1a", "an archive", "unpack it"),
    (rb"(?s:.{257})ustar", "a tar archive", "unpack it"),
    (
        rb"\x1f[\x8b\x9d]|BZh[1-9]1AY|\xfd7zXZ|\(\xb5/\xfd|\x04\x22M\x18|LZIP\x01|\xff.{5}sNaPpY",
        "compressed (twice, if it is packed already)",
        "unpack it",
    ),
    (rb"%PDF", "a PDF file", "extract its text, as with pdftotext"),
    (rb"\xd0\xcf\x11\xe0", "an old office document", "convert it, as with LibreOffice"),
    (rb"!BDN", "a mail folder of Outlook", "extract it, as with readpst"),
    (rb"SQLite format 3\0", "a SQLite database", EXPORT),
    (rb"PAR1[\x15\0]", "packed Parquet", "unpack it"),
    (rb"ARROW1\0|FEA1\0|\xff{4}..\0\0\x10\0\0\0", "an Arrow file", EXPORT),
)
#: The same of text that is not running text.
MARKUP = (
    (
        rb"WARC/[0-9.]+\r?\n|filedesc://|CDX [A-Za-z] |\S+\)/\S* [0-9]{14} ",
        "a web archive or its index (WARC, ARC, CDX)",
        "extract its text, as with trafilatura",
    ),
    (
        rb"<(?:\?xml|!doctype|(?:html|body)\b|/?[a-z][\w:.-]*(?:\s[^<>]*)?/?>(?s:.*)</[a-z])",
        "HTML or XML",
        "extract its text, as with trafilatura or lxml",
    ),
    (rb"\{\\rtf", "RTF", "convert it, as with pandoc"),
    (
        rb"(?:%[^\n]*\n\s*)*\\(?:document(?:class|style)|usepackage|begin\{|input\{|(?:sub)*section|chapter)",
        "LaTeX",
        "convert it, as with pandoc",
    ),
    (rb"%!PS-", "PostScript", "convert it, as with ps2ascii"),
    (
        rb"From \S+ .{10,40}\r?\n(?:[A-Z][\w-]+:|>)"
        rb"|(?:(?:From|To|Cc|Subject|Date|Received|Return-Path|Delivered-To|Message-ID|Reply-To"
        rb"|Organization|Path|Newsgroups|Lines|MIME-Version|Content-[\w-]+|X-[\w-]+):[^\n]*\n"
        rb"(?:[ \t][^\n]*\n)*){3}",
        "mail or a mail folder",
        "extract it, as with mailbox",
    ),
    (
        rb"(?:#[^\n]*\n)*1(?:-[0-9]+)?\t\S+\t(?:.*?\t){5,}|-DOCSTART-|#begin document "
        rb"|(?:\S+[ \t](?:\S+[ \t])*(?-i:O|[BIES]-\w+)\r?\n){3}",
        "a CoNLL table",
        "extract it, as with pyconll",
    ),
    (
        rb"WEBVTT\b|(?:[0-9]+\s+)?[0-9:]{5,}[.,][0-9]{3} -->",
        "subtitles",
        "extract their text, as with pysubs2",
    ),
    (rb"@(?:prefix|base)\s|<\w+://[^<>\s]*>\s+<", "RDF", "extract its texts, as with rdflib"),
    (rb"-- (?:MySQL|MariaDB|PostgreSQL) ", "an SQL dump", EXPORT),
    (rb'(?:#[^\n]*\n\s*)*msgid "', "a translation catalogue", "extract its texts, as with polib"),
    (rb"@(?:article|book|in\w+|misc|comment|string|preamble)\s*\{", "BibTeX", EXPORT),
    (rb"(?-i:>\S.*\r?\n[A-Z*-]{20,}\r?\n)", "FASTA", "extract its descriptions, as with biopython"),
    (rb"diff --git |--- \S+.*\r?\n\+\+\+ \S", "a patch", "extract its text, as with unidiff"),
    (rb"version https://git-lfs", "a Git LFS pointer", "get its file, as with git lfs pull"),
    (
        rb"\[\s*[\[{\"]",
        "one JSON array",
        "convert it to an object per line: jq -c '.[]' ARRAY.json > LINES.jsonl (of texts: "
        "'.[] | {text: .}')",
    ),
    (rb'\{[ \t]*\r?\n\s*"', "JSON over several lines", "write an object per line, as with jq -c"),
)


def check_running_text(path: str, head: bytes) -> None:
    """Raises InputError where the unpacked first bytes of a file are of a format not read here."""
    _check(path, head, BINARY)
    _check(path, head, MARKUP, " (?format=text reads it as it is)")


def _check(
    path: str, head: bytes, formats: Iterable[tuple[bytes, str, str]], hint: str = ""
) -> None:
    begin = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for pattern, name, advice in formats:
        if re.match(pattern, begin, re.IGNORECASE):
            raise InputError(f"{path} is {name}, not plain text; {advice}, and give that{hint}.")


def check_utf8(path: str, head: bytes, *, or_utf16: bool = False) -> None:
    """Raises InputError where the unpacked first bytes of a text file are not in UTF-8.

    With `or_utf16` UTF-16 with a byte-order mark is accepted, too.
    """
    if or_utf16 and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    codec = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    if codec:
        raise InputError(f"{path} is {codec}; convert it: {conversion(codec, path)}")
    _check(path, head, BINARY)
    if len(head) >= 64 and head.count(0) * 3 > len(head):
        raise InputError(
            f"{path} is UTF-16 without a byte-order mark, or binary data, not text in UTF-8; "
            "convert it, or rename it."
        )
    invalid, valid = _count_non_ascii(head)
    if invalid >= max(MIN_INVALID, INVALID_SHARE * len(head)) and invalid > valid:
        raise InputError(
            f"{path} is not in UTF-8 ({invalid:,} of its first {len(head):,} bytes are invalid). "
            "If it is text in Latin-1 or Windows-1252, convert it: "
            f"{conversion('WINDOWS-1252', path)}"
        )


def is_utf8(head: bytes) -> bool:
    """Whether the first bytes of a file are UTF-8, the last one perhaps cut, without a NUL."""
    return b"\0" not in head and not _count_non_ascii(head)[0]


def conversion(encoding: str, path: str) -> str:
    """The command that converts a file to UTF-8."""
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(path)} > FILE"


def _count_non_ascii(head: bytes) -> tuple[int, int]:
    r"""Bytes that are not UTF-8, and valid characters that are not ASCII.

    b"caf\xe9 \xc3\xa9 \xc3"  ->  1, 1    the last one is a character that is cut in two
    """
    valid, used = codecs.utf_8_decode(head, "ignore", False)
    return used - len(valid.encode()), len(valid) - len(valid.encode("ascii", "ignore"))
