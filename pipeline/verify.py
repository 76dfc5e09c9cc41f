"""`clozeline verify`: is the data set on disk what its manifest says, and what BERT expects?

Two parts: the files (present, whole, the very bytes, of this tokenizer), and the rows (an audit of
what must hold of every example). Nothing is sampled. The masks are proven rather than estimated:
the originals are masked again, and must come out as stored.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.buckets import TRAIN
from pipeline.config import DataConfig
from pipeline.errors import InputError
from pipeline.manifest import TOKENIZER, Manifest, ShardEntry, read_manifest
from pipeline.masks import MaskRules, mask_examples, mask_keys
from pipeline.schema import B_IS_RANDOM, NO_PAIR, Examples
from pipeline.shards import file_sha256, read_shard, rows_sha256
from pipeline.tokenizer import Tokenizer, load_tokenizer

# NSP shares are held against 48-52 % where chance alone would not leave those bounds.
ROWS_FOR_SHARES = 4096


def verify(folder: Path) -> Iterator[str]:
    """The faults found, one line each; none for a sound data set.

    Raises InputError where there is no manifest or no readable tokenizer.
    """
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer_digest:
        yield (
            f"{folder / TOKENIZER} has digest {tokenizer.digest[:12]}, the manifest says "
            f"{manifest.tokenizer_digest[:12]}"
        )
        return
    for number, entry in _numbered(manifest):
        for fault in _verify_shard(folder / entry.name, entry, number, manifest.config, tokenizer):
            yield f"{entry.name}: {fault}"


def _numbered(manifest: Manifest) -> Iterator[tuple[int, ShardEntry]]:
    for split in sorted({entry.split for entry in manifest.shards}):
        yield from enumerate(manifest.of_split(split))


def _verify_shard(
    path: Path, entry: ShardEntry, number: int, config: DataConfig, tokenizer: Tokenizer
) -> Iterator[str]:
    if not path.exists():
        yield "missing"
        return
    if path.stat().st_size != entry.bytes:
        yield f"{path.stat().st_size:,} bytes, the manifest says {entry.bytes:,}"
        return
    if file_sha256(path) != entry.sha256:
        # Not looked into: Arrow believes the lengths and offsets it finds, and may read anywhere.
        yield "its bytes changed (another sha256 than the manifest's)"
        return
    try:
        examples = read_shard(path)
    except InputError as error:
        yield str(error)
        return
    if len(examples) != entry.rows:
        yield f"{len(examples):,} rows, the manifest says {entry.rows:,}"
    elif rows_sha256(examples) != entry.rows_sha256:
        yield "its rows changed (another rows_sha256 than the manifest's)"
    if len(examples):
        yield from audit(
            examples, split=entry.split, shard=number, config=config, tokenizer=tokenizer
        )


def audit(
    examples: Examples, *, split: str, shard: int, config: DataConfig, tokenizer: Tokenizer
) -> Iterator[str]:
    """What does not hold of the rows of a shard (at least one row), one line each."""
    broken_layout = list(_audit_layout(examples, config, tokenizer))
    yield from broken_layout
    yield from _audit_pairs(examples, config)
    if not broken_layout:  # the masks can only be told apart in rows of the right shape
        yield from _audit_masks(examples, split, shard, config, tokenizer)


def _audit_layout(examples: Examples, config: DataConfig, tokenizer: Tokenizer) -> Iterator[str]:
    ids, starts, lengths = examples.input_ids.values, *_bounds(examples)
    if (lengths < 3).any() or (lengths > config.max_seq_length).any():
        yield f"rows shorter than 3 or longer than {config.max_seq_length} tokens"
        return
    if max(ids.max(), examples.masked_lm_labels.values.max(initial=0)) >= tokenizer.vocab_size:
        yield f"ids beyond the vocabulary of {tokenizer.vocab_size:,}"
        return
    length_a = examples.length_a.astype(np.int64)
    if (length_a > lengths).any() or (length_a < 3).any():
        yield "length_a beyond the row, or of an empty A"
        return
    has_b = examples.next_sentence_label != NO_PAIR
    yield from _if_any(ids[starts] != tokenizer.cls_id, "rows that do not begin with [CLS]")
    yield from _if_any(
        ids[starts + lengths - 1] != tokenizer.sep_id, "rows that do not end in [SEP]"
    )
    yield from _if_any(ids[starts + length_a - 1] != tokenizer.sep_id, "rows whose A has no [SEP]")
    yield from _if_any((length_a < lengths) != has_b, "rows with a B and no label, or the reverse")
    yield from _if_any(length_a + 1 == lengths, "rows with an empty B")


def _audit_pairs(examples: Examples, config: DataConfig) -> Iterator[str]:
    label = examples.next_sentence_label
    elsewhere = examples.document_a != examples.document_b
    yield from _if_any((label < NO_PAIR) | (label > B_IS_RANDOM), "rows with an unknown label")
    yield from _if_any(
        (label == NO_PAIR) != (config.pairs == "none"), "rows with the wrong kind of label"
    )
    yield from _if_any((label == B_IS_RANDOM) & ~elsewhere, "random Bs from the document of A")
    yield from _if_any((label != B_IS_RANDOM) & elsewhere, "following Bs from another document")
    share = float((label == B_IS_RANDOM).mean())
    one_document = not elsewhere.any()
    balanced = 0.48 <= share <= 0.52 or one_document
    if config.pairs != "none" and len(label) >= ROWS_FOR_SHARES and not balanced:
        yield f"{share:.1%} of the pairs are random, not 48-52 %"


def _audit_masks(
    examples: Examples, split: str, shard: int, config: DataConfig, tokenizer: Tokenizer
) -> Iterator[str]:
    positions, labels = examples.masked_lm_positions, examples.masked_lm_labels
    row_lengths = np.repeat(examples.input_ids.lengths, positions.lengths)
    if (positions.offsets != labels.offsets).any() or (positions.values >= row_lengths).any():
        yield "masked positions beyond the row, or without a label"
        return
    yield from _if_any(tokenizer.is_special[labels.values], "special tokens that are masked")
    originals = examples.unmasked()
    ids = originals.input_ids.values
    is_mark = tokenizer.is_special[ids] & (ids != tokenizer.unk_id)
    marks = np.add.reduceat(is_mark, originals.input_ids.offsets[:-1], dtype=np.int64)
    expected = np.where(examples.next_sentence_label == NO_PAIR, 2, 3)
    yield from _if_any(marks != expected, "rows with special tokens inside A or B")
    key = mask_keys(config.seed, split=split, shard=shard, epoch=0)
    again = mask_examples(
        originals,
        keys=np.broadcast_to(key, len(examples)),
        rows=np.arange(len(examples)),
        rules=MaskRules.of(config, tokenizer),
    )
    if rows_sha256(again) != rows_sha256(examples):
        yield "masks other than the config and the seed draw"


def _bounds(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    return examples.input_ids.offsets[:-1], examples.input_ids.lengths


def _if_any(rows: np.ndarray, what: str) -> Iterator[str]:
    if rows.any():
        yield f"{what}: {int(rows.sum()):,}, the first at {int(np.argmax(rows)):,}"


def summary(manifest: Manifest) -> str:
    """One line about a sound data set."""
    shards = len(manifest.shards)
    return (
        f"{shards} shards and {manifest.num_examples(TRAIN):,} training examples are sound; "
        f"dataset digest {manifest.dataset_digest[:12]}"
    )
