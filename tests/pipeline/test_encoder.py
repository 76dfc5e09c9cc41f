"""Ids in columns are the ids of the library, whatever the text, the flags and the vocabulary."""

import itertools
import os
import re
import sys
import types
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import JobFailedError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.sentences.splitter import PART_BYTES, without_gaps
from clozeline.pipeline.tokenization.documents import clean_texts, tokenize_documents
from clozeline.pipeline.tokenization.encoder import SentenceEncoder, _warn
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, UNWRITABLE, Normalization
from tests.support.small import small_splitter
from tests.support.small_jobs import ROOT, articles, clozeline, write_texts, write_tokenizer

DATA = Path(os.environ.get("CLOZELINE_DATA", "nowhere"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="CLOZELINE_DATA is not set")

# One of each kind of trouble: what a normalizer drops, splits, reorders, composes or lengthens.
HOSTILE = [
    *"aAbZz09 ,.'[]#-_`~;=<K",
    *"\t\n\r\x0b\x0c\x00\x01\x1c\x1f\x7f\x80\x85\xa0\xad\xff",  # ASCII and Latin-1 controls, spaces
    *"\u1680\u2003\u2028\u2029\u202f\u3000\ufeff\u200b\u200c\u200d\u2060",  # wide or of no width
    *"\u0301\u0327\u0308\u0316\u0345\u20dd\u093f\u0e33\u3099",  # marks: of many classes, spacing
    *"éÉñŞİıßẞſΣςǅﬁﬀŉǰΐ\u037e\u1fef\u212a\u2126\u2260\ufb1d",  # cases and canonical decompositions
    *"中文﨑㐀𠀀한각\u1112\u1161\u11abカガ゛ｶﾞ",  # Chinese, Korean, Japanese
    *"😀👍🏽🇫🇷\ufe0f\U000e0041\ufffd\ue000\uffff\U0010ffff\u0378",  # emoji, tags, private, none
    *"\u202e\u2066\u2069\u061cع٣५①ŉǆª",  # bidi, digits and letters that lower-case and fold oddly
    *"“”—…·«»؟،।՞\u05be§№",  # punctuation beyond ASCII, signs that are none
    *("[MASK]", "[mask]", "[SEP]", "##a", "é" * 101, "a" * 100, "a" * 101, "the", "The", "a\u0301"),
]
UNUSED = ("Cn", "Co", "Cs")  # unassigned, private, surrogates: the first two are in HOSTILE
FLAGS = [Normalization(
    clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower
) for clean, chinese, strip, lower in itertools.product((True, False), repeat=4)]  # fmt: skip

# What plain st.text() seldom draws; and runs that meet the limit of a word's length.
STRANGE = st.characters(
    categories=("Cc", "Cf", "Cn", "Co", "Zs", "Zl", "Mn", "Mc", "Me", "Lt", "Lm", "Lo", "Nd", "No")
)
RUNS = st.builds(
    lambda text, times: text * times, st.sampled_from(HOSTILE), st.sampled_from([2, 50, 99, 101])
)
sentences = st.lists(
    st.one_of(
        st.lists(st.sampled_from(HOSTILE), max_size=12).map("".join),
        st.text(STRANGE, max_size=20),
        st.lists(st.one_of(RUNS, st.sampled_from(HOSTILE)), max_size=4).map("".join),
        st.text(max_size=20),
    ),
    max_size=6,
)


#: Letters and marks of scripts in which marks are letters, and of those that decompose.
SCRIPTS = [
    *"कखिीुेै्ंँ़क़য়র্িেো্ায়தமிழ்ுேொกขัิ์ำ้็ກຂັິ້ໍកខ្ិុំကခ္ိံ့ཀྱིུ༹",
    *"بجأإآؤئىًَُِّْٰٕאבשׁשׂוֹּפְָ٠१๑",
    *"\u1100\u1161\u11a8\u1112\uac00\ud7a3\u3131\ua960\ud7b0カガ゛ヾがゞﾞ々中〇𠀀豈﨑",
    *(" ", ".", ",", "a", "é", "И", "й", "।", "؟", "。", "\u200d", "\u200c"),
]
scripts = st.lists(st.lists(st.sampled_from(SCRIPTS), max_size=30).map("".join), max_size=4)


def small_vocabulary():
    """Every hostile character in every form, alone and as a continuation, so that few are [UNK]."""
    forms = (unicodedata.normalize(form, t) for t in HOSTILE + SCRIPTS for form in ("NFC", "NFD"))
    known = {c for form in forms for c in form + form.lower() + form.upper()}
    characters = sorted(known - set("\n [zZ"))
    return [*SPECIAL_TOKENS, *characters, *(f"##{c}" for c in characters), "the", "aa", "##aaa"]


def vocabularies():
    made = {str(flags): Tokenizer(small_vocabulary(), flags) for flags in FLAGS}
    for kind in ("cased", "uncased") if DATA.is_dir() else ():
        path = DATA / "vocab" / f"bert-base-{kind}-vocab.txt"
        made[kind] = adopt_vocabulary(path, cased=kind == "cased")
    return made


TOKENIZERS = vocabularies()
COLUMNS = {name: SentenceEncoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}
UNCASED, CASED = (
    next(t for t in TOKENIZERS.values() if t.normalization == Normalization(**flags))
    for flags in (
        {"strip_accents": True, "lowercase": True},
        {"strip_accents": False, "lowercase": False},
    )
)
USUAL = (UNCASED.normalization, CASED.normalization)


def as_lists(columns, texts):
    ids, lengths = columns.encode(texts)
    assert ids.dtype == np.uint32
    assert lengths.dtype == np.int64
    assert lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]]


