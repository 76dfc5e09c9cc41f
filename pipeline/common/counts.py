"""What a job counts: documents read and left out, and memory.

Memory is that of the job on this machine, workers included, and what its processes keep of it.
"""

import ctypes
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

SAMPLES: Final = 20  #: documents shown for a reason
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NEVER = 2**31 - 1


@dataclass
class Counts:
    """What was read and left out; part of the data, since not every Beam runner has metrics."""

    read: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    rejected: list[dict[str, str]] = field(default_factory=list)  #: {"where": .., "reason": ..}
    #: some of the dropped documents for each reason: those of the lowest hashes
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        self.read.update(other.read)
        self.dropped.update(other.dropped)
        self.rejected.extend(other.rejected)
        for reason, samples in other.samples.items():
            known = {one["document"]: one for one in [*self.samples.get(reason, []), *samples]}
            self.samples[reason] = [known[document] for document in sorted(known)[:SAMPLES]]

    def show(self, reason: str, **sample: Any) -> None:
        """Add a sample of a reason: {"document": hash, "text": .., "value": ..}."""
        self.add(Counts(samples={reason: [sample]}))

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Counts":
        """What `to_json` gave. Raises LookupError and TypeError for other values."""
        values = json.loads(text)
        return cls(Counter(values.pop("read")), Counter(values.pop("dropped")), **values)


def tree_memory() -> int:
    """Bytes of this process and its descendants, with shared pages counted once.

    The sum of proportional set sizes if the system reports them, else of unique set sizes.
    """
    import psutil

    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            memory = process.memory_full_info()
        except psutil.Error:  # it has ended meanwhile
            continue
        total += getattr(memory, "pss", memory.uss)
    return total


def release_memory() -> None:
    """Return to the system the free memory that the allocators keep.

    After tokenizing, a worker keeps some 200 MB of free blocks that are too small for the arrays of
    a shard.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    # Arrow's pool of malloc would do this only where it is Arrow's default.
    if trim := _of_libc("malloc_trim"):
        trim(0)


def disable_malloc_trim() -> bool:
    """Make glibc's malloc keep what this process frees; returns False where there is no glibc.

    A step on CPU frees and reallocates all of its gradients, bfloat16 weights and logits. glibc
    returns tensors of this size to the system at once, and every page then faults again: up to a
    quarter of a small model's step. On a GPU host this affects the batches: a sixth of the time it
    takes to make them. The columns of a `shards` job are such blocks, too.
    """
    mallopt = _of_libc("mallopt")
    return mallopt is not None and all(
        mallopt(x, NEVER) for x in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    )


def _of_libc(name: str) -> Any:
    """A function of glibc; None with musl, and on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
