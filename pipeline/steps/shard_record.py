"""What is known of a finished shard, in a file of the token cache beside the others."""

import json
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.json_files import MALFORMED, file_sha256, sealed, unsealed
from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.dataset.manifest import ShardEntry
from clozeline.pipeline.steps.context import JobContext

# Increase it when the same documents would give another shard (pairs, masks, the shard's layout) or
# another record of it.
EXAMPLES_VERSION = 5


@dataclass(frozen=True)
class ShardRecord:
    """What is known about a finished shard."""

    bucket: int
    entry: ShardEntry
    counts: Counts
    token_counts: NDArray[np.int64]  #: [V]; [0] for validation, which is not counted
    peak_memory: int  #: bytes, of the process that made it
    repeat: int = 1  #: the highest among its sources

    def to_json(self) -> str:
        values = {
            **vars(self),
            "entry": asdict(self.entry),
            "counts": self.counts.to_json(),
            "token_counts": self.token_counts.tolist(),
        }
        return json.dumps(sealed(values))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises ValueError where the text has changed since `to_json` wrote it."""
        values = unsealed(json.loads(text))
        values["entry"] = ShardEntry(**values["entry"])
        values["counts"] = Counts.from_json(values["counts"])
        values["token_counts"] = np.array(values["token_counts"], dtype=np.int64)
        return cls(**values)


def write_record(path: AnyPath, record: ShardRecord) -> None:
    with whole_file(path) as file:
        file.write(record.to_json().encode())


def parts_of_record(context: JobContext, bucket: int) -> list[object]:
    """What any record of a shard depends on, beside its documents."""
    config = context.config.to_dict()
    del config["max_rejected"]  # raising it after a failed job rebuilds no shard
    return [EXAMPLES_VERSION, config, context.tokenizer_digest, asdict(context.buckets), bucket]


def finished_record(record_path: AnyPath, shard_path: AnyPath) -> ShardRecord | None:
    """The record of a shard that an earlier process finished, if its bytes have not changed."""
    if not (record_path.exists() and shard_path.exists()):
        return None
    try:
        record = ShardRecord.from_json(record_path.read_bytes())
    except MALFORMED:
        return None  # the shard is built again
    return record if file_sha256(shard_path) == record.entry.sha256 else None