def real_lines(rows=None):
    """The paragraphs of the first articles of a real file."""
    file = pq.ParquetFile(DATA / "wikipedia" / "train-00000-of-00006.parquet")
    texts = file.read(columns=["text"])["text"].slice(0, rows).to_pylist()
    return [line for text in texts for line in text.split("\n")]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=sentences | scripts)
def test_ids_equal_the_librarys(name, texts):
    assert as_lists(COLUMNS[name], texts) == TOKENIZERS[name].encode_batch(texts)


@pytest.mark.parametrize(
    "name",
    [  # BERT's own two sets of flags; the other fourteen take as long each
        pytest.param(name, marks=() if made.normalization in USUAL else pytest.mark.slow)
        for name, made in TOKENIZERS.items()
    ],
)
def test_every_hostile_pair_equals_the_librarys(name):
    texts = [f"a{x}{y}{x} {y}" for x in HOSTILE for y in HOSTILE]
    assert as_lists(COLUMNS[name], texts) == TOKENIZERS[name].encode_batch(texts)


def test_the_small_vocabulary_covers_the_hostile_text():
    # Were nearly all of it [UNK], equal ids would say little.
    ids, _ = COLUMNS[str(CASED.normalization)].encode([t for t in HOSTILE if len(t) == 1])
    assert (ids == CASED.unk_id).mean() < 0.1


def test_every_character_equals_the_librarys():
    every = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in UNUSED]
    texts = ["".join(f"x{c}.{c} " for c in every[i : i + 64]) for i in range(0, len(every), 64)]
    assert as_lists(SentenceEncoder(UNCASED), texts) == UNCASED.encode_batch(texts)


def test_calls_of_any_size_give_the_same_ids():
    texts = ["the é, aaa", "", "the", "x" * 3000] * 1000  # cut in three, on the inside
    ids, lengths = SentenceEncoder(UNCASED).encode(texts)
    some, some_lengths = SentenceEncoder(UNCASED).encode(texts[:4])
    assert len("".join(texts)) > 2 * PART_BYTES
    assert ids.tolist() == some.tolist() * 1000
    assert lengths.tolist() == some_lengths.tolist() * 1000


def test_a_lone_surrogate_is_an_error():
    with pytest.raises(UnicodeEncodeError):
        SentenceEncoder(UNCASED).encode(["the \ud83d"])


gaps = st.sampled_from(["", "", " ", "\t", "\xa0\n", "\0", " \u2003 "])


@given(texts=sentences, between=st.lists(gaps, min_size=7, max_size=7))
@pytest.mark.parametrize("tokenizer", [UNCASED, CASED], ids=["uncased", "cased"])
def test_sentences_of_one_text_have_the_ids_of_each_alone(tokenizer, texts, between):
    """Whatever is between them there, or nothing."""
    pieces = [between[0], *itertools.chain.from_iterable(zip(texts, between[1:], strict=False))]
    edges = np.cumsum([len(piece.encode()) for piece in pieces])
    text = "".join(pieces).encode()
    found = without_gaps(text, edges[:-1:2], edges[1::2])
    assert found.to_list() == texts
    ids, lengths = SentenceEncoder(tokenizer).encode(found)
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]] == (
        tokenizer.encode_batch(texts)
    )


@needs_data
@pytest.mark.parametrize("kind", ["cased", "uncased"])
def test_real_articles_equal_the_librarys(kind):
    texts = real_lines(300)
    columns = SentenceEncoder(TOKENIZERS[kind])
    assert as_lists(columns, texts) == TOKENIZERS[kind].encode_batch(texts)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cased", "uncased"])
def test_a_file_of_real_articles_equals_the_librarys(kind):
    texts = real_lines()
    columns = SentenceEncoder(TOKENIZERS[kind])
    for start in range(0, len(texts), 50_000):
        part = texts[start : start + 50_000]
        assert as_lists(columns, part) == TOKENIZERS[kind].encode_batch(part)


