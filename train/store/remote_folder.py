"""A folder in a store, through a local copy: runs and classifiers under any URL.

    with remote_folder("s3://bucket/run", writes=True) as folder:   # ~/.cache/clozeline/5f0c.../run
        ...   # local files, which appear under their names once they are complete; a thread uploads
              # them, and at the end, also after an error, everything is in the store

All other code reads and writes local files. The thread polls for files that are new or changed,
uploads them, and removes from the store what was removed here; training never waits for it. Logs,
which grow all the time, go along with other files. The files that make a folder valid
(`VALIDATING`) are uploaded last, so that whoever reads the store, or resumes from it after this
machine is lost, finds complete checkpoints, and the metrics up to them.

At the start the copy is synced from the store, of all checkpoints with the weights of one. A copy
that was the last to write to the store may be ahead of it, if a command was killed before
everything was uploaded: then it stays as it is. A file that exists only on this machine is never
removed: see `RemoteFolder.download`.

Only one process writes, the one that holds the lease (`folder_lock.py`). Under torchrun it is that
of rank 0; the others get the path of the folder, and read nothing there.
"""

import os
import platform
import shutil
import sys
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clozeline.pipeline.common.errors import InputError, JobFailedError, StoreError, first_names
from clozeline.pipeline.common.folder_lock import Lease
from clozeline.pipeline.common.folders import KINDS, wrong_folder
from clozeline.pipeline.common.json_files import file_sha256, json_values, write_json
from clozeline.pipeline.common.paths import (
    has_folders,
    is_local,
    path_of,
    reason_of,
    whole_file,
    with_retries,
)
from clozeline.train.store.folder_files import (
    STATE,
    Stamp,
    is_log,
    is_weights,
    local_files,
    remote_files,
    remove_empty_folders,
    stamp_of,
    state_of,
    validating_last,
)

#: Seconds between two checks for files that are new or changed.
POLL_SECONDS = 2.0


