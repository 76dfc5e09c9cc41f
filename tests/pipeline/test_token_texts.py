"""Tokens of every model as people read them: no spelling of the vocabulary is shown."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clozeline.pipeline.report.inspect import show_example
from clozeline.pipeline.report.shown_example import shown_example
from clozeline.pipeline.tokenization.token_texts import BYTES, join_bytes, shown_token
from clozeline.train.inference.fill import fill_text
from tests.pipeline.test_column_tokenizer import HOSTILE
from tests.pipeline.test_cut_words import byte_level, tokenizer_of, unigram, with_added
from tests.support.small import make_examples, small_tokenizer

BPE = tokenizer_of(with_added(byte_level(normalizers.NFC())))
UNIGRAM = tokenizer_of(unigram(None))
MODELS = {"bpe": BPE, "unigram": UNIGRAM}
texts = st.lists(st.one_of(st.text(), st.sampled_from([*HOSTILE, " ", "  ", "the", "."]))).map(
    "".join
)


def ids_of(tokenizer, text):
    [ids] = tokenizer.encode_batch([tokenizer.after_space(text)])
    return ids


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "the"),
        ("ing", "##ing"),
        (" ", "\u2423"),
        ("   ", "\u2423\u2423\u2423"),
        ("  a", "\u2423a"),
        ("\udcd0", "##<0xD0>"),
        (" \udcd0\udcb0\udcd0", "а<0xD0>"),
        ("\n", "##\\n"),
        (" [MASK]", "[MASK]"),
        ("", "##"),
    ],
)
def test_a_token_is_shown_as_its_text(text, shown):
    assert shown_token(text) == shown


def test_bytes_are_those_of_the_library():
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTES.values()) == list(range(256))
    decode = decoders.ByteLevel().decode
    assert all(decode([char]) == chr(byte) for char, byte in BYTES.items() if byte < 0x80)


@settings(max_examples=150)
@given(text=texts)
def test_joined_tokens_are_the_text(text):
    found = "".join(BPE.texts[i] for i in ids_of(BPE, text))
    assert join_bytes(found) == BPE.library.normalizer.normalize_str(f" {text}")


def test_a_wordpiece_is_shown_as_it_is_written():
    tokenizer = small_tokenizer()
    assert tokenizer.shown_tokens == tokenizer.tokens


@pytest.mark.parametrize("name", MODELS)
def test_no_spelling_of_the_vocabulary_is_shown(name):
    tokenizer = MODELS[name]
    for token, shown in zip(tokenizer.tokens, tokenizer.shown_tokens, strict=True):
        assert tokenizer.mark not in shown, token
    those = [i for i in range(tokenizer.vocab_size) if tokenizer.is_special[i]]
    assert [tokenizer.shown_tokens[i] for i in those] == [tokenizer.tokens[i] for i in those]
    by_id = dict(zip(tokenizer.tokens, tokenizer.shown_tokens, strict=True))
    if name == "bpe":
        assert len({*tokenizer.shown_tokens}) == tokenizer.vocab_size
        assert (by_id["\u0120the"], by_id["\u00d0"]) == ("the", "##<0xD0>")
        assert (by_id["  "], by_id["|||IP|||"]) == ("\u2423\u2423", "##|||IP|||")
    else:
        assert (by_id["\u2581the"], by_id["\u2581"]) == ("the", "\u2423")


def test_added_special_tokens_begin_a_word_and_replace_none():
    library = byte_level(None)
    library.add_special_tokens(["<|end|>"])
    tokenizer = tokenizer_of(library)
    number = tokenizer.tokens.index("<|end|>")
    assert tokenizer.shown_tokens[number] == "<|end|>"
    assert number not in tokenizer.replacement_ids
    assert not tokenizer.is_continuation[number]


@pytest.fixture(scope="module")
def telephus():
    """A Unigram in which one word needs its mark as a token: no piece begins with it."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581", "Tele", "phus", "\u2581was"]
    library = tokenizers.Tokenizer(
        models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=1)
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return tokenizer_of(library)


def test_a_word_mark_alone_is_a_space_in_a_row_and_visible_by_itself(telephus):
    inside = ids_of(telephus, "Telephus was \u00d0")
    row = [telephus.cls_id, *inside, telephus.sep_id]
    assert [telephus.tokens[i] for i in inside] == [
        *("\u2581", "Tele", "phus", "\u2581was"), *("\u2581", "[UNK]")
    ]  # fmt: skip
    [_, line, _] = show_example(make_examples([row]), 0, telephus, title="a", width=80)
    assert line == "  A        Telephus was [UNK]"
    [(_, chips)] = shown_example(make_examples([row]), 0, telephus, title="").spans
    assert [chip.text for chip in chips[1:-1]] == [
        *("\u2423", "##Tele", "##phus", "was"), *("\u2423", "[UNK]")
    ]  # fmt: skip


def test_a_character_of_several_tokens_is_whole_in_a_row():
    inside = ids_of(BPE, "the \u0436\u0436 was")
    assert any("<0x" in BPE.shown_tokens[i] for i in inside)
    row = [BPE.cls_id, *inside, BPE.sep_id]
    [_, line, _] = show_example(make_examples([row]), 0, BPE, title="a", width=80)
    assert line == "  A        the \u0436\u0436 was"


def test_filled_masks_are_text():
    assert fill_text("a [MASK][MASK] b", [" \udcd0", "\udcb0"]) == "a \u0430 b"
    assert fill_text("a [MASK]Telephus", [" "]) == "a Telephus"
