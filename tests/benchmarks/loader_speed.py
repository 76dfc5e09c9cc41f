"""CPU seconds per million examples, in shuffled training batches of int64 tensors.

    python tests/benchmarks/loader_speed.py [EXAMPLES] [--ranks]

A batch is ids, types, mask, positions, labels and next-sentence labels of examples of up to 128
tokens. The loader reads epoch 1, with stored and with redrawn masks, without workers and with the
prefetch thread, from Arrow and WebDataset shards. It is compared with `datasets` (map style and
iterable, torch format, columns stored padded) under a torch `DataLoader`, which reads fewer
examples because it is slow. One thread each, in turns; the median of three repetitions, CPU time of
all threads; malloc trimming is off, as in `pretrain`.

Then, or with `--ranks` alone: what one rank of 1, 2, 8 and 64 costs in an epoch of 512 shards (64
streams) with redrawn masks; ranks are simulated one after the other. Beside it are the bytes that
it fetches, relative to its part of all bytes.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clozeline.pipeline.common.counts import disable_malloc_trim
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import Examples
from clozeline.train.data.batch_reader import SLAB_ROWS, BatchLayout, BatchReader
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import Order, RankSlice, pool_rows_for, streams_for
from clozeline.train.data.shard_set import ShardSet
from tests.support.small_data import write_data_set

BATCH = 256
SHARD_ROWS = 125_000
FEW = 40 * BATCH  # examples for the slow library
MANY = 512  # shards, for 64 streams
LARGE_BATCH = 4096  # of 64 ranks
CONFIG = DataConfig(max_seq_length=128)

Source = Callable[[], Iterable[object]]


def seconds_per_million(source: Source, examples: int) -> float:
    """CPU seconds of one pass over `examples`, without the first slabs."""
    warm_up, steps = 2 * SLAB_ROWS // BATCH, examples // BATCH
    iterator = iter(source())
    for _ in islice(iterator, warm_up):
        pass
    start = time.process_time()
    made = sum(1 for _ in islice(iterator, steps - warm_up))
    return (time.process_time() - start) / (made * BATCH) * 1e6


def ours(folder: Path, examples: int) -> dict[str, Source]:
    """The loader on both formats: with stored masks in epoch 0, with redrawn ones in epoch 1."""
    shards, rest = divmod(examples, SHARD_ROWS)
    rows = (*(SHARD_ROWS,) * shards, *((rest,) if rest else ()))
    sources: dict[str, Source] = {}
    for format in ("arrow", "webdataset"):
        config = replace(CONFIG, format=format)
        data = write_data_set(folder / format, train=rows, config=config)
        for epoch, masks in enumerate(("stored", "redrawn")):
            sources[f"clozeline {format}, {masks} masks"] = partial(
                from_position, data, epoch * examples
            )
    return sources


def from_position(folder: Path, position: int) -> Loader:
    loader = Loader(folder, batch_size=BATCH, seed=0)
    loader.load_state_dict(loader.state_dict(position))
    return loader


def rank_costs(folder: Path, examples: int) -> None:
    """Print CPU seconds per million global examples and fetched bytes of some ranks."""
    mean = examples // MANY
    rows = tuple(mean + mean * (shard % 9 - 4) // 100 for shard in range(MANY))  # up to 4 % off
    shards = write_data_set(folder / "many", train=rows, config=CONFIG)
    print(f"a rank's CPU seconds per million global examples; {MANY} shards, redrawn masks")
    alone = 0.0
    for world_size in (1, 2, 8, 64):
        ranks = {0, world_size - 1}
        costs = [rank_cost(shards, rank, world_size) for rank in sorted(ranks)]
        seconds, fetched = (max(column) for column in zip(*costs, strict=True))
        alone = alone or seconds
        times = f"{seconds:7.3f} {seconds / alone:7.3f} x"
        print(f"rank of {world_size:2}  {times}   fetches {fetched:.3f} of its part")


def rank_cost(folder: Path, rank: int, world_size: int) -> tuple[float, float]:
    """CPU seconds per million global examples of a rank's epoch 1, and its bytes over its part."""
    shards = ShardSet(folder, "train")
    fetched: list[int] = []
    read = shards.read

    def counted(shard: int) -> Examples:
        fetched.append(shards.entries[shard].bytes)
        return read(shard)

    shards.read = counted  # type: ignore[method-assign]
    order = Order(
        shards.shard_rows,
        dataset_digest=shards.manifest.dataset_digest,
        seed=0,
        streams=streams_for(len(shards.entries)),
        pool_rows=pool_rows_for(CONFIG.max_seq_length),
    )
    part = RankSlice(LARGE_BATCH, rank, world_size)
    reader = BatchReader(shards, order, part, BatchLayout(), fetches=0)
    examples = order.epoch_rows
    starts = range(examples, 2 * examples - LARGE_BATCH, LARGE_BATCH)
    start = time.process_time()
    assert sum(len(slab) for slab in reader.slabs(starts, end=2 * examples)) == len(starts)
    seconds = (time.process_time() - start) / (len(starts) * LARGE_BATCH) * 1e6
    return seconds, sum(fetched) / sum(entry.bytes for entry in shards.entries) * world_size


def padded_columns(folder: Path, examples: int) -> dict[str, np.ndarray]:
    """What is usually stored for other loaders: every column at its full width."""
    loader = Loader(folder, batch_size=BATCH, seed=0)
    parts = [loaded.batch.tensors() for loaded in islice(loader, examples // BATCH)]
    names = [name for name in parts[0] if not name.endswith("weights")]
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in names}


def others(columns: dict[str, np.ndarray], folder: Path) -> dict[str, Source]:
    """The same examples in `datasets`."""
    import datasets

    made = datasets.Dataset.from_dict({name: list(column) for name, column in columns.items()})
    made.save_to_disk(folder / "hf")
    stored = datasets.load_from_disk(folder / "hf").with_format("torch")
    streamed = stored.to_iterable_dataset(num_shards=4).shuffle(seed=0, buffer_size=1000)
    in_batches: dict[str, Any] = {"batch_size": BATCH, "drop_last": True}
    loader = torch.utils.data.DataLoader
    return {
        "datasets, map style": lambda: loader(stored, shuffle=True, **in_batches),
        "datasets, iterable": lambda: loader(streamed.with_format("torch"), **in_batches),
    }


def loader_costs(folder: Path, examples: int) -> None:
    """Print CPU seconds per million examples of this loader and of others."""
    few = min(FEW, examples)
    sizes: dict[str, tuple[Source, int]] = {
        name: (source, examples) for name, source in ours(folder, examples).items()
    }
    columns = padded_columns(folder / "arrow", few)
    sizes |= {name: (source, few) for name, source in others(columns, folder).items()}
    runs: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(3):
        for name, (source, count) in sizes.items():
            runs[name].append(seconds_per_million(source, count))
    medians = {name: statistics.median(found) for name, found in runs.items()}
    fastest = medians["clozeline arrow, stored masks"]
    print(f"CPU seconds per million examples of up to {CONFIG.max_seq_length} tokens")
    for name, seconds in medians.items():
        count = f"{sizes[name][1]:,} examples"
        print(f"{name:36} {seconds:8.2f} {seconds / fastest:8.1f} x   {count}")


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word != "--ranks"]
    examples = numbers[0] if numbers else 1_000_000
    torch.set_num_threads(1)
    disable_malloc_trim()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "--ranks" not in sys.argv:
            loader_costs(folder, examples)
        rank_costs(folder, examples)
    print(f"numpy {np.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