def copy_path(url: str) -> Path:
    """This machine's copy of a URL, in $CLOZELINE_CACHE; its last part is that of the URL.

    Machines may share the cache folder, as in a home on NFS.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clozeline"
    cache, url = Path(os.environ.get("CLOZELINE_CACHE", default)).resolve(), url.rstrip("/")
    key = sha256(f"{platform.node()} {url}".encode()).hexdigest()[:16]
    return cache / key / (url.rpartition("/")[2] or "_")


@contextmanager
def remote_folder(
    url: str, *, writes: bool, weights: Collection[str] = (), step: int | None = None
) -> Iterator[Path]:
    """The local copy of a store's folder; with `writes`, changes go to the store until the end.

    The files named in `weights` are those of the checkpoint of a step, or of the newest one. Raises
    StoreError, InputError where another process writes, JobFailedError for a failed upload.
    """
    copy = RemoteFolder(url, weights=weights, step=step)
    if writes and os.environ.get("RANK", "0") != "0":
        yield copy.local
        return
    with copy.written() if writes else copy.read():
        yield copy.local


class RemoteFolder:
    """A store's folder and this machine's copy of it.

    `_known` has the files that both had when they last agreed, each with its version in the store
    and its stamp here; the stamp is None for weights that are left there. It is kept on disk.
    """

    def __init__(self, url: str, *, weights: Collection[str] = (), step: int | None = None) -> None:
        remote, self._weights, self._step = path_of(url), weights, step
        assert not is_local(remote), "it is a URL"
        self.remote, self.local = remote, copy_path(url)
        folder, name = self.local.parent, self.local.name
        folder.mkdir(parents=True, exist_ok=True)
        self._memory = folder / f".{name}.known.json"
        self._syncing, self._writing = (
            FileLock(folder / f".{name}.{kind}.lock", fallback_to_soft=False)
            for kind in ("sync", "write")
        )
        self._owner, self._is_over = "", threading.Event()
        self._known: dict[str, Any] = {}  # read under the lock: another process may download now

    @contextmanager
    def read(self) -> Iterator[None]:
        """Sync the copy, unless a writer of this machine keeps it newer."""
        with self._syncing:
            self._owner, self._known = self._read_memory()
            try:
                with self._writing.acquire(blocking=False):
                    self.download(is_newer=self._is_newer(), writes=False)
                    self._download_weights(is_resumed=False)
                    self._write_memory()
            except Timeout:  # the writer keeps the memory
                self._download_weights(is_resumed=False)
        yield

    @contextmanager
    def written(self) -> Iterator[None]:
        """Sync the copy and hold the lease; upload what changes, and everything at the end.

        Raises StoreError, and InputError where another process writes.
        """
        with ExitStack() as stack:
            with self._syncing:
                self._owner, self._known = self._read_memory()
                try:
                    stack.enter_context(self._writing.acquire(blocking=False))
                except Timeout as error:
                    raise InputError(
                        f"{self.remote} is in use by another process of this machine; wait for "
                        "its end, or give another folder."
                    ) from error
                is_newer = self._is_newer()
                if not is_newer:
                    # Under the old name, this copy would count as newer after a failed download.
                    self._owner = uuid.uuid4().hex
                lease = stack.enter_context(Lease(self.remote, self._owner, is_kept=True))
                self.download(is_newer=is_newer, writes=True)
                self._download_weights(is_resumed=True)
                self._write_memory()
            thread = threading.Thread(target=self._follow, args=[lease], name="upload", daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._is_over.set()
                thread.join()
                self._upload_all(lease)

    def download(self, *, is_newer: bool, writes: bool) -> None:
        """Sync the copy from the store, unless the copy is newer.

        Raises StoreError, and InputError for a folder of another kind, before anything is copied.

        Files that only the copy has are never removed: those of a newer copy are uploaded again,
        others are moved beside the copy. Both are reported on standard error.
        """
        here, remote = local_files(self.local), self._remote_files()
        self._check_kind(remote, writes=writes)
        agreed = {name for name, (_, stamp) in self._known.items() if here.get(name) == stamp}
        if is_newer:
            if lost := (self._known.keys() & here.keys()) - remote.keys():
                _warn(
                    f"{self.remote} has lost files that {self.local} still has",
                    lost,
                    "a command that writes there uploads them again. To start without them, "
                    f"remove {self.local}",
                )
            current = here.keys() & remote.keys()
        else:
            if only_here := here.keys() - (remote.keys() & agreed):
                self._move_beside(only_here)
            current = {name for name in agreed if self._known[name][0] == remote.get(name)}
            for name in agreed - current:
                (self.local / name).unlink(missing_ok=True)
        self._known = {name: self._known.get(name, ["", None]) for name in current}
        for name in remote.keys() - current:
            self._known[name] = [remote[name], None]
            if not is_weights(name):
                if not is_newer:
                    self._write_memory(is_whole=False)
                self._download_file(name)
        remove_empty_folders(self.local)

    def _check_kind(self, names: Collection[str], *, writes: bool) -> None:
        """Raises InputError for files that no command copies: a data set, text of any size.

        What is written may be unfinished, and what is here already was taken before.
        """
        kind = next((kind for kind, of in KINDS.items() if of.marker in names), None)
        is_unknown = not writes and bool(names) and not self._known
        if kind == "data set" or (kind in (None, "tokenizer", "results") and is_unknown):
            wanted = "another folder" if writes else "a run, a classifier or a model folder"
            raise wrong_folder(self.remote, wanted)

    def _download_weights(self, *, is_resumed: bool) -> None:
        """Download what the command reads of a checkpoint, or of an intact one to resume from."""
        named = "step-*" if self._step is None else f"step-{self._step:08d}"
        states = (name for name in self._known if Path(name).match(f"{named}/{STATE}"))
        for state in sorted(states, reverse=True):
            names = [Path(state).with_name(name).as_posix() for name in self._weights]
            for name in names:
                if name in self._known and not (self.local / name).exists():
                    self._download_file(name)
            if not is_resumed or self._is_intact(state, names):
                return

    def _is_intact(self, state: str, weights: Iterable[str]) -> bool:
        try:
            with json_values(self.local / state, "remove it") as values:
                sums = {name: values["files"][Path(name).name] for name in weights}
            return all(file_sha256(self.local / name) == sums[name] for name in sums)
        except (InputError, OSError):  # training resumes from the one before it
            return False

    def upload(self) -> None:
        """Upload or remove what changed here since the last time. Raises what the store raises."""
        here = local_files(self.local)
        has_checkpoint = any(Path(name).name == STATE for name in here)
        # Checkpoints of an overwritten run must not be resumed with the new run's config.
        gone = 0 if has_checkpoint else self._remove_gone()
        changed = self._changed(here)
        for name in sorted(changed, key=validating_last):
            if (self.local / name).exists():  # or else an old checkpoint, removed meanwhile
                self._upload_file(name, here[name])
        gone += self._remove_gone()
        if changed or gone:
            for name, version in remote_files(self.remote).items():
                if name in self._known:
                    self._known[name][0] = version
            self._write_memory()

    def _remove_gone(self) -> int:
        """Remove from the store what was removed here; the number of files."""
        gone = [name for name in self._known if self._is_gone(name)]
        for name in sorted(gone, key=validating_last, reverse=True):
            (self.remote / name).unlink(missing_ok=True)
            del self._known[name]
        return len(gone)

    def _is_newer(self) -> bool:
        """Whether this copy was the last to write to the store, by what the store has.

        A store that has lost its lease is one whose files were removed: the copy has them still,
        unless what is left there was written by somebody else.
        """
        if holder := Lease(self.remote, self._owner, is_kept=True).holder():
            return bool(holder.get("owner") == self._owner)
        return self._memory.exists() and all(
            name in self._known and self._known[name][0] == version
            for name, version in self._remote_files().items()
        )

    def _follow(self, lease: Lease) -> None:
        """Upload new and changed files again and again; a failed upload is retried."""
        while not self._is_over.wait(POLL_SECONDS):
            if all(map(is_log, self._changed(local_files(self.local)))):
                continue
            try:
                lease.confirm()  # another process may write there by now
                self.upload()
            except Exception as error:  # each store's library has its own errors
                reason = reason_of(error)
                print(f"warning: {self.remote}: {reason}; retrying later.", file=sys.stderr)

    def _changed(self, here: Mapping[str, Stamp]) -> list[str]:
        return [name for name in here if self._known.get(name, ["", None])[1] != here[name]]

    def _upload_all(self, lease: Lease) -> None:
        try:
            lease.confirm()
            with_retries(self.upload, self.remote)
        except StoreError as error:
            raise JobFailedError(
                f"{error} What is missing there is in {self.local}; rerun the same "
                "command on this machine, with --resume if it has that option."
            ) from error

    def _is_gone(self, name: str) -> bool:
        """Whether a file was removed here; weights that are left there are where their state is."""
        is_left_there = self._known[name][1] is None and is_weights(name)
        path = self.local / (state_of(name) if is_left_there else name)
        return not path.exists() and self.local.exists()  # not while another one takes its place

    def _upload_file(self, name: str, stamp: Stamp) -> None:
        target = self.remote / name
        if has_folders(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        self.remote.fs.put_file(str(self.local / name), target.path)
        self._known[name] = ["", stamp]

    def _download_file(self, name: str) -> None:
        target = self.local / name
        target.parent.mkdir(parents=True, exist_ok=True)

        def download() -> None:
            with whole_file(target) as file, (self.remote / name).open("rb") as source:
                shutil.copyfileobj(source, file)

        with_retries(download, self.remote / name)
        self._known[name][1] = stamp_of(target)

    def _move_beside(self, names: Collection[str]) -> None:
        """Move files out of the copy, since the store's version of the folder is without them."""
        number = 1
        while (aside := self.local.with_name(f"{self.local.name}.aside-{number}")).exists():
            number += 1
        for name in names:
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (self.local / name).rename(aside / name)
        _warn(
            f"this machine's copy of {self.remote} has files that are not there any more",
            names,
            f"moved to {aside}, which you may remove",
        )

    def _remote_files(self) -> dict[str, str]:
        return with_retries(lambda: remote_files(self.remote), self.remote)

    def _read_memory(self) -> tuple[str, dict[str, Any]]:
        """The name of this copy, and `_known` as of its last command."""
        try:
            with json_values(self._memory, "remove it") as memory:
                return memory["owner"] or uuid.uuid4().hex, memory["files"]
        except InputError:  # a new copy
            return uuid.uuid4().hex, {}

    def _write_memory(self, *, is_whole: bool = True) -> None:
        """Note what both have; while it is downloaded, so that after an interruption the rest is.

        No lease has the owner "": an unfinished copy is never the last to write to the store.
        """
        files = {name: both for name, both in self._known.items() if is_whole or both[1]}
        write_json(self._memory, {"owner": self._owner if is_whole else "", "files": files})


def _warn(what: str, names: Collection[str], then: str) -> None:
    print(f"warning: {what} ({first_names(sorted(names))}); {then}.", file=sys.stderr)
