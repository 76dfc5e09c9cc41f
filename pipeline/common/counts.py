"""What a block or a shard counted: read, dropped and rejected, with the reasons."""

import json
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """What was read, what was left out and why; travels in the data, not in Beam's metrics."""

    read: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    rejected: list[dict[str, str]] = field(default_factory=list)  # {"where": ..., "reason": ...}
    #: CPU seconds by stage: what the machine made of the work, so no part of what was counted.
    seconds: Counter[str] = field(default_factory=Counter, compare=False)

    def add(self, other: "Counts") -> None:
        """Count in what another block or shard saw."""
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
        facts = json.loads(text)
        return cls(
            read=Counter(facts["read"]),
            dropped=Counter(facts["dropped"]),
            rejected=facts["rejected"],
            seconds=Counter(facts["seconds"]),
        )
