"""Sentences are exactly NLTK's, whatever the text; Punkt's parameters are plain, stable data."""

import json
import os
import pickle
import random
import shutil
from itertools import islice, product
from pathlib import Path

import nltk.data
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sentences.punkt import (
    BEGIN_LOWER,
    MIDDLE_UPPER,
    UPPER,
    PunktData,
    find_punkt,
    installed_languages,
    train_punkt,
)
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from tests.support.nltk_sentences import line_of, nltk_splitter, spans_of
from tests.support.small_jobs import python

ROOM = "clozeline.pipeline.sentences"
NAMES = ["Smith", "Jones", "Baker", "Young", "Reed", "Hill", "Stone", "Wood", "Field", "Brook"]
LESSON = [
    f"Dr. {a} met Mr. {b} of {b} Corp. in St. Louis at 5 p.m. on no. {i}, vs. the odds he made. "
    f"The town he made grew and he came. In {1900 + i} it had {i}.5 homes, e.g. the {a}-co. J. {a} "
    f"came to town! See p. {i} etc. and so on; U.S. troops held a house. The house is big. Is it?"
    for i, (a, b) in enumerate(product(NAMES, NAMES[:6]))
]
RULES = PunktData(
    language="rules",
    abbrev_types=["co", "dr", "mr", "p.m", "r"],
    collocations=[["##number##", "bach"], ["end", "of"]],
    sent_starters=["the"],
    ortho_context={"he": UPPER | BEGIN_LOWER, "it": 64, "she": MIDDLE_UPPER | BEGIN_LOWER},
)

# fmt: off
WORDS = [
    "Dr", "mr", "J", "r", "U.S", "e.g", "St", "no", "p.m", "vs", "Corp", "etc", "the", "The", "he",
    "He", "In", "in", "It", "town", "Town", "1990", "5", "3,5", "-2", ".5", "a", "A", "##number##",
    "##NUMBER##", "yard-co", "x-Co", "Smith", "smith", "?abc", "'tis", "..a", "J.R",
]
# fmt: on
MARKS = [*".....???!!!…\"\"'')(][}{;:,,*&#@`-|‘’“”«»", "..", "...", ". . .", "--", ".)", '."']
SPACES = [*"    ", "  ", "\n", "\t"]
ODD_SPACES = [*"\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u3000"]
# Zero width, right to left, combining, emoji, other digits, title case, caseless, newer Unicode.
ODD_LETTERS = [
    # Surrogates, bidi isolates, stops of other scripts, digraphs, private use, no character at all.
    *"\ud800\udfff\u2066\u2069\u061c،؟۔。？！．।\u0e01ﬁŉ\u0345\u20dd\ufe0f\ue000\u0378\uffff\U0010ffff",
    *"\u200b\u200d\u202e\u0301😀٣५３²½ⅧⓐǅǆİıßΣσς中ب\u05d0ª_\ufeff\x00\U0001f170\U0001e4d0\u1c89",
]
ATOMS = [*WORDS, *MARKS, *SPACES, *SPACES]
ODD_ATOMS = [*ATOMS, *ODD_SPACES, *ODD_LETTERS]
STRANGE = st.characters(
    categories=("Cc", "Cf", "Cn", "Co", "Cs", "Zs", "Mn", "Me", "Lt", "Lm", "Lo", "Nd", "Po", "Pf")
)
#: Longer than what is remembered, and than what is not.
RUNS = st.builds(lambda atom, times: atom * times, st.sampled_from(ODD_ATOMS), st.integers(1, 70))


def texts_of(atoms, max_size=30):
    return st.lists(atoms, max_size=max_size).map("".join)


TEXTS = {
    "plain": texts_of(st.sampled_from(ATOMS)),
    "odd": texts_of(st.sampled_from(ODD_ATOMS)),
    "long": texts_of(RUNS | st.sampled_from(ATOMS), max_size=8),
    "strange": texts_of(st.sampled_from(ATOMS) | STRANGE),
    "any": texts_of(st.sampled_from(ATOMS) | st.characters()),
}
SIZES = st.integers(1, 60)


def real_data():
    if "CLOZELINE_DATA" not in os.environ:
        pytest.skip("CLOZELINE_DATA is not set: no real text here")
    return Path(os.environ["CLOZELINE_DATA"])


def lines_of(file, articles):
    texts = pq.read_table(file, columns=["text"])["text"].slice(0, articles).to_pylist()
    return [line for text in texts for line in map(line_of, text.split("\n")) if line]


@pytest.fixture(scope="module")
def trained():
    return train_punkt(LESSON, "lesson")


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    root, folder = tmp_path_factory.mktemp("nltk_data"), "tokenizers/punkt_tab/english"
    shutil.copytree(real_data() / "nltk_data" / folder, root / folder)
    make_private(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(root)])
        data = find_punkt("english")
    assert data is not None
    return data


def make_private(root):
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture(scope="module")
def learned():
    """What Punkt learns from half a million characters of articles."""
    lines = lines_of(real_data() / "wikipedia/train-00000-of-00006.parquet", 200)
    return train_punkt(lines, "english")


