"""Masks against the rules, in two ways.

Drawn again from the seed they must come out as stored. And, without any trust in the drawing, their
number, their places and what stands there must be as the rules say:

    k of a row             exactly max(1, min(max_predictions_per_seq, n * masked_lm_prob rounded))
    [MASK], random, kept   their fractions of M masked tokens, within the bounds of chance
    places                 each eighth of the rows holds its share of them, within the same bounds

A count X of M things that each happen with probability p has the mean M p and the variance
s^2 = M p (1 - p). It is a fault if |X - M p| > 6 s + 12. By Bernstein's inequality,
P(|X - M p| >= t) <= 2 exp(-t^2 / (2 s^2 + 2 t / 3)), sound masks do so with a probability below
4e-8, however small M is; and so do counts of draws without replacement (Hoeffding 1963, section 6).
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.common.ragged import Ragged
from pipeline.config import DataConfig
from pipeline.dataset.schema import NO_PAIR, Examples
from pipeline.examples.masks import MaskRules, count_predictions, mask_examples, mask_keys
from pipeline.tokenization.tokenizer import Tokenizer
from pipeline.verify.findings import Findings, Flags, rows_with

SLAB = 8192  # rows at once: the working set stays in the processor's cache
SIGMAS = 6.0
PLACES = 8  # parts of a row whose shares of the masks are compared


@dataclass
class _Tally:
    """Counts over the slabs of a shard."""

    masked: int = 0
    replaceable: int = 0  # masked tokens that a random word could be
    hidden: int = 0  # [MASK] stands there
    kept: int = 0  # the token itself
    places: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, PLACES)))


def check_masks(
    examples: Examples,
    faults: Findings,
    split: str,
    shard: int,
    config: DataConfig,
    tokenizer: Tokenizer,
) -> None:
    rules = MaskRules.of(config, tokenizer)
    key = mask_keys(config.seed, split=split, shard=shard, epoch=0)
    tally = _Tally()
    for start in range(0, len(examples), SLAB):
        slab = _slab(examples, start, start + SLAB)
        originals = slab.unmasked()
        may_hide = ~rules.is_special[originals.input_ids.values]
        _audit_specials(slab, originals, faults, tokenizer, start)
        counts = np.add.reduceat(may_hide, slab.input_ids.offsets[:-1], dtype=np.int64)
        budget = np.minimum(count_predictions(slab.input_ids.lengths, rules), counts)
        hidden = np.zeros(len(may_hide), dtype=bool)
        hidden[slab.flat_positions()] = True
        if config.masking == "whole-words":
            _audit_words(originals, faults, may_hide, hidden, budget, rules, start)
        else:
            wrong = slab.masked_lm_positions.lengths != budget
            faults.note(wrong, "rows that hide more or fewer tokens than the rules", first=start)
            tally.places += _count_places(slab, may_hide, hidden, counts)
        _count_stand_ins(slab, tally, faults, rules, start)
        again = mask_examples(
            originals,
            keys=np.broadcast_to(key, len(slab)),
            rows=start + np.arange(len(slab)),
            rules=rules,
        )
        what = "rows with masks other than the config and the seed draw"
        faults.note(_differs(slab, again), what, first=start)
    _judge(tally, faults, config, len(rules.replacement_ids))


def _audit_specials(
    slab: Examples, originals: Examples, faults: Findings, tokenizer: Tokenizer, first: int
) -> None:
    labels = slab.masked_lm_labels
    rows = rows_with(tokenizer.is_special[labels.values], labels)
    faults.note(rows, "rows with special tokens that are masked", first=first)
    ids = originals.input_ids.values
    is_mark = tokenizer.is_special[ids] & (ids != tokenizer.unk_id)
    marks = np.add.reduceat(is_mark, originals.input_ids.offsets[:-1], dtype=np.int64)
    expected = np.where(slab.next_sentence_label == NO_PAIR, 2, 3)
    faults.note(marks != expected, "rows with special tokens inside A or B", first=first)


def _audit_words(
    originals: Examples,
    faults: Findings,
    may_hide: Flags,
    hidden: Flags,
    budget: NDArray[np.int64],
    rules: MaskRules,
    first: int,
) -> None:
    """Whole words only, and none is left that would still have fitted."""
    ids = originals.input_ids
    goes_on = rules.is_continuation[ids.values]
    goes_on[1:] &= may_hide[:-1]
    is_start = may_hide & ~goes_on
    word_of = np.cumsum(is_start)[may_hide] - 1
    starts = np.flatnonzero(is_start)
    lengths = np.bincount(word_of, minlength=len(starts))
    hides = np.bincount(word_of, weights=hidden[may_hide], minlength=len(starts))
    rows = np.searchsorted(ids.offsets, starts, side="right") - 1
    in_part = (hides > 0) & (hides < lengths)
    faults.note(rows[in_part], "rows that hide a word in part", first=first)
    room = budget - np.bincount(rows, weights=hides, minlength=len(budget)).astype(np.int64)
    fits = (hides == 0) & (lengths <= room[rows])
    wrong = np.union1d(np.flatnonzero(room < 0), rows[fits])
    faults.note(wrong, "rows that hide more or fewer tokens than the rules", first=first)


def _count_places(
    slab: Examples, may_hide: Flags, hidden: Flags, counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Masks in each part of the rows: their number, its mean and variance, [3, PLACES]."""
    ids = slab.input_ids
    edges = ids.offsets[:-1, None] + ids.lengths[:, None] * np.arange(PLACES + 1) // PLACES
    places = np.diff(_counted_before(may_hide)[edges], axis=1)  # [R, PLACES] that may be hidden
    share = (slab.masked_lm_positions.lengths / np.maximum(counts, 1))[:, None]
    found = np.diff(_counted_before(hidden)[edges], axis=1)
    return np.stack([x.sum(axis=0) for x in (found, places * share, places * share * (1 - share))])


