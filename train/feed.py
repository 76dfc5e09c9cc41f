"""What a run reads: its loader, where training stands, and the same shards in every process."""

import sys
from dataclasses import replace
from pathlib import Path

from pipeline.errors import InputError
from train.checkpoint import TrainState
from train.config import PretrainConfig
from train.distributed import World
from train.loader import Loader
from train.pools import ShardSet


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
        start_position=state.next_position,
    )
    if loader.shards.manifest.num_examples("validation"):
        ShardSet(shards, "validation")  # now, and not at the first look at them
    skipped = sorted(loader.shards.skipped)
    of_main = world.of_main(lambda: skipped)
    if world.any(skipped != of_main):
        said = f"process {world.rank} skips {_listed(skipped)}, process 0 {_listed(of_main)}"
        if world.is_main:
            said = f"process 0 skips {_listed(skipped)}, and another process others"
        raise InputError(
            f"{said}; all have to read the same shards. Copy them anew to where they differ."
        )
    if state.step == 0:
        state = replace(state, skipped_shards=skipped)
    if state.skipped_shards != skipped:
        raise InputError(
            f"{shards}: {_listed(skipped)} would be skipped, in the life before "
            f"{_listed(state.skipped_shards)}, and the order of the data depends on it. Put the "
            "shards back as they were, or give another --out with --start-from."
        )
    if world.is_main and skipped:
        print(_warning(loader.shards), file=sys.stderr)
    examples = sum(loader.shards.shard_rows)
    if world.is_main and training.batch_size > examples:
        print(
            f"Warning: a batch of {training.batch_size:,} examples is more than all of the "
            f"{examples:,} there are; each step reads some of them again.",
            file=sys.stderr,
        )
    return loader, state


def _warning(shards: ShardSet) -> str:
    total = sum(entry.rows for entry in shards.entries)
    reasons = " ".join(shards.skipped.values())
    return (
        f"Warning: {len(shards.skipped)} of {len(shards.entries)} shards are skipped, and with "
        f"them {shards.lost_rows:,} of {total:,} training examples. {reasons}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no shard"
