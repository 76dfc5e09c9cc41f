"""The phases of a run: parts in which the data set, and so all shapes, stay the same.

    --phase work/64@0.5, SHARDS work/256, batches of 32

    from    data set    tokens    examples in a batch
    0.0     work/64     64        4 * 32
    0.5     work/256    256       32

Every run has at least one. A batch of shorter examples has as many times more of them as they are
shorter, in whole numbers, so that steps of all phases have about as many tokens, and whatever
divides the batch of SHARDS divides each batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from clozeline.pipeline.common.config_checks import check_field_names
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, path_of
from clozeline.pipeline.dataset.manifest import Manifest, read_manifest
from clozeline.train.config import PretrainConfig
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
    for start, folder in training.data_sets:
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


def data_sets_of(phases: Iterable[DataPhase]) -> dict[str, str]:
    """The folder of each data set by its digest, once, in the order in which they are read."""
    found: dict[str, str] = {}
    for phase in phases:
        found.setdefault(phase.dataset_digest, phase.shards)
    return found


def _read(folder: str, shards: AnyPath, manifest: Manifest) -> Manifest:
    """The data set of a phase before SHARDS, checked."""
    found = read_manifest(path_of(folder))
    if found.tokenizer_digest != manifest.tokenizer_digest:
        raise InputError(
            f"--phase {folder} was built with another tokenizer ({found.tokenizer_digest[:12]}) "
            f"than {shards} ({manifest.tokenizer_digest[:12]}); give shards of the same one."
        )
    length, longest = found.config.max_seq_length, manifest.config.max_seq_length
    if length > longest:
        raise InputError(
            f"--phase {folder} has examples of {length} tokens, {shards} of {longest}; give the "
            "longest as SHARDS, which are read last."
        )
    return found
