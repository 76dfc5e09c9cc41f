"""fsspec's memory:// as a remote store would behave and be billed: requests for ranges, counted."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile


@dataclass
class Traffic:
    """What was fetched, by the path of the file."""

    num_bytes: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.num_bytes.clear()
        self.requests.clear()


class RangedFile(AbstractBufferedFile):
    """A file that is read through fsspec's caches, as S3's are."""

    DEFAULT_BLOCK_SIZE = 50 * 2**20  # read ahead, by s3fs

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


@contextmanager
def counted_store() -> Iterator[Traffic]:
    """In the block, files of memory:// are fetched in requests, which are counted."""
    traffic = Traffic()
    whole_cat, whole_open = MemoryFileSystem.cat_file, MemoryFileSystem._open

    def cat_file(
        self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        data: bytes = whole_cat(self, path, start, end)
        traffic.num_bytes[self._strip_protocol(path)] += len(data)
        traffic.requests[self._strip_protocol(path)] += 1
        return data

    def open_ranged(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            return whole_open(self, path, mode, **options)
        self.info(path)  # raises FileNotFoundError
        return RangedFile(self, path, mode, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", cat_file)
        patch.setattr(MemoryFileSystem, "_open", open_ranged)
        yield traffic
