"""Tokenizers other than WordPiece in columns: the library's ids, on hostile text, too."""

import json
from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.tokenizer_spec import TokenizerSpec
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from clozeline.pipeline.tokenization.word_memo import Cuts, WordMemo, cut_words, find_cuts
from tests.pipeline.test_encoder import (
    HOSTILE,
    as_lists,
    needs_data,
    real_lines,
    scripts,
    sentences,
)
from tests.support.small_jobs import articles

MARKS = [*"\u2581\u0120'’\"`.,;:!?-_()[]<>=|#@&%+*/~^"]
MARKS += ["'s", "'ll", "<|x|>", "  ", "\t", "\n", "\x1f", "\x7f"]
BLANKS = ["\u00a0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "\u0085"]
#: What added tokens are, as it is and as normalization makes it of other characters.
SPELLED = ["a b", "ａ b", "a\u2003b", "K b", "\u212a b", "b e", "b é", "|||IP|||", "|||ＩＰ|||"]
#: Words, marks and whitespace in any order: where cuts are.
mixed = st.lists(
    st.lists(
        st.sampled_from([*MARKS, *BLANKS, *SPELLED, *HOSTILE, "a", "Z", "7", "é", "е\u0301", " "])
    ).map("".join),
    max_size=4,
)


@cache
def trained(model):
    """The tokenizer.json of a model that is learned from some articles."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": list(SPECIAL_TOKENS), "show_progress": False}
    if model == "bpe":
        library, texts = tokenizers.Tokenizer(models.BPE()), articles(30)
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, **options)
    else:
        library = tokenizers.Tokenizer(models.Unigram())
        library.pre_tokenizer, texts = pre_tokenizers.Metaspace(), [*articles(30), *MARKS, *HOSTILE]
        trainer = trainers.UnigramTrainer(vocab_size=600, unk_token="[UNK]", **options)
    library.train_from_iterator(texts, trainer)
    return library.to_str()


def byte_level(normalizer, **options):
    library = tokenizers.Tokenizer.from_str(trained("bpe"))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, **options)
    return library


def unigram(normalizer, before=(), **options):
    library = tokenizers.Tokenizer.from_str(trained("unigram"))
    library.normalizer = normalizer
    steps = [*before, pre_tokenizers.Metaspace(**options)]
    library.pre_tokenizer = pre_tokenizers.Sequence(steps) if before else steps[0]
    return library


def with_added(library, *more):
    """ModernBERT's kinds of added tokens, and those that take the spaces around or whole words."""
    takes_spaces = AddedToken("<|x|>", lstrip=True, rstrip=True)
    as_written = AddedToken("a b", normalized=False)
    whole = AddedToken("Z 7", single_word=True)
    library.add_tokens(["|||IP|||", "  ", "   ", takes_spaces, as_written, whole, *more])
    return library


def with_word(library):
    """An added token that is found inside of words."""
    library.add_tokens(["a"])
    return library


def tokenizer_of(library):
    vocabulary = library.get_vocab()
    return Tokenizer(sorted(vocabulary, key=vocabulary.get), TokenizerSpec(library.to_str()))


TOKENIZERS = {
    "bpe": tokenizer_of(byte_level(normalizers.NFC())),
    "bpe, nothing normalized": tokenizer_of(byte_level(None)),
    "bpe, added tokens": tokenizer_of(with_added(byte_level(normalizers.NFC()))),
    "bpe, an added word": tokenizer_of(with_word(byte_level(normalizers.NFC()))),
    "unigram": tokenizer_of(unigram(normalizers.NFKC())),
    "unigram, prepended first": tokenizer_of(unigram(None, prepend_scheme="first")),
    "unigram, split at whitespace": tokenizer_of(
        unigram(normalizers.NFKC(), [pre_tokenizers.WhitespaceSplit()])
    ),
    "unigram, added tokens": tokenizer_of(with_added(unigram(None))),
}
#: Other characters can become one of the added tokens, which cuts would break.
NOT_CUT = {
    "bpe, added tokens of others": tokenizer_of(with_added(byte_level(normalizers.NFC()), "K b")),
    "bpe, of others by NFD": tokenizer_of(with_added(byte_level(normalizers.NFD()), "b e")),
    "unigram, added tokens of others": tokenizer_of(with_added(unigram(normalizers.NFKC()))),
}
BY_NAME = TOKENIZERS | NOT_CUT
COLUMNS = {name: SentenceEncoder(tokenizer) for name, tokenizer in BY_NAME.items()}


@pytest.mark.parametrize("name", BY_NAME)
def test_words_are_cut_unless_others_can_become_an_added_token(name):
    found = find_cuts(BY_NAME[name].spec)
    assert (found is None) == (name in NOT_CUT)
    if found:
        assert found.at_marks == name.startswith("bpe")
        added = {"<|x|>", "Z 7", "a b"} if name.endswith("added tokens") else set()
        assert {*found.unbroken} == added | ({"|||IP|||"} if added and found.at_marks else set())


@pytest.mark.parametrize("name", BY_NAME)
@given(texts=st.one_of(mixed, sentences, scripts))
def test_ids_equal_the_librarys(name, texts):
    tokenizer = BY_NAME[name]
    texts = [text if n % 2 else tokenizer.after_space(text) for n, text in enumerate(texts)]
    found = tokenizer.library.encode_batch(texts, add_special_tokens=False)
    unk = tokenizer.unk_id  # what text that spells a special token becomes in Unigram
    wanted = [[unk if tokenizer.is_reserved[i] else i for i in e.ids] for e in found]
    assert as_lists(COLUMNS[name], texts) == wanted


CUT_AT = [*MARKS, *BLANKS, *SPELLED]


@pytest.mark.parametrize("others", [CUT_AT, pytest.param(HOSTILE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_pair_around_a_space_and_a_mark_equals_the_librarys(name, others):
    texts = [f"a{x}{y}{x} {y},{x}b" for x in sorted({*CUT_AT, *HOSTILE}) for y in others]
    assert as_lists(COLUMNS[name], texts) == BY_NAME[name].encode_batch(texts)


def test_words_keep_their_spaces_and_lose_their_marks():
    texts = ["No, no.", "", "it's  a\u00a0 b", "(x)"]
    words, bounds = cut_words(texts, Cuts(at_marks=True))
    assert words.to_pylist() == [
        *("No", ",", " no", "."), *("it", "'s", "  a\u00a0 b"), *("(", "x", ")")
    ]  # fmt: skip
    assert bounds.tolist() == [0, 4, 4, 7, 10]
    words, _ = cut_words(texts, Cuts(at_marks=False, unbroken=("it",)))
    assert words.to_pylist() == ["No,", " no.", texts[2], "(x)"]


@given(batches=st.lists(sentences, max_size=4), max_bytes=st.sampled_from([0, 500, 1 << 20]))
def test_what_is_remembered_does_not_affect_results(batches, max_bytes):
    tokenizer = TOKENIZERS["bpe"]
    memo = WordMemo(tokenizer.encode_batch, Cuts(True), max_bytes=max_bytes)
    for texts in [*batches, *batches]:
        assert as_lists(memo, texts) == tokenizer.encode_batch(texts)


def test_each_word_is_encoded_once_until_the_memo_is_full():
    asked = []

    def encode(words):
        asked.append(words)
        return [[len(word)] for word in words]

    memo = WordMemo(encode, Cuts(False), max_bytes=1000)
    assert as_lists(memo, ["a bc", "a bc bc"]) == [[1, 3], [1, 3, 3]]
    assert as_lists(memo, ["a d"]) == [[1, 2]]
    assert as_lists(memo, ["x" * 500]) == [[500]]
    assert as_lists(memo, ["a"]) == [[1]]
    assert asked == [["a", " bc"], [" d"], ["x" * 500], ["a"]]


@pytest.mark.parametrize(
    "library",
    [
        lambda: byte_level(normalizers.Lowercase()),
        lambda: byte_level(None, use_regex=False),
        lambda: unigram(normalizers.Replace("a", " ")),
    ],
)
def test_a_tokenizer_with_other_steps_is_left_to_the_library(library):
    tokenizer = tokenizer_of(library())
    assert find_cuts(tokenizer.spec) is None
    texts = ["It's a house, (small).", "", "  x"]
    assert as_lists(SentenceEncoder(tokenizer), texts) == tokenizer.encode_batch(texts)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("bpe", {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}),
        ("unigram", {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}),
        ("bpe", None),
    ],
)
def test_a_file_may_leave_out_what_is_usual(name, step):
    """As those of earlier versions of the library do."""
    spec = TOKENIZERS[name].spec
    values = json.loads(spec.text)
    del values["pre_tokenizer"]
    values |= {"pre_tokenizer": step} if step else {}
    short = Tokenizer(TOKENIZERS[name].tokens, TokenizerSpec(json.dumps(values)))
    assert find_cuts(short.spec) == (find_cuts(spec) if step else None)
    texts = ["It's a house, (small).", "", "  x"]
    assert as_lists(SentenceEncoder(short), texts) == short.encode_batch(texts)


@needs_data
@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_real_articles_equal_the_librarys(name):
    lines = real_lines(60)
    assert as_lists(COLUMNS[name], lines) == TOKENIZERS[name].encode_batch(lines)
