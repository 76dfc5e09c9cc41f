"""Data set folders of random examples, written in-process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, write_manifest
from clozeline.pipeline.dataset.schema import Examples, example_schema, schema_version
from clozeline.pipeline.dataset.shards import shard_name, write_shard
from clozeline.pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from tests.support.small import small_tokenizer

SMALL = DataConfig(max_seq_length=16, num_shards=3, max_predictions_per_seq=3)


def write_data_set(
    folder: Path,
    *,
    train: tuple[int, ...],
    validation: tuple[int, ...] = (),
    config: DataConfig = SMALL,
    tokenizer: Tokenizer | None = None,
    make: Callable[..., Examples] | None = None,
) -> Path:
    """A finished data set with these rows per shard; the arguments determine the content."""
    tokenizer = tokenizer or small_tokenizer()
    make = make or (packed_examples if config.is_packed else random_examples)
    tokenizer.save(folder / TOKENIZER)
    packed = config.is_packed
    schema = example_schema(tokenizer.vocab_size, tokenizer.digest, packed=packed)
    entries = []
    token_counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for split, shard_rows in (("train", train), ("validation", validation)):
        for shard, rows in enumerate(shard_rows):
            name = shard_name(split, shard, len(shard_rows), config.format)
            examples = make(rows, split=split, shard=shard, config=config, of=tokenizer)
            examples = masked(examples, split=split, shard=shard, config=config, of=tokenizer)
            if split == "train":
                ids = examples.unmasked().input_ids.values
                token_counts += np.bincount(ids, minlength=tokenizer.vocab_size)
            compression = None if config.compression == "none" else config.compression
            entry = write_shard(
                folder / name, examples, schema, format=config.format, compression=compression
            )
            entries.append(replace(entry, length_histogram=[]))
    manifest = Manifest(
        config=config,
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        shards=entries,
        token_counts=np.where(tokenizer.is_special, 0, token_counts).tolist(),
        schema_version=schema_version(packed=packed),
    )
    write_manifest(folder, manifest)
    return folder


def random_examples(
    rows: int, *, split: str, shard: int, config: DataConfig, of: Tokenizer
) -> Examples:
    """Rows of [CLS] A [SEP] B [SEP], of different lengths; every fourth has no B."""
    rng = np.random.default_rng([shard, len(split)])
    longest = config.max_seq_length
    lengths = np.where(
        rng.random(rows) < 0.9,
        rng.integers(longest - longest // 8, longest + 1, rows),
        rng.integers(7, longest, rows),
    )
    offsets = offsets_of(lengths)
    ids = rng.choice(of.replacement_ids, offsets[-1]).astype(np.uint16)
    length_a = rng.integers(3, lengths - 2).astype(np.uint16)
    labels = rng.integers(0, 2, rows).astype(np.int8)
    alone = np.arange(rows) % 4 == 3
    length_a[alone], labels[alone] = lengths[alone], -1
    ids[offsets[:-1]] = of.cls_id
    ids[offsets[:-1] + length_a - 1] = of.sep_id
    ids[offsets[1:] - 1] = of.sep_id
    hashes = rng.integers(0, 2**63, rows).astype(np.uint64)
    nothing = Ragged(np.zeros(0, np.uint16), np.zeros(rows + 1, np.int64))
    return Examples(Ragged(ids, offsets), nothing, nothing, length_a, labels, hashes, hashes)


def packed_examples(
    rows: int, *, split: str, shard: int, config: DataConfig, of: Tokenizer
) -> Examples:
    """Rows of one to four pieces that fill them, or nearly."""
    rng = np.random.default_rng([shard, len(split)])
    count = rng.integers(1, 5, rows)
    lengths = rng.integers(3, config.max_seq_length // 4 + 1, count.sum())
    last = offsets_of(count)[1:] - 1
    others = np.add.reduceat(lengths, last + 1 - count, dtype=np.int64) - lengths[last]
    lengths[last] = config.max_seq_length - others - rng.integers(0, 2, rows)
    pieces = offsets_of(lengths)
    ids = rng.choice(of.replacement_ids, pieces[-1]).astype(np.uint16)
    ids[pieces[:-1]], ids[pieces[1:] - 1] = of.cls_id, of.sep_id
    offsets = pieces[offsets_of(count)]
    hashes = rng.integers(0, 2**63, len(lengths)).astype(np.uint64)
    nothing = Ragged(np.zeros(0, np.uint16), np.zeros(rows + 1, np.int64))
    return Examples(
        Ragged(ids, offsets),
        nothing,
        nothing,
        np.diff(offsets).astype(np.uint16),
        np.full(rows, -1, np.int8),
        hashes[last + 1 - count],
        hashes[last],
        Ragged(lengths.astype(np.uint16), offsets_of(count)),
        Ragged(hashes, offsets_of(count)),
    )


def masked(
    examples: Examples, *, split: str, shard: int, config: DataConfig, of: Tokenizer
) -> Examples:
    """The rows with the masks of a real data set's shard."""
    rows = np.arange(len(examples))
    keys = np.broadcast_to(mask_keys(config.seed, split=split, shard=shard, epoch=0), len(rows))
    return mask_examples(examples, keys=keys, rows=rows, rules=MaskRules.of(config, of))
