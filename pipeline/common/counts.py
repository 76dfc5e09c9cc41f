"""Counts of a block or a shard: what was read, dropped and rejected, by reason."""

import json
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """What was read and left out; part of the data, since not every Beam runner has metrics."""

    read: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    #: {"where": ..., "reason": ...}; also "kind" for a source that ends early
    rejected: list[dict[str, str]] = field(default_factory=list)
    #: CPU seconds by stage; not compared, since they differ from run to run.
    seconds: Counter[str] = field(default_factory=Counter, compare=False)

    def add(self, other: "Counts") -> None:
        """Add the counts of another block or shard."""
        self.read.update(other.read)
        self.dropped.update(other.dropped)
        self.rejected.extend(other.rejected)
        self.seconds.update(other.seconds)

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
            seconds=Counter(values["seconds"]),
        )
