"""A local copy of a store's folder, kept in sync: runs and classifiers under any URL.

    with store_copy("s3://bucket/run", writes=True) as folder:   # ~/.cache/clozeline/5f0c.../run
        ...                                                      # files appear in the store

All training code writes local files, which appear under their names only once they are complete.
So the copy need not know what they are: a thread uploads what is new or changed every second, and
removes from the store what was removed here. The files that make a folder valid (`LAST`) are
uploaded last, so that whoever reads the store, or resumes from it after this machine is lost, finds
complete checkpoints. At the start the copy is synced from the store, unless it was the last to
write there: then it may be the newer one, if a command ended before everything was uploaded. A file
that exists only on this machine is never removed: see `StoreCopy.download`.

Only one process writes, the one that holds the lease (`store_lease.py`).
"""

import fcntl
import glob
import json
import os
import platform
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from clozeline.pipeline.common.errors import InputError, JobFailedError, StoreError
from clozeline.pipeline.common.paths import is_local, path_of, whole_file
from clozeline.pipeline.common.store import patiently, reason_of
from clozeline.train.store.folder_files import (
    LAST,
    Names,
    local_files,
    remote_files,
    remove_empty_folders,
)
from clozeline.train.store.store_lease import Lease

if TYPE_CHECKING:
    from upath import UPath

WRITES = "writes"  #: content of the lock file while a command writes
UPLOAD_SECONDS = 1.0
PATIENCE = 1800.0  #: seconds for the machine's first process to make the copy


def cache_folder() -> Path:
    """Where copies are: $CLOZELINE_CACHE, or ~/.cache/clozeline."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clozeline"
    return Path(os.environ.get("CLOZELINE_CACHE", default))


def copy_path(url: str) -> Path:
    """This machine's copy of a URL; the last part of its path is that of the URL.

    Machines may share the cache folder, as in a home on NFS.
    """
    url = url.rstrip("/")
    key = sha256(f"{platform.node()} {url}".encode()).hexdigest()[:16]
    return cache_folder() / key / (url.rpartition("/")[2] or "_")


@contextmanager
def store_copy(url: str, *, writes: bool) -> Iterator[Path]:
    """The local copy of a store's folder; with `writes`, changes go to the store until the end.

    Under torchrun the first process of each machine makes its copy, and rank 0 writes. Raises
    StoreError where the store cannot be read, InputError where another process writes, and
    JobFailedError where changes cannot be uploaded.
    """
    remote = path_of(url.rstrip("/"))
    assert not is_local(remote), "it is a URL"
    local = copy_path(url)
    local.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        _wait_for(local)
    elif writes and os.environ.get("RANK", "0") == "0":
        with _sole_writer(remote, local):
            _announce(local)
            yield local
        return
    else:
        _download_or_share(remote, local)
        _announce(local)
    yield local


class StoreCopy:
    """A store's folder and its local copy; as a context it uploads changes from time to time."""

    def __init__(self, remote: "UPath", local: Path) -> None:
        self.remote, self.local = remote, local
        self._memory = local.with_name(f".{local.name}.known.json")
        owner, self._known = self._read_memory()
        self._owner, self._lease = owner, Lease(remote, owner)
        self._there: Names = {}  # local files as they were when store and copy agreed
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="upload", daemon=True)

    def __enter__(self) -> Self:
        """Raises StoreError, and InputError where another process writes."""
        is_newer = self._is_newer()
        if not is_newer:
            # Under the old name, this copy would count as newer after a failed download.
            self._owner = uuid.uuid4().hex
            self._lease = Lease(self.remote, self._owner)
        with ExitStack() as stack:
            stack.enter_context(self._lease)
            self.download(is_newer=is_newer)
            self._held = stack.pop_all()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        with self._held:
            if self._lease.lost:
                raise self._lease.lost
            self._upload_all()

    def download(self, *, is_newer: bool | None = None) -> None:
        """Sync the copy from the store, unless the copy is newer. Raises StoreError.

        Files that only the copy has are never removed: those of a newer copy are uploaded again,
        others are moved beside the copy. Both are reported on standard error.
        """
        known, here, remote = self._known, local_files(self.local), self._remote_files()
        if self._is_newer() if is_newer is None else is_newer:
            lost = (known.keys() & here.keys()) - remote.keys()
            if lost:
                _warn_of_lost_files(self.remote, self.local, lost)
            self._there = {name: (*known[name][1],) for name in known.keys() & remote.keys()}
            for name in (known.keys() - here.keys()) & remote.keys():
                self._download_file(name)  # lost here; an extra old checkpoint does no harm
            return
        uploaded = {name for name, (_, stamp) in known.items() if [*here.get(name, ())] == stamp}
        if only_here := here.keys() - (remote.keys() & uploaded):
            _move_beside(self.remote, self.local, only_here)
        self._memory.unlink(missing_ok=True)  # an incomplete copy counts as new next time
        for name, version in remote.items():
            if name in uploaded and known[name][0] == version:
                continue
            self._download_file(name)
        remove_empty_folders(self.local)
        self._there = local_files(self.local)
        self._write_memory(remote)

    def upload(self) -> None:
        """Upload or remove what changed here since the last time. Raises what the store raises."""
        here = local_files(self.local)
        changed = [name for name, stamp in here.items() if self._there.get(name) != stamp]
        for name in sorted(changed, key=lambda name: (Path(name).name in LAST, name)):
            source = self.local / name
            if not source.exists():
                continue  # an old checkpoint, removed meanwhile
            target = self.remote / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self.remote.fs.put_file(str(source), target.path)
            self._there[name] = here[name]
        gone = self._there.keys() - here.keys()
        for name in sorted(gone, key=lambda name: (Path(name).name not in LAST, name)):
            (self.remote / name).unlink(missing_ok=True)
            del self._there[name]
        if changed or gone:
            self._write_memory(remote_files(self.remote))

    def _is_newer(self) -> bool:
        """Whether this copy was the last to write to the store, as far as can be seen there.

        A store that has lost its lease is one whose files were removed: the copy has them still,
        unless what is left there was written by somebody else.
        """
        if holder := self._lease.holder():
            return bool(holder.get("owner") == self._owner)
        return self._memory.exists() and all(
            name in self._known and self._known[name][0] == version
            for name, version in self._remote_files().items()
        )

    def _follow(self) -> None:
        """Upload until the end; a failed upload is retried the next time."""
        while not (self._end.wait(UPLOAD_SECONDS) or self._lease.lost):
            if not self._lease.is_fresh():
                continue  # another process may write there by now
            try:
                self.upload()
            except Exception as error:  # each store's library has its own errors
                print(f"warning: {self.remote}: {reason_of(error)}; retrying.", file=sys.stderr)

    def _upload_all(self) -> None:
        try:
            if not self._lease.is_fresh():
                self._lease.confirm()
            patiently(self.upload, self.remote)
        except StoreError as error:
            raise JobFailedError(
                f"{error} What is missing there is in {self.local}; rerun the command with "
                "--resume on this machine."
            ) from error

    def _download_file(self, name: str) -> None:
        target = self.local / name
        target.parent.mkdir(parents=True, exist_ok=True)

        def download() -> None:
            with whole_file(target) as file, (self.remote / name).open("rb") as source:
                shutil.copyfileobj(source, file)

        patiently(download, self.remote / name)

    def _remote_files(self) -> dict[str, str]:
        return patiently(lambda: remote_files(self.remote), self.remote)

    def _read_memory(self) -> tuple[str, dict[str, Any]]:
        """The name of this copy, and its files with their versions as of the last upload."""
        try:
            memory = json.loads(self._memory.read_bytes())
            return memory["owner"], memory["files"]
        except (OSError, ValueError, LookupError, TypeError):
            return uuid.uuid4().hex, {}

    def _write_memory(self, remote: dict[str, str]) -> None:
        """Record what the next command on this machine need not download again."""
        there = self._there
        self._known = {n: [version, list(there[n])] for n, version in remote.items() if n in there}
        with whole_file(self._memory) as file:
            file.write(json.dumps({"owner": self._owner, "files": self._known}).encode())


