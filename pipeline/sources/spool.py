"""Documents of the caller's own, written to a file once, which is then a source like any other.

    ["It was old.", {"text": "It fell."}]  ->  TMPDIR/clozeline-81fe...jsonl

The file has the digest of its content in its name and in its time of change, so the same documents
are the same source, and the same call continues or is already complete.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.errors import InputError


@contextmanager
def spooled(
    documents: Iterable[str | Mapping[str, Any]], text_columns: Sequence[str], out: object
) -> Iterator[str]:
    """The file of the documents, for a job that writes to `out`; it goes when the block ends.

    Raises InputError for an element that has no text.
    """
    folder = Path(tempfile.gettempdir())
    digest = hashlib.blake2b(str(out).encode(), digest_size=16)
    with tempfile.NamedTemporaryFile("wb", dir=folder, suffix=".jsonl", delete=False) as file:
        written = Path(file.name)
        try:
            for number, element in enumerate(_elements(documents)):
                line = json.dumps(_columns(element, text_columns, number)).encode() + b"\n"
                digest.update(line)
                file.write(line)
        except BaseException:
            written.unlink()
            raise
    path = written.rename(folder / f"clozeline-{digest.hexdigest()}.jsonl")
    seconds = int(digest.hexdigest()[:7], 16)
    os.utime(path, (seconds, seconds))
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _elements(documents: Any) -> Iterator[Any]:
    """Each document, also of a table of pyarrow, pandas or polars, or a `datasets.Dataset`."""
    if isinstance(documents, str | bytes | Mapping):
        kind = type(documents).__name__
        raise InputError(f"documents is one {kind}; give several texts or dicts, or a table.")
    if hasattr(documents, "to_batches"):
        for batch in documents.to_batches():
            yield from batch.to_pylist()
    elif hasattr(documents, "iterrows"):
        yield from documents.to_dict("records")
    elif hasattr(documents, "iter_rows"):
        yield from documents.iter_rows(named=True)
    else:
        yield from documents


def _columns(element: Any, names: Sequence[str], number: int) -> dict[str, str]:
    """The text columns of a document."""
    if isinstance(element, str):
        return dict.fromkeys(names, "") | {names[0]: element}
    if isinstance(element, Mapping) and all(isinstance(element.get(n), str) for n in names):
        return {name: element[name] for name in names}
    has = f"has {', '.join(map(str, element))}" if isinstance(element, Mapping) else "has none"
    raise InputError(
        f"documents: number {number} is {type(element).__name__} and {has}; give texts, or dicts "
        f"with text in {', '.join(names)}."
    )
