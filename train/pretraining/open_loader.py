"""The loader of a run: at the position to resume from, with the same shards on every rank."""

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
    """This process's part of the global batches from the position of `state` on; and the state,
    in which a new run notes the skipped shards.

    Raises InputError for bad shards, for missing validation shards, and where the skipped shards
    differ from those of another rank or of the checkpoint: the order of the data depends on them.
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
        ShardSet(shards, "validation")  # fails now, and not at the first evaluation
    skipped = sorted(loader.shards.skipped)
    _check_same_on_all_ranks(skipped, world)
    if state.step == 0:
        state = replace(state, skipped_shards=skipped)
    if state.skipped_shards != skipped:
        raise InputError(
            f"{shards}: {_listed(skipped)} would be skipped, the checkpoint skips "
            f"{_listed(state.skipped_shards)}, and the order of the data depends on it. Restore "
            "the shards, or give another --out with --start-from."
        )
    if world.is_main:
        for warning in _warnings(loader.shards, training.batch_size):
            print(f"warning: {warning}", file=sys.stderr)
    return loader, state


def _check_same_on_all_ranks(skipped: list[str], world: World) -> None:
    on_main = world.broadcast_from_main(lambda: skipped)
    if not world.any(skipped != on_main):
        return
    here = "" if world.is_main else f", rank {world.rank} skips {_listed(skipped)}"
    raise InputError(
        f"ranks disagree about unreadable shards: rank 0 skips {_listed(on_main)}{here}. All "
        "ranks must read the same shards; copy them again where they differ."
    )


def _warnings(shards: ShardSet, batch_size: int) -> Iterator[str]:
    if shards.skipped:
        total = sum(entry.rows for entry in shards.entries)
        reasons = " ".join(shards.skipped.values())
        yield (
            f"{len(shards.skipped)} of {len(shards.entries)} shards are skipped, with "
            f"{shards.lost_rows:,} of {total:,} training examples. {reasons}"
        )
    examples = sum(shards.shard_rows)
    if batch_size > examples:
        yield (
            f"a batch of {batch_size:,} examples is larger than the data set ({examples:,}): every "
            "step repeats some of them."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no shard"
