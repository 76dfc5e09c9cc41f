"""Documents as they come out of a source: mended and kept, rejected and named, or counted.

Text is mended in one place, `Documents.keep`, whatever it was read from. Until then a byte that is
no UTF-8 is a lone surrogate ("surrogateescape"), so that it survives JSON and is still counted.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that stand for no byte


@dataclass(frozen=True)
class Rejected:
    """One bad document: where it is ("file:line", "file: page title", "file: row 7") and why."""

    where: str
    reason: str


@dataclass
class Documents:
    """A piece of a block: about `piece_bytes` of text, more if one document is larger.

    `texts` are valid Unicode without NUL, their lines end with "\\n". `counts` are documents, by
    reason: "invalid_utf8" and "nul" were mended and kept; "empty", "redirect" and
    "other_namespace" were left out.
    """

    texts: list[str] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def keep(self, text: str) -> None:
        """Take a document in, mended; or count it as empty."""
        unicode = fix_unicode(text)
        clean = unicode.replace("\0", "")
        if "\r" in clean:
            clean = clean.replace("\r\n", "\n").replace("\r", "\n")
        if not clean or clean.isspace():
            self.counts["empty"] += 1
            return
        if unicode is not text:
            self.counts["invalid_utf8"] += 1
        if "\0" in text:
            self.counts["nul"] += 1
        self.texts.append(clean)

    def reject(self, where: str, reason: str) -> None:
        """Name a document that is not taken in."""
        self.rejected.append(Rejected(fix_unicode(where), fix_unicode(reason)))


def decode_utf8(data: bytes) -> str:
    """The text of bytes in UTF-8; those that are not become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def fix_unicode(text: str) -> str:
    """The text itself if it is valid; else with U+FFFD as in `bytes.decode("utf-8", "replace")`."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        data = NO_BYTE.sub("\ufffd", text).encode("utf-8", "surrogateescape")
        return data.decode("utf-8", "replace")
    return text


def one_line(error: Exception) -> str:
    """A library's reason, fit for a message of one line."""
    return " ".join(str(error).split())[:300]


def is_string(type: pa.DataType) -> bool:
    """Whether it is one of Arrow's types of text."""
    return (
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def strings(column: pa.Array) -> list[str | None]:
    """An Arrow column of text; what is no UTF-8 becomes lone surrogates."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_string(column.type):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:  # Arrow does not look at what it reads
            pass
    values = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else decode_utf8(value) for value in values]
