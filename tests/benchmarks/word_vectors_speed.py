"""CPU seconds of a new model's word vectors, against an exact singular value decomposition.

    python tests/benchmarks/word_vectors_speed.py [SHARDS]      (default: 20 MB of generated text)

Both factor the same table of mutual information; the first by random projection, as `clozeline
pretrain --word-vectors` does. "Kept" is its sum of squared singular values, relative to the exact
one of as many.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from clozeline.train.data.shard_set import ShardSet
from clozeline.train.pretraining import word_vectors
from tests.benchmarks.measuring import timed
from tests.support.small_jobs import python

SIZE = 256  # of a vector
SOURCE = "sample:articles?size=20MB"


def main() -> None:
    if sys.argv[1:]:
        return measure(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer, shards = f"{scratch}/tokenizer", Path(scratch) / "shards"
        python("-m", "clozeline", "tokenizer", SOURCE, "--vocab-size", 8192, "--out", tokenizer)
        python("-m", "clozeline", "shards", SOURCE, "--tokenizer", tokenizer, "--out", shards)
        return measure(shards)


def measure(shards: Path) -> None:
    """The vectors as training makes them, then the exact ones of the same table."""
    opened = ShardSet(shards, "train")
    vectors, seconds = timed(lambda: word_vectors.word_vectors(opened, SIZE, seed=0))
    print(f"{len(vectors):,} words, {vectors.shape[1]} numbers each; CPU seconds")
    print(f"{'counts and vectors':<24}{seconds:8.1f}")
    frequencies = np.array(opened.manifest.token_counts)
    contexts = np.argsort(-frequencies, kind="stable")[: word_vectors.CONTEXTS]
    counts, counted = timed(lambda: word_vectors._neighbour_counts(opened, contexts))
    print(f"{'counts alone':<24}{counted:8.1f}")
    table = word_vectors._ppmi(torch.from_numpy(counts))
    (_, values, _), exactly = timed(lambda: torch.linalg.svd(table, full_matrices=False))
    kept = vectors.double().square().sum(0).square().sum() / values[:SIZE].double().square().sum()
    ratio = exactly / max(seconds - counted, 1e-9)
    print(f"{'exact vectors alone':<24}{exactly:8.1f}   {ratio:.0f} times; {kept:.1%} are kept")


if __name__ == "__main__":
    main()