@pytest.fixture(scope="module")
def rules():
    return RULES


@pytest.fixture(scope="module", params=["trained", "english", "rules"])
def parameters(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def splitter(parameters):
    return SentenceSplitter(parameters)


@pytest.fixture(scope="module")
def reference(parameters):
    return nltk_splitter(parameters)


def assert_nltks(texts, splitter, reference):
    """NLTK splits each line alone."""
    lines = list(dict.fromkeys(filter(None, map(line_of, texts))))
    expected = [[line[a:b] for a, b in reference.span_tokenize(line)] for line in lines]
    found, counts = splitter.split("\n".join(lines).encode(), cut=False)
    rest = iter(found.to_list())
    for line, sentences, count in zip(lines, expected, counts.tolist(), strict=True):
        assert list(islice(rest, count)) == sentences, repr(line)
    assert list(rest) == []


# ---- The spans are NLTK's ----------------------------------------------------------------------


def own_words(parameters):
    """The words that the parameters know, in each case, with and without a period."""
    paired = {word for pair in parameters.collocations for word in pair}
    known = sorted(paired | {*parameters.abbrev_types, *parameters.sent_starters})
    types = [*known, *list(parameters.ortho_context)[: len(known)]]
    cases = st.sampled_from([str, str.capitalize, str.upper, str.title])
    ends = st.sampled_from(["", ".", ". ", ".", ") ", "...", ".\n"])
    return st.builds(lambda word, case, end: case(word) + end, st.sampled_from(types), cases, ends)


@pytest.mark.parametrize("kind", ["plain", "odd", "long", "strange", "any", "own"])
def test_spans_are_nltks_whatever_is_split_at_once(kind, parameters, splitter, reference):
    own = texts_of(own_words(parameters) | st.sampled_from(ATOMS))
    texts = {**TEXTS, "own": own}[kind]

    @settings(max_examples=120)
    @given(st.lists(texts | st.sampled_from([".", "J.", "?)", "a.", ")"]), max_size=8), SIZES)
    def check(texts, size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{ROOM}.splitter.SLAB_BYTES", size)
            assert_nltks(texts, splitter, reference)

    check()


def test_spans_are_nltks_on_every_short_text(splitter, reference):
    for length in range(6):
        texts = map("".join, product('aA ."\t', repeat=length))
        assert_nltks(texts, splitter, reference)


@pytest.mark.parametrize(
    ("around", "between"),
    [
        (["", "a.", '."', "A", " ", "5."], ["", ".", " "]),
        pytest.param(
            ["", "a", "a.", ".", "?", '."', "A", " ", "\t", ". .", "5."],
            ["", ".", " ", "\t", ". "],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["some", "more"],
)
def test_spans_are_nltks_around_odd_characters(around, between, splitter, reference):
    for odd in ODD_SPACES + ODD_LETTERS:
        places = list(product(around, between, around))
        texts = [before + odd + inside + after for before, inside, after in places]
        texts += [before + inside + odd + after + "\tThe." for before, inside, after in places]
        assert_nltks(texts, splitter, reference)


def test_spans_are_nltks_on_real_articles(splitter, reference):
    lines = lines_of(real_data() / "wikipedia/train-00000-of-00006.parquet", 300)
    assert_nltks(lines, splitter, reference)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["english", "learned"], indirect=True)
def test_spans_are_nltks_on_every_article_of_a_file(parameters, splitter, reference):
    lines = lines_of(real_data() / "wikipedia/train-00000-of-00006.parquet", None)
    assert_nltks(lines, splitter, reference)


@pytest.mark.slow
def test_spans_are_nltks_on_damaged_articles(splitter, reference):
    draw = random.Random(0)
    atoms = [*MARKS, *SPACES, *ODD_SPACES, *ODD_LETTERS, *WORDS]
    damaged = []
    for line in lines_of(real_data() / "wikipedia/train-00002-of-00006.parquet", 3000):
        characters = list(line[:400])
        for _ in range(len(characters) // 12):
            characters[draw.randrange(len(characters))] = draw.choice(atoms)
        damaged.append("".join(characters))
    assert_nltks(damaged, splitter, reference)


def test_the_memos_do_not_affect_results(monkeypatch, trained):
    texts = [text for text in LESSON[:20] for _ in range(2)]
    apart = [spans_of(SentenceSplitter(trained), text) for text in texts]
    warm = SentenceSplitter(trained)
    assert [spans_of(warm, text) for text in texts] == apart
    monkeypatch.setattr(f"{ROOM}.punkt.MEMO_ENTRIES", 3)
    full = SentenceSplitter(trained)
    assert [spans_of(full, text) for text in texts] == apart
    assert max(len(full._rules._endings), len(full._rules._decisions)) <= 3
    assert spans_of(pickle.loads(pickle.dumps(full)), texts[0]) == apart[0]


def test_a_long_line_is_split_in_linear_time(trained):
    # Taking the second text apart at each of its marks, not at the last alone, would take an hour.
    splitter = SentenceSplitter(trained)
    assert len(spans_of(splitter, "It is so. " * 100_000 + "It is.")) == 100_001
    assert spans_of(splitter, 'a!"' * 60_000) == [(0, 180_000)]


def test_training_learns_abbreviations(trained):
    assert {"dr", "mr", "st", "p.m"} <= set(trained.abbrev_types)
    assert {"made", "house", "grew"}.isdisjoint(trained.abbrev_types)
    assert trained.ortho_context["the"]


def test_training_does_not_depend_on_the_order_of_texts():
    # What follows the abbreviation might begin a sentence or might not, if the order counted.
    texts = ["He saw cows etc.", "Zebras ran.", *LESSON]
    assert train_punkt(texts, "lesson") == train_punkt(reversed(texts), "lesson")


def test_parameters_survive_json(parameters):
    text = json.dumps(parameters.to_json())
    assert PunktData.from_json(json.loads(text)) == parameters
    for values in (parameters.abbrev_types, parameters.collocations, parameters.sent_starters):
        assert values == sorted(values)
    assert list(parameters.ortho_context) == sorted(parameters.ortho_context)


def test_parameters_with_other_fields_are_refused(trained):
    data = trained.to_json()
    for wrong in ({**data, "abbreviations": []}, {"language": "english"}):
        with pytest.raises(InputError, match="build the tokenizer again"):
            PunktData.from_json(wrong)


def test_another_process_splits_without_nltk_and_learns_the_same_bytes(trained):
    code = (
        "import json, sys; from clozeline.pipeline.sentences.punkt import *;"
        "from clozeline.pipeline.sentences.splitter import *;"
        "data, texts = json.load(sys.stdin);"
        "splitter = SentenceSplitter(PunktData.from_json(data));"
        "found, _ = splitter.split('\\n'.join(texts).encode());"
        "print('nltk' in sys.modules);"
        "print(json.dumps([train_punkt(texts, 'lesson').to_json(), found.to_list()]))"
    )
    sentences, _ = SentenceSplitter(trained).split("\n".join(LESSON).encode())
    here = [trained.to_json(), sentences.to_list()]
    there = python("-c", code, stdin=json.dumps([here[0], LESSON]), PYTHONHASHSEED="1")
    imported, _, learned = there.partition("\n")
    assert imported == "False"
    assert json.loads(learned) == here


# ---- punkt_tab where NLTK finds it -------------------------------------------------------------


@pytest.fixture
def punkt_tab(tmp_path, monkeypatch):
    """A `punkt_tab` of two languages on NLTK's path."""
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    for language in ("english", "dutch"):
        folder = tmp_path / "tokenizers" / "punkt_tab" / language
        folder.mkdir(parents=True)
        (folder / "abbrev_types.txt").write_text("mr\ndr\n")
        (folder / "collocations.tab").write_text("u.s\tarmy\nj\tbach\n")
        (folder / "sent_starters.txt").write_text("the\nhe\n")
        (folder / "ortho_context.tab").write_text("the\t126\nbach\t4\n")
    make_private(tmp_path)
    return tmp_path / "tokenizers" / "punkt_tab"


def test_punkt_tab_is_read_in_order(punkt_tab):
    assert find_punkt("dutch") == PunktData(
        language="dutch",
        abbrev_types=["dr", "mr"],
        collocations=[["j", "bach"], ["u.s", "army"]],
        sent_starters=["he", "the"],
        ortho_context={"bach": 4, "the": 126},
    )


def test_a_missing_language_is_none_and_a_typo_an_error(punkt_tab, monkeypatch):
    assert find_punkt("klingon") is None
    assert find_punkt("german") is None
    assert list(installed_languages()) == ["dutch", "english"]
    for folders in (nltk.data.path, [str(punkt_tab / "nowhere")]):  # whatever is installed
        monkeypatch.setattr(nltk.data, "path", folders)
        for language, near in (("englsh", "english"), ("German", "german"), ("swedsh", "swedish")):
            with pytest.raises(InputError, match=f"'{language}' is not .* did you mean {near}"):
                find_punkt(language)
    assert find_punkt("english") is None
    with pytest.raises(InputError, match="is not a language"):
        find_punkt("dutch/../english")


def test_a_folder_that_nltk_refuses_is_an_error(punkt_tab):
    (punkt_tab / "english").chmod(0o775)
    with pytest.raises(InputError, match="chmod -R go-w"):
        find_punkt("english")
    assert find_punkt("dutch") is not None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sent_starters.txt", None),
        ("ortho_context.tab", b"the\t126\nba"),
        ("ortho_context.tab", b"the\tmany\n"),
        ("collocations.tab", b"u.s\tarmy\nj"),
        ("abbrev_types.txt", b"mr\n\xff\xfe\n"),
    ],
)
def test_a_language_with_a_missing_or_damaged_file_is_an_error(name, content, punkt_tab):
    path = punkt_tab / "english" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match="english: a file is missing or damaged, or other users"):
        find_punkt("english")
