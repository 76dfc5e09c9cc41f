"""The share of time that training steps wait for shards in a store that is slow and fails.

    python tests/benchmarks/store_speed.py [--steps N] [--step MS] [--latency MS] [--faults PERCENT]

Each request takes 100 ms, and 5 % of them fail after that, as drawn from a seed. The loader is the
one of `clozeline pretrain`, in epoch 1 with its redrawn masks; a step takes 256 examples of up to
128 tokens per rank, and keeps one core busy with matrix products for 20 ms. Ranks of 1, 8
and 64 are simulated one after the other, in 512 shards (64 streams) of 20,000 rows or 5 MB, which
all have the same content. It prints

    waits     time in which a step waited for its batch, relative to all time after the first batch
    longest   wait of a step
    fetched   bytes in N steps, relative to those of their examples
    first     time until the first batch, relative to the time of one shard
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from upath import UPath

from clozeline.pipeline.common.malloc import disable_malloc_trim
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.shards import shard_name
from clozeline.train.data.loader import Loader
from clozeline.train.data.shard_set import ShardSet
from tests.benchmarks.loader_speed import CONFIG, MANY
from tests.support.failing_store import failing_folder
from tests.support.small_data import write_data_set

ROWS = 256  # of a rank's step
SHARD_ROWS = 20_000


def busy_until(moment: float, matrix: torch.Tensor) -> None:
    """Keep this core busy, as a step on the CPU does, without the interpreter's lock."""
    while time.monotonic() < moment:
        torch.mm(matrix, matrix)


def write_store(folder: UPath) -> None:
    """A data set whose shards are copies of one; the copies share their memory."""
    store = folder.fs
    with tempfile.TemporaryDirectory() as scratch:
        local = write_data_set(Path(scratch) / "shards", train=(SHARD_ROWS,), config=CONFIG)
        store.put(str(local), folder.path, recursive=True)
    manifest = read_manifest(folder)
    (only,) = manifest.shards
    content = (folder / only.name).read_bytes()
    names = [shard_name("train", number, MANY, "arrow") for number in range(MANY)]
    for name in names:
        (folder / name).write_bytes(content)
    write_manifest(folder, replace(manifest, shards=[replace(only, name=name) for name in names]))


def measure(folder: UPath, world_size: int, *, steps: int, step: float) -> str:
    """A line about the last rank of `world_size`, in epoch 1."""
    store, batch_size = folder.fs, ROWS * world_size
    shards, failure_rate = ShardSet(folder, "train"), store.failure_rate
    store.failure_rate, start = 0.0, time.monotonic()
    shards.read(0)
    one_shard, store.failure_rate = time.monotonic() - start, failure_rate
    ranks = {"rank": world_size - 1, "world_size": world_size}
    loader = Loader(folder, batch_size=batch_size, seed=0, **ranks)
    loader.load_state_dict(loader.state_dict(sum(loader.shards.shard_rows)))
    store.num_bytes, matrix = 0, torch.ones(128, 128)
    start = time.monotonic()
    batches = iter(loader)
    next(batches)
    first = time.monotonic() - start
    waits, start = [], time.monotonic()
    for _ in range(steps):
        busy_until(time.monotonic() + step, matrix)
        before = time.monotonic()
        next(batches)
        waits.append(time.monotonic() - before)
    total = time.monotonic() - start
    batches.close()
    part = loader.shards.entries[0].bytes * (steps * ROWS / SHARD_ROWS)
    return (
        f"rank of {world_size:2}: waits {100 * sum(waits) / total:5.2f} %, "
        f"longest {1000 * max(waits):4.0f} ms, fetched {store.num_bytes / part:.2f}, "
        f"first {first / one_shard:4.1f} x {one_shard:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--step", type=float, default=20.0)
    parser.add_argument("--latency", type=float, default=100.0)
    parser.add_argument("--faults", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_malloc_trim()
    folder = failing_folder("shards")
    write_store(folder)
    store = folder.fs
    store.latency, store.failure_rate = options.latency / 1000, options.faults / 100
    print(
        f"{options.step:g} ms a step, {options.latency:g} ms a request, {options.faults:g} % fail"
    )
    for world_size in (1, 8, 64):
        line = measure(folder, world_size, steps=options.steps, step=options.step / 1000)
        print(line, flush=True)


if __name__ == "__main__":
    main()
