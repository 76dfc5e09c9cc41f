"""Documents as they come out of a source: cleaned and kept, rejected with a reason, or counted.

Documents of the caller's own are written to a file once, which is a source like any other.
Text is cleaned in one place, `Documents.keep`, whatever it was read from. Until then a byte that is
not valid UTF-8 is a lone surrogate ("surrogateescape"), so that it survives JSON and is counted.
"""

import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from clozeline.pipeline.common.errors import InputError

HOLES = "templates_removed_in_sentences"
HARD_WRAPPED = "hard_wrapped"
NOT_A_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that stand for no byte


@dataclass(frozen=True)
class Rejected:
    """One bad document: where it is ("file: byte 99", "file: title", "file: row 7") and why."""

    where: str
    reason: str


@dataclass
class Documents:
    """A chunk of a block: about `chunk_bytes` of text, more if one document is larger.

    `texts` are valid Unicode without NUL, and their lines end with "\\n". `counts` are documents by
    reason: "invalid_utf8" and "nul" were cleaned and kept; "empty", "redirect",
    "other_namespace" and "other_model" were left out; "templates_removed_in_sentences" counts
    templates of kept pages, and "hard_wrapped" kept documents whose lines end at one width.
    """

    texts: list[str] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    #: Number of texts before each rejection and each count.
    _events: list[tuple[int, Rejected | str]] = field(
        default_factory=list, repr=False, compare=False
    )

    def keep(self, text: str) -> None:
        """Add a document after cleaning it, or count it as empty."""
        data = text.encode(errors="surrogatepass")  # bytes are found several times as fast
        unicode = fix_unicode(text) if b"\xed" in data else text  # it begins surrogates
        clean = unicode.replace("\0", "") if b"\0" in data else unicode
        if b"\r" in data:
            clean = clean.replace("\r\n", "\n").replace("\r", "\n")
        if not clean or clean.isspace():
            self.count("empty")
            return
        if unicode is not text:
            self.count("invalid_utf8")
        if b"\0" in data:
            self.count("nul")
        self.texts.append(clean)

    def reject(self, where: str, reason: str) -> None:
        """Record a document that is left out, and why."""
        self.rejected.append(Rejected(fix_unicode(where), fix_unicode(reason)))
        self._events.append((len(self.texts), self.rejected[-1]))

    def count(self, reason: str, number: int = 1) -> None:
        """Count a document that is left out, or what was cleaned in one."""
        if number:
            self.counts[reason] += number
            self._events += [(len(self.texts), reason)] * number

    def first(self, limit: int) -> "Documents":
        """The first `limit` texts, and what was rejected and counted before the last of them."""
        events = [event for position, event in self._events if position < limit]
        rejected = [event for event in events if isinstance(event, Rejected)]
        counts = Counter(event for event in events if isinstance(event, str))
        return Documents(self.texts[:limit], rejected, counts)


def decode_utf8(data: bytes) -> str:
    """Bytes to text; bytes that are not valid UTF-8 become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def fix_unicode(text: str) -> str:
    """The text itself if it is valid; else with U+FFFD as in `bytes.decode("utf-8", "replace")`."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        data = NOT_A_BYTE.sub("\ufffd", text).encode("utf-8", "surrogateescape")
        return data.decode("utf-8", "replace")
    return text


@contextmanager
def spooled(
    documents: Iterable[str | Mapping[str, Any]], text_columns: Sequence[str], out: object
) -> Iterator[str]:
    """The file of the documents, for a job that writes to `out`; it goes when the block ends.

    It has the digest of its content in its name and in its time of change, so the same documents
    are the same source, and the same call continues or is already complete.

    Raises InputError for an element that has no text.
    """
    digest = hashlib.blake2b(str(out).encode(), digest_size=16)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "documents.jsonl")
        written.touch(0o600)  # also once it has left the folder, which only its owner can read
        with written.open("wb") as file:
            for number, element in enumerate(each_document(documents)):
                line = json.dumps(_columns(element, text_columns, number)).encode() + b"\n"
                digest.update(line)
                file.write(line)
            if not file.tell():
                raise InputError("there is no document, or `keep` leaves none; give some.")
        path = written.rename(Path(folder).parent / f"clozeline-{digest.hexdigest()}.jsonl")
    seconds = int(digest.hexdigest()[:7], 16)
    os.utime(path, (seconds, seconds))
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def each_document(documents: Any) -> Iterator[Any]:
    """Each document, also of a table of pyarrow, pandas or polars, or a `datasets.Dataset`."""
    if isinstance(documents, str | bytes | Mapping):
        kind = type(documents).__name__
        raise InputError(f"documents is one {kind}; give several texts or dicts, or a table.")
    if hasattr(documents, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(documents):
            yield from batch.to_pylist()
    else:
        yield from documents


def _columns(element: Any, names: Sequence[str], number: int) -> dict[str, str]:
    if isinstance(element, str):
        return dict.fromkeys(names, "") | {names[0]: element}
    if isinstance(element, Mapping) and all(isinstance(element.get(n), str) for n in names):
        return {name: element[name] for name in names}
    keys = f" with {', '.join(map(str, element))}" if isinstance(element, Mapping) else ""
    raise InputError(
        f"documents: number {number} is of type {type(element).__name__}{keys}; give texts, or "
        f"dicts with text in {', '.join(names)}."
    )
