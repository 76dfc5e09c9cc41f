"""Pairs: A and B are what their labels say, the labels are balanced, and no token is lost."""

from collections import Counter
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.counter_rng import (
    random_bits,
    stream_key,
    uniform_below,
    with_probability,
)
from clozeline.pipeline.examples import pairs as counters
from clozeline.pipeline.examples.pairs import SCHEMES
from tests.support.small import make_documents

TOKENS = st.one_of(st.integers(1, 9), st.integers(1, 90))
PARAGRAPH = st.lists(TOKENS, min_size=1, max_size=4)
DOCUMENT = st.lists(PARAGRAPH, min_size=1, max_size=4)
SHAPE = st.lists(st.one_of(DOCUMENT, TOKENS.map(lambda tokens: [[tokens]])), max_size=9)
SEED = st.integers(0, 2**40)
LENGTH = st.integers(8, 64)
SHORT = st.sampled_from([0.0, 0.1, 1.0])


def pairs_of(shape, kind, *, seed=0, length=32, short=0.1):
    key = stream_key(seed, "pairs/train", 0, 0)
    return SCHEMES[kind](make_documents(shape), key, length, short)


def rows_of(pairs):
    """Rows as plain tuples: (A start, A stop, B start, B stop, label, document of A, of B)."""
    return list(zip(*(getattr(pairs, name).tolist() for name in vars(pairs)), strict=True))


def tokens_of_documents(shape):
    """[start, stop) of each document, in tokens."""
    sizes = [sum(map(sum, document)) for document in shape]
    return [*pairwise(np.cumsum([0, *sizes]).tolist())]


# ---- laws of the schemes that have a B ----------------------------------------------------------


@given(SHAPE, st.sampled_from(["segments", "order", "sentences"]), SEED, LENGTH, SHORT)
def test_a_and_b_fit_and_only_a_random_b_is_of_another_document(shape, kind, seed, length, short):
    bounds = tokens_of_documents(shape)
    pairs, _ = pairs_of(shape, kind, seed=seed, length=length, short=short)
    for a_start, a_stop, b_start, b_stop, label, of_a, of_b in rows_of(pairs):
        assert bounds[of_a][0] <= a_start < a_stop <= bounds[of_a][1]
        assert bounds[of_b][0] <= b_start < b_stop <= bounds[of_b][1]
        assert a_stop - a_start + b_stop - b_start <= length - 3
        assert label in (0, 1)
        if kind == "order":
            assert of_a == of_b
        else:
            assert (of_a != of_b) == (label == 1)
            assert label or a_stop <= b_start
            assert len(shape) > 1 or not label


@given(SHAPE, SEED, LENGTH, SHORT)
def test_segments_use_every_token_once_or_count_it(shape, seed, length, short):
    pairs, dropped = pairs_of(shape, "segments", seed=seed, length=length, short=short)
    used = [(start, stop) for start, stop, *_ in rows_of(pairs)]
    used += [(start, stop) for _, _, start, stop, label, _, _ in rows_of(pairs) if not label]
    used.sort()
    assert all(stop <= start for (_, stop), (start, _) in pairwise(used))  # none twice
    total = sum(map(sum, (paragraph for document in shape for paragraph in document)))
    lost = total - sum(stop - start for start, stop in used)
    assert set(dropped) <= {"cut_tokens", "surplus_random_pair", "no_other_document"}
    if not dropped["surplus_random_pair"] and not dropped["no_other_document"]:
        assert 0 <= lost <= dropped["cut_tokens"]  # random Bs are cut also
    if not dropped.total():
        assert lost == 0


def cut_longer(rows, key, max_tokens):
    """The longer part gives way, token by token; a tie costs B. Returns the tokens that are cut."""
    cut = 0
    for i, row in enumerate(rows):
        keep_a, keep_b = length_a, length_b = row[1] - row[0], row[3] - row[2]
        while keep_a + keep_b > max_tokens:
            keep_a, keep_b = (keep_a - 1, keep_b) if keep_a > keep_b else (keep_a, keep_b - 1)
        cut += length_a + length_b - keep_a - keep_b
        row[0] += int(uniform_below(random_bits(key, i, counters.CUT_A), length_a - keep_a + 1))
        row[2] += int(uniform_below(random_bits(key, i, counters.CUT_B), length_b - keep_b + 1))
        row[1], row[3] = row[0] + keep_a, row[2] + keep_b
    return cut


