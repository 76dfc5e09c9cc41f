"""The data of a run: its loaders at the positions to resume from, and the shards to evaluate on.

All ranks read the same data sets.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, path_of
from clozeline.train.artifacts.run import RunConfig
from clozeline.train.data.loader import Loader
from clozeline.train.data.phased_loader import PhasedLoader
from clozeline.train.data.phases import data_sets_of
from clozeline.train.data.shard_cache import ShardCache
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World


def open_loader(
    shards: AnyPath, config: RunConfig, world: World, *, state: dict[str, Any]
) -> tuple[PhasedLoader, ShardSet | None]:
    """Open this process's loaders at a `PhasedLoader.state_dict`, and the validation shards.

    An empty `state` starts from the beginning. Raises InputError for bad shards, for missing
    validation shards, if ranks read different data sets, and if the order of examples is not the
    checkpoint's.
    """
    training = config.training
    digests = [digest[:12] for digest in data_sets_of(config.phases)]
    _check_same_on_all_ranks(digests, world)
    checks: dict[str, Any] = {"check_shards": training.check_shards}
    if training.shard_cache:
        limit = training.shard_cache_bytes
        checks["shard_cache"] = ShardCache(Path(training.shard_cache), limit=limit)
    folders = {phase.dataset_digest: path_of(phase.shards) for phase in config.phases}
    folders[config.dataset_digest] = shards
    sizes = {phase.dataset_digest: phase.batch_factor for phase in config.phases}
    loaders = {
        digest: Loader(
            folder,
            batch_size=training.batch_size * sizes[digest],
            rank=world.rank,
            world_size=world.size,
            seed=training.seed,
            masked_lm_prob=training.masked_lm_prob,
            length_bins=training.length_bins,
            unpadded=training.unpadded,
            device=world.device,
            **checks,
        )
        for digest, folder in folders.items()
    }
    loader = PhasedLoader(loaders, config.dataset_digest)
    validation = None
    if loader.main.shards.manifest.num_examples("validation"):  # fail now, not at the evaluation
        validation = ShardSet(shards, "validation", **checks)
    if state:
        world.broadcast_from_main(lambda: loader.load_state_dict(state))  # only rank 0 reports
        loader.load_state_dict(state)
    if world.is_main:
        for warning in _warnings(loader):
            print(f"warning: {warning}", file=sys.stderr)
    return loader, validation


def _check_same_on_all_ranks(digests: list[str], world: World) -> None:
    on_main = world.broadcast_from_main(lambda: digests)
    if not world.any(digests != on_main):
        return
    here = "" if world.is_main else f", rank {world.rank} reads {', '.join(digests)}"
    raise InputError(
        f"ranks disagree about data sets: rank 0 reads {', '.join(on_main)}{here}. All ranks must "
        "read the same shards; copy them again where they differ."
    )


def _warnings(loader: PhasedLoader) -> Iterator[str]:
    main = loader.main.shards
    for one in loader.loaders:
        there, examples = one.shards, sum(one.shards.shard_rows)
        if one.batch_size > examples:
            yield (
                f"a batch of {one.batch_size:,} examples is larger than the data set "
                f"({examples:,}): every step repeats some of them."
            )
        share, held_out = (x.manifest.config.validation for x in (there, main))
        if share < held_out:
            yield (
                f"{there.folder} was built with --validation {share:g} and {main.folder} with "
                f"{held_out:g}: of a common text, documents held out there are trained on here."
            )
