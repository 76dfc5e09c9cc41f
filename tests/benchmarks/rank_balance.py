"""Tokens of the slowest of 8 and of 64 ranks without padding, relative to the mean of all ranks.

    python tests/benchmarks/rank_balance.py [ARTICLES]

Shards of 4,000 articles, of CLOZELINE_DATA's Wikipedia where that is set, else of `sample:`, with
up to 128 and 512 tokens, dealt by the reader of each rank in turn: 16 steps of 16 and of 64 rows a
rank. `by position` is how ranks would share out the rows without dealing them by length
(`train/data/order.py`), as those with padded rows do.
"""

import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from clozeline.pipeline.common.ragged import offsets_of
from clozeline.train.data.batch_reader import BatchLayout, BatchReader
from clozeline.train.data.order import Order, RankSlice
from clozeline.train.data.shard_set import ShardSet
from tests.benchmarks.measuring import DATA, WIKIPEDIA, learned_tokenizer
from tests.support.small_jobs import clozeline_ok

STEPS = 16


def slowest(folder: Path, rows: int, ranks: int, *, unpadded: bool) -> float:
    """Tokens of the rank that has most, over those of the mean rank; the mean of the steps."""
    shards, tokens = ShardSet(folder, "train"), []
    order = Order(shards.shard_rows, dataset_digest=shards.manifest.dataset_digest, seed=0)
    examples = [shards.read(shard) for shard in range(len(shards.entries))]
    shards.read = examples.__getitem__  # each rank opens them
    lengths = np.concatenate([of_shard.input_ids.lengths for of_shard in examples])
    for rank in range(ranks):
        part, layout = RankSlice(rows * ranks, rank, ranks), BatchLayout(unpadded=unpadded)
        reader = BatchReader(shards, order, part, layout, fetches=0)
        located = reader.located(rows * ranks * np.arange(STEPS))
        of_rows = offsets_of(shards.shard_rows)[located.shards] + located.rows
        tokens.append(lengths[of_rows].reshape(STEPS, rows).sum(axis=1))
    return float((np.max(tokens, axis=0) / np.mean(tokens, axis=0)).mean())


def main() -> None:
    articles = sys.argv[1] if len(sys.argv) > 1 else "4000"
    source = f"{WIKIPEDIA if DATA else 'sample:articles'}?limit={articles}"
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = learned_tokenizer(Path(scratch, "tokenizer"))
        print("tokens  ranks  rows a rank  by position  by length")
        for length in (128, 512):
            folder = Path(scratch, str(length))
            options = ["--tokenizer", tokenizer, "--max-seq-length", length, "--num-shards", 8]
            clozeline_ok("shards", source, "--out", folder, *options)
            for ranks, rows in product((8, 64), (16, 64)):
                before, after = (slowest(folder, rows, ranks, unpadded=x) for x in (False, True))
                print(f"{length:6}{ranks:7}{rows:13}{before:13.3f}{after:11.3f}", flush=True)


if __name__ == "__main__":
    main()