def numbered(shape):
    """Where each sentence ends, and the numbers of each document's sentences."""
    numbers = count()
    ends = np.cumsum([0, *(t for document in shape for p in document for t in p)]).tolist()
    return ends, [[next(numbers) for p in document for _ in p] for document in shape]


def drawn(key, document, ordinal, max_tokens, short):
    """The random bits of a document's pair, by counter, and its target."""
    first = counters.COUNTERS * ordinal
    bits = [random_bits(key, document, first + c) for c in range(counters.COUNTERS)]
    target = max_tokens
    if with_probability(bits[counters.SHORT], short):
        target = 2 + int(uniform_below(bits[counters.TARGET], max_tokens - 1))
    return bits, target


def reference_segments(shape, key, max_tokens, short):
    """The packing sentence by sentence, with the same random bits, in plain Python.

    One round makes a pair of each document that has sentences left.
    """
    ends, documents = numbered(shape)
    at = [0] * len(documents)
    made = made_random = 0
    rows, dropped = [], Counter()

    def tokens(sentences):
        return sum(ends[s + 1] - ends[s] for s in sentences)

    def fill(sentences, target):
        chunk = []
        while len(chunk) < len(sentences) and tokens(chunk) < max(target, 1):
            chunk.append(sentences[len(chunk)])
        return chunk

    for ordinal in count():
        plans = []
        for d, sentences in enumerate(documents):
            if at[d] == len(sentences):
                continue
            bits, target = drawn(key, d, ordinal, max_tokens, short)
            chunk = fill(sentences[at[d] :], target)
            split = 1 + int(uniform_below(bits[counters.SPLIT], max(len(chunk) - 1, 1)))
            plans.append((d, bits, target, chunk[:split], chunk[split:]))
        if not plans:
            break
        if len(documents) > 1:
            forced = sum(not b for *_, b in plans)
            wanted = (made + len(plans)) / 2 - made_random - forced
            share = min(max(wanted / max(len(plans) - forced, 1), 0), 1)
        else:
            share = 0
        for d, bits, target, a, b in plans:
            at[d] += len(a)
            label, other = 0, d
            if len(documents) > 1 and (not b or with_probability(bits[counters.NEGATIVE], share)):
                label = 1
                other = int(uniform_below(bits[counters.DOCUMENT], len(documents) - 1))
                other += other >= d
                start = int(uniform_below(bits[counters.SENTENCE], len(documents[other])))
                b = fill(documents[other][start:], target - tokens(a))
            elif b:
                at[d] += len(b)
            else:
                dropped["no_other_document"] += 1
                continue
            made, made_random = made + 1, made_random + label
            rows.append([d, ordinal, ends[a[0]], ends[a[-1] + 1], ends[b[0]], ends[b[-1] + 1]])
            rows[-1] += [label, d, other]
    rows = [row[2:] for row in sorted(rows)]

    # Not more than 1.04 random pairs for each that follows.
    randoms = [i for i, row in enumerate(rows) if row[4]]
    allowed = int((len(rows) - len(randoms)) * 1.04)
    by_draw = sorted(randoms, key=lambda i: int(random_bits(key, i, counters.SURPLUS)))
    surplus = by_draw[allowed:]
    dropped["surplus_random_pair"] = len(surplus)
    rows = [row for i, row in enumerate(rows) if i not in surplus]

    dropped["cut_tokens"] = cut_longer(rows, key, max_tokens)
    return [tuple(row) for row in rows], dropped


@pytest.mark.parametrize("lonely", [0.0, 0.3, 0.6, 0.9])
def test_half_of_the_pairs_are_random_with_any_number_of_one_sentence_documents(lonely):
    shape = [[[12]] if i < 3000 * lonely else [[12] * (3 + i % 20)] for i in range(3000)]
    pairs, dropped = pairs_of(shape, "segments")
    assert len(pairs) > 400
    assert 0.48 <= (pairs.next_sentence_label == 1).mean() <= 0.52
    # Leaning the other way saves nearly all of them, until most of the text is such documents.
    assert (dropped["surplus_random_pair"] > 0) == (lonely == 0.9)


