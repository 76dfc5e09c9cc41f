"""Tokens of every model as people read them: no spelling of the vocabulary is shown."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.json_files import check_sums
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.report.inspect import example_lines, shown_example
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import (
    BYTES,
    TOKENIZER_CONFIG,
    TokenizerSpec,
    join_bytes,
    shown_token,
    token_texts,
)
from clozeline.train.export.export import export
from clozeline.train.inference.fill import fill_text
from tests.pipeline.test_encoder import HOSTILE
from tests.pipeline.test_encoder_words import byte_level, tokenizer_of, unigram, with_added
from tests.support.small import PUNKT, make_examples, small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

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


def test_a_wordpiece_of_marked_words_has_neither_marks_nor_prefixes():
    steps = '"model": {"type": "WordPiece"}, "pre_tokenizer": {"type": "ByteLevel"}'
    spec = TokenizerSpec(f'{{{steps}, "added_tokens": []}}')
    assert token_texts(["\u0120a", "##b", "##\u0120"], spec) == [" a", "b", " "]


def test_a_wordpiece_is_shown_as_it_is_written():
    tokenizer = small_tokenizer()
    assert tokenizer.shown_tokens == tokenizer.tokens


@pytest.mark.parametrize("name", MODELS)
def test_no_spelling_of_the_vocabulary_is_shown(name):
    tokenizer = MODELS[name]
    for token, shown in zip(tokenizer.tokens, tokenizer.shown_tokens, strict=True):
        assert tokenizer.spec.word_mark not in shown, token
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
    shown = shown_example(make_examples([row]), 0, telephus, title="a", negative_pairs="random")
    [_, line, _] = example_lines(shown, width=80)
    assert line == "  A        Telephus was [UNK]"
    [(_, chips)] = shown.spans
    assert [chip.text for chip in chips[1:-1]] == [
        *("\u2423", "##Tele", "##phus", "was"), *("\u2423", "[UNK]")
    ]  # fmt: skip


def test_a_character_of_several_tokens_is_whole_in_a_row():
    inside = ids_of(BPE, "the \u0436\u0436 was")
    assert any("<0x" in BPE.shown_tokens[i] for i in inside)
    row = [BPE.cls_id, *inside, BPE.sep_id]
    shown = shown_example(make_examples([row]), 0, BPE, title="a", negative_pairs="random")
    [_, line, _] = example_lines(shown, width=80)
    assert line == "  A        the \u0436\u0436 was"


def test_filled_masks_are_text():
    assert fill_text("a [MASK][MASK] b", [" \udcd0", "\udcb0"]) == "a \u0430 b"
    assert fill_text("a [MASK]Telephus", [" "]) == "a Telephus"


# --- `AutoTokenizer` opens the tokenizer of every folder that the commands write ------------------
pytestmark = pytest.mark.usefixtures("quiet")


def test_every_tokenizer_folder_opens_in_transformers(finished, tmp_path):
    """Those of all commands, each with the limit of its rows."""
    import transformers

    model, ours = BertForPretraining(TINY), small_tokenizer(PUNKT)
    run = write_small_run(tmp_path / "run", model, ours, max_seq_length=12)
    export(run, out=tmp_path / "exported")
    limits = {
        finished / "tokenizer": int(1e30),
        finished / "out" / TOKENIZER: 32,
        run / TOKENIZER: 12,
        write_small_classifier(tmp_path / "classifier") / TOKENIZER: 16,
        tmp_path / "exported": 12,
    }
    for folder, limit in limits.items():
        check_sums(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
        assert theirs.model_max_length == limit
        for name in ("pad", "unk", "cls", "sep", "mask"):
            assert getattr(theirs, f"{name}_token_id") == getattr(ours, f"{name}_id")
        text = "The cats [MASK] éa"
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0]


def test_the_limit_of_a_folder_is_that_of_its_last_writer(tmp_path):
    for limit in (128, 512):
        small_tokenizer().save(tmp_path, max_seq_length=limit)
        found = json.loads((tmp_path / TOKENIZER_CONFIG).read_bytes())
        assert found["model_max_length"] == limit
        check_sums(tmp_path)


def test_a_tokenizer_that_keeps_control_characters_opens_as_it_is(tmp_path):
    from dataclasses import replace

    import transformers

    small = small_tokenizer()
    ours = Tokenizer(small.tokens, replace(small.normalization, clean_text=False))
    ours.save(tmp_path / "made", max_seq_length=8)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    for text in ("the\x00 cat", "the\u200bcat", "The cats."):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0]
    assert theirs.mask_token_id == ours.mask_id
