"""Counts of a block or a shard: what was read, dropped and rejected, by reason."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

SAMPLES: Final = 20  #: documents shown for a reason


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

    def add(self, other: "Counts") -> None:
        """Add the counts of another block or shard."""
        self.read.update(other.read)
        self.dropped.update(other.dropped)
        self.rejected.extend(other.rejected)
        self.hits.update(other.hits)
        for reason, samples in other.samples.items():
            self._show(reason, samples)
        self.seconds.update(other.seconds)

    def show(self, reason: str, **sample: Any) -> None:
        """Add a sample of a reason: {"document": hash, "text": .., "value": ..}."""
        self._show(reason, [sample])

    def _show(self, reason: str, samples: list[dict[str, Any]]) -> None:
        known = {sample["document"]: sample for sample in [*self.samples.get(reason, []), *samples]}
        self.samples[reason] = [known[document] for document in sorted(known)[:SAMPLES]]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Counts":
        """The inverse of `to_json`."""
        values = json.loads(text)
        return cls(
            read=Counter(values["read"]),
            dropped=Counter(values["dropped"]),
            rejected=values["rejected"],
            samples=values["samples"],
            hits=Counter(values["hits"]),
            seconds=Counter(values["seconds"]),
        )
