"""Plain words of BPE and Unigram in columns: the library's ids, whatever the pieces are."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from clozeline.pipeline.tokenization.column_tokenizer import ColumnTokenizer
from clozeline.pipeline.tokenization.cut_words import MAX_CHARACTERS, find_cuts
from clozeline.pipeline.tokenization.pair_table import PairTable
from clozeline.pipeline.tokenization.plain_words import PlainWords
from clozeline.pipeline.tokenization.tokenizer_spec import TokenizerSpec
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from tests.pipeline.test_column_tokenizer import as_lists
from tests.pipeline.test_cut_words import tokenizer_of

LETTERS = "abA1,"
#: Sums of these in different orders differ in their last bits, or do not differ at all.
SCORES = st.sampled_from([-0.1, -0.2, -0.3, -0.6, -0.7, -1.1, -2.2, -3.3, -1.0, -2.0, 0.0])
pieces = st.dictionaries(st.text("\u2581" + LETTERS, min_size=1, max_size=5), SCORES, max_size=40)
missing = st.sets(st.sampled_from(LETTERS), max_size=1)
merges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=40)
words = st.lists(
    st.one_of(
        st.text(LETTERS, max_size=MAX_CHARACTERS + 3),
        st.text("abc", min_size=1, max_size=9),
        st.sampled_from(["[MASK]", "a[UNK]", "aaaaaaa", "abababab", "1,1,1,"]),
    ).map(lambda word: f" {word}"),
    min_size=1,
    max_size=30,
)


def unigram_of(scores):
    """A Unigram with these pieces; special tokens are pieces, too."""
    vocabulary = {**dict.fromkeys(SPECIAL_TOKENS, 0.0), **scores}
    library = tokenizers.Tokenizer(models.Unigram(list(vocabulary.items()), unk_id=1))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer_of(library)


def bpe_of(pairs, without=()):
    """A byte-level BPE whose merges are of tokens that are there already, as numbered pairs."""
    tokens = [*"\u0120aAb1,", "[", "M"]
    made = {}
    for left, right in pairs:
        pair = tokens[left % len(tokens)], tokens[right % len(tokens)]
        if len("".join(pair)) < 9:
            made[pair] = None
            tokens.append("".join(pair))
    vocabulary = dict.fromkeys([*SPECIAL_TOKENS, *tokens, *pre_tokenizers.ByteLevel.alphabet()])
    kept = [token for token in vocabulary if token not in without]
    model = models.BPE({token: i for i, token in enumerate(kept)}, [*made])
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer_of(library)


def check(tokenizer, texts):
    """The ids of plain words, and of texts, are the library's. Returns how many words are plain."""
    cuts = find_cuts(tokenizer.spec)
    plain = list(filter(cuts.plain.fullmatch, texts))
    found, left = PlainWords(tokenizer, cuts).encode(plain)
    wanted = [row.ids for row in tokenizer.library.encode_batch(plain, add_special_tokens=False)]
    for number in np.flatnonzero(~left).tolist():
        row = found.values[found.offsets[number] : found.offsets[number + 1]].tolist()
        assert row == wanted[number], plain[number]
    for number in np.flatnonzero(left).tolist():  # no more than must be left
        known = {*tokenizer.tokens}
        spells = any(tokenizer.is_special[i] for i in wanted[number])
        assert spells or not {*plain[number].replace(" ", tokenizer.mark)} <= known, plain[number]
    both = [*texts, "".join(texts)]
    assert as_lists(ColumnTokenizer(tokenizer), both) == tokenizer.encode_batch(both)
    return len(plain)


@given(scores=pieces, without=missing, texts=words)
def test_the_best_path_of_unigram_is_the_librarys_with_ties_and_rounding(scores, without, texts):
    singles = dict.fromkeys(["\u2581", *LETTERS, "[", "M"], -3.3)
    for letter in without:
        scores.pop(letter, None)
        singles.pop(letter, None)
    check(unigram_of({**singles, **scores}), texts)


@given(pairs=merges, texts=words)
def test_the_merges_of_bpe_are_the_librarys_in_any_order_of_ranks(pairs, texts):
    check(bpe_of(pairs), texts)


def test_a_byte_that_is_missing_is_left_to_the_library():
    tokenizer = bpe_of([(1, 3), (0, 8)], without=["1"])
    found, left = PlainWords(tokenizer, find_cuts(tokenizer.spec)).encode([" ab", " 11", "ab"])
    assert left.tolist() == [False, True, False]
    assert [tokenizer.tokens[i] for i in found.take([0, 2]).values] == ["\u0120ab", "ab"]


def test_thousands_of_words_keep_their_order():
    tokenizer = unigram_of(dict.fromkeys(["\u2581", *LETTERS, "ab", "\u2581a", "1,"], -1.0))
    texts = [f" {'ab1,'[i % 4] * (1 + i % 61)}{i:b}".replace("0", "a") for i in range(10_000)]
    assert check(tokenizer, [text[:MAX_CHARACTERS] for text in texts]) == len(texts)


@pytest.mark.parametrize("setting", [{"ignore_merges": True}, {"end_of_word_suffix": "</w>"}])
def test_a_model_with_other_steps_is_left_to_the_library(setting):
    values = json.loads(bpe_of([(1, 3)]).spec.text)
    values["model"] |= setting
    spec = TokenizerSpec(json.dumps(values))
    tokenizer = tokenizer_of(spec.library())
    _, left = PlainWords(tokenizer, find_cuts(tokenizer.spec)).encode([" ab", "a"])
    assert left.all()
    assert as_lists(ColumnTokenizer(tokenizer), [" ab"]) == tokenizer.encode_batch([" ab"])


@given(
    values=st.dictionaries(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 5)), st.integers(0, 2**31 - 1)
    ),
    others=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5))),
)
def test_a_table_answers_for_pairs_that_it_has_and_has_not(values, others):
    asked = [*values, *others]
    left, right = np.array(asked, np.int32).reshape(-1, 2).T
    assert PairTable(values)[left, right].tolist() == [values.get(pair, -1) for pair in asked]
