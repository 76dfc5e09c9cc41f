"""CPU seconds per million examples, in shuffled training batches of int64 tensors.

    python tests/benchmarks/loader_speed.py [EXAMPLES]

Epoch 1 of the loader, with stored and with redrawn masks, from Arrow and WebDataset
shards of random examples of at most 128 tokens, beside `datasets` (map style, torch format, the
same columns stored padded) under a torch `DataLoader`. One thread each; the least of three runs,
the processor time of the prefetch thread included.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from pipeline.config import DataConfig
from tests.small_data import write_data_set
from train.loader import Loader
from train.reader import SLAB_ROWS

BATCH = 256
CONFIG = DataConfig(max_seq_length=128)


def seconds_per_million(batches: Callable[[], Iterable[object]], examples: int) -> float:
    """The least of three runs over so many examples, the first slab not counted."""
    warm_up, steps = 2 * SLAB_ROWS // BATCH, examples // BATCH
    found = []
    for _ in range(3):
        iterator = iter(batches())
        list(islice(iterator, warm_up))
        start = time.process_time()
        made = sum(1 for _ in islice(iterator, steps - warm_up))
        found.append((time.process_time() - start) / (made * BATCH) * 1e6)
        del iterator
    return min(found)


def padded_dataset(folder: Path, examples: int) -> Iterable[object]:
    """What people store for `datasets`: every column at its full width."""
    import datasets

    loader = _loader(folder, start_position=0, remask=False)
    parts = [loaded.batch.tensors() for loaded in islice(loader, examples // BATCH)]
    columns = {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}
    stored = datasets.Dataset.from_dict({name: list(column) for name, column in columns.items()})
    return torch.utils.data.DataLoader(
        stored.with_format("torch"), batch_size=BATCH, shuffle=True, drop_last=True
    )


def _loader(folder: Path, *, start_position: int, remask: bool) -> Loader:
    return Loader(folder, batch_size=BATCH, seed=0, start_position=start_position, remask=remask)


def main() -> None:
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    torch.set_num_threads(1)
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for format in ("arrow", "webdataset"):
            config = replace(CONFIG, format=format)
            folder = Path(scratch) / format
            write_data_set(folder, train=(examples // 4,) * 4, config=config)
            for what, remask in (("stored masks", False), ("redrawn masks", True)):
                results[f"{format}, {what}"] = seconds_per_million(
                    lambda f=folder, r=remask: _loader(f, start_position=examples, remask=r),
                    examples,
                )
        few = min(examples, 40 * BATCH)
        stored = padded_dataset(Path(scratch) / "arrow", few)
        results["datasets, map style, torch"] = seconds_per_million(lambda: stored, few)
    ours = results["arrow, stored masks"]
    print(f"CPU seconds per million examples ({examples:,}, up to {CONFIG.max_seq_length} tokens)")
    for name, seconds in results.items():
        print(f"{name:28} {seconds:8.2f} {seconds / ours:8.1f} x")
    print(f"numpy {np.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
