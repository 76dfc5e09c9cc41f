"""Near-duplicates in columns: words, shingles, signatures, pairs, edges, components."""

import re
import tracemalloc
import unicodedata
from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clozeline.pipeline.common.counter_rng import random_bits, stream_key
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.curation import words
from clozeline.pipeline.curation.near import search
from clozeline.pipeline.curation.near.search import (
    Bands,
    band_keys,
    candidate_pairs,
    components,
    jaccard,
    shingle_sets,
)
from clozeline.pipeline.curation.words import fold, hash_ngrams, hash_words

TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")))
#: Characters that depend on their neighbours, expand, or are words of their own.
TRICKY = st.lists(
    st.text("aÀA\u0301\u0323\u1100\u1161\u11a8가ßﬁ½…\u00a0.=\u0338東\U0002f800カｶﾞกำ ſİ")
)


def plain_words(text):
    """What `hash_words` promises, one character at a time."""
    found, word = [], ""
    symbols = set(map(chr, words._symbols()))
    for character in fold(words.without_markup(text)):
        category = unicodedata.ucd_3_2_0.category(character)
        separates = category[0] in "ZPS" or category == "Cc" or character in symbols
        alone = any(start <= ord(character) < stop for start, stop in words.UNSPACED)
        if word and (separates or alone):
            found.append(word)
            word = ""
        if alone and not separates:
            found.append(character)
        elif not separates:
            word += character
    return [*found, word] if word else found


#: Texts, and the words in them: compared without capitals, forms and punctuation.
WORDS = {
    "Ada's sons, 2!": "ada s sons 2",
    "ＦＵＬＬ ﬁne Straße": "full fine strasse",
    "東京 is ไทย": "東 京 is ไ ท ย",
    "cafe\u0301 CAFÉ": "café café",
    "… — \u3000": "",
    unicodedata.normalize("NFD", "한국어 각각"): "한국어 각각",
    "ｶﾀｶﾅ ガ": "カ タ カ ナ ガ",
    "\U0002f800\uf900": "丽 豈",
    "a < b and c > d, <3 & a<b": "a b and c d 3 a b",  # no markup
}
SEEN = "I would not buy this lamp again, not even for half its price"
VARIANTS = {
    "soft hyphen": SEEN.replace("would", "wo\u00aduld").replace("price", "pri\u00adce"),
    "zero-width space": SEEN.replace("lamp", "la\u200bmp"),
    "non-joiner": SEEN.replace("again", "aga\u200cin"),
    "joiner": SEEN.replace("again", "aga\u200din"),
    "byte-order mark": f"\ufeff{SEEN}".replace("lamp", "\ufefflamp"),
    "left-to-right mark": SEEN.replace("not", "\u200enot\u200e"),
    "isolates": SEEN.replace("lamp", "\u2066lamp\u2069"),
    "word joiner": SEEN.replace("its", "i\u2060ts"),
    "variation selector": SEEN.replace("half", "half\ufe0f"),
    "late variation selector": SEEN.replace("half", "h\U000e0101alf"),
    "grapheme joiner": SEEN.replace("price", "pr\u034fice"),
    "tags": SEEN.replace("buy", "buy\U000e0065\U000e007f"),
    "emoji between": SEEN.replace("lamp", "lamp \U0001f600 \U0001fae0"),
    "emoji glued": SEEN.replace("lamp ", "lamp\U0001f44d\U0001f3fd"),
    "emoji of several": SEEN.replace("buy ", "buy\U0001f469\u200d\U0001f469\u200d\U0001f467"),
    "emoji to come": SEEN.replace("buy ", "buy\U0001fadf"),
    "flag": SEEN.replace("buy ", "buy\U0001f1eb\U0001f1f7"),
    "newer symbols": SEEN.replace(" ", "\u2b50", 3).replace("this ", "this\u20bf"),
    "line break": SEEN.replace("again, ", "again,<br />").replace("this ", "this<br><br/>"),
    "tag": SEEN.replace("lamp", "<a href='x.html' class=\"y\">lamp</a>"),
    "comment": SEEN.replace("lamp", "<!-- a lamp\n? -->lamp"),
    "entity": SEEN.replace("not ", "not&nbsp;").replace(", ", "&#44; &quot;"),
    "full width": SEEN.replace("price", "ｐｒｉｃｅ"),
    "capitals and marks": SEEN.upper().replace(" ", " -- "),
}


@pytest.mark.parametrize(
    ("text", "words"), [*WORDS.items(), *((text, SEEN) for text in VARIANTS.values())]
)
def test_texts_that_a_reader_sees_as_the_same_words_are_the_same_words(text, words):
    assert text != words
    assert plain_words(text) == re.findall(r"\w+", words.lower())
    assert hash_words([text]).values.tolist() == hash_words([words]).values.tolist()


