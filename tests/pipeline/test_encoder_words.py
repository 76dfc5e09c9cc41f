"""Tokenizers other than WordPiece, word by word or whole: the library's ids, on any text."""

import json
from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from clozeline.pipeline.tokenization import encoder
from clozeline.pipeline.tokenization.encoder import SentenceEncoder, _can_be_cut
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, TokenizerSpec
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
SPELLED = ["a b", "a\u2003b", "K b", "\u212a b", " \u212a", "bé", "be\u0301", "<|y|>", "Z7"]
SPELLED += ["|||IP|||", "|||ＩＰ|||", "Z７"]
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
    """ModernBERT's kinds of added tokens, and those that take spaces before or are whole words."""
    takes_spaces = AddedToken("<|x|>", lstrip=True)
    as_written = AddedToken("bé", normalized=False)
    whole = AddedToken("Z7", single_word=True)
    library.add_tokens(["|||IP|||", "  ", "   ", " K", takes_spaces, as_written, whole, *more])
    return library


def tokenizer_of(library):
    vocabulary = library.get_vocab()
    return Tokenizer(sorted(vocabulary, key=vocabulary.get), TokenizerSpec(library.to_str()))


NFC = normalizers.NFC()
#: Each word is encoded once.
TOKENIZERS = {
    "bpe": tokenizer_of(byte_level(NFC)),
    "bpe, nothing normalized": tokenizer_of(byte_level(None)),
    "bpe, added tokens": tokenizer_of(with_added(byte_level(NFC))),
    "bpe, an added word": tokenizer_of(with_added(byte_level(NFC), "a")),
    "unigram": tokenizer_of(unigram(normalizers.NFKC())),
    "unigram, prepended first": tokenizer_of(unigram(None, prepend_scheme="first")),
    "unigram, added tokens": tokenizer_of(with_added(unigram(normalizers.NFKC()))),
}
#: A cut may change the ids, or nothing is known of it: sentences are left to the library.
WHOLE = {
    "bpe, a phrase": tokenizer_of(with_added(byte_level(NFC), "K b")),
    "bpe, a phrase as it is": tokenizer_of(
        with_added(byte_level(NFC), AddedToken("Z7 be\u0301", normalized=False))
    ),
    "bpe, a whole word after a space": tokenizer_of(
        with_added(byte_level(NFC), AddedToken(" Z7", single_word=True))
    ),
    "bpe, spaces taken": tokenizer_of(
        with_added(byte_level(NFC), AddedToken("<|y|>", rstrip=True))
    ),
    "bpe, spaces taken after a mark": tokenizer_of(
        with_added(byte_level(None), AddedToken("\u0301", rstrip=True))
    ),
    "unigram, a phrase": tokenizer_of(with_added(unigram(normalizers.NFKC()), "a\u2003b")),
    "unigram, split at whitespace": tokenizer_of(
        unigram(normalizers.NFKC(), [pre_tokenizers.WhitespaceSplit()])
    ),
    "unigram, other steps": tokenizer_of(unigram(normalizers.Replace("a", " "))),
    "bpe, lower case": tokenizer_of(byte_level(normalizers.Lowercase())),
    "bpe, other words": tokenizer_of(byte_level(None, use_regex=False)),
}
BY_NAME = TOKENIZERS | WHOLE
COLUMNS = {name: SentenceEncoder(tokenizer) for name, tokenizer in BY_NAME.items()}


@pytest.mark.parametrize("name", BY_NAME)
def test_sentences_are_cut_where_no_token_crosses_a_space(name):
    assert _can_be_cut(BY_NAME[name].spec) == (name in TOKENIZERS)


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


@given(batches=st.lists(sentences, max_size=4), memo_bytes=st.sampled_from([0, 500, 1 << 20]))
def test_what_is_remembered_does_not_affect_results(batches, memo_bytes):
    tokenizer = TOKENIZERS["bpe"]
    columns = SentenceEncoder(tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "MEMO_BYTES", memo_bytes)
        for texts in [*batches, *batches]:
            assert as_lists(columns, texts) == tokenizer.encode_batch(texts)


def test_each_word_is_encoded_once_until_the_memo_is_full(monkeypatch):
    monkeypatch.setattr(encoder, "MEMO_BYTES", 1000)
    columns, asked = SentenceEncoder(TOKENIZERS["bpe"]), []
    encode = columns.tokenizer.encode_batch
    monkeypatch.setattr(
        columns.tokenizer, "encode_batch", lambda words: asked.append(words) or encode(words)
    )
    for text in ("a bc bc,", "a d", "x" * 500, "a"):
        as_lists(columns, [text, "a  b\u00a0 c"])
    whole = "a  b\u00a0 c"
    assert asked == [["a", " bc", " bc,", whole], [" d"], ["x" * 500], ["a", whole]]


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
    values = json.loads(TOKENIZERS[name].spec.text) | {"pre_tokenizer": step}
    if step is None:
        del values["pre_tokenizer"]
    short = Tokenizer(TOKENIZERS[name].tokens, TokenizerSpec(json.dumps(values)))
    assert _can_be_cut(short.spec) == (step is not None)
    texts = ["It's a house, (small).", "", "  x"]
    assert as_lists(SentenceEncoder(short), texts) == short.encode_batch(texts)


@needs_data
@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_real_articles_equal_the_librarys(name):
    lines = real_lines(60)
    assert as_lists(COLUMNS[name], lines) == BY_NAME[name].encode_batch(lines)
