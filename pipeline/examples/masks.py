"""Which tokens are hidden, and what stands in their place (Devlin et al. 2018, section 3.1).

A row of n tokens ([CLS] and [SEP] counted, as in Google's code) hides
k = max(1, min(max_predictions_per_seq, n * masked_lm_prob rounded half up)) of them: 80 % become
[MASK], 10 % a random word, 10 % stay. Special tokens are never hidden, and never put in a place.

    [CLS] the cat sat [SEP]  ->  [CLS] the [MASK] sat [SEP],  positions [2],  labels [cat]

The work is done for thousands of rows at once. Choosing k of n without drawing one twice is Floyd's
algorithm (Bentley & Floyd 1987), which needs k steps whatever n is: here a step is one vector
operation over all rows. The shard stores the masks of epoch 0; the loader draws later epochs with
the same function.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.common.counter_rng import (
    UInt64Array,
    random_bits_of_rows,
    row_keys,
    stream_key,
    uniform_below,
    with_probability,
)
from pipeline.common.ragged import Offsets, Ragged, offsets_of, slice_indices
from pipeline.config import DataConfig
from pipeline.dataset.schema import Examples
from pipeline.tokenization.tokenizer import Tokenizer

SLAB = 8192  # rows at once: the working set stays in the processor's cache

# Each masked position j of a row draws from its own three lanes.
LANES = 3
PICK, ACTION, REPLACEMENT = range(LANES)


@dataclass(frozen=True, kw_only=True)
class MaskRules:
    """How much is hidden, and the facts about the vocabulary (V entries) that this needs."""

    masked_lm_prob: float
    max_predictions_per_seq: int
    whole_word: bool
    mask_id: int
    is_special: NDArray[np.bool_]  # [V]
    is_continuation: NDArray[np.bool_]  # [V] pieces that continue a word ("##ing")
    replacement_ids: NDArray[np.uint32]  # what a random word may be
    mask_rate: float = 0.8
    random_rate: float = 0.1

    @classmethod
    def of(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The rules of a data set."""
        return cls(
            masked_lm_prob=config.masked_lm_prob,
            max_predictions_per_seq=config.predictions,
            whole_word=config.whole_word,
            mask_id=tokenizer.mask_id,
            is_special=tokenizer.is_special,
            is_continuation=tokenizer.is_continuation,
            replacement_ids=tokenizer.replacement_ids,
        )


def mask_keys(seed: int, *, split: str, shard: ArrayLike, epoch: ArrayLike) -> UInt64Array:
    """The stream keys of a shard's masks in an epoch; arrays broadcast to an array of keys."""
    return stream_key(seed, f"masks/{split}", shard, epoch)


def mask_examples(
    examples: Examples, *, keys: UInt64Array, rows: Offsets, rules: MaskRules
) -> Examples:
    """Hide tokens of examples; what was hidden before is shown first.

    `keys` are uint64 stream keys and `rows` the row numbers inside their shards, both [R]: what is
    hidden in a row depends on nothing else. A row without a token that may be hidden keeps none.
    """
    parts = []
    for start in range(0, len(examples), SLAB):
        slab = slice(start, min(start + SLAB, len(examples)))
        shown = examples.slice(slab.start, slab.stop).unmasked().input_ids
        parts.append(_mask_slab(shown, row_keys(keys[slab], rows[slab]), rules))
    ids = examples.input_ids
    counts = np.concatenate([part.counts for part in parts]) if parts else np.zeros(0, np.int64)
    offsets = offsets_of(counts)
    positions = [part.positions for part in parts] or [np.zeros(0, np.uint16)]
    return replace(
        examples,
        input_ids=Ragged(_joined([part.masked for part in parts], ids.values), ids.offsets),
        masked_lm_positions=Ragged(np.concatenate(positions), offsets),
        masked_lm_labels=Ragged(_joined([part.labels for part in parts], ids.values), offsets),
    )


def count_predictions(lengths: Offsets, rules: MaskRules) -> Offsets:
    """How many tokens a row of so many tokens hides, if it has that many to hide; int64."""
    rounded = np.floor(lengths * rules.masked_lm_prob + 0.5).astype(np.int64)
    return np.clip(rounded, 1, rules.max_predictions_per_seq)


@dataclass(frozen=True)
class _MaskedSlab:
    masked: NDArray[np.integer]  # [T]
    positions: NDArray[np.uint16]  # [M]
    labels: NDArray[np.integer]  # [M]
    counts: Offsets  # [R]


def _mask_slab(ids: Ragged, keys: UInt64Array, rules: MaskRules) -> _MaskedSlab:
    """Hide in `ids`, whose memory is used, what the `keys` [R] of its rows draw."""
    choose = _choose_whole_words if rules.whole_word else _choose_tokens
    hidden, counts = choose(ids, keys, rules)  # flat places in ids.values, sorted
    row_of = np.repeat(np.arange(len(ids)), counts)
    labels = ids.values[hidden]
    ids.values[hidden] = _stand_ins(labels, keys[row_of], _ordinals(counts), rules)
    positions = (hidden - ids.offsets[row_of]).astype(np.uint16)
    return _MaskedSlab(ids.values, positions, labels, counts)


