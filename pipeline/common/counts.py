"""Counts of a block or a shard: what was read, dropped and rejected, by reason; CPU seconds."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

Item = TypeVar("Item")

SAMPLES: Final = 20  #: documents shown for a reason
COUNTERS: Final = ("read", "dropped", "hits", "seconds")


@dataclass
class Counts:
    """What was read and left out; part of the data, since not every Beam runner has metrics."""

    read: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    #: {"where": ..., "reason": ...}; also "kind" for a source that ends early
    rejected: list[dict[str, str]] = field(default_factory=list)
    #: documents that share text with an excluded one: "source:" and "source:hash of the text"
    hits: Counter[str] = field(default_factory=Counter)
    #: some of the dropped documents for each reason: those of the lowest hashes
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: CPU seconds by stage; not compared, since they differ from run to run.
    seconds: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def rejected_documents(self) -> list[dict[str, str]]:
        """`rejected` without sources that end early."""
        return [entry for entry in self.rejected if not entry.get("kind")]

    def add(self, other: "Counts") -> None:
        for name in COUNTERS:
            getattr(self, name).update(getattr(other, name))
        self.rejected.extend(other.rejected)
        for reason, samples in other.samples.items():
            self._show(reason, samples)

    def show(self, reason: str, **sample: Any) -> None:
        """Add a sample of a reason: {"document": hash, "text": .., "value": ..}."""
        self._show(reason, [sample])

    def _show(self, reason: str, samples: list[dict[str, Any]]) -> None:
        known = {sample["document"]: sample for sample in [*self.samples.get(reason, []), *samples]}
        self.samples[reason] = [known[document] for document in sorted(known)[:SAMPLES]]

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Counts":
        """What `to_json` gave. Raises LookupError and TypeError for other values."""
        values = json.loads(text)
        for name in COUNTERS:
            values[name] = Counter(values[name])
        return cls(**values)


class StageTimer:
    """CPU seconds of the calling thread, by name of the stage.

    Per thread, because a Beam runner may run several stages as threads of one process.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time that the `with` block takes."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] += time.thread_time() - start  # type: ignore[assignment]

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; add the time it takes to produce them, not to consume them."""
        iterator, end = iter(items), object()
        while True:
            with self.stage(name):
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
