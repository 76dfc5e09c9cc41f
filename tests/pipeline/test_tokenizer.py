"""The tokenizer folder: what it stores and refuses; text never becomes a special token."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.learn import learn_vocabulary
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization

WORDS = ["[unused0]", "[", "]", ".", "##s", "##.", "the", "cat", "mask", "MASK", "été", "\u2028x"]
TOKENS = [*SPECIAL_TOKENS, *WORDS]
UNCASED = Normalization(strip_accents=True, lowercase=True)
PUNKT = {"abbreviations": ["dr", "u.s"], "collocations": [["j", "bach"]], "contexts": {"é": 3}}
SPELLED = "The [MASK] cats[SEP] [PAD]"


@pytest.fixture
def tokenizer():
    return Tokenizer(TOKENS, UNCASED, PUNKT)


def with_punkt(adopted):
    return Tokenizer(adopted.tokens, adopted.normalization, PUNKT)


@pytest.fixture
def saved(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "made" / "tokenizer")
    return tmp_path / "made" / "tokenizer"


def change_json(path, change):
    spec = json.loads(path.read_text())
    change(spec)
    path.write_text(json.dumps(spec))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def words(tokenizer, text):
    return [tokenizer.tokens[i] for i in tokenizer.encode_batch([text])[0]]


def test_the_properties_follow_from_the_vocabulary(tokenizer):
    assert tokenizer.vocab_size == len(TOKENS)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 1, 2)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (3, 4)
    assert np.flatnonzero(tokenizer.is_special).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(tokenizer.is_continuation).tolist() == [9, 10]
    assert tokenizer.replacement_ids.tolist() == list(range(6, len(TOKENS)))
    assert tokenizer.replacement_ids.dtype == np.uint32


def test_special_tokens_may_have_any_id(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(reversed(TOKENS)))
    tokenizer = adopt_vocabulary(tmp_path / "vocab.txt", cased=False)
    assert tokenizer.tokens == TOKENS[::-1]
    assert tokenizer.mask_id == len(TOKENS) - 5
    assert not tokenizer.is_special[tokenizer.replacement_ids].any()


def test_text_that_spells_a_special_token_stays_text(tokenizer, saved):
    again = [load_tokenizer(saved), pickle.loads(pickle.dumps(tokenizer))]
    again.append(with_punkt(adopt_vocabulary(saved / "tokenizer.json", cased=False)))
    for made in [tokenizer, *again, pickle.loads(pickle.dumps(again[0]))]:
        tokens = ["the", "[", "mask", "]", "cat", "##s", "[", "[UNK]", "]", "[", "[UNK]", "]"]
        assert words(made, SPELLED) == tokens
        assert made.digest == tokenizer.digest


def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer, saved):
    loaded = load_tokenizer(saved)
    assert (loaded.tokens, loaded.punkt) == (TOKENS, PUNKT)
    assert loaded.digest == tokenizer.digest
    assert names(saved) == [
        *("SHA256SUMS", "punkt.json", "special_tokens_map.json"),
        *("tokenizer.json", "tokenizer_config.json", "vocab.txt"),
    ]
    assert names(saved.parent) == ["tokenizer"]
    adopted = adopt_vocabulary(saved / "vocab.txt", cased=False)
    assert with_punkt(adopted).digest == tokenizer.digest


def test_saving_over_the_same_tokenizer_is_fine_over_another_refused(tokenizer, saved):
    before = (saved / "tokenizer.json").stat().st_mtime_ns
    tokenizer.save(saved)
    assert (saved / "tokenizer.json").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="already holds another tokenizer"):
        Tokenizer(TOKENS, UNCASED).save(saved)
    with pytest.raises(InputError, match=f"not a tokenizer folder .*; give {saved}"):
        tokenizer.save(saved.parent)
    assert load_tokenizer(saved).digest == tokenizer.digest
    assert names(saved.parent) == ["tokenizer"]


def test_files_that_a_killed_save_left_go(tokenizer, tmp_path):
    texts = iter(["the cat sat on the mat"] * 9)
    learned = learn_vocabulary(texts, model="bpe", vocab_size=300)
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    learned.save(tmp_path)
    assert load_tokenizer(tmp_path).digest == learned.digest
    assert {"vocab.txt", "punkt.json"}.isdisjoint(names(tmp_path))


def test_the_digest_covers_tokens_flags_and_punkt(tokenizer):
    flags = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    others = [
        Tokenizer(TOKENS, replace(UNCASED, **{flag: not getattr(UNCASED, flag)}), PUNKT)
        for flag in flags
    ]
    others += [Tokenizer([*TOKENS[:-1], piece], UNCASED, PUNKT) for piece in ("dog", "##y")]
    others += [Tokenizer([*TOKENS[:-2], TOKENS[-1], TOKENS[-2]], UNCASED, PUNKT)]
    others += [Tokenizer([*TOKENS, "dog"], UNCASED, PUNKT), Tokenizer(TOKENS, UNCASED)]
    others += [Tokenizer(TOKENS, UNCASED, {**PUNKT, "contexts": {"é": 4}})]
    assert len({made.digest for made in [tokenizer, *others]}) == len(others) + 1


def test_the_digest_is_frozen(tokenizer):
    # Manifests and checkpoints hold digests: another value here makes all of them foreign.
    frozen = "5a89eea28f9b2703436fca60c56d38a5d940ba1bf687bae0592e7c42d74f2780"
    assert tokenizer.digest == frozen


def test_a_text_without_words_is_refused():
    with pytest.raises(InputError, match="no words"):
        learn_vocabulary(iter([" \n"]), vocab_size=60, cased=False, punkt=None)


VOCABULARIES = {
    "lacks \\[MASK\\]; BERT needs": "\n".join([*SPECIAL_TOKENS[:4], "the"]),
    "lacks \\[PAD\\], \\[CLS\\]": "\n".join(["[UNK]", "[SEP]", "[MASK]", "the"]),
    "id 6 \\(line 7\\) repeats id 5 \\(line 6\\), 'the'": "\n".join(
        [*SPECIAL_TOKENS, "the", "the"]
    ),
    "id 5 \\(line 6\\) is '', which is not a token": "\n".join([*SPECIAL_TOKENS, "", "the"]),
    "id 0 \\(line 1\\) is ''": "",
    "no words": "\n".join([*SPECIAL_TOKENS, "[unused0]"]),
}


@pytest.mark.parametrize("message", VOCABULARIES)
def test_a_bad_vocab_txt_is_refused(message, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(VOCABULARIES[message])
    with pytest.raises(InputError, match=message) as refused:
        adopt_vocabulary(path, cased=False)
    assert str(path) in str(refused.value)


def test_line_ends_and_byte_order_marks_are_ignored(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*TOKENS, ""]).encode())
    assert adopt_vocabulary(path, cased=False).tokens == TOKENS


def test_files_that_are_not_a_vocabulary_are_refused(tmp_path):
    for path in (tmp_path / "v.txt", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            adopt_vocabulary(path, cased=False)
    (tmp_path / "vocab.txt").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        adopt_vocabulary(tmp_path, cased=False)
    (tmp_path / "v.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        adopt_vocabulary(tmp_path / "v.txt", cased=False)
    digits = '{"a": ' + "9" * 5000 + "}"
    for text in ("{", "[1]", "[" * 100_000, digits):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(
            InputError, match=r"tokenizer\.json cannot be read .* give another voca"
        ):
            adopt_vocabulary(tmp_path / "tokenizer.json", cased=False)


def added(content, i):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": i, "content": content, **flags}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "cannot read it \\(.*NormalizerUntagged": lambda spec: spec["normalizer"].update(lowercase=1),
    "cannot read it": lambda spec: spec["model"].update(type="BPE"),
    "WordPiece has no token for .*, and '<unk>' is not": lambda spec: spec["model"].update(
        unk_token="<unk>"
    ),
    "adds the token '<s>'": lambda spec: spec["added_tokens"].append(added("<s>", 99)),
    "cannot read it \\(.*AddedToken": lambda spec: spec["added_tokens"].append("cat"),
    "PAD\\]' with id 7, which the library would read as": lambda spec: spec["added_tokens"][
        0
    ].update(id=7),
    "adds the token 'cat'": lambda spec: spec["added_tokens"].append(added("cat", 11)),
    "ids of its 17 tokens are not 0 to 16": lambda spec: spec["model"]["vocab"].update(cat=40),
    "cannot read it \\(.*expected u32": lambda spec: spec["model"]["vocab"].update(cat="7"),
    "are not 0 to 16, each once": lambda spec: spec["model"]["vocab"].update(cat=11),
    "is 'a\\\\nb', which is not a token": lambda spec: spec["model"]["vocab"].update({"a\nb": 17}),
    "cannot read it \\(.*hex escape": lambda spec: spec["model"]["vocab"].update({"\ud800": 17}),
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_tokenizer_json_of_another_kind_is_refused(message, saved):
    (saved / "SHA256SUMS").unlink()
    change_json(saved / "tokenizer.json", CHANGES[message])
    with pytest.raises(InputError, match=message):
        adopt_vocabulary(saved / "tokenizer.json", cased=False)
    with pytest.raises(InputError, match=message):
        load_tokenizer(saved)


def test_a_tokenizer_json_keeps_its_flags(saved):
    flags = {"strip_accents": False, "clean_text": False}
    change_json(saved / "tokenizer.json", lambda spec: spec["normalizer"].update(flags))
    made = adopt_vocabulary(saved / "tokenizer.json", cased=False)
    assert made.normalization == replace(UNCASED, **flags)
    with pytest.raises(InputError, match="has its own normalizer; leave out"):
        adopt_vocabulary(saved / "tokenizer.json", cased=True)


def test_unset_strip_accents_follows_lowercase(tokenizer, saved):
    (saved / "SHA256SUMS").unlink()
    change_json(
        saved / "tokenizer.json", lambda spec: spec["normalizer"].update(strip_accents=None)
    )
    assert load_tokenizer(saved).digest == tokenizer.digest
