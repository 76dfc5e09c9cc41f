"""datatrove's MinHash pipeline: CORPUS FOLDER BANDS ROWS -> FOLDER/removed.txt.

Runs in an environment of its own, for near_duplicates_speed.py.
"""

import json
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig


def main() -> None:
    """The four stages, one task each (and one for each band)."""
    corpus, folder, bands, rows = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    config = MinhashConfig(
        n_grams=5, num_buckets=bands, hashes_per_bucket=rows, hash_config=HashConfig(precision=64)
    )
    reader = JsonlReader(str(corpus.parent), glob_pattern=corpus.name)
    signatures, buckets, remove = (str(folder / name) for name in ("sig", "buckets", "remove"))
    stages = [
        (1, [reader, MinhashDedupSignature(signatures, config=config, language="eng")]),
        (bands, [MinhashDedupBuckets(signatures, buckets, config=config)]),
        (1, [MinhashDedupCluster(buckets, remove, config=config)]),
        (1, [reader, MinhashDedupFilter(remove, exclusion_writer=_writer(folder))]),
    ]
    for number, (tasks, pipeline) in enumerate(stages):
        logging = str(folder / f"log{number}")
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=logging).run()
    lines = (folder / "removed").glob("*.jsonl")
    ids = [json.loads(line)["id"] for path in lines for line in path.read_text().splitlines()]
    (folder / "removed.txt").write_text("\n".join(ids))


def _writer(folder: Path) -> JsonlWriter:
    return JsonlWriter(str(folder / "removed"), compression=None)


if __name__ == "__main__":
    main()
