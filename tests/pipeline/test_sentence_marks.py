"""Sentences of other scripts: Punkt's, cut further at the marks that Unicode calls terminal."""

import re
import unicodedata
from itertools import accumulate

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.sentences.marks import (
    CLOSING,
    MARKS,
    MAX_UNSPACED,
    SPACE,
    UNSPACED,
    cut_sentence,
    is_other_script,
)
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.tokenization.documents import tokenize_documents
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from tests.support.languages import LANGUAGES, articles_in, joined, paragraphs_in
from tests.support.nltk_sentences import line_of, nltk_splitter, spans_of
from tests.support.small import PUNKT, small_tokenizer

PARAMETERS = PunktData.from_json({**PUNKT, "abbrev_types": ["dr", "p.m"]})
SPLITTER, REFERENCE = SentenceSplitter(PARAMETERS), nltk_splitter(PARAMETERS)
EVERY = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
IS_MARK = re.compile(f"[{MARKS}]").match
IS_CLOSING = re.compile(f"[{CLOSING}]").match
IS_UNSPACED = re.compile(f"[{UNSPACED}]").match
IS_SPACE = re.compile(f"[{SPACE}]").match
TERMINALS = list(filter(IS_MARK, EVERY))
THAI = "เพื่อนของฉัน"
PLAIN = [
    *'aA 。？！।።.?!\n它”」")«“、\u3000۔؟။၊：，\U000110be\xa0', "Dr. ", "p.m.", "...", "हैं", "ቤት"
]  # fmt: skip
WORDS = st.sampled_from(["the", "Dr.", "p.m.", "It", "é", "это", "מה", "3.5", "한국", "它", "हैं"])
NO_MARK = st.characters(codec="utf-8").filter(lambda c: not IS_MARK(c) and not IS_UNSPACED(c))
MARKLESS = st.lists(
    WORDS | NO_MARK | st.sampled_from([*" .?!\"')(\n", ". ", "... ", "? "]), max_size=30
).map("".join)
MIXED = st.lists(
    st.sampled_from([*PLAIN, *PLAIN, *TERMINALS]) | st.characters(codec="utf-8"), max_size=30
).map("".join)


def sentences(text):
    return SPLITTER.split(line_of(text).encode())[0].to_list()


def test_the_marks_are_unicodes():
    terminal = regex.compile(r"\p{Sentence_Terminal}")
    theirs = {c for c in EVERY if terminal.match(c)} - set(".?!")
    # An older `regex` knows an older Unicode, which only lacks some.
    assert theirs <= set(TERMINALS)
    if regex.__version__ >= "2026":
        assert theirs == set(TERMINALS)


def test_the_closing_marks_are_unicodes_and_quotes_that_close_too():
    quotes = set("\"'\uff02\uff07")
    theirs = {c for c in EVERY if unicodedata.category(c) in ("Pe", "Pf")}
    assert theirs <= set(filter(IS_CLOSING, EVERY))
    known = {c for c in EVERY if IS_CLOSING(c) and unicodedata.category(c) != "Cn"}
    assert known == theirs | quotes


def cut_slowly(text, start, end):
    """Character by character: a sentence goes to its mark and to all marks and quotes after it."""
    spans, position, begin = [], start, start
    while position < end:
        if not IS_MARK(text[position]):
            position += 1
            continue
        position += 1
        while position < end:
            spaces = position
            while spaces < end and IS_SPACE(text[spaces]):
                spaces += 1
            if spaces < end and IS_MARK(text[spaces]):
                position = spaces + 1
            elif text[position] in ".?!" or IS_CLOSING(text[position]):
                position += 1
            else:
                break
        spans.append((begin, position))
        while position < end and IS_SPACE(text[position]):
            position += 1
        begin = position
    return [*spans, (begin, end)] if begin < end else spans


@settings(max_examples=200)
@given(st.lists(st.tuples(MIXED | MARKLESS, st.booleans()), max_size=6))
def test_lines_have_nltks_sentences_cut_further_at_the_marks_where_wanted(drawn):
    lines = [(line, cut) for text, cut in drawn if (line := line_of(text))]
    expected = []
    for line, cut in lines:
        spans = list(REFERENCE.span_tokenize(line))
        if cut:
            spans = [part for span in spans for part in cut_slowly(line, *span)]
        expected.append([line[a:b] for a, b in spans])
    text = "\n".join(line for line, _ in lines)
    found, counts = SPLITTER.split(text.encode(), cut=[cut for _, cut in lines])
    assert found.to_list() == [sentence for part in expected for sentence in part]
    assert counts.tolist() == list(map(len, expected))


