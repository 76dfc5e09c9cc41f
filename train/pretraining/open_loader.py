"""The data of a run: its loaders at the positions to resume from, and the shards to evaluate on.

All ranks read the same data sets, and leave the same shards out.
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
    validation shards, if ranks read different data sets or skip different shards, and if the order
    of examples is not the checkpoint's.
    """
    training = config.training
    digests = [digest[:12] for digest in data_sets_of(config.phases)]
    _check_same_on_all_ranks(digests, "data sets", "reads", world)
    checks: dict[str, Any] = {
        "check_shards": training.check_shards,
        "skip_bad_shards": training.skip_bad_shards,
    }
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
            remask=training.remask,
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
    opened = [one.shards for one in loader.loaders] + ([validation] if validation else [])
    _check_same_on_all_ranks(_skipped(opened, shards), "unreadable shards", "skips", world)
    if world.is_main:
        for warning in _warnings(loader, opened):
            print(f"warning: {warning}", file=sys.stderr)
    return loader, validation


def _skipped(opened: list[ShardSet], shards: AnyPath) -> list[str]:
    skipped = []
    for found in opened:  # data sets have shards of the same names
        digest = "" if found.folder == shards else f"{found.manifest.dataset_digest[:12]}/"
        skipped += [digest + name for name in sorted(found.skipped)]
    return skipped


def _check_same_on_all_ranks(found: list[str], what: str, does: str, world: World) -> None:
    on_main = world.broadcast_from_main(lambda: found)
    if not world.any(found != on_main):
        return
    here = "" if world.is_main else f", rank {world.rank} {does} {_listed(found)}"
    raise InputError(
        f"ranks disagree about {what}: rank 0 {does} {_listed(on_main)}{here}. All ranks must read "
        "the same shards; copy them again where they differ."
    )


def _warnings(loader: PhasedLoader, opened: list[ShardSet]) -> Iterator[str]:
    for shards in opened:
        if shards.skipped:
            total = sum(entry.rows for entry in shards.entries)
            reasons = " ".join(shards.skipped.values())
            what = "training" if shards.split == "train" else shards.split
            yield (
                f"{len(shards.skipped)} of {len(shards.entries)} {what} shards are skipped, with "
                f"{total - sum(shards.shard_rows):,} of {total:,} {what} examples. {reasons}"
            )
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


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no shard"
