"""Masks against the rules, in two ways.

Recomputed from the seed, they must equal those stored. And, whatever the seed, their number,
positions and replacements must follow the rules:

    masks of a row         exactly max(1, min(max_predictions_per_seq, n * masked_lm_prob rounded)),
                           or of whole words as many as fit; those of more tokens are cut into them
    [MASK], random, kept   their fractions of M masked tokens, within the bounds of chance
    positions              each eighth of the rows has its fraction of them, within the same bounds

A count X of M events of probability p has the mean M p and the variance s^2 = M p (1 - p). It is
reported if |X - M p| > 6 s + 12. By Bernstein's inequality,
P(|X - M p| >= t) <= 2 exp(-t^2 / (2 s^2 + 2 t / 3)), this happens to sound masks with a probability
below 4e-8, however small M is, and likewise to counts of samples without replacement (Hoeffding
1963, section 6).
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.examples.masks import (
    MaskRules,
    count_predictions,
    in_long_words,
    mask_examples,
    mask_keys,
)
from clozeline.pipeline.verify.findings import (
    Findings,
    Flags,
    ShardRows,
    differing_rows,
    rows_with,
)

SLAB = 8192  # rows at once: the working set stays in the processor's cache
SIGMAS = 6.0
WRONG_NUMBER = "rows with more or fewer masks than the rules give"
PARTS = 8  # of a row, in each of which masks are counted


class _Slab(NamedTuple):
    first: int  #: the number of the first row
    examples: Examples
    originals: Examples
    rules: MaskRules
    maskable: Flags  #: [T]
    masked: Flags  #: [T]
    candidates: NDArray[np.int64]  #: maskable tokens of each row, [R]
    expected: NDArray[np.int64]  #: masked ones by the rules, [R]


def check_masks(shard: ShardRows) -> None:
    """Note which rows of a shard have masks that break the rules, or are not those of the seed."""
    findings = shard.findings
    rules = MaskRules.of(shard.config, shard.tokenizer)
    total: Counter[str] = Counter()
    by_part = np.zeros((3, PARTS))
    for slab in _slabs(shard.examples, rules):
        examples = slab.examples
        _check_special_tokens(slab, shard)
        if shard.config.masking == "whole-words":
            _check_whole_words(slab, findings)
        else:  # all positions are equally likely
            wrong = examples.masked_lm_positions.lengths != slab.expected
            findings.note(wrong, WRONG_NUMBER, first=slab.first)
            by_part += _count_by_part(slab)
        total += _count_replacements(slab, findings)
        key = mask_keys(shard.config.seed, split=shard.split, shard=shard.shard, epoch=0)
        keys, rows = np.broadcast_to(key, len(examples)), slab.first + np.arange(len(examples))
        again = mask_examples(slab.originals, keys=keys, rows=rows, rules=rules)
        problem = "rows with masks other than those of the config and the seed"
        findings.note(differing_rows(examples, again), problem, first=slab.first)
    _check_fractions(total, findings, shard.config, len(rules.replacement_ids))
    for part, (count, mean, variance) in enumerate(by_part.T, start=1):
        if total["masked"] and not within_chance(count, mean, variance):
            findings.add(
                f"part {part} of {PARTS} of the rows has {count:,.0f} masks, not {mean:,.0f}"
            )


def _slabs(examples: Examples, rules: MaskRules) -> Iterator[_Slab]:
    for start in range(0, len(examples), SLAB):
        rows = examples.slice(start, min(start + SLAB, len(examples)))
        originals = rows.unmasked()
        maskable = ~rules.is_special[originals.input_ids.values]
        masked = np.zeros(len(maskable), dtype=bool)
        masked[rows.flat_positions()] = True
        candidates = np.add.reduceat(maskable, rows.input_ids.offsets[:-1], dtype=np.int64)
        expected = np.minimum(count_predictions(rows.input_ids.lengths, rules), candidates)
        yield _Slab(start, rows, originals, rules, maskable, masked, candidates, expected)


def _check_special_tokens(slab: _Slab, shard: ShardRows) -> None:
    findings, tokenizer, labels = shard.findings, shard.tokenizer, slab.examples.masked_lm_labels
    rows = rows_with(tokenizer.is_special[labels.values], labels)
    findings.note(rows, "rows with masked special tokens", first=slab.first)
    ids, (of_cls, of_sep) = slab.originals.input_ids, slab.examples.cls_and_sep()
    is_special = tokenizer.is_special[ids.values] & (ids.values != tokenizer.unk_id)
    counts = np.add.reduceat(is_special, ids.offsets[:-1], dtype=np.int64)
    # Either may be the token for unknown text, too, as in GPT-2.
    is_cls, is_sep = (mark != tokenizer.unk_id for mark in (tokenizer.cls_id, tokenizer.sep_id))
    expected = of_cls * is_cls + of_sep * is_sep
    findings.note(counts != expected, "rows with special tokens inside A or B", first=slab.first)


def _check_whole_words(slab: _Slab, findings: Findings) -> None:
    """Only whole words may be masked, and as many as fit."""
    ids, maskable, masked = slab.originals.input_ids, slab.maskable, slab.masked
    continues = slab.rules.is_continuation[ids.values]
    continues[1:] &= maskable[:-1]
    is_start = maskable & ~continues
    is_start[maskable] |= in_long_words(
        is_start[maskable], np.repeat(slab.expected, slab.candidates)
    )
    word_of = np.cumsum(is_start)[maskable] - 1
    starts = np.flatnonzero(is_start)
    lengths = np.bincount(word_of, minlength=len(starts))
    masked_pieces = np.bincount(word_of, weights=masked[maskable], minlength=len(starts))
    rows = np.searchsorted(ids.offsets, starts, side="right") - 1
    in_part = (masked_pieces > 0) & (masked_pieces < lengths)
    findings.note(rows[in_part], "rows with partly masked words", first=slab.first)
    found = np.bincount(rows, weights=masked_pieces, minlength=len(ids)).astype(np.int64)
    room = slab.expected - found
    fits = (masked_pieces == 0) & (lengths <= room[rows])
    wrong = np.union1d(np.flatnonzero(room < 0), rows[fits])
    findings.note(wrong, WRONG_NUMBER, first=slab.first)


def _count_by_part(slab: _Slab) -> NDArray[np.float64]:
    """Masks in each part of the rows: their number, its mean and variance, [3, PARTS]."""
    ids, number = slab.examples.input_ids, slab.examples.masked_lm_positions.lengths
    edges = ids.offsets[:-1, None] + ids.lengths[:, None] * np.arange(PARTS + 1) // PARTS
    possible = np.diff(offsets_of(slab.maskable)[edges], axis=1)  # [R, PARTS]
    rate = (number / np.maximum(slab.candidates, 1))[:, None]
    found = np.diff(offsets_of(slab.masked)[edges], axis=1)
    mean = possible * rate
    return np.stack([x.sum(axis=0) for x in (found, mean, mean * (1 - rate))])


def _count_replacements(slab: _Slab, findings: Findings) -> Counter[str]:
    """Masked tokens, and those of them that could be a random replacement, are hidden, are kept."""
    examples, rules = slab.examples, slab.rules
    shown = examples.input_ids.values[examples.flat_positions()]
    labels = examples.masked_lm_labels.values
    may_replace = np.zeros(len(rules.is_special), dtype=bool)
    may_replace[rules.replacement_ids] = True
    is_mask, is_kept = shown == rules.mask_id, shown == labels
    rows = rows_with(~(is_mask | is_kept | may_replace[shown]), examples.masked_lm_positions)
    problem = "rows with a special or unused token as a random replacement"
    findings.note(rows, problem, first=slab.first)
    return Counter(
        masked=len(labels),
        replaceable=int(may_replace[labels].sum()),
        hidden=int(is_mask.sum()),
        kept=int(is_kept.sum()),
    )


def _check_fractions(
    total: Counter[str], findings: Findings, config: DataConfig, num_replacements: int
) -> None:
    """The fractions of [MASK], kept and random tokens against their bounds."""
    masked, hidden, kept = total["masked"], total["hidden"], total["kept"]
    if not masked:
        return
    # A random replacement is sometimes the token itself.
    equal = config.random_token_prob * total["replaceable"] / num_replacements
    expected = {
        "[MASK]": (hidden, config.mask_token_prob * masked),
        "kept": (kept, config.keep_token_prob * masked + equal),
        "a random token": (masked - hidden - kept, config.random_token_prob * masked - equal),
    }
    for what, (count, mean) in expected.items():
        if not within_chance(count, mean, mean * (1 - mean / masked)):
            found, wanted = count / masked, mean / masked
            findings.add(f"{found:.2%} of the masked tokens are {what}, not {wanted:.2%}")


def within_chance(count: float, expected: float, variance: float) -> bool:
    """Whether a count is within the bounds of the module's docstring."""
    return abs(count - expected) <= SIGMAS * math.sqrt(variance) + SIGMAS**2 / 3
