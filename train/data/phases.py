"""The phases of a run: parts in which the data set, and so all shapes, stay the same.

    --phase work/64@0.5, SHARDS work/256, batches of 32

    from    data set    tokens    examples in a batch
    0.0     work/64     64        4 * 32
    0.5     work/256    256       32

Every run has at least one. A batch of shorter examples has as many times more of them as they are
shorter, in whole numbers, so that steps of all phases have about as many tokens, and whatever
divides the batch of SHARDS divides each batch.

Each data set has a position of its own (`PhasedLoader`):

    phases      work/64 .......... | work/256 ... | work/64 ...
    positions   0 ........... 4095 | 0 ..... 1023 | 4096 ......

A phase continues where the last phase on its data set stopped, so within an epoch each example is
read once, however often and however late the phases change.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from clozeline.pipeline.common.config_checks import check_field_names
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, path_of
from clozeline.pipeline.dataset.manifest import Manifest, read_manifest
from clozeline.train.config import PretrainConfig, phase_starts
from clozeline.train.data.batch import LoadedBatch
from clozeline.train.data.loader import Loader
from clozeline.train.data.shard_set import config_at


@dataclass(frozen=True, kw_only=True)
class DataPhase:
    """A part of a run."""

    start: float  # fraction of the run at which it begins
    shards: str
    dataset_digest: str
    max_seq_length: int
    batch_factor: int  # examples of a batch, in multiples of a batch of SHARDS
    max_predictions: int  # most masked tokens of an example

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The phase that was stored; raises ValueError for that of another version."""
        check_field_names(cls, values)
        return cls(**values)


def find_phases(
    shards: AnyPath, manifest: Manifest, training: PretrainConfig
) -> tuple[DataPhase, ...]:
    """The phases of a run on SHARDS, in order.

    Raises InputError where the data set of a phase cannot be used before SHARDS.
    """
    phases = []
    for start, folder in phase_starts(training.phase):
        of_phase = manifest if folder is None else _read(folder, shards, manifest)
        config = config_at(of_phase.config, training.masked_lm_prob)
        phases.append(
            DataPhase(
                start=start,
                shards=str(shards) if folder is None else folder,
                dataset_digest=of_phase.dataset_digest,
                max_seq_length=config.max_seq_length,
                batch_factor=manifest.config.max_seq_length // config.max_seq_length,
                max_predictions=config.predictions,
            )
        )
    return tuple(phases)


def data_sets_of(phases: Iterable[DataPhase]) -> list[str]:
    """The digest of each data set, once, in the order in which they are read."""
    return list(dict.fromkeys(phase.dataset_digest for phase in phases))


def _read(folder: str, shards: AnyPath, manifest: Manifest) -> Manifest:
    """The data set of a phase before SHARDS, checked."""
    earlier = read_manifest(path_of(folder))
    if earlier.tokenizer_digest != manifest.tokenizer_digest:
        raise InputError(
            f"--phase {folder} was built with another tokenizer ({earlier.tokenizer_digest[:12]}) "
            f"than {shards} ({manifest.tokenizer_digest[:12]}); give shards of the same one."
        )
    length, longest = earlier.config.max_seq_length, manifest.config.max_seq_length
    if length > longest:
        raise InputError(
            f"--phase {folder} has examples of {length} tokens, {shards} of {longest}; give the "
            "longest as SHARDS, which are read last."
        )
    return earlier


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
        return iter(self._by_digest[phase.dataset_digest])

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
        for loader, own in zip(self.loaders, states_of(state), strict=True):
            loader.load_state_dict(own)


def states_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all loaders, that of SHARDS first; none before the first step."""
    main = {name: value for name, value in state.items() if name != OTHERS}
    return [main, *state.get(OTHERS, ())] if state else []
