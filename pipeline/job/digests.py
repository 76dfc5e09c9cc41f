"""Digests by which a job recognizes its sources and itself."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from clozeline.pipeline.job.steps import JobContext
from clozeline.pipeline.sources.block import Block


def job_digest(context: JobContext) -> str:
    """A digest of all that decides the files of a job's tasks: two jobs of one digest are one."""
    config = context.config.to_dict()
    del config["max_rejected"]  # may be raised after a failed job, which then goes on
    parts = [config, context.tokenizer_digest, context.sources_digest, sorted(context.inputs)]
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def sources_digest(blocks: Sequence[Block]) -> str:
    """A digest of the files that the blocks are cut from, whatever their order and the block size.

    A local file counts by name, size and modification time, in whatever folder; a URL as a whole.
    """
    files: dict[tuple[str, ...], list[Block]] = {}
    for block in blocks:
        key = (block.path, block.format, block.version, block.query)
        files.setdefault(key, []).append(block)
    found = sorted(
        [_portable_name(path), format, version, *_extent(parts), *([query] if query else [])]
        for (path, format, version, query), parts in files.items()
    )
    return blake2b(json.dumps(found).encode(), digest_size=16).hexdigest()


def _extent(blocks: Sequence[Block]) -> list[int]:
    """How much of a file was read, in numbers that do not depend on the size of blocks.

    [0, 5), [5, 9), [12, 20)  ->  0, 9, 12, 20
    """
    if any(block.documents is not None for block in blocks):
        return [min(block.start for block in blocks), sum(block.text_bytes for block in blocks)]
    ranges: list[list[int]] = []
    for start, stop in sorted((block.start, block.stop) for block in blocks):
        joined = next((known for known in ranges if known[1] == start), None)
        if joined:
            joined[1] = stop
        else:
            ranges.append([start, stop])
    return [bound for known in sorted(ranges) for bound in known]


def _portable_name(path: str) -> str:
    return Path(path).name if Path(path).is_absolute() else path