@pytest.mark.parametrize("code", LANGUAGES)
def test_generated_sentences_are_found_again(code):
    for written in paragraphs_in(code, 30):
        text = joined(code, written)
        if code in ("th", "lo", "bo"):
            found = sentences(text)
            assert " ".join(found) == text  # cut at spaces only
            assert max(map(len, found)) <= MAX_UNSPACED
            assert len(text) <= MAX_UNSPACED or len(found) > 1
        else:
            assert sentences(text) == [sentence.strip() for sentence in written]


def test_only_a_long_sentence_of_an_unspaced_script_is_cut_at_spaces():
    assert sentences(THAI * 40) == [THAI * 40]
    assert sentences(f"{THAI * 20} {THAI}") == [THAI * 20, THAI]
    # Numbers and other scripts stay with the words around them.
    assert sentences(" 12 ".join([THAI] * 20)) == [" 12 ".join([THAI] * 20)]
    assert sentences("a house " * 40) == [("a house " * 40).strip()]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_no_cut_is_missed_and_none_is_needless(lengths):
    words = ["ก" * length for length in lengths]
    text = " ".join(words)
    spans = cut_sentence(text)
    assert " ".join(text[start:end] for start, end in spans) == text
    for (start, end), following in zip(spans, [*spans[1:], None], strict=True):
        assert end - start <= MAX_UNSPACED or " " not in text[start:end]
        if following is not None:  # the next word would not have fitted
            word = text[following[0] :].split(" ")[0]
            assert end - start + 1 + len(word) > MAX_UNSPACED


@pytest.mark.parametrize(
    "text",
    [
        "。" * 300_000, "。 " * 200_000 + "a", "。" + " " * 300_000 + "a", "。a" * 100_000,
        f"{THAI} " * 50_000 + THAI,
    ],
    ids=["marks", "spaced", "spaces", "letters", "Thai"],
)  # fmt: skip
def test_hostile_text_is_cut_in_linear_time(text):
    # Quadratic work would take hours.
    assert "".join(sentences(text)).replace(" ", "") == text.replace(" ", "")


def test_the_script_of_a_document_is_that_of_a_third_of_its_characters():
    for code in LANGUAGES:
        for text in articles_in(code, 3):
            assert is_other_script(text, text.encode()) is (code != "ru"), code
    vietnamese = "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. " * 9
    greek = "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν, καὶ θεὸς ἦν ὁ λόγος. " * 9
    quoting = "Morning Musume (モーニング娘。) is a group; its name ends with 。 in every title. "
    for text in ("", "plain", "naïve — “quoted” …", vietnamese, greek, quoting, "a。b"):
        assert not is_other_script(text, text.encode()), text


def test_a_document_in_latin_letters_keeps_punkts_sentences():
    def counted(text):
        _, _, counts = tokenize_documents(
            [text],
            splitter=SPLITTER,
            tokenizer=SentenceEncoder(small_tokenizer()),
            min_characters=0,
        )
        return counts.read["sentences"]

    quoting = "the group モーニング娘。 was old. the dog ran to river 。 and town."
    assert counted(f"the cat sat.\n{quoting}") == 3
    japanese = "モーニング娘。モーニング娘。モーニング娘。"
    assert counted(f"{japanese}\n{'モーニング娘、' * 30}\n{quoting}") == 8


def ends_of(text, stops):
    """After marks other than `. ? !`, by the number of letters before them.

    ICU gives the opening bracket after a mark to the sentence before it.
    """
    letters = [0, *accumulate(unicodedata.category(c)[0] in "LMN" for c in text)]
    marked = re.compile(rf"[{MARKS}]\W*\Z")
    found = {letters[stop] for stop in stops if marked.search(text, max(stop - 20, 0), stop)}
    return found - {0, letters[-1]}


def test_the_ends_at_marks_are_icus():
    """In 99.9 % of the ends in treebanks and translations of the Declaration of Human Rights."""
    from icu4py.breakers import SentenceBreaker

    both, either = 0, 0
    for code in LANGUAGES:
        for written in paragraphs_in(code, 20):
            text = joined(code, written).strip()
            ours = ends_of(text, (end for _, end in spans_of(SPLITTER, text)))
            icus = ends_of(text, accumulate(map(len, SentenceBreaker(text, "en"))))
            both, either = both + len(ours & icus), either + len(ours | icus)
    assert both > 500
    assert both > 0.98 * either
