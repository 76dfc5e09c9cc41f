"""The training sequences of a run with phases: each data set has a position of its own.

    phases      work/64 .......... | work/256 ... | work/64 ...
    positions   0 ........... 4095 | 0 ..... 1023 | 4096 ......

A phase continues where the last phase on its data set stopped, so within an epoch each example is
read once, however often and however late the phases change.
"""

from collections.abc import Generator, Mapping
from typing import Any

from clozeline.train.data.batch import LoadedBatch
from clozeline.train.data.loader import Loader
from clozeline.train.data.phases import DataPhase

OTHERS = "others"  # key of the states of the other data sets


class PhasedLoader:
    """The loaders of a run's data sets, of which one at a time is read."""

    def __init__(self, loaders: Mapping[str, Loader], main: str) -> None:
        """`loaders` by the digest of their data set; `main` is that of SHARDS."""
        self.main = loaders[main]
        self._by_digest = loaders
        others = (loader for digest, loader in loaders.items() if digest != main)
        #: All of them, that of SHARDS first.
        self.loaders = [self.main, *others]

    def batches(self, phase: DataPhase) -> Generator[LoadedBatch[Any]]:
        """The batches from here on of the data set of a phase."""
        loader = self._by_digest[phase.dataset_digest]
        for other in self.loaders:
            if other is not loader:
                other.close_shards()
        return iter(loader)

    @property
    def is_bad_ahead(self) -> bool:
        """Whether a shard that is read ahead is bad."""
        return any(loader.shards.has_failed for loader in self.loaders)

    @property
    def longest_read(self) -> int:
        """Tokens of the longest examples among the data sets that have been read; 0 before."""
        read = (loader for loader in self.loaders if loader.next_position)
        return max((loader.shards.max_seq_length for loader in read), default=0)

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader of SHARDS (`Loader.state_dict`), with those of the others."""
        others = [loader.state_dict() for loader in self.loaders[1:]]
        return self.main.state_dict() | ({OTHERS: others} if others else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the very next example of each data set; raises as a Loader does."""
        for loader, found in zip(self.loaders, states_of(state), strict=True):
            loader.load_state_dict(found)


def states_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all loaders, that of SHARDS first; none before the first step."""
    main = {name: value for name, value in state.items() if name != OTHERS}
    return [main, *state.get(OTHERS, ())] if state else []


def state_of(state: dict[str, Any], dataset_digest: str) -> dict[str, Any]:
    """The state of the loader of one data set; empty where the run has not had it."""
    found = (one for one in states_of(state) if one["dataset_digest"] == dataset_digest)
    return next(found, {})
