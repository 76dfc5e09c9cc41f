"""Which tokens are masked, and what replaces them (Devlin et al. 2018, section 3.1).

In a row of n tokens (including [CLS] and [SEP], as in Google's code)
k = max(1, min(max_predictions_per_seq, n * masked_lm_prob rounded half up)) tokens are masked: by
default 80 % become [MASK], 10 % a random token, 10 % stay as they are. Special tokens are neither
masked nor used as random tokens. Of whole words as many as fit into the k tokens are masked. A word
of more than k tokens is masked token by token: in scripts without spaces a "word" may be the whole
row, which would otherwise have no mask.

    [CLS] the cat sat [SEP]  ->  [CLS] the [MASK] sat [SEP],  positions [2],  labels [cat]

`--masking` names the function that chooses the tokens; `SCHEMES` lists these functions. A program
can give the loader one of its own (`OwnMasking`).

Thousands of rows are processed at once. Choosing k of n without repetition is Floyd's algorithm
(Bentley & Floyd 1987), which takes k steps for any n; each step is one vector operation over all
rows. The shard stores the masks of epoch 0; the loader draws later epochs with the same function.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.counter_rng import (
    UInt64Array,
    random_bits_of_rows,
    row_keys,
    stream_key,
    uniform_below,
    with_probability,
)
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Offsets, Ragged, offsets_of, ordinals, slice_indices
from clozeline.pipeline.config import DataConfig, Masking
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

SLAB = 8192  # rows at once: the working set stays in the processor's cache

# The counters of a row's random bits: three for each masked token, in order.
COUNTERS = 3
PICK, ACTION, REPLACEMENT = range(COUNTERS)

#: Which tokens to mask, bool [T], of the rows' ids [T], their offsets [R + 1], and a random number
#: for each token, float64 [T] in [0, 1): the same ones for the same row and epoch.
OwnMasking = Callable[[NDArray[Any], Offsets, NDArray[np.float64]], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class MaskRules:
    """How much is masked and how, and what masking must know about the vocabulary (V tokens)."""

    masking: Masking | OwnMasking
    masked_lm_prob: float
    max_predictions_per_seq: int
    mask_token_prob: float
    random_token_prob: float
    mask_id: int
    is_special: NDArray[np.bool_]  # [V]
    is_continuation: NDArray[np.bool_]  # [V] tokens that continue a word ("##ing")
    replacement_ids: NDArray[np.uint32]  # the candidates for a random token

    @classmethod
    def of(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        return cls(
            masking=config.masking,
            masked_lm_prob=config.masked_lm_prob,
            max_predictions_per_seq=config.predictions,
            mask_token_prob=config.mask_token_prob,
            random_token_prob=config.random_token_prob,
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
    """Mask examples anew, after restoring the tokens that are masked already.

    `keys` are uint64 stream keys and `rows` the row numbers inside their shards, both [R]: the
    masks of a row depend on nothing else. A row of special tokens only is left unmasked.
    """
    parts = []
    for start in range(0, max(len(examples), 1), SLAB):  # an empty slab has the dtypes
        slab = slice(start, start + SLAB)
        originals = examples.slice(slab.start, slab.stop).unmasked().input_ids
        parts.append(_mask_slab(originals, row_keys(keys[slab], rows[slab]), rules))
    masked, positions, labels, counts = map(np.concatenate, zip(*parts, strict=True))
    offsets = offsets_of(counts)
    return replace(
        examples,
        input_ids=Ragged(masked, examples.input_ids.offsets),
        masked_lm_positions=Ragged(positions, offsets),
        masked_lm_labels=Ragged(labels, offsets),
    )


def count_predictions(lengths: Offsets, rules: MaskRules) -> Offsets:
    """How many tokens to mask in rows of these lengths, int64; fewer if fewer may be masked."""
    rounded = np.floor(lengths * rules.masked_lm_prob + 0.5).astype(np.int64)
    counts: Offsets = np.clip(rounded, 1, rules.max_predictions_per_seq)
    return counts


def _mask_slab(ids: Ragged, keys: UInt64Array, rules: MaskRules) -> tuple[NDArray[Any], ...]:
    """Mask `ids` in place, as the `keys` [R] of its rows decide.

    Returns the ids [T], positions [M], labels [M], and how many of these each row has, [R].
    """
    choose = _choose_own if callable(rules.masking) else SCHEMES[rules.masking]
    chosen, counts = choose(ids, keys, rules)
    row_of = np.repeat(np.arange(len(ids)), counts)
    labels = ids.values[chosen]
    ids.values[chosen] = _replacements(labels, keys[row_of], ordinals(counts), rules)
    positions = (chosen - ids.offsets[row_of]).astype(np.uint16)
    return ids.values, positions, labels, counts


def _replacements(
    labels: NDArray[np.integer], keys: UInt64Array, ordinals: Offsets, rules: MaskRules
) -> NDArray[np.integer]:
    """What replaces each label, [M]: [MASK], a random token, or the label itself."""
    replacements = labels.copy()
    action = random_bits_of_rows(keys, COUNTERS * ordinals + ACTION)
    is_mask = with_probability(action, rules.mask_token_prob)
    is_replaced = with_probability(action, rules.mask_token_prob + rules.random_token_prob)
    replacements[is_mask] = rules.mask_id
    is_random = np.flatnonzero(is_replaced & ~is_mask)
    bits = random_bits_of_rows(keys[is_random], COUNTERS * ordinals[is_random] + REPLACEMENT)
    picks = uniform_below(bits, len(rules.replacement_ids))
    replacements[is_random] = rules.replacement_ids[picks]
    return replacements


def _choose_tokens(ids: Ragged, keys: UInt64Array, rules: MaskRules) -> tuple[Offsets, Offsets]:
    """Exactly k of the tokens that may be masked, every set of k equally likely."""
    candidates, candidate_offsets = _candidates(ids, rules)
    totals = np.diff(candidate_offsets)
    counts = np.minimum(count_predictions(ids.lengths, rules), totals)
    most = int(counts.max(initial=0))
    # Rows with the largest counts first: the rows that take part in a step are then a plain slice.
    order = np.argsort(-counts, kind="stable")
    active_rows = len(counts) - np.searchsorted(counts[order[::-1]], np.arange(most), side="right")
    keys, spare = keys[order], (totals - counts)[order]
    picks = np.full((most, len(ids)), np.iinfo(np.int32).max, dtype=np.int32)
    for j, active in enumerate(active_rows.tolist()):
        last = spare[:active] + j
        pick = uniform_below(random_bits_of_rows(keys[:active], COUNTERS * j + PICK), last + 1)
        pick = pick.astype(np.int32)
        is_taken = (picks[:j, :active] == pick).any(axis=0)
        picks[j, :active] = np.where(is_taken, last, pick)
    by_row = np.empty((len(ids), most), dtype=np.int32)
    by_row[order] = picks.T
    by_row.sort(axis=1)
    chosen = by_row[np.arange(most) < counts[:, None]]  # [M], row by row, sorted within each
    return candidates[np.repeat(candidate_offsets[:-1], counts) + chosen], counts


def _choose_whole_words(
    ids: Ragged, keys: UInt64Array, rules: MaskRules
) -> tuple[Offsets, Offsets]:
    """Whole words in random order, each taken if it still fits into the k tokens."""
    candidates, candidate_offsets = _candidates(ids, rules)
    budget = np.minimum(count_predictions(ids.lengths, rules), np.diff(candidate_offsets))
    is_start = _is_word_start(ids, candidates, rules)
    is_start |= in_long_words(is_start, np.repeat(budget, np.diff(candidate_offsets)))
    starts = np.flatnonzero(is_start)
    word_lengths = np.diff(np.append(starts, len(candidates)))
    word_offsets = np.searchsorted(starts, candidate_offsets)  # words of row r, in starts
    words_in_row = np.diff(word_offsets)
    row_of = np.repeat(np.arange(len(ids)), words_in_row)
    bits = random_bits_of_rows(keys[row_of], COUNTERS * ordinals(words_in_row) + PICK)
    shuffled = np.lexsort((bits, row_of))  # the words of each row, in random order
    is_taken = np.zeros(len(starts), dtype=bool)
    for rank in range(int(words_in_row.max(initial=0))):
        active = np.flatnonzero(words_in_row > rank)
        word = shuffled[word_offsets[active] + rank]
        fits = word_lengths[word] <= budget[active]
        is_taken[word[fits]] = True
        budget[active[fits]] -= word_lengths[word[fits]]
    chosen = candidates[slice_indices(starts[is_taken], word_lengths[is_taken])]
    counts = np.bincount(row_of[is_taken], weights=word_lengths[is_taken], minlength=len(ids))
    return chosen, counts.astype(np.int64)


def _choose_own(ids: Ragged, keys: UInt64Array, rules: MaskRules) -> tuple[Offsets, Offsets]:
    """What the function of a program chooses, without special tokens; of more than fit, some.

    Raises InputError for another answer than bool [T].
    """
    assert callable(rules.masking)
    bits = random_bits_of_rows(np.repeat(keys, ids.lengths), COUNTERS * ordinals(ids.lengths))
    random = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    answer = np.asarray(rules.masking(ids.values, ids.offsets, random))
    if answer.dtype != bool or answer.shape != ids.values.shape:
        raise InputError(
            f"masking gave {answer.dtype} {list(answer.shape)}; a bool for each of the "
            f"{len(ids.values)} tokens is needed."
        )
    chosen = np.flatnonzero(answer & ~rules.is_special[ids.values])
    counts = np.diff(np.searchsorted(chosen, ids.offsets))
    row_of = np.repeat(np.arange(len(ids)), counts)
    by_number = np.lexsort((random[chosen], row_of))
    fitting = by_number[ordinals(counts) < rules.max_predictions_per_seq]
    return np.sort(chosen[fitting]), np.minimum(counts, rules.max_predictions_per_seq)


#: Each maps `ids` of R rows, their keys [R] and the rules to the indices into `ids.values` to
#: mask, [M] sorted, and how many of them each row has, [R].
SCHEMES: dict[Masking, Callable[[Ragged, UInt64Array, MaskRules], tuple[Offsets, Offsets]]] = {
    "tokens": _choose_tokens,
    "whole-words": _choose_whole_words,
}


def _candidates(ids: Ragged, rules: MaskRules) -> tuple[Offsets, Offsets]:
    """Indices into `ids.values` of the tokens that may be masked, and their offsets, [R + 1]."""
    is_special = rules.is_special.take(ids.values, mode="clip")  # skips bounds checks
    candidates = np.flatnonzero(~is_special)
    return candidates, np.searchsorted(candidates, ids.offsets)


def _is_word_start(ids: Ragged, candidates: Offsets, rules: MaskRules) -> NDArray[np.bool_]:
    """At which of the `candidates` a word begins, [C].

    A "##" token continues a word only if the token before it may be masked too: a B that was cut
    inside a word starts with a "##" token, which then counts as the start of a word.
    """
    follows = np.zeros(len(candidates), dtype=bool)
    follows[1:] = np.diff(candidates) == 1
    is_start: NDArray[np.bool_] = ~(rules.is_continuation[ids.values[candidates]] & follows)
    return is_start


def in_long_words(is_start: NDArray[np.bool_], most: Offsets) -> NDArray[np.bool_]:
    """Which tokens are of a word with more than `most` tokens, [C]; `is_start`: where words begin.

    is_start [1 0 0 1 0], most [2 2 2 2 2]  ->  [1 1 1 0 0]
    """
    starts = np.flatnonzero(is_start)
    lengths = np.diff(np.append(starts, len(is_start)))
    return np.repeat(lengths > most[starts], lengths)


def count_in_long_words(examples: Examples, rules: MaskRules) -> int:
    """How many tokens are of words that are masked token by token."""
    number = 0
    for start in range(0, len(examples), SLAB):
        ids = examples.slice(start, start + SLAB).unmasked().input_ids
        candidates, offsets = _candidates(ids, rules)
        most = np.repeat(count_predictions(ids.lengths, rules), np.diff(offsets))
        number += int(in_long_words(_is_word_start(ids, candidates, rules), most).sum())
    return number
