"""Files to read documents from, and all that is read of them."""

from pathlib import Path
from typing import Any

from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.formats import list_blocks, read_block


def write(path: Path, data: str | bytes) -> str:
    """The name of the file, as of a source."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def read(*sources: object, chunk_bytes: int = 1 << 20, **options: Any) -> Documents:
    """All documents of the sources as one chunk."""
    whole = Documents()
    for block in list_blocks([*map(str, sources)], **options):
        for chunk in read_block(block, chunk_bytes=chunk_bytes):
            whole.texts += chunk.texts
            whole.rejected += chunk.rejected
            whole.counts += chunk.counts
    return whole