def test_symbols_that_python_knows_separate():
    """Those of Unicode 14, with which Python 3.11 comes; ranges hold no letter of any later one."""
    symbols = set(words._symbols())
    for code in range(0x110000):
        new = unicodedata.ucd_3_2_0.category(chr(code)) == "Cn"
        category = unicodedata.category(chr(code))
        if new and category[0] in "ZPS" and unicodedata.unidata_version == "14.0.0":
            assert code in symbols, hex(code)
        assert code not in symbols or category[0] in "ZPSC", hex(code)


def test_texts_of_one_fold_have_the_same_words():
    """Each character between letters, and what it is normalized to."""
    every = [chr(c) for c in range(1, 0x110000) if c != ord("\n") and not 0xD800 <= c < 0xE000]

    def each(function, texts):
        return function("\n".join(texts)).split("\n")

    forms = (fold, *(partial(unicodedata.normalize, form) for form in ("NFKC", "NFKD")))
    found = [zip(every, each(form, every), strict=True) for form in forms]
    pairs = sorted({(f"a{c}b", f"a{form}b") for c, form in chain(*found) if form != c})
    folds = (each(fold, texts) for texts in zip(*pairs, strict=True))
    pairs = [pair for pair, one, other in zip(pairs, *folds, strict=True) if one == other]
    assert len(pairs) > 15_000
    one, other = (hash_words(texts) for texts in zip(*pairs, strict=True))
    same = one.lengths == other.lengths
    rows = np.repeat(np.arange(len(same)), np.where(same, one.lengths, 0))
    one, other = one.take(np.flatnonzero(same)), other.take(np.flatnonzero(same))
    same[rows[one.values != other.values]] = False
    assert [pair for pair, equal in zip(pairs, same, strict=True) if not equal] == []


def test_memory_of_a_long_text_is_that_of_its_words():
    text = "word, " * 1_000_000
    expected = hash_words(["word"]).values
    tracemalloc.start()
    found = hash_words([text])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.lengths.tolist() == [1_000_000]
    assert (found.values == expected).all()
    assert peak < 10 * len(text)


@example(["ab=\u0338c"], 3)  # not cut behind "=", which composes with what follows
@example(["ab. c", "abcd. e"], 3)
@given(TEXTS | TRICKY, st.sampled_from([3, words.SLAB_CHARACTERS]))
def test_equal_words_have_equal_hashes_and_others_do_not(texts, slab):
    """Whatever is hashed at once, and wherever long texts are cut."""
    expected = [plain_words(text) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "SLAB_CHARACTERS", slab)
        found = hash_words(texts)
    assert found.lengths.tolist() == [len(every) for every in expected]
    flat = [*chain(*expected)]
    pairs = set(zip(flat, found.values.tolist(), strict=True))
    assert len(pairs) == len(set(flat)) == len(set(found.values.tolist()))
    assert found.values.tolist() == [*chain(*(hash_words([text]).values for text in texts))]


@given(st.lists(st.lists(st.integers(0, 3), max_size=9)), st.integers(1, 6), st.booleans())
def test_an_ngram_is_its_words_in_order(rows, size, pad):
    values = np.array([*chain(*rows)], np.uint32)
    found = hash_ngrams(Ragged(values, offsets_of([len(row) for row in rows])), size, pad=pad)
    grams: list[list[tuple[int, ...]]] = []
    for row in rows:
        row = [*row, *[0] * (size - len(row))] if pad and row else row
        grams.append([tuple(row[i : i + size]) for i in range(len(row) - size + 1)])
    assert found.lengths.tolist() == [len(row) for row in grams]
    flat = list(chain(*grams))
    assert len(set(zip(flat, found.values.tolist(), strict=True))) == len(set(flat))


def test_a_signature_is_of_the_set_of_shingles(monkeypatch):
    rows = Ragged(random_bits(stream_key(1, "test"), np.arange(308)), offsets_of([1, 300, 7]))
    found = search.signatures(rows, 126)
    monkeypatch.setattr(search, "SLAB", 8)
    assert np.array_equal(search.signatures(rows, 126), found)
    reverse = Ragged(rows.values[::-1], offsets_of(rows.lengths[::-1]))
    assert np.array_equal(search.signatures(reverse, 126)[::-1], found)
    twice = Ragged(np.repeat(rows.values, 2), rows.offsets * 2)
    assert np.array_equal(search.signatures(twice, 126), found)


@pytest.mark.parametrize(("similarity", "size"), [(0.2, 60), (0.5, 150), (0.8, 450)])
def test_minima_agree_as_often_as_the_sets_do(similarity, size):
    """1,000 pairs of sets: the mean of 126,000 comparisons, whose error is 0.0014 at most."""
    union = 2 * size  # of each pair: `shared` in both, the others in one
    shared = round(union * similarity)
    values = random_bits(stream_key(2, "sets"), np.arange(1000)[:, None], np.arange(union))
    half = shared + (union - shared) // 2
    left, right = values[:, :half], np.delete(values, np.s_[shared:half], axis=1)
    minima = [
        search.signatures(Ragged(part.ravel(), offsets_of([part.shape[1]] * 1000)), 126)
        for part in (left, right)
    ]
    assert (minima[0] == minima[1]).mean() == pytest.approx(shared / union, abs=0.006)
    bands = Bands.for_similarity(0.8)
    keys = [band_keys(part, bands) for part in minima]
    found = (keys[0] == keys[1]).any(axis=1).mean()
    assert found == pytest.approx(float(bands.recall(shared / union)), abs=0.06)


