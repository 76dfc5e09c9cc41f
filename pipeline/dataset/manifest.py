"""manifest.json: the config, counts and shards of a finished data set.

It depends only on the sources, the tokenizer and the config: building a data set again gives the
same file; runner, times and paths go to job.json. It is written last: a folder without a manifest
is not a finished data set. One of its values is a digest of all others.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import check_field_names, check_types
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folders import wrong_folder
from clozeline.pipeline.common.json_files import json_values, sealed
from clozeline.pipeline.common.paths import (
    AnyPath,
    GivenPath,
    is_file,
    names_in,
    path_of,
    whole_file,
)
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import SCHEMA_VERSION, schema_version

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
REJECTED = "rejected.jsonl"
DROPPED = "dropped.jsonl"  #: samples of the documents that curation dropped
REPORT = "report.html"  #: the file that `clozeline report` writes
JOB = "job.json"
SHARD_NAME = re.compile(r"(train|validation)-\d{5,}-of-\d{5,}\.(arrow|tar)")
LENGTH_BIN = 16  #: tokens per bin of the length histograms


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    name: str
    split: str  # "train" or "validation"
    rows: int
    bytes: int
    sha256: str  # of the file
    rows_sha256: str  # of the columns; independent of format and compression
    checksum: int  # of the file, see `shards.checksum`
    #: Rows by length: at index i those of 16 * i + 1 to 16 * (i + 1) tokens.
    length_histogram: list[int]


@dataclass(frozen=True, kw_only=True)
class MixedSource:
    """A source with a budget of tokens, and how often its training documents are used."""

    source: str
    budget: int  #: tokens asked for
    available: int  #: tokens of its documents, after dropping
    documents: int
    used: int  #: tokens, by less than a document more than the budget
    repeat: int  #: uses of every document
    more: int  #: documents that are used once more: those of the lowest hashes
    last: int  #: the hash of the last of these, -1 without one


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The metadata of a data set."""

    config: DataConfig
    tokenizer_digest: str
    vocab_size: int
    shards: list[ShardEntry]
    #: Numbers of documents, sentences, examples and so on.
    counts: dict[str, int] = field(default_factory=dict)
    #: What was left out, by reason.
    dropped: dict[str, int] = field(default_factory=dict)
    #: Occurrences of each token in the training examples before masking, [V].
    token_counts: list[int] = field(default_factory=list, repr=False)
    #: Sources with a budget of tokens; left out of the file where there are none.
    mixture: list[MixedSource] = field(default_factory=list)
    #: Names, sizes and times of the source files.
    sources_digest: str = ""
    schema_version: int = SCHEMA_VERSION

    @cached_property
    def dataset_digest(self) -> str:
        """Identifies the rows and their order; independent of format and compression."""
        rows = [[shard.split, shard.rows, shard.rows_sha256] for shard in self.shards]
        content = json.dumps([self.schema_version, self.tokenizer_digest, rows])
        return hashlib.sha256(content.encode()).hexdigest()

    def of_split(self, split: str) -> list[ShardEntry]:
        """The shards of `train` or `validation`, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def num_examples(self, split: str) -> int:
        return sum(shard.rows for shard in self.of_split(split))

    @cached_property
    def log_unigram(self) -> NDArray[np.float64]:
        """Log-probability of each token by its count in training, with add-one smoothing, [V]."""
        counts = np.array(self.token_counts, dtype=np.float64) + 1
        log_unigram: NDArray[np.float64] = np.log(counts / counts.sum())
        return log_unigram

    @property
    def unigram_loss(self) -> float:
        """Cross-entropy of `log_unigram` on the training tokens, in nats; 0 without tokens."""
        counts = np.array(self.token_counts, dtype=np.float64)
        return float(-counts @ self.log_unigram / max(counts.sum(), 1.0))


def write_manifest(folder: AnyPath, manifest: Manifest) -> None:
    """Write manifest.json with one line per field and one line per shard."""
    values = asdict(replace(manifest, token_counts=[]))  # it copies number by number
    values |= {"config": manifest.config.to_dict(), "token_counts": manifest.token_counts}
    if not manifest.mixture:
        del values["mixture"]
    values["dataset_digest"] = manifest.dataset_digest
    values = sealed(values)
    shards = values.pop("shards")
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(values.items())]
    rows = ",\n".join(json.dumps(shard) for shard in shards)
    lines.append(f'"shards": [\n{rows}\n]')
    with whole_file(folder / MANIFEST) as file:
        file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_manifest(folder: GivenPath) -> Manifest:
    """What a data set says about itself.

        >>> read_manifest("work/shards").config.max_seq_length
        64

    Raises InputError if there is none, or if this version cannot read it.
    """
    folder = path_of(folder)
    path = folder / MANIFEST
    if not is_file(path):
        raise not_a_data_set(folder)
    with json_values(path, "build the shards again, with --overwrite", seal=True) as values:
        return _manifest_of(values)


def not_a_data_set(folder: AnyPath) -> InputError:
    """The error for a folder without a manifest, which may hold an unfinished job."""
    names = names_in(folder) if folder.is_dir() else set()
    if JOB in names or any(map(SHARD_NAME.fullmatch, names)):
        return InputError(
            f"{folder} has no {MANIFEST}: its shards are not finished. Run the same "
            f"`clozeline shards ... --out {quote(str(folder))}` again to continue."
        )
    return wrong_folder(folder, "a data set of `clozeline shards`")


def _manifest_of(values: dict[str, Any]) -> Manifest:
    version, is_packed = values["schema_version"], values["config"]["pairs"] == "packed"
    if version != (known := schema_version(packed=is_packed)):
        raise ValueError(f"schema version {version}, this code reads {known}")
    recorded = values.pop("dataset_digest")
    values = {"mixture": []} | values
    check_field_names(Manifest, values)
    values["config"] = DataConfig.from_dict(values["config"])
    values["shards"] = [ShardEntry(**shard) for shard in values["shards"]]
    values["mixture"] = [MixedSource(**part) for part in values["mixture"]]
    manifest = Manifest(**values)
    for part in (manifest, *manifest.shards, *manifest.mixture):
        check_types(part)
    numbers = [*manifest.token_counts, *(n for e in manifest.shards for n in (e.rows, e.bytes))]
    if min(numbers, default=0) < 0 or max(numbers, default=0) >= 1 << 63:
        raise ValueError("a number of tokens, rows or bytes is out of range")
    if recorded != manifest.dataset_digest:
        raise ValueError("its dataset_digest does not match its shards")
    return manifest
