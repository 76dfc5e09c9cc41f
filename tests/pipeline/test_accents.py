"""Accents are stripped where they are accents; marks that are letters are kept, or reported."""

import json
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import normalizers

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.accents import (
    ACCENTED,
    MAX_LOST,
    Sample,
    count_letters,
    count_merged,
    is_lost,
)
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from clozeline.train.artifacts.huggingface import read_tokenizer
from tests.pipeline.test_train_tokenizer import make
from tests.support.command import output_of
from tests.support.languages import articles_in
from tests.support.small_sources import write

ENGLISH = "The café in Köln was old. " * 40


def corpus(folder, code):
    return write(folder / f"{code}.txt", "\n\n".join(articles_in(code, 40)))


def characters_of(texts):
    return Sample(texts).characters


def test_a_letter_is_lost_if_the_librarys_normalizer_changes_it():
    strip = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
    )
    for character in map(chr, range(0x10000)):
        decomposed = unicodedata.normalize("NFD", character)
        script = unicodedata.name(decomposed[0], "").partition(" ")[0]
        if character.isalpha() and script not in ACCENTED:
            changed = strip.normalize_str(character) != decomposed
            assert is_lost(character) is changed, character


def test_lost_letters_are_counted_among_all():
    assert count_letters(characters_of(["he है", "2 + 2"])) == (1, 4)
    assert count_letters(characters_of(["cafe\u0301", "й, и\u0306!"])) == (2, 6)
    # Combining accents, signs and vowels that take space are not lost, nor is what has no mark.
    assert count_letters(characters_of(["x\u0301\ufe0f ≠ ø 한中 का"])) == (0, 5)
    assert count_letters(characters_of([])) == (0, 0)


@pytest.mark.parametrize(
    ("words", "merged"),
    [
        ({"má": 5, "mà": 9, "ma": 1}, 15),
        ({"mà": 90, "ma": 8, "má": 9}, 99),
        ({"ou": 100, "où": 9, "à": 7}, 0),
        ({"ņem": 3, "nem": 3, "ñem": 3, "nemo": 8}, 9),
        ({"σώμα": 2, "σωμα": 1, "ένα": 5}, 3),
        ({}, 0),
    ],
)
def test_words_that_get_the_form_of_another_common_word_are_counted(words, merged):
    assert count_merged(Counter(words)) == merged


#: Languages in which accents tell words apart, those where they seldom do, and marks that are
#: written in two ways.
KEEPING = {
    "Yoruba": "Ọkọ́ ni ọkọ rẹ, ọkọ̀ náà sì tóbi; ó ní okó, oko àti òkò.",
    "Hmong-like tones": "Mā má mà; tā tá tà, shī shí shì.",
    "Igbo, decomposed": unicodedata.normalize("NFD", "Akwa na ákwà, àkwà na ákwá."),
    "Lakota": "Sápa sapa; ȟé hé, ȟe he; ičú iču.",
}
STRIPPING = {
    "Spanish": "El río está cerca; la ciudad tiene un museo, y el camión llegó más tarde.",
    "Czech": "Příliš žluťoučký kůň úpěl ďábelské ódy, a řeka teče domů.",
    "Polish": "Zażółć gęślą jaźń; rzeka płynie przez miasto, a ludzie śpią.",
    "Greek": "Η πόλη είναι παλιά, και το ποτάμι περνά δίπλα της.",
    "Chinese, without marks": articles_in("zh", 1)[0],
    "Hebrew, without marks": articles_in("he", 1)[0],
}


@pytest.mark.parametrize("name", [*KEEPING, *STRIPPING])
def test_accents_that_make_words_are_kept(name, tmp_path):
    text = (KEEPING | STRIPPING)[name]
    made = make(tmp_path / "out", write(tmp_path / "a.txt", f"{text} " * 40), vocab_size=200)
    assert made.tokenizer.normalization.strip_accents == (name in STRIPPING)
    is_said = "(stripping them would merge " in made.accents
    assert (is_said, made.notes) == (name in KEEPING, [])


#: Persian, Malayalam (at the end of a word), Sinhala, Bengali; Latin and emoji.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\u0645\u06cc\u200c\u0631\u0648\u0645 \u0628\u0647 \u062e\u0627\u0646\u0647", 1),
        ("\u0d05\u0d35\u0d28\u0d4d\u200d \u0d35\u0d28\u0d4d\u0d28\u0d41", 1),
        ("\u0dc1\u0dca\u200d\u0dbb\u0dd3 \u0dbd\u0d82\u0d9a\u0dcf\u0dc0", 1),
        ("\u09b0\u200d\u09cd\u09af\u09be\u09ac, \u09b0\u200d\u09cd\u09af\u09be\u09ae", 2),
        ("Auf\u200cLage \U0001f468\u200d\U0001f469 \u2764\ufe0f\u200d\U0001f525 a\u200d", 0),
    ],
)
def test_words_with_joiners_are_counted_where_they_are_dropped(text, words, tmp_path):
    source = write(tmp_path / "a.txt", f"{text} " * 50)
    made = make(tmp_path / "out", source, vocab_size=200)
    said = f"{50 * words:,} of {50 * len(text.split()):,} words have zero-width joiners, such as "
    assert [note.partition("'")[0] for note in made.notes] == ([said] if words else [])
    assert all("; --model bpe keeps them." in note for note in made.notes)
    assert make(tmp_path / "bpe", source, vocab_size=300, model="bpe").notes == []


