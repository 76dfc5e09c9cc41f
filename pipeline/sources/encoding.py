"""Whether a file is UTF-8 text, by its first bytes; any other file is refused.

b"\\xff\\xfeA\\0"  ->  "a.txt is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 a.txt > FILE"
"""

import codecs
import re
import shlex

from clozeline.pipeline.common.errors import InputError

#: What a file named as text must not begin with; UTF-32 comes first, for its longer mark.
NOT_UTF8 = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
    b"PAR1": "Parquet",
    b"ARROW1": "an Arrow file",
    b"PK\3\4": "a zip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"%PDF": "a PDF file",
}
#: A head with a few bad bytes is accepted; with this many or more, the file is refused.
MIN_INVALID = 20  #: bytes
INVALID_SHARE = 0.001  #: of all bytes


#: First lines of text that is not running text, what it is, and what turns it into that.
OTHER_TEXT = (
    (rb"WARC/[0-9.]+\r?\n", "a WARC file", "extract its text, as with trafilatura"),
    (rb"<(?:!doctype\s+html|html|head|body)\b", "HTML", "extract its text, as with trafilatura"),
    (rb"\{\\rtf", "RTF", "convert it, as with pandoc"),
    (rb"\\documentclass", "LaTeX", "convert it, as with pandoc"),
    (rb"%!PS-", "PostScript", "convert it, as with ps2ascii"),
    (rb"From \S+ .{10,40}\r?\n(?:[A-Z][\w-]+:|>)", "a mail folder", "extract it, as with mailbox"),
    (rb"(?:#.*\r?\n)*1\t\S+\t(?:.*?\t){5,}", "a CoNLL table", "extract it, as with pyconll"),
)
TAR = slice(257, 262)  #: where a tar archive says "ustar"


def check_running_text(path: str, head: bytes) -> None:
    """Raises InputError where the unpacked first bytes of plain text are of another format."""
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for pattern, name, advice in OTHER_TEXT:
        if re.match(pattern, text, re.IGNORECASE):
            raise InputError(f"{path} is {name}, not plain text; {advice}, and give that.")
    if head[TAR] == b"ustar":
        raise InputError(f"{path} is a tar archive, not plain text; unpack it, and give its files.")


def check_utf8(path: str, head: bytes, *, or_utf16: bool = False) -> None:
    """Raises InputError where the unpacked first bytes of a text file are not in UTF-8.

    With `or_utf16` UTF-16 with a byte-order mark is accepted, too.
    """
    if or_utf16 and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    found = next((name for mark, name in NOT_UTF8.items() if head.startswith(mark)), None)
    if found is None and len(head) >= 64 and head.count(0) * 3 > len(head):
        found = "UTF-16 without a byte-order mark, or binary data"
    if found in ("UTF-32", "UTF-16"):
        raise InputError(f"{path} is {found}; convert it: {conversion(found, path)}")
    if found:
        raise InputError(f"{path} is {found}, not text in UTF-8; convert it, or rename it.")
    invalid, valid = _count_non_ascii(head)
    if invalid >= max(MIN_INVALID, INVALID_SHARE * len(head)) and invalid > valid:
        raise InputError(
            f"{path} is not in UTF-8 ({invalid:,} of its first {len(head):,} bytes are invalid). "
            "If it is text in Latin-1 or Windows-1252, convert it: "
            f"{conversion('WINDOWS-1252', path)}"
        )


def conversion(encoding: str, path: str) -> str:
    """The command that converts a file to UTF-8."""
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(path)} > FILE"


def _count_non_ascii(head: bytes) -> tuple[int, int]:
    r"""Bytes that are not UTF-8, and valid characters that are not ASCII.

    b"caf\xe9 \xc3\xa9 \xc3"  ->  1, 1    the last one is a character that is cut in two
    """
    valid, used = codecs.utf_8_decode(head, "ignore", False)
    return used - len(valid.encode()), len(valid) - len(valid.encode("ascii", "ignore"))
