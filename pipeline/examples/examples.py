"""A bucket of documents to the rows of its shard: pairs, special tokens, masks."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np

from pipeline.common.counter_rng import UInt64Array, stream_key
from pipeline.common.ragged import Ragged, offsets_of, slice_indices
from pipeline.common.stage_timer import StageTimer
from pipeline.config import DataConfig
from pipeline.dataset.schema import NO_PAIR, Examples, concatenate_examples
from pipeline.examples.bucket_documents import BucketDocuments
from pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from pipeline.examples.pair_columns import Pairs
from pipeline.examples.pairs import make_pairs
from pipeline.tokenization.tokenizer import Tokenizer

SLAB = 16_384  # rows at once: bounds the memory of intermediate arrays


def make_examples(
    documents: BucketDocuments,
    *,
    repeated: Iterable[BucketDocuments] = (),
    split: str,
    shard: int,
    config: DataConfig,
    tokenizer: Tokenizer,
    timer: StageTimer | None = None,
) -> tuple[Examples, Counter[str]]:
    """The masked rows of one shard, in their final order, and what was dropped by reason.

    `repeated` are documents of the bucket that are used again, with other pairs and masks.
    `timer` measures the stages `pairs` and `masks`.
    """
    timer = timer or StageTimer()
    rules = MaskRules.of(config, tokenizer)
    dropped: Counter[str] = Counter()
    key = mask_keys(config.seed, split=split, shard=shard, epoch=0)
    parts, row = [_no_examples(documents, tokenizer)], 0
    uses = (some for some in chain([documents], repeated) for _ in range(config.dupe_factor))
    for copy, used in enumerate(uses):
        with timer.stage("pairs"):
            pairs, dropped_pairs = make_pairs(
                used,
                pairs=config.pairs,
                key=stream_key(config.seed, f"pairs/{split}", shard, copy),
                max_seq_length=config.max_seq_length,
                short_seq_prob=config.short_seq_prob,
            )
        dropped += dropped_pairs
        for start in range(0, len(pairs), SLAB):
            with timer.stage("pairs"):
                slab = pairs.take(slice(start, start + SLAB))
                part = _drop_unmaskable(_assemble(slab, used, tokenizer), rules)
            dropped["nothing_to_mask"] += len(slab) - len(part)
            with timer.stage("masks"):
                parts.append(_mask(part, key, row, rules))
            row += len(part)
    return concatenate_examples(parts), dropped


def _assemble(pairs: Pairs, documents: BucketDocuments, tokenizer: Tokenizer) -> Examples:
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] without a B."""
    length_a = pairs.a_stop - pairs.a_start
    length_b = pairs.b_stop - pairs.b_start
    has_b = pairs.next_sentence_label != NO_PAIR
    offsets = offsets_of(length_a + length_b + 2 + has_b)
    ids = np.full(offsets[-1], tokenizer.sep_id, dtype=documents.ids.dtype)
    ids[offsets[:-1]] = tokenizer.cls_id
    for start, source, length in (
        (offsets[:-1] + 1, pairs.a_start, length_a),
        (offsets[:-1] + 2 + length_a, pairs.b_start, length_b),
    ):
        ids[slice_indices(start, length)] = documents.ids[slice_indices(source, length)]
    return Examples(
        input_ids=Ragged(ids, offsets),
        masked_lm_positions=_no_rows(len(pairs), np.dtype(np.uint16)),
        masked_lm_labels=_no_rows(len(pairs), ids.dtype),
        length_a=(length_a + 2).astype(np.uint16),
        next_sentence_label=pairs.next_sentence_label,
        document_a=documents.hashes[pairs.document_a],
        document_b=documents.hashes[pairs.document_b],
    )


def _drop_unmaskable(examples: Examples, rules: MaskRules) -> Examples:
    """Without the rows that consist of special tokens, such as [UNK], only."""
    maskable = ~rules.is_special[examples.input_ids.values]
    counts = np.add.reduceat(maskable, examples.input_ids.offsets[:-1], dtype=np.int64)
    return examples if counts.all() else examples.take(np.flatnonzero(counts))


def _mask(examples: Examples, key: UInt64Array, start: int, rules: MaskRules) -> Examples:
    """Mask examples that are rows `start`, `start` + 1, ... of the shard."""
    keys = np.broadcast_to(key, len(examples))
    return mask_examples(examples, keys=keys, rows=start + np.arange(len(examples)), rules=rules)


def _no_rows(count: int, dtype: np.dtype) -> Ragged:
    return Ragged(np.zeros(0, dtype), np.zeros(count + 1, np.int64))


def _no_examples(documents: BucketDocuments, tokenizer: Tokenizer) -> Examples:
    return _assemble(Pairs.empty(), documents, tokenizer)