TURKISH = "Isparta'da ILIK bir akşam, \u0130zmir'de balık ve \u0131slık. "


@pytest.mark.parametrize(
    ("text", "cased", "letters"),
    [(TURKISH, False, 200), (TURKISH, True, 0), ("It is India's. ", False, 0)],
)
def test_letters_that_turkish_writes_otherwise_are_counted(text, cased, letters, tmp_path):
    source = write(tmp_path / "a.txt", text * 50 + "plain words. " * 300)
    notes = make(tmp_path / "out", source, vocab_size=200, cased=cased).notes
    said = f"{letters} letters I and \u0130 become the wrong small letter in this language; "
    assert notes == ([f"{said}--cased keeps them."] if letters else [])


@pytest.mark.parametrize("code", ["hi", "th", "ja", "ar", "ru"])
def test_a_vocabulary_learned_from_text_with_marks_keeps_them(code, tmp_path):
    made = make(tmp_path / "out", corpus(tmp_path, code), vocab_size=500)
    normalization = load_tokenizer(tmp_path / "out").normalization
    assert not normalization.strip_accents
    assert normalization.lowercase
    assert made.accents.startswith("accents kept (stripping them would lose ")
    texts = articles_in(code, 2, seed=1)
    lost, _ = count_letters(characters_of(texts))
    known = characters_of(made.tokenizer.tokens)
    assert lost
    assert all(
        known[character] for text in texts for character in text.lower() if is_lost(character)
    )


def test_a_few_foreign_names_do_not_change_the_default(tmp_path):
    names = ENGLISH * 10 + "Толстой"
    lost, letters = count_letters(characters_of([names]))
    assert 0 < lost < MAX_LOST * letters
    made = make(tmp_path / "out", write(tmp_path / "a.txt", names), vocab_size=200)
    assert made.tokenizer.normalization.strip_accents
    assert "cafe" in made.tokenizer.tokens


@pytest.mark.parametrize("cased", [False, True])
@pytest.mark.parametrize("strip", [False, True])
def test_the_option_decides(cased, strip, tmp_path):
    source = write(tmp_path / "a.txt", ENGLISH)
    made = make(tmp_path / "out", source, vocab_size=200, cased=cased, strip_accents=strip)
    flags = made.tokenizer.normalization
    assert (flags.lowercase, flags.strip_accents) == (not cased, strip)
    assert made.accents == ("accents stripped" if strip else "accents kept")
    word = "Köln" if cased else "köln"
    assert (word.replace("ö", "o") if strip else word) in made.tokenizer.tokens
    # The files that other libraries read carry it.
    spec = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert spec["normalizer"]["strip_accents"] is strip
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["strip_accents"] is strip
    assert read_tokenizer(tmp_path / "out").normalization == flags


def vocabulary(folder):
    letters = [*"abcdeéкиान", "नमक", "काम", "мир", "的", "है"]
    return write(folder / "vocab.txt", "\n".join([*SPECIAL_TOKENS, *dict.fromkeys(letters)]) + "\n")


def test_an_adopted_vocabulary_keeps_what_its_file_says(tmp_path):
    vocab = vocabulary(tmp_path)
    kept = make(tmp_path / "kept", corpus(tmp_path, "hi"), vocab=vocab, strip_accents=False)
    assert not kept.tokenizer.normalization.strip_accents
    assert kept.warning is None
    file = tmp_path / "kept" / "tokenizer.json"
    again = make(tmp_path / "again", corpus(tmp_path, "hi"), vocab=file)
    assert again.tokenizer.digest == kept.tokenizer.digest
    with pytest.raises(InputError, match=r"r\.json has its own normalizer; leave out "):
        make(tmp_path / "other", corpus(tmp_path, "hi"), vocab=file, strip_accents=True)


def test_the_command_says_whether_accents_are_kept_and_warns_once_of_lost_letters(tmp_path):
    def said(name, source, *options):
        return output_of("tokenizer", source, *options, "--out", tmp_path / name)

    hindi, english = corpus(tmp_path, "hi"), write(tmp_path / "en.txt", ENGLISH)
    vocab = ("--vocab", vocabulary(tmp_path))
    learned = said("learned", hindi, "--vocab-size=300")
    assert " tokens, accents kept (stripping them would lose 2" in learned
    adopted = said("adopted", hindi, *vocab)
    lost, letters = count_letters(characters_of([Path(hindi).read_text()]))
    assert adopted.count("warning: the vocabulary strips accents; ") == 1
    assert f"in the sources, that will lose {lost / letters:.1%} of the letters." in adopted
    assert " tokens, accents stripped, sentence splitter: " in adopted
    assert "warning" not in said("kept", hindi, *vocab, "--no-strip-accents")
    assert "warning" not in said("english", english, *vocab)


def test_every_common_character_of_a_large_script_is_in_the_vocabulary(tmp_path):
    characters = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    made = make(tmp_path / "out", write(tmp_path / "zh.txt", characters * 3), vocab_size=5000)
    assert len(set(characters) - set(made.tokenizer.tokens)) <= 2
