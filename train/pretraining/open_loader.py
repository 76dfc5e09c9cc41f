"""What a run reads: its loader, where training stands, and the same shards in every process."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.common.errors import InputError
from train.artifacts.checkpoint import TrainState
from train.config import PretrainConfig
from train.data.loader import Loader
from train.data.shard_set import ShardSet
from train.engine.distributed import World


def open_loader(
    shards: Path, training: PretrainConfig, state: TrainState, world: World
) -> tuple[Loader, TrainState]:
    """A process's part of the global batches from where the state stands; and the state, in which
    a new run notes the shards that are skipped.

    Raises InputError for bad shards, also those to look at held-out examples in that are missing,
    and where others are skipped than in another process or in an earlier life: the order of the
    data depends on them.
    """
    loader = Loader(
        shards,
        batch_size=training.batch_size,
        rank=world.rank,
        world_size=world.size,
        seed=training.seed,
        remask=training.remask,
        length_bins=training.length_bins,
        unpadded=training.unpadded,
        check_shards=training.check_shards,
        skip_bad_shards=training.skip_bad_shards,
        device=world.device,
    )
    loader.load_state_dict(loader.state_dict(state.next_position))
    if loader.shards.manifest.num_examples("validation"):
        ShardSet(shards, "validation")  # now, and not at the first look at them
    skipped = sorted(loader.shards.skipped)
    _check_same_for_all(skipped, world)
    if state.step == 0:
        state = replace(state, skipped_shards=skipped)
    if state.skipped_shards != skipped:
        raise InputError(
            f"{shards}: {_listed(skipped)} would be skipped, in the life before "
            f"{_listed(state.skipped_shards)}, and the order of the data depends on it. Put the "
            "shards back as they were, or give another --out with --start-from."
        )
    if world.is_main:
        for warning in _warnings(loader.shards, training.batch_size):
            print(f"warning: {warning}", file=sys.stderr)
    return loader, state


def _check_same_for_all(skipped: list[str], world: World) -> None:
    broadcast_from_main = world.broadcast_from_main(lambda: skipped)
    if not world.any(skipped != broadcast_from_main):
        return
    said = (
        f"process {world.rank} skips {_listed(skipped)}, process 0 {_listed(broadcast_from_main)}"
    )
    if world.is_main:
        said = f"process 0 skips {_listed(skipped)}, and another process others"
    raise InputError(
        f"{said}; all have to read the same shards. Copy them anew to where they differ."
    )


def _warnings(shards: ShardSet, batch_size: int) -> Iterator[str]:
    if shards.skipped:
        total = sum(entry.rows for entry in shards.entries)
        reasons = " ".join(shards.skipped.values())
        yield (
            f"{len(shards.skipped)} of {len(shards.entries)} shards are skipped, and with them "
            f"{shards.lost_rows:,} of {total:,} training examples. {reasons}"
        )
    examples = sum(shards.shard_rows)
    if batch_size > examples:
        yield (
            f"a batch of {batch_size:,} examples is more than all of the {examples:,} there are; "
            "each step reads some of them again."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no shard"
