"""Tokenizers of models that few use: word level, BPE of characters, Unigram with other settings."""

import json
from itertools import chain

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.report.dataset_chapter import count_rows
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer_spec import SPECIAL_TOKENS
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from clozeline.pipeline.verify.row_checks import ShardRows, check_masks
from tests.support.small import make_examples
from tests.support.small_data import masked

ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
LETTERS = ["\u2581", "a", "b", "t"]


def word_level(words, **options):
    library = tokenizers.Tokenizer(models.WordLevel(numbered(words), **options))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library


def unigram(pieces, **options):
    library = tokenizers.Tokenizer(models.Unigram([(p, -float(p in LETTERS)) for p in pieces]))
    values = json.loads(library.to_str())
    values["model"] |= options
    library = tokenizers.Tokenizer.from_str(json.dumps(values))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    return library


def bpe(pieces, step=None, **options):
    library = tokenizers.Tokenizer(models.BPE(numbered(pieces), [], **options))
    library.pre_tokenizer = step or pre_tokenizers.Metaspace()
    return library


def numbered(tokens):
    return {token: i for i, token in enumerate(tokens)}


def adopted(library, folder, special=SPECIAL_TOKENS, more=()):
    """The tokenizer of a folder with this library's, with special tokens by role."""
    library.add_special_tokens([*special, *more])
    cls, sep = special[2:4]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(name, library.token_to_id(name)) for name in dict.fromkeys((cls, sep))],
    )
    library.save(str(folder / "tokenizer.json"))
    names = dict(zip(ROLES, special, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return adopt_vocabulary(folder / "tokenizer.json", cased=False, punkt=None)


BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
PLAIN_NAMES = ("PAD", "UNK", "CLS", "SEP", "MASK")


@pytest.mark.parametrize(
    ("library", "special", "more"),
    [
        (word_level([*SPECIAL_TOKENS, "a"], unk_token="[UNK]"), SPECIAL_TOKENS, ()),
        (unigram([*SPECIAL_TOKENS, "<x>", *LETTERS], unk_id=1), SPECIAL_TOKENS, ["<x>"]),
        (
            bpe([*PLAIN_NAMES, *BYTES], pre_tokenizers.ByteLevel(False), ignore_merges=True),
            PLAIN_NAMES,
            (),
        ),
    ],
    ids=["word level", "unigram", "bpe"],
)
def test_text_never_becomes_a_special_token_in_any_model(library, special, more, tmp_path):
    tokenizer = adopted(library, tmp_path, special, more)
    texts = [f"{special[-1]} a {special[3]}", f"a {special[0]}{special[2]}", f"a {' '.join(more)}"]
    found = tokenizer.encode_batch(texts)
    ids = {i for row in found for i in row} - {tokenizer.unk_id}
    assert ids
    assert not tokenizer.is_reserved[[*ids]].any()
    assert SentenceEncoder(tokenizer).encode(texts)[0].tolist() == [*chain.from_iterable(found)]


FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (word_level([*SPECIAL_TOKENS, "a"], unk_token="<x>"), "WordLevel .*, and '<x>' is not in"),
        (unigram([*SPECIAL_TOKENS, *LETTERS], unk_id=None), "Unigram .* know; add one, as unk_id"),
        (bpe([*SPECIAL_TOKENS, *LETTERS]), "its BPE has no token for what .* as unk_token"),
        (bpe([*SPECIAL_TOKENS, *LETTERS], unk_token="<x>"), "and '<x>' is not in its vocabulary"),
        (
            bpe([*SPECIAL_TOKENS, *LETTERS, *FALLBACK[0x42:]], byte_fallback=True),
            "its BPE has no token for what it does not know",
        ),
    ],
)
def test_a_model_that_fails_at_unknown_text_or_loses_it_is_refused(library, message, tmp_path):
    with pytest.raises(InputError, match=message):
        adopted(library, tmp_path)


def test_unknown_text_is_unknown_or_bytes(tmp_path):
    found = adopted(bpe([*SPECIAL_TOKENS, *LETTERS], unk_token="[UNK]"), tmp_path)
    assert [found.tokens[i] for i in found.encode_batch(["t\u00e9"])[0]] == ["\u2581", "t", "[UNK]"]
    found = adopted(bpe([*SPECIAL_TOKENS, *LETTERS, *FALLBACK], byte_fallback=True), tmp_path)
    assert [found.tokens[i] for i in found.encode_batch(["\u00e9"])[0]] == [
        *("\u2581", "<0xC3>", "<0xA9>")
    ]


def test_a_mask_that_has_another_role_is_refused(tmp_path):
    special = ("<s>", "<s>", "<s>", "</s>", "</s>")
    with pytest.raises(InputError, match="its mask token </s> has another role in tokenizer_conf"):
        adopted(bpe(["<s>", "</s>", *BYTES], pre_tokenizers.ByteLevel(False)), tmp_path, special)


def test_a_vocabulary_of_special_tokens_alone_is_refused(tmp_path):
    """There would be no token to replace a masked one at random."""
    with pytest.raises(InputError, match="no words: all 6 tokens are special"):
        adopted(unigram([*SPECIAL_TOKENS, "[unused0]"], unk_id=1), tmp_path)


@pytest.mark.parametrize(
    ("special", "last"),
    [
        (("<p>", "<e>", "<e>", "<e>", "<m>"), "<p>"),  # GPT-2's
        (("<e>", "<e>", "<c>", "<e>", "<m>"), "<c>"),
        (SPECIAL_TOKENS, "[SEP]"),
    ],
)
def test_rows_are_sound_and_unknown_tokens_counted_whatever_roles_the_unknown_token_has(
    special, last, tmp_path
):
    names = dict.fromkeys(special)
    tokenizer = adopted(word_level([*names, *"abcd"], unk_token=special[1]), tmp_path, special)
    a, b, unknown, stray = map(tokenizer.tokens.index, ("a", "b", special[1], last))
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    config = DataConfig(max_seq_length=16, pairs="sentences")
    for third, found in ((unknown, []), (stray, ["rows with special tokens inside A or B: 1"])):
        rows = [[cls, a, b, sep, b, a, sep], [cls, a, sep, a, third, b, sep]]
        examples = make_examples(rows, length_a=[4, 3], labels=[0, 0])
        made = masked(examples, split="train", shard=0, config=config, of=tokenizer)
        shard = ShardRows(
            examples=made, config=config, tokenizer=tokenizer, split="train", shard=0, copies=1
        )
        check_masks(shard)
        assert [line.partition(",")[0] for line in shard.findings.lines()] == found
        assert count_rows(made, tokenizer)["unknown"] == int(third == unknown)
