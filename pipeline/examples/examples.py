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
    ids = _special_tokens(offsets, documents, tokenizer)
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


def _packed(rows: PackedRows, documents: BucketDocuments, tokenizer: Tokenizer) -> Examples:
    """[CLS] piece [SEP] [CLS] piece [SEP] ..."""
    length = rows.stop - rows.start
    offsets = offsets_of(length + 2)
    ids = _special_tokens(offsets, documents, tokenizer)
    source = slice_indices(rows.start, length)
    ids[slice_indices(offsets[:-1] + 1, length)] = documents.ids[source]
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


def _special_tokens(
    offsets: Offsets, documents: BucketDocuments, tokenizer: Tokenizer
) -> NDArray[Any]:
    """[CLS] at the start of each span that `offsets` delimit, [SEP] everywhere else."""
    ids = np.full(offsets[-1], tokenizer.sep_id, dtype=documents.ids.dtype)
    ids[offsets[:-1]] = tokenizer.cls_id
    return ids


def _drop_unmaskable(examples: Examples, rules: MaskRules) -> Examples:
    """The examples without rows that hold only special tokens, such as [UNK]."""
    maskable = ~rules.is_special[examples.input_ids.values]
    counts = np.add.reduceat(maskable, examples.input_ids.offsets[:-1], dtype=np.int64)
    return examples if counts.all() else examples.take(np.flatnonzero(counts))


def _no_rows(count: int, dtype: np.dtype) -> Ragged:
    return Ragged(np.zeros(0, dtype), np.zeros(count + 1, np.int64))
