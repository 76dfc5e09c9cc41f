"""Accents are stripped where they are accents; marks that are letters are kept, or reported."""

import json
import unicodedata
from pathlib import Path

import pytest
from tokenizers import normalizers

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.accents import (
    ACCENTED,
    MAX_LOST,
    count_characters,
    count_letters,
    is_lost,
    lost_from_vocabulary,
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


def test_known_letters():
    # Marks of Indic scripts, Thai, Arabic and Hebrew points, and letters that contain a mark.
    assert all(map(is_lost, ["े", "ั", "\u064e", "\u05b8", "й", "ї", "が", "أ", "क़", "ཀྱ"[1]]))
    # Accents, letters without marks, vowels that take space, signs, Korean, Chinese.
    assert not any(
        map(is_lost, ["é", "ü", "ά", "ệ", "\u0301", "क", "ा", "≠", "한", "中", "ø", "\ufe0f"])
    )


def test_lost_letters_are_counted_among_all():
    assert count_letters(count_characters(["he है", "2 + 2"])) == (1, 4)
    assert count_letters(count_characters(["cafe\u0301", "й, и\u0306!"])) == (2, 6)
    assert count_letters(count_characters([])) == (0, 0)


def test_only_a_multilingual_vocabulary_loses_letters():
    english = ["the", "##s", "été", "क", "한", "λόγος"] * 20
    assert lost_from_vocabulary([*english, *["word"] * 500]) is None
    found = lost_from_vocabulary([*english, *["नमक", "काम", "ঘর", "書"] * 20])
    assert found is not None
    assert found.endswith(" letters of Devanagari, Bengali")
    assert int(found.split()[0]) > 20
    assert lost_from_vocabulary(["書", "屋"]) is None


@pytest.mark.parametrize("code", ["hi", "th", "ja", "ar", "ru"])
def test_a_vocabulary_learned_from_text_with_marks_keeps_them(code, tmp_path):
    made = make(tmp_path / "out", corpus(tmp_path, code), vocab_size=500)
    normalization = load_tokenizer(tmp_path / "out").normalization
    assert not normalization.strip_accents
    assert normalization.lowercase
    assert made.accents.startswith("accents kept (stripping them would lose ")
    texts = articles_in(code, 2, seed=1)
    lost, _ = count_letters(count_characters(texts))
    known = count_characters(made.tokenizer.tokens)
    assert lost
    assert all(
        known[character] for text in texts for character in text.lower() if is_lost(character)
    )


@pytest.mark.parametrize("code", ["zh", "he"])
def test_text_without_marks_gives_a_vocabulary_that_strips_accents(code, tmp_path):
    made = make(tmp_path / "out", corpus(tmp_path, code), vocab_size=500)
    assert made.tokenizer.normalization.strip_accents
    assert made.accents == "accents stripped"


def test_a_few_foreign_names_do_not_change_the_default(tmp_path):
    names = ENGLISH * 10 + "Толстой"
    lost, letters = count_letters(count_characters([names]))
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
    with pytest.raises(InputError, match=r"r\.json has strip_accents False; leave out the option"):
        make(tmp_path / "other", corpus(tmp_path, "hi"), vocab=file, strip_accents=True)


def test_the_command_says_whether_accents_are_kept_and_warns_once_of_lost_letters(tmp_path):
    def said(name, source, *options):
        return output_of("tokenizer", source, *options, "--out", tmp_path / name)

    hindi, english = corpus(tmp_path, "hi"), write(tmp_path / "en.txt", ENGLISH)
    vocab = ("--vocab", vocabulary(tmp_path))
    learned = said("learned", hindi, "--vocab-size=300")
    assert " tokens, accents kept (stripping them would lose 2" in learned
    adopted = said("adopted", hindi, *vocab)
    lost, letters = count_letters(count_characters([Path(hindi).read_text()]))
    assert adopted.count("warning: the vocabulary strips accents, and with them it loses ") == 1
    assert f"it loses {lost:,} of {letters:,} letters of the sources" in adopted
    assert " tokens, accents stripped, Punkt parameters " in adopted
    assert "warning" not in said("kept", hindi, *vocab, "--no-strip-accents")
    assert "warning" not in said("english", english, *vocab)


def test_every_common_character_of_a_large_script_is_in_the_vocabulary(tmp_path):
    characters = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    made = make(tmp_path / "out", write(tmp_path / "zh.txt", characters * 3), vocab_size=5000)
    assert len(set(characters) - set(made.tokenizer.tokens)) <= 2