def test_short_sequences_follow_short_seq_prob():
    shape = [[[1] * 2000], [[1] * 2000]]
    for short, shortest in ((0.0, 29), (1.0, 2)):
        pairs, _ = pairs_of(shape, "segments", short=short)
        follows = pairs.take(pairs.next_sentence_label == 0)
        lengths = follows.b_stop - follows.a_start
        is_last = np.isin(follows.b_stop, [2000, 4000])  # short as the end of a document is
        assert lengths[~is_last].min() == shortest
        assert lengths.max() == 29
    # The 28 targets from 2 to 29 are equally likely.
    pairs, _ = pairs_of(shape * 50, "segments", short=1.0)
    follows = pairs.take(pairs.next_sentence_label == 0)
    counts = np.bincount(follows.b_stop - follows.a_start, minlength=30)[2:]
    assert (abs(counts - counts.mean()) < 5 * np.sqrt(counts.mean())).all()


def in_order(row):
    """(start, border, stop, document): the consecutive segments of a row, swapped back."""
    a_start, a_stop, b_start, b_stop, label, of_a, of_b = row
    assert of_a == of_b
    first, second = ((a_start, a_stop), (b_start, b_stop))[:: -1 if label else 1]
    return first, second


@given(SHAPE, SEED, LENGTH, SHORT)
def test_order_uses_every_token_once_or_counts_it(shape, seed, length, short):
    pairs, dropped = pairs_of(shape, "order", seed=seed, length=length, short=short)
    used = sorted(span for row in rows_of(pairs) for span in in_order(row))
    assert all(stop <= start for (_, stop), (start, _) in pairwise(used))
    assert set(dropped) <= {"cut_tokens", "lone_sentence"}
    lone = 0
    for document, (_, stop) in zip(shape, tokens_of_documents(shape), strict=True):
        last = document[-1][-1]
        if not any(start < stop and end > stop - last for start, end in used):
            lone += last
            dropped["lone_sentence"] -= 1
    assert dropped["lone_sentence"] == 0
    total = sum(map(sum, (paragraph for document in shape for paragraph in document)))
    assert total == sum(stop - start for start, stop in used) + lone + dropped["cut_tokens"]


def reference_order(shape, key, max_tokens, short):
    """ALBERT's packing sentence by sentence, with the same random bits, in plain Python."""
    ends, documents = numbered(shape)
    rows, dropped = [], Counter()
    for d, sentences in enumerate(documents):
        for ordinal in count():
            if not sentences:
                break
            bits, target = drawn(key, d, ordinal, max_tokens, short)
            size = 1
            while size < len(sentences) and ends[sentences[size]] - ends[sentences[0]] < target:
                size += 1
            size = min(max(size, 2), len(sentences))
            chunk, sentences = sentences[:size], sentences[size:]
            if size == 1:
                dropped["lone_sentence"] += 1
                continue
            split = 1 + int(uniform_below(bits[counters.SPLIT], size - 1))
            a = [ends[chunk[0]], ends[chunk[split]]]
            b = [ends[chunk[split]], ends[chunk[-1] + 1]]
            is_swapped = bool(with_probability(bits[counters.NEGATIVE], 0.5))
            rows.append([*b, *a, 1, d, d] if is_swapped else [*a, *b, 0, d, d])
    dropped["cut_tokens"] = cut_longer(rows, key, max_tokens)
    return list(map(tuple, rows)), dropped


@pytest.mark.parametrize(
    ("kind", "reference"), [("segments", reference_segments), ("order", reference_order)]
)
@given(SHAPE, SEED, LENGTH, SHORT)
def test_pairs_equal_a_loop_over_sentences(kind, reference, shape, seed, length, short):
    pairs, dropped = pairs_of(shape, kind, seed=seed, length=length, short=short)
    key = stream_key(seed, "pairs/train", 0, 0)
    expected, expected_dropped = reference(shape, key, length - 3, short)
    assert rows_of(pairs) == expected
    assert +dropped == +expected_dropped


@given(SHAPE, SEED, LENGTH)
def test_adjacent_sentences_make_one_pair_of_each_label(shape, seed, length):
    pairs, dropped = pairs_of(shape, "sentences", seed=seed, length=length)
    neighbours, start, lonely = [], 0, 0
    for document in shape:
        for paragraph in document:
            ends = [*np.cumsum(paragraph) + start]
            neighbours += ends[:-1]
            lonely += len(paragraph) == 1
            start = ends[-1]
    for label in (0, 1) if len(shape) > 1 else (0,):
        assert pairs.a_stop[pairs.next_sentence_label == label].tolist() == neighbours
    assert len(pairs) == len(neighbours) * (2 if len(shape) > 1 else 1)
    assert dropped["single_sentence_paragraph"] == lonely


