"""Writes checkpoints in a thread while training continues with its own tensors."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from clozeline.train.artifacts.checkpoint import TrainState, remove_old_checkpoints, save_checkpoint
from clozeline.train.artifacts.snapshot import Snapshot


class CheckpointWriter:
    """Writes one checkpoint at a time and removes old ones; a context.

    An error in a write is raised by the next `wait`, and at the end of the block unless the block
    itself raises.
    """

    def __init__(self, run: Path, *, keep: int) -> None:
        self._run = run
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown()
        if kind is None:
            self.wait()

    @property
    def has_failed(self) -> bool:
        """Whether `wait` would raise at once."""
        write = self._write
        return write is not None and write.done() and write.exception() is not None

    def save(self, snapshot: Snapshot, state: TrainState) -> None:
        """Start writing; the snapshot belongs to the writer from now on. Call `wait` first."""
        assert self._write is None, "two snapshots would be in memory at once"
        self._write = self._thread.submit(self._save, snapshot, state)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raises what writing it raised."""
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def _save(self, snapshot: Snapshot, state: TrainState) -> None:
        save_checkpoint(self._run, snapshot, state)
        remove_old_checkpoints(self._run, keep=self._keep)