def _warn_of_lost_files(remote: "UPath", local: Path, names: Collection[str]) -> None:
    print(
        f"warning: {remote} has lost {_counted(names)} that {local} still has; a command that "
        f"writes there uploads them again. To start without them, remove {local}.",
        file=sys.stderr,
    )


def _move_beside(remote: "UPath", local: Path, names: Collection[str]) -> None:
    """Move files out of the copy, since the store's version of the folder is without them."""
    number = 1
    while (aside := local.with_name(f"{local.name}.aside-{number}")).exists():
        number += 1
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).rename(aside / name)
    print(
        f"warning: {_counted(names)} in this machine's copy of {remote} are not there any more; "
        f"moved to {aside}, which you may remove.",
        file=sys.stderr,
    )


def _counted(names: Collection[str]) -> str:
    """For example "3 files (run.json, summary.json, ...)"."""
    some = ", ".join(sorted(names)[:2]) + ", ..." * (len(names) > 2)
    return f"{len(names)} file{'s' * (len(names) != 1)} ({some})"


@contextmanager
def _sole_writer(remote: "UPath", local: Path) -> Iterator[None]:
    """Raises InputError where another process of this machine writes the same copy."""
    with _lock_of(local).open("a+") as file:
        if not _is_locked(file):
            raise InputError(
                f"{remote} is in use by another process of this machine; wait for its end, or "
                "give another folder."
            )
        with StoreCopy(remote, local):
            file.write(WRITES)  # only now: whoever reads this takes the copy as it is
            file.flush()
            yield
        file.truncate(0)


def _download_or_share(remote: "UPath", local: Path) -> None:
    """Download, unless a writer of this machine keeps the copy newer than the store."""
    with _lock_of(local).open("a+") as file:
        if _is_locked(file):
            StoreCopy(remote, local).download()


def _is_locked(file: IO[str]) -> bool:
    """Lock the file, waiting for others that download; False if another process writes."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            if file.read() == WRITES:
                return False
            time.sleep(0.2)
        else:
            file.truncate(0)  # a writer may have been killed
            return True


def _lock_of(local: Path) -> Path:
    return local.with_name(f".{local.name}.copy.lock")


def _ready_file(local: Path) -> Path:
    """A file name shared by all processes of one launch on this machine, and by no other launch."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    # Each torchrun has a new folder: FOLDER/attempt_0/LOCAL_RANK/error.json. Its process id may
    # be reused in a container, and need not be that of our parent.
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    launcher = Path(error_file).parents[1] if error_file else os.getppid()
    start = "-".join([*(os.environ.get(name, "") for name in names), str(launcher)])
    return local.with_name(f".{local.name}.{sha256(start.encode()).hexdigest()[:16]}.ready")


def _announce(local: Path) -> None:
    """Let the other processes of this machine continue: the copy is there."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        for old in local.parent.glob(f".{glob.escape(local.name)}.*.ready"):
            with suppress(FileNotFoundError):
                # Processes of a second launcher on this machine may be waiting for a newer one.
                if time.time() - old.stat().st_mtime > PATIENCE:
                    old.unlink()
        _ready_file(local).touch()


def _wait_for(local: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _ready_file(local).exists():
        if time.monotonic() > deadline:
            raise JobFailedError(
                f"{local} was not made by the machine's first process; see its error."
            )
        time.sleep(0.2)