@given(SHAPE, SEED, LENGTH)
def test_adjacent_sentences_keep_the_end_of_a_and_the_start_of_b(shape, seed, length):
    edges = sorted({*numbered(shape)[0]})
    start_of = {stop: start for start, stop in pairwise(edges)}
    stop_of = dict(pairwise(edges))
    pairs, _ = pairs_of(shape, "sentences", seed=seed, length=length)
    for a_start, a_stop, b_start, b_stop, label, _, _ in rows_of(pairs):
        assert label or a_stop == b_start
        whole_a, whole_b = a_stop - start_of[a_stop], stop_of[b_start] - b_start
        kept_a, kept_b = a_stop - a_start, b_stop - b_start
        assert kept_a + kept_b == min(whole_a + whole_b, length - 3)
        # Who gives way is not the shorter one, unless both are too long.
        assert kept_a == whole_a or kept_a >= (length - 3) // 2
        assert kept_b == whole_b or kept_b >= (length - 3) // 2


def test_random_sentences_are_uniform_over_the_other_documents():
    pairs, _ = pairs_of([[[3] * 1001], [[3]], [[3], [3, 3]]], "sentences")
    first = (pairs.next_sentence_label == 1) & (pairs.document_a == 0)
    counts = np.bincount(pairs.b_start[first] // 3 - 1001)  # the sentences of documents 1 and 2
    assert counts.sum() == 1000
    assert len(counts) == 4
    assert (abs(counts - 250) < 5 * np.sqrt(250)).all()


@given(SHAPE, SEED, LENGTH)
def test_spans_tile_each_document_and_only_the_last_is_short(shape, seed, length):
    pairs, dropped = pairs_of(shape, "none", seed=seed, length=length)
    assert not dropped.total()
    for document, (start, stop) in enumerate(tokens_of_documents(shape)):
        mine = pairs.take(pairs.document_a == document)
        assert mine.a_start.tolist() == list(range(start, stop, length - 2))
        assert mine.a_stop.tolist() == [*mine.a_start.tolist()[1:], stop]
    assert (pairs.next_sentence_label == -1).all()
    assert (pairs.b_start == pairs.b_stop).all()


GOLDEN_SHAPE = [[[5, 7], [4, 30, 6]], [[9]], [[3, 3, 3], [8, 12]], [[6, 6, 6, 6], [2]]]


def test_golden_pairs():
    pairs, dropped = pairs_of(GOLDEN_SHAPE, "segments", seed=1, length=24)
    assert rows_of(pairs) == [
        (4, 15, 20, 30, 0, 0, 0),
        (64, 76, 52, 61, 1, 2, 1),
        (91, 102, 102, 112, 0, 3, 3),
        (114, 116, 23, 42, 1, 3, 0),
    ]
    assert +dropped == {"cut_tokens": 55, "surplus_random_pair": 3}
    pairs, dropped = pairs_of(GOLDEN_SHAPE, "sentences", seed=1, length=24)
    assert rows_of(pairs)[:6] == [
        (0, 5, 5, 12, 0, 0, 0),
        (0, 5, 52, 61, 1, 0, 1),
        (12, 16, 16, 33, 0, 0, 0),
        (12, 16, 96, 102, 1, 0, 3),
        (31, 46, 46, 52, 0, 0, 0),
        (28, 46, 61, 64, 1, 0, 2),
    ]
    assert dropped == {"single_sentence_paragraph": 2, "cut_tokens": 40}
    pairs, dropped = pairs_of(GOLDEN_SHAPE, "order", seed=1, length=24)
    assert rows_of(pairs) == [
        (31, 42, 1, 11, 1, 0, 0),
        (79, 90, 63, 73, 1, 2, 2),
        (91, 102, 102, 112, 0, 3, 3),
    ]
    assert dropped == {"lone_sentence": 3, "cut_tokens": 36}


def test_another_seed_makes_other_pairs():
    shape = [[[5] * 20]] * 20
    for kind in ("segments", "order", "sentences"):
        assert rows_of(pairs_of(shape, kind)[0]) != rows_of(pairs_of(shape, kind, seed=1)[0])
