"""The loader of a run: at the position to resume from, with the same shards on every rank."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.common.errors import InputError
from train.config import PretrainConfig
from train.data.loader import Loader
from train.data.shard_set import ShardSet
from train.engine.distributed import World


def open_loader(
    shards: Path, training: PretrainConfig, world: World, *, state: dict[str, Any]
) -> Loader:
    """This process's part of the global batches, from a `Loader.state_dict` on, or from the
    beginning where `state` is empty.

    Raises InputError for bad shards, for missing validation shards, where ranks skip different
    shards, and where the checkpoint's order of examples is another one.
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
    if loader.shards.manifest.num_examples("validation"):
        ShardSet(shards, "validation")  # fails now, and not at the first evaluation
    _check_same_on_all_ranks(sorted(loader.shards.skipped), world)
    if state:
        world.broadcast_from_main(lambda: loader.load_state_dict(state))  # rank 0 alone complains
        loader.load_state_dict(state)
    if world.is_main:
        for warning in _warnings(loader.shards, training.batch_size):
            print(f"warning: {warning}", file=sys.stderr)
    return loader


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
