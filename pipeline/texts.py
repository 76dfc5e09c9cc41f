"""Documents as they come out of a source: mended and kept, rejected and named, or counted.

Text is mended in one place. Readers decode bytes with "surrogateescape": damage stays in the
document in which it is, while a whole piece of a file is decoded and split at once, which is what
makes reading fast.
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
        unicode = mended(text)
        clean = one_line_end(unicode.replace("\0", ""))
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
        self.rejected.append(Rejected(mended(where), mended(reason)))


def one_line_end(text: str) -> str:
    """The text with "\\n" at the end of each line, where it had "\\r\\n" or "\\r"."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def mended(text: str) -> str:
    """The text itself if it is valid; else with U+FFFD as in `bytes.decode("utf-8", "replace")`."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        data = NO_BYTE.sub("\ufffd", text).encode("utf-8", "surrogateescape")
        return data.decode("utf-8", "replace")
    return text


def is_string(type: pa.DataType) -> bool:
    """Whether it is one of Arrow's types of text."""
    return (
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def strings(column: pa.Array) -> list[str | None]:
    """An Arrow column of text; a byte that is no UTF-8 becomes a surrogate ("surrogateescape")."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_string(column.type):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:  # Arrow does not look at what it reads
            pass
    values = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]