TOKEN = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=3)).map(lambda t: t.replace("\n", ""))


@given(
    tokens=st.lists(st.builds(str.__add__, st.sampled_from(["", "##", "####"]), TOKEN)),
    flags=st.sampled_from(FLAGS),
    texts=sentences,
)
def test_ids_equal_the_librarys_whatever_the_vocabulary(tokens, flags, texts):
    kept = [t for t in dict.fromkeys([*SPECIAL_TOKENS, "a", *tokens]) if t]
    tokenizer = Tokenizer([t for t in kept if not UNWRITABLE.search(t)], flags)
    texts = [*texts, "".join(tokenizer.tokens), " ".join(tokenizer.tokens)]
    assert as_lists(SentenceEncoder(tokenizer), texts) == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("broken", [None, types.SimpleNamespace()], ids=["missing", "damaged"])
def test_without_nanotoken_ids_are_the_same_and_a_line_says_so(broken, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nanotoken.nanotoken_rs", broken)
    _warn.cache_clear()
    for _ in range(2):
        assert as_lists(SentenceEncoder(UNCASED), ["the é"]) == UNCASED.encode_batch(["the é"])
    _, printed = capsys.readouterr()
    assert printed.startswith("warning: nanotoken does not work here (")
    assert printed.count("\n") == 1


def test_ids_that_differ_from_the_librarys_end_the_job():
    """They are those of another tokenizer here: the compiled one never gave others."""
    encoder = SentenceEncoder(UNCASED)
    ids, _ = encoder.encode(["the é"])
    encoder.check(["the é"], ids, name="0f")
    with pytest.raises(
        JobFailedError, match=r"document 0f: .* differ .* \[\d+\] instead of \[\d+, .* nanotoken"
    ):
        encoder.check(["the é"], ids[:1], name="0f")
    encoder._compiled = None
    with pytest.raises(JobFailedError, match=r"\d+\]; report the document\.$"):
        encoder.check(["the é"], ids[:1], name="0f")


#: A compiled tokenizer, as a damaged wheel might install it: the first id of a call is another one.
WRONG_WHEEL = """
import numpy, tokenizers
set_cache_entries = print
class WordPieceTokenizer:
    def __init__(self, library): self.library = library
    def from_json(text): return WordPieceTokenizer(tokenizers.Tokenizer.from_str(text))
    def encode_batch(self, texts, **options):
        ids = self.library.encode(texts[0].decode(), add_special_tokens=False).ids
        return numpy.array([1, *ids[1:]], numpy.uint32), None
"""


def test_a_job_with_other_ids_names_the_document_and_both_lists_and_leaves_no_data_set(tmp_path):
    texts = articles(20)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", texts)
    wheel = tmp_path / "nanotoken"
    wheel.mkdir()
    (wheel / "__init__.py").write_text("")
    (wheel / "nanotoken_rs.py").write_text(WRONG_WHEEL)
    words = ("shards", write_texts(tmp_path / "a.jsonl", texts), "--tokenizer", tokenizer)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = clozeline(*words, "--out", tmp_path / "out", env=env)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    said = re.search(r"document (\w{16}): .* set: \[1, (.+)\] instead of \[\d+, (.+)\];", last)
    assert said[2] == said[3]
    first, *_ = clean_texts(texts[:1], DataConfig().min_characters)
    assert int(said[1], 16) == hash_documents(first)[0][0]
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_first_document_and_a_thousandth_are_compared():
    """Ids of a vocabulary in which two tokens changed places: all texts with one of them differ."""
    words = [*".0123456789", *(f"##{digit}" for digit in range(10)), "same"]
    flags = Normalization(strip_accents=True, lowercase=True)
    encoder = SentenceEncoder(Tokenizer([*SPECIAL_TOKENS, *words, "one", "other"], flags))
    encoder.tokenizer = Tokenizer([*SPECIAL_TOKENS, *words, "other", "one"], flags)
    texts = [f"one {n}." for n in range(4000)]
    high, _ = hash_documents(texts)
    is_chosen = high % np.uint64(1000) == 0
    assert 0 < is_chosen.sum() < 20
    chosen, others = np.array(texts)[is_chosen].tolist(), np.array(texts)[~is_chosen].tolist()

    def tokenize(*texts):
        how = {"splitter": small_splitter(), "tokenizer": encoder, "min_characters": 0}
        return len(tokenize_documents(texts, **how)[0])

    assert tokenize("same 1.", *others) == 1 + len(others)
    with pytest.raises(JobFailedError, match=f"document {hash_documents(others[:1])[0][0]:016x}: "):
        tokenize(others[0], "same 1.")
    with pytest.raises(JobFailedError, match=f"document {high[is_chosen][-1]:016x}: "):
        tokenize("same 1.", *others, chosen[-1])
