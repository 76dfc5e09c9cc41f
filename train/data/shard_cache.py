"""Local copies of a store's shards: fetched once per machine, the least recently read go first.

    cache = ShardCache(Path("/scratch/shards"), limit=50_000_000_000)
    cache.fetch(path, sha256="0c4a...")   # /scratch/shards/0c4a....arrow

A file is named by its content, so data sets and runs share the folder, and so do the processes of
a machine: one of them fetches, the others wait for it. A killed process leaves no incomplete
shard under its final name. A file that is removed stays readable where it is mapped.
"""

import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from clozeline.pipeline.common.errors import advice
from clozeline.pipeline.common.paths import PARTIAL, AnyPath, make_folder, whole_file
from clozeline.pipeline.common.store import read_file

SHARD = re.compile(r"[0-9a-f]{64}\.(arrow|tar)")
LOCK = ".{}.lock"
ABANDONED = 3600.0  #: seconds after which a partial file has no writer any more


class ShardCache:
    """A folder for copies of shards, of at most about `limit` bytes.

    Raises InputError where the folder cannot be made.
    """

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._has_complained = False
        make_folder(folder)

    def fetch(self, path: AnyPath, *, sha256: str) -> AnyPath:
        """The local copy of a store's shard, or `path` itself if the copy cannot be written.

        Raises StoreError where the store cannot be read.
        """
        local = self.folder / f"{sha256}{path.suffix}"
        try:
            with FileLock(self.folder / LOCK.format(sha256), fallback_to_soft=False):
                with suppress(FileNotFoundError):
                    os.utime(local)  # now the most recently read
                    return local
                data = read_file(path)
                self._make_room(len(data))
                with whole_file(local) as file:
                    file.write(data)
        except OSError as error:
            self._complain(error)
            return path
        return local

    def _make_room(self, size: int) -> None:
        """Remove the least recently read shards until `size` bytes fit."""
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # removed by another process
                status = path.stat()
                is_partial = PARTIAL.fullmatch(path.name)
                if is_partial and time.time() - status.st_mtime > ABANDONED:
                    path.unlink()
                elif SHARD.fullmatch(path.name):  # never a user's file
                    found.append((status.st_mtime, status.st_size, path))
        total = size + sum(of_file for _, of_file, _ in found)
        for _, of_file, path in sorted(found):
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            (self.folder / LOCK.format(path.stem)).unlink(missing_ok=True)
            total -= of_file

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            print(
                f"warning: {self.folder} cannot be written ({error.strerror}), so shards are "
                f"fetched again each time; {advice(error)}.",
                file=sys.stderr,
            )
