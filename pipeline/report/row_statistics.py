"""Statistics of the rows of a data set, counted one record batch at a time.

They add up: a shard's are the sum of its batches', a split's the sum of its shards'.
"""

from dataclasses import dataclass, fields
from shlex import quote
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.ragged import Ragged, ordinals
from clozeline.pipeline.dataset.manifest import ShardEntry
from clozeline.pipeline.dataset.schema import B_IS_RANDOM, NO_PAIR, Examples, from_record_batch
from clozeline.pipeline.dataset.shards import read_batches
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

PARTS = 20  # of a row, from its first token to its last

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Counts over rows; S = max_seq_length, all int64."""

    #: Rows by number of tokens, [CLS] and [SEP] included, [S + 1].
    lengths: Counts
    #: Rows by tokens of A, and of B if they have one, special tokens excluded, [S + 1].
    lengths_a: Counts
    lengths_b: Counts
    #: Pieces of packed rows by number of tokens, [CLS] and [SEP] included, [S + 1].
    pieces: Counts
    #: Tokens that may be masked, and masked tokens, by position, [S].
    maskable_at: Counts
    masked_at: Counts
    #: The same by relative position in the row, [PARTS].
    maskable_along: Counts
    masked_along: Counts
    #: Masked tokens that are shown as [MASK], as another token, as themselves, [3].
    shown_as: Counts
    #: Rows without B, with a B that follows A, with a random or swapped B, [3].
    labels: Counts
    #: Tokens that stand for unknown text, before masking, [1].
    unknown: Counts

    @classmethod
    def empty(cls, width: int) -> Self:
        """Statistics of no rows; `width` is S."""
        sizes = dict.fromkeys(("lengths", "lengths_a", "lengths_b", "pieces"), width + 1)
        sizes |= {"maskable_at": width, "masked_at": width, "unknown": 1}
        sizes |= {"maskable_along": PARTS, "masked_along": PARTS, "shown_as": 3, "labels": 3}
        return cls(**{name: np.zeros(size, np.int64) for name, size in sizes.items()})

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def rows(self) -> int:
        return int(self.lengths.sum())

    @property
    def tokens(self) -> int:
        """Tokens of all rows, [CLS] and [SEP] included."""
        return int(self.lengths @ np.arange(len(self.lengths)))

    @property
    def fill_rate(self) -> float:
        """The fraction of real tokens in a batch padded to S; 0 without rows."""
        return fraction(self.tokens, self.rows * (len(self.lengths) - 1))

    @property
    def negative_share(self) -> float:
        """The fraction of label 1 (random or swapped) among rows with a B; 0 if no row has one."""
        return fraction(self.labels[2], self.labels[1] + self.labels[2])


def fraction(part: float, whole: float) -> float:
    """part / whole, and 0 for an empty whole."""
    return float(part) / float(whole) if whole else 0.0


def shard_statistics(
    path: AnyPath, entry: ShardEntry, width: int, tokenizer: Tokenizer
) -> RowStatistics:
    """The statistics of a shard; `width` is S.

    Raises InputError for a shard that cannot be read or does not match the manifest.
    """
    total = RowStatistics.empty(width)
    for batch in read_batches(path, expected=entry.checksum):
        examples = from_record_batch(batch)
        if not _fits(examples, width, tokenizer):
            raise _mismatch(path)
        total += count_rows(examples, width, tokenizer)
    if total.rows != entry.rows:
        raise _mismatch(path)
    return total


def count_rows(examples: Examples, width: int, tokenizer: Tokenizer) -> RowStatistics:
    """The statistics of rows that fit the width and the vocabulary."""
    lengths = examples.input_ids.lengths
    length_a = examples.length_a.astype(np.int64)
    has_b = examples.next_sentence_label != NO_PAIR
    position = ordinals(lengths)
    part = PARTS * position // np.repeat(lengths, lengths)
    original = examples.unmasked().input_ids.values
    maskable = ~tokenizer.is_special[original]
    hidden = examples.flat_positions()
    pieces = examples.piece_lengths
    return RowStatistics(
        pieces=_count(pieces.values if pieces else lengths[:0], width + 1),
        lengths=_count(lengths, width + 1),
        lengths_a=_count(length_a - 2, width + 1),
        lengths_b=_count((lengths - length_a - 1)[has_b], width + 1),
        maskable_at=_count(position[maskable], width),
        masked_at=_count(position[hidden], width),
        maskable_along=_count(part[maskable], PARTS),
        masked_along=_count(part[hidden], PARTS),
        shown_as=_shown_as(examples, hidden, tokenizer),
        labels=_count(examples.next_sentence_label.astype(np.int64) - NO_PAIR, 3),
        unknown=unknown_in_rows(examples, tokenizer).sum(keepdims=True),
    )


def unknown_in_rows(examples: Examples, tokenizer: Tokenizer) -> Counts:
    """The tokens of each row that stand for unknown text, before masking, [R].

    Where [CLS] or [SEP] is the same token, as in GPT-2, those do not count.
    """
    original = examples.unmasked().input_ids
    counts = Ragged(original.values == tokenizer.unk_id, original.offsets).sums
    marks = zip((tokenizer.cls_id, tokenizer.sep_id), examples.cls_and_sep(), strict=True)
    return counts - sum(number for mark, number in marks if mark == tokenizer.unk_id)


def _shown_as(examples: Examples, hidden: Counts, tokenizer: Tokenizer) -> Counts:
    shown, labels = examples.input_ids.values[hidden], examples.masked_lm_labels.values
    is_mask, is_kept = shown == tokenizer.mask_id, shown == labels
    return np.array([is_mask.sum(), (~is_mask & ~is_kept).sum(), is_kept.sum()])


def _count(values: Counts, length: int) -> Counts:
    return np.bincount(values, minlength=length)


def _fits(examples: Examples, width: int, tokenizer: Tokenizer) -> bool:
    """Whether the rows can be counted at all; whether they are right is for `verify` to say."""
    lengths, positions = examples.input_ids.lengths, examples.masked_lm_positions
    length_a, label = examples.length_a.astype(np.int64), examples.next_sentence_label
    ids = (examples.input_ids.values, examples.masked_lm_labels.values)
    return bool(
        lengths.max(initial=0) <= width
        and all(values.max(initial=0) < tokenizer.vocab_size for values in ids)
        and len(positions.values) == len(examples.masked_lm_labels.values)
        and (positions.values < np.repeat(lengths, positions.lengths)).all()
        and ((length_a >= 2) & (length_a <= lengths)).all()
        and (length_a < lengths)[label != NO_PAIR].all()
        and ((label >= NO_PAIR) & (label <= B_IS_RANDOM)).all()
        and (examples.piece_lengths is None or np.array_equal(examples.piece_lengths.sums, lengths))
    )


def _mismatch(path: AnyPath) -> InputError:
    return InputError(
        f"{path} does not match the manifest; `clozeline verify {quote(str(path.parent))}` lists "
        "what is wrong."
    )