def test_bands_are_chosen_for_the_similarity_and_have_different_keys():
    assert [Bands.for_similarity(s) for s in (0.7, 0.8, 0.9, 1.0)] == [
        Bands(25, 5), Bands(18, 7), Bands(11, 11), Bands(1, 128),
    ]  # fmt: skip
    recall = Bands.for_similarity(0.8).recall([0.5, 0.6, 0.7, 0.8, 0.85, 0.9])
    assert recall.round(3).tolist() == [0.132, 0.4, 0.787, 0.986, 0.999, 1.0]
    keys = band_keys(np.zeros((2, 126), np.uint32), Bands(18, 7))
    assert (keys[0] == keys[1]).all()
    assert len(np.unique(keys)) == 18


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=40), st.integers(1, 9))
def test_every_pair_of_a_small_group_is_a_candidate(rows, orders):
    """Whatever the following keys are, which a document has once for each key."""
    keys, ids = np.array(rows, np.uint64).reshape(-1, 2).T
    following = (keys * np.uint64(7) + ids * ids) % np.uint64(orders)
    left, right = candidate_pairs(keys, following, ids)
    found = [(*rows[a], *rows[b]) for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    expected = {(k, a, m, b) for k, a in rows for m, b in rows if k == m and a < b}
    assert sorted(found) == sorted(expected)


def test_a_large_group_is_connected_by_few_pairs():
    ids = random_bits(stream_key(3, "ids"), np.arange(1000))
    left, right = candidate_pairs(np.zeros(1000, np.uint64), ids % np.uint64(3), ids)
    assert len(left) < 1000 * (search.NEIGHBORS + search.FIRST)
    assert len(set(zip(left.tolist(), right.tolist(), strict=True))) == len(left)
    assert (ids[left] < ids[right]).all()
    assert set(components(ids[left], ids[right])[1].tolist()) == {int(ids.min())}


def test_copies_are_found_among_thousands_that_share_a_band():
    """Each document has one copy, which shares the following band with it and with no other."""
    ids = random_bits(stream_key(5, "ids"), np.arange(2000))
    left, right = candidate_pairs(np.zeros(2000, np.uint64), np.arange(2000) // 2 + ids * 0, ids)
    found = set(zip(left.tolist(), right.tolist(), strict=True))
    assert all({(i, i + 1), (i + 1, i)} & found for i in range(0, 2000, 2))


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_similarity_is_of_sets(one, other):
    rows = Ragged(np.array(one + other, np.uint64), offsets_of([len(one), len(other)]))
    assert jaccard(*shingle_sets(rows)) == len({*one} & {*other}) / len({*one} | {*other})


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))), st.randoms())
def test_components_keep_the_lowest_id_whatever_the_order_of_edges(edges, random):
    lowest = {end: end for edge in edges for end in edge}
    for _ in lowest:  # the plainest way: spread the lowest until nothing changes
        for a, b in edges:
            lowest[a] = lowest[b] = min(lowest[a], lowest[b])
    random.shuffle(edges)
    left, right = np.array(edges, np.uint64).reshape(-1, 2).T
    ids, kept = components(left, right)
    assert dict(zip(ids.tolist(), kept.tolist(), strict=True)) == lowest
    assert ids.tolist() == sorted(lowest)


def test_a_long_chain_is_one_component():
    ids = search.document_ids(np.arange(5000, dtype=np.uint64), np.zeros(5000, np.uint64))
    _, kept = components(ids[:-1], ids[1:])
    assert set(kept.tolist()) == {int(ids.min())}


def test_the_kept_document_is_held_out_as_often_as_any():
    """Of five copies, the lowest text hash is almost never held out; the lowest id is."""
    high = random_bits(stream_key(4, "high"), np.arange(20_000), np.arange(5)[:, None])
    kept = search.document_ids(high, high + np.uint64(1)).argmin(axis=0)
    held_out = high < np.uint64(2**64 // 10)
    assert held_out[kept, np.arange(20_000)].mean() == pytest.approx(0.1, abs=0.01)


def test_hashes_are_the_same_in_every_version():
    found = hash_words(["It was old. So it fell, 東京!"])
    shingles = hash_ngrams(found, 5, pad=True)
    minima = search.signatures(shingles, 126)
    assert found.values[:2].tolist() == [2635774204, 3143370231]
    assert shingles.values[0] == 6057696788980747954
    assert band_keys(minima, Bands(18, 7))[0, 0] == 5808026563684252390
    assert search.document_ids(*np.array([[1], [2]], np.uint64))[0] == 9773952083499307191