def _count_stand_ins(
    slab: Examples, tally: _Tally, faults: Findings, rules: MaskRules, first: int
) -> None:
    stand_ins = slab.input_ids.values[slab.flat_positions()]
    labels = slab.masked_lm_labels.values
    is_word = np.zeros(len(rules.is_special), dtype=bool)
    is_word[rules.replacement_ids] = True
    hide, keep = stand_ins == rules.mask_id, stand_ins == labels
    rows = rows_with(~(hide | keep | is_word[stand_ins]), slab.masked_lm_positions)
    faults.note(rows, "rows with a special or unused piece for a random word", first=first)
    tally.masked += len(labels)
    tally.replaceable += int(is_word[labels].sum())
    tally.hidden += int(hide.sum())
    tally.kept += int(keep.sum())


def _judge(tally: _Tally, faults: Findings, config: DataConfig, num_replacements: int) -> None:
    """The counts against their bounds."""
    if not tally.masked:
        return
    # A random word is the token itself now and then.
    lucky = config.random_token_prob * tally.replaceable / num_replacements
    expected = {
        "[MASK]": (tally.hidden, config.mask_token_prob * tally.masked),
        "kept": (tally.kept, config.keep_token_prob * tally.masked + lucky),
        "a random word": (
            tally.masked - tally.hidden - tally.kept,
            config.random_token_prob * tally.masked - lucky,
        ),
    }
    for what, (count, mean) in expected.items():
        if not within_chance(count, mean, mean * (1 - mean / tally.masked)):
            share, wanted = count / tally.masked, mean / tally.masked
            faults.say(f"{share:.2%} of the masked tokens are {what}, not {wanted:.2%}")
    for part, (count, mean, variance) in enumerate(tally.places.T, start=1):
        if not within_chance(count, mean, variance):
            faults.say(
                f"part {part} of {PLACES} of the rows has {count:,.0f} masks, not {mean:,.0f}"
            )


def _differs(slab: Examples, again: Examples) -> NDArray[np.int64]:
    """The rows whose masks are not the same."""
    other_ids = rows_with(slab.input_ids.values != again.input_ids.values, slab.input_ids)
    one, two = slab.masked_lm_positions, again.masked_lm_positions
    same_count = one.lengths == two.lengths
    rows = np.flatnonzero(same_count)
    if not same_count.all():
        one, two = one.take(rows), two.take(rows)
    moved = rows[rows_with(one.values != two.values, one)]
    return np.unique(np.concatenate([other_ids, np.flatnonzero(~same_count), moved]))


def _slab(examples: Examples, start: int, stop: int) -> Examples:
    """Rows start to stop, as views."""
    columns: dict[str, Any] = {}
    for column in fields(Examples):
        values = getattr(examples, column.name)
        is_ragged = isinstance(values, Ragged)
        columns[column.name] = (
            values.slice(start, min(stop, len(examples))) if is_ragged else values[start:stop]
        )
    return Examples(**columns)


def within_chance(count: float, expected: float, variance: float) -> bool:
    """Whether a count lies within the bounds of the module's docstring."""
    return abs(count - expected) <= SIGMAS * np.sqrt(variance) + SIGMAS**2 / 3


def _counted_before(flags: Flags) -> NDArray[np.int32]:
    counted = np.zeros(len(flags) + 1, dtype=np.int32)
    np.cumsum(flags, out=counted[1:])
    return counted
