"""A store in memory that notes requests, keeps them waiting, and fails on demand.

failing://folder/file
"""

import threading
from typing import Any

import fsspec
import upath.registry
from fsspec.implementations.memory import MemoryFileSystem
from upath import UPath


class FailingStore(MemoryFileSystem):
    """`requests` lists requests for the content of files, by name, in the order of arrival."""

    protocol = "failing"
    store: dict[str, Any] = {}  # noqa: RUF012 - the parent's, and shared as its own is
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False  # fsspec would keep one for each thread
    only: "FailingStore | None" = None

    def __new__(cls, *args: Any, **options: Any) -> "FailingStore":
        """The same one for all threads and paths."""
        if cls.only is None:
            cls.only = super().__new__(cls)
            cls.only.lock = threading.Lock()
            cls.only.reset()
        return cls.only

    def reset(self) -> None:
        self.requests: list[str] = []
        self.in_flight = self.most_in_flight = 0
        #: What requests for a file raise, one after the other, by name.
        self.failures: dict[str, list[Exception]] = {}
        #: Where requests for shards wait until enough are in flight.
        self.gate: threading.Barrier | None = None
        #: What `info` of a file, and opening one, raise, one after the other, by name.
        self.info_failures: dict[str, list[Exception]] = {}
        self.open_failures: dict[str, list[Exception]] = {}

    def info(self, path: str, **options: Any) -> Any:
        if failures := self.info_failures.get(path.rpartition("/")[2], []):
            raise failures.pop(0)
        return super().info(path, **options)

    def _open(self, path: str, *args: Any, **options: Any) -> Any:
        if failures := self.open_failures.get(path.rpartition("/")[2], []):
            raise failures.pop(0)
        return super()._open(path, *args, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return MemoryFileSystem._strip_protocol(str(path).replace("failing://", "memory://"))

    def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
        name = path.rpartition("/")[2]
        with self.lock:
            self.requests.append(name)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            failures = self.failures.get(name, [])
            failure = failures.pop(0) if failures else None
        try:
            if self.gate and name.startswith("train-"):
                self.gate.wait(30)
            if failure:
                raise failure
            with self.lock:
                return bytes(super().cat_file(path, *args, **options))
        finally:
            with self.lock:
                self.in_flight -= 1


def failing_folder(name: str) -> UPath:
    """An empty folder in a store that has had no requests yet."""
    fsspec.register_implementation("failing", FailingStore, clobber=True)
    upath.registry.register_implementation(
        "failing", "upath.implementations.memory.MemoryPath", clobber=True
    )
    folder = UPath(f"failing://{name}")
    folder.fs.reset()
    return folder
