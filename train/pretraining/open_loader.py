"""The data of a run: its loader at the position to resume from, and the shards to evaluate on.

All ranks leave the same shards out.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.train.config import PretrainConfig
from clozeline.train.data.loader import Loader
from clozeline.train.data.shard_cache import ShardCache
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World


class RunData(NamedTuple):
    """What a run trains on, and the validation shards, if there are any."""

    loader: Loader
    validation: ShardSet | None


def open_loader(
    shards: AnyPath, training: PretrainConfig, world: World, *, state: dict[str, Any]
) -> RunData:
    """Open this process's loader at a `Loader.state_dict`, and the validation shards.

    An empty `state` starts from the beginning. Raises InputError for bad shards, for missing
    validation shards, if ranks skip different shards, and if the order of examples is not the
    checkpoint's.
    """
    checks: dict[str, Any] = {
        "check_shards": training.check_shards,
        "skip_bad_shards": training.skip_bad_shards,
    }
    if training.shard_cache:
        limit = training.shard_cache_bytes
        checks["shard_cache"] = ShardCache(Path(training.shard_cache), limit=limit)
    loader = Loader(
        shards,
        batch_size=training.batch_size,
        rank=world.rank,
        world_size=world.size,
        seed=training.seed,
        remask=training.remask,
        length_bins=training.length_bins,
        unpadded=training.unpadded,
        device=world.device,
        **checks,
    )
    validation = None
    if loader.shards.manifest.num_examples("validation"):  # fail now, not at the evaluation
        validation = ShardSet(shards, "validation", **checks)
    if state:
        world.broadcast_from_main(lambda: loader.load_state_dict(state))  # only rank 0 reports
        loader.load_state_dict(state)
    of_both = [found for found in (loader.shards, validation) if found]
    _check_same_on_all_ranks(sorted(name for found in of_both for name in found.skipped), world)
    if world.is_main:
        for warning in _warnings(of_both, training.batch_size):
            print(f"warning: {warning}", file=sys.stderr)
    return RunData(loader, validation)


def _check_same_on_all_ranks(skipped: list[str], world: World) -> None:
    on_main = world.broadcast_from_main(lambda: skipped)
    if not world.any(skipped != on_main):
        return
    here = "" if world.is_main else f", rank {world.rank} skips {_listed(skipped)}"
    raise InputError(
        f"ranks disagree about unreadable shards: rank 0 skips {_listed(on_main)}{here}. All "
        "ranks must read the same shards; copy them again where they differ."
    )


def _warnings(of_both: list[ShardSet], batch_size: int) -> Iterator[str]:
    for shards in of_both:
        if shards.skipped:
            total = sum(entry.rows for entry in shards.entries)
            reasons = " ".join(shards.skipped.values())
            what = "training" if shards.split == "train" else shards.split
            yield (
                f"{len(shards.skipped)} of {len(shards.entries)} {what} shards are skipped, with "
                f"{total - sum(shards.shard_rows):,} of {total:,} {what} examples. {reasons}"
            )
    examples = sum(of_both[0].shard_rows)
    if batch_size > examples:
        yield (
            f"a batch of {batch_size:,} examples is larger than the data set ({examples:,}): every "
            "step repeats some of them."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no shard"
