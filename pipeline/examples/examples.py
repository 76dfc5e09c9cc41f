"""A bucket of documents to the rows of its shard: pairs or pieces, special tokens, masks."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array, stream_key
from clozeline.pipeline.common.ragged import Offsets, Ragged, offsets_of, slice_indices
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import NO_PAIR, Examples, concatenate_examples
from clozeline.pipeline.examples.columns import (
    BucketDocuments,
    PackedRows,
    Pairs,
    pack_documents,
)
from clozeline.pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from clozeline.pipeline.examples.pairs import SCHEMES
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

SLAB = 16_384  # rows at once: bounds the memory of intermediate arrays


def make_examples(
    documents: BucketDocuments,
    *,
    repeated: Iterable[BucketDocuments] = (),
    split: str,
    shard: int,
    config: DataConfig,
    tokenizer: Tokenizer,
) -> tuple[Examples, Counter[str]]:
    """The masked rows of one shard, in their final order, and what was dropped by reason.

    `repeated` are documents of the bucket that are used again, with other pairs and masks.
    """
    rules = MaskRules.of(config, tokenizer)
    dropped: Counter[str] = Counter()
    key = mask_keys(config.seed, split=split, shard=shard, epoch=0)
    parts: list[Examples] = []
    row = 0
    uses = (some for some in chain([documents], repeated) for _ in range(config.dupe_factor))
    for copy, used in enumerate(uses):
        key_of_pairs = stream_key(config.seed, f"pairs/{split}", shard, copy)
        made, dropped_pairs = _choose_tokens(used, key_of_pairs, config)
        dropped += dropped_pairs
        for start in range(0, max(len(made), 1), SLAB):  # an empty slab has the dtypes
            slab = made.take(slice(start, start + SLAB))
            part = _drop_unmaskable(_assemble(slab, used, tokenizer), rules)
            dropped["nothing_to_mask"] += len(slab) - len(part)
            keys, rows = np.broadcast_to(key, len(part)), row + np.arange(len(part))
            parts.append(mask_examples(part, keys=keys, rows=rows, rules=rules))
            row += len(part)
    return concatenate_examples(parts), dropped


def _choose_tokens(
    documents: BucketDocuments, key: UInt64Array, config: DataConfig
) -> tuple[Pairs | PackedRows, Counter[str]]:
    """The spans of tokens in each row, and what was dropped by reason."""
    if config.is_packed:
        return pack_documents(documents, max_seq_length=config.max_seq_length), Counter()
    return SCHEMES[config.pairs](documents, key, config.max_seq_length, config.short_seq_prob)


def _assemble(
    pairs: Pairs | PackedRows, documents: BucketDocuments, tokenizer: Tokenizer
) -> Examples:
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] without a B; or the pieces of packed rows."""
    if isinstance(pairs, PackedRows):
        return _packed(pairs, documents, tokenizer)
    length_a = pairs.a_stop - pairs.a_start
    length_b = pairs.b_stop - pairs.b_start
    has_b = pairs.next_sentence_label != NO_PAIR
    offsets = offsets_of(length_a + length_b + 2 + has_b)
    # Spans with a place for each special token, which holds a neighbour at first.
    starts = np.stack([pairs.a_start - 1, pairs.b_start], axis=1).ravel()
    lengths = np.stack([length_a + 2, length_b + has_b], axis=1).ravel()
    ids = documents.ids.take(slice_indices(starts, lengths), mode="clip")
    ids[offsets[:-1] + length_a + 1] = tokenizer.sep_id
    _put_special_tokens(ids, offsets, tokenizer)
    return Examples(
        input_ids=Ragged(ids, offsets),
        masked_lm_positions=_no_rows(len(pairs), np.dtype(np.uint16)),
        masked_lm_labels=_no_rows(len(pairs), ids.dtype),
        length_a=(length_a + 2).astype(np.uint16),
        next_sentence_label=pairs.next_sentence_label,
        document_a=documents.hashes[pairs.document_a],
        document_b=documents.hashes[pairs.document_b],
    )


def _packed(rows: PackedRows, documents: BucketDocuments, tokenizer: Tokenizer) -> Examples:
    """[CLS] piece [SEP] [CLS] piece [SEP] ..."""
    length = rows.stop - rows.start
    offsets = offsets_of(length + 2)
    ids = documents.ids.take(slice_indices(rows.start - 1, length + 2), mode="clip")
    _put_special_tokens(ids, offsets, tokenizer)
    in_row = Ragged(ids, offsets[rows.row_offsets])
    hashes = documents.hashes[rows.document]
    return Examples(
        input_ids=in_row,
        masked_lm_positions=_no_rows(len(rows), np.dtype(np.uint16)),
        masked_lm_labels=_no_rows(len(rows), ids.dtype),
        length_a=in_row.lengths.astype(np.uint16),
        next_sentence_label=np.full(len(rows), NO_PAIR, np.int8),
        document_a=hashes[rows.row_offsets[:-1]],
        document_b=hashes[rows.row_offsets[1:] - 1],
        piece_lengths=Ragged((length + 2).astype(np.uint16), rows.row_offsets),
        piece_documents=Ragged(hashes, rows.row_offsets),
    )


def _put_special_tokens(ids: NDArray[Any], offsets: Offsets, tokenizer: Tokenizer) -> None:
    """[CLS] in place of the first and [SEP] of the last id of each span that `offsets` delimit."""
    ids[offsets[:-1]], ids[offsets[1:] - 1] = tokenizer.cls_id, tokenizer.sep_id


def _drop_unmaskable(examples: Examples, rules: MaskRules) -> Examples:
    """The examples without rows that hold only special tokens, such as [UNK]."""
    maskable = ~rules.is_special.take(examples.input_ids.values, mode="clip")  # as in masks.py
    has_some = np.logical_or.reduceat(maskable, examples.input_ids.offsets[:-1])
    return examples if has_some.all() else examples.take(np.flatnonzero(has_some))


def _no_rows(count: int, dtype: np.dtype) -> Ragged:
    return Ragged(np.zeros(0, dtype), np.zeros(count + 1, np.int64))