def _stand_ins(
    labels: NDArray[np.integer], keys: UInt64Array, ordinals: Offsets, rules: MaskRules
) -> NDArray[np.integer]:
    """What stands at each masked place, [M]: [MASK], a random word, or the label itself."""
    stand_ins = labels.copy()
    action = random_bits_of_rows(keys, LANES * ordinals + ACTION)
    hide = with_probability(action, rules.mask_rate)
    swap = np.flatnonzero(with_probability(action, rules.mask_rate + rules.random_rate) & ~hide)
    stand_ins[hide] = rules.mask_id
    words = random_bits_of_rows(keys[swap], LANES * ordinals[swap] + REPLACEMENT)
    stand_ins[swap] = rules.replacement_ids[uniform_below(words, len(rules.replacement_ids))]
    return stand_ins


def _choose_tokens(ids: Ragged, keys: UInt64Array, rules: MaskRules) -> tuple[Offsets, Offsets]:
    """Exactly k of the n tokens that may be hidden, every set of k equally likely."""
    candidates, candidate_offsets = _candidates(ids, rules)
    totals = np.diff(candidate_offsets)
    counts = np.minimum(count_predictions(ids.lengths, rules), totals)
    most = int(counts.max(initial=0))
    # Rows that hide the most come first: those that still choose are the first ones, a plain slice.
    fullest = np.argsort(-counts, kind="stable")
    choosing = len(counts) - np.searchsorted(counts[fullest[::-1]], np.arange(most), side="right")
    keys, spare = keys[fullest], (totals - counts)[fullest]
    picks = np.full((most, len(ids)), np.iinfo(np.int32).max, dtype=np.int32)
    for j, alive in enumerate(choosing.tolist()):
        last = spare[:alive] + j
        pick = uniform_below(random_bits_of_rows(keys[:alive], LANES * j + PICK), last + 1)
        pick = pick.astype(np.int32)
        taken = (picks[:j, :alive] == pick).any(axis=0)
        picks[j, :alive] = np.where(taken, last, pick)
    by_row = np.empty((len(ids), most), dtype=np.int32)
    by_row[fullest] = picks.T
    by_row.sort(axis=1)
    chosen = by_row[np.arange(most) < counts[:, None]]  # [M], row after row, sorted in each
    return candidates[np.repeat(candidate_offsets[:-1], counts) + chosen], counts


def _choose_whole_words(
    ids: Ragged, keys: UInt64Array, rules: MaskRules
) -> tuple[Offsets, Offsets]:
    """Whole words in drawn order, each taken if it still fits into k tokens."""
    candidates, candidate_offsets = _candidates(ids, rules)
    budget = np.minimum(count_predictions(ids.lengths, rules), np.diff(candidate_offsets))
    starts = _word_starts(ids, candidates, rules)
    word_lengths = np.diff(np.append(starts, len(candidates)))
    word_offsets = np.searchsorted(starts, candidate_offsets)  # words of row r, in starts
    words_in_row = np.diff(word_offsets)
    row_of = np.repeat(np.arange(len(ids)), words_in_row)
    draws = random_bits_of_rows(keys[row_of], LANES * _ordinals(words_in_row) + PICK)
    drawn = np.lexsort((draws, row_of))  # the words of each row, in drawn order
    takes = np.zeros(len(starts), dtype=bool)
    for rank in range(int(words_in_row.max(initial=0))):
        alive = np.flatnonzero(words_in_row > rank)
        word = drawn[word_offsets[alive] + rank]
        fits = word_lengths[word] <= budget[alive]
        takes[word[fits]] = True
        budget[alive[fits]] -= word_lengths[word[fits]]
    hidden = candidates[slice_indices(starts[takes], word_lengths[takes])]
    counts = np.bincount(row_of[takes], weights=word_lengths[takes], minlength=len(ids))
    return hidden, counts.astype(np.int64)


def _candidates(ids: Ragged, rules: MaskRules) -> tuple[Offsets, Offsets]:
    """Flat places of the tokens that may be hidden, and where each row's begin, [R + 1]."""
    places = np.flatnonzero(~rules.is_special.take(ids.values, mode="clip"))  # no check of each id
    return places, np.searchsorted(places, ids.offsets)


def _word_starts(ids: Ragged, candidates: Offsets, rules: MaskRules) -> Offsets:
    """Indices into `candidates` where a word begins.

    A piece continues the word only if the token before it may be hidden too: a B that was cut in
    the middle of a word starts with a "##" piece, and that is a word of its own.
    """
    follows = np.zeros(len(candidates), dtype=bool)
    follows[1:] = np.diff(candidates) == 1
    return np.flatnonzero(~(rules.is_continuation[ids.values[candidates]] & follows))


def _ordinals(counts: Offsets) -> Offsets:
    """0, 1, 2, ... within each row."""
    return slice_indices(np.zeros(len(counts), np.int64), counts)


def _joined(parts: list[NDArray], like: NDArray) -> NDArray:
    return np.concatenate(parts) if parts else like[:0]
