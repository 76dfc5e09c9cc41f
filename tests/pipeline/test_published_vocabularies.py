"""Vocabularies of others: bytes left out, case, tokens added, models that few use."""

import json
import re
from itertools import chain

import pytest
import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.report.dataset_chapter import count_rows
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from clozeline.pipeline.tokenization.vocabulary import (
    BYTES,
    SPECIAL_TOKENS,
    Normalization,
    wordpiece_library,
)
from clozeline.pipeline.verify.row_checks import ShardRows, check_masks
from clozeline.train.artifacts.huggingface import read_tokenizer
from tests.support.command import invoke
from tests.support.small import make_examples
from tests.support.small_data import masked

#: Bytes that UTF-8 never has; ModernBERT's vocabulary of 50,368 tokens lacks these 13.
NEVER = [0xC0, 0xC1, *range(0xF5, 0x100)]
TEXT = (
    "A caf\u00e9,  in\tK\u00f6ln: \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f642 |||IP_ADDRESS|||"
)


def byte_level(folder, missing, *, specials_first=False, added=()):
    """A tokenizer.json as ModernBERT's: NFC, bytes, blanks and words added, special tokens last."""
    alphabet = [mark for mark, byte in BYTES.items() if byte not in missing]
    first = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"] if specials_first else []
    tokens = [*first, *alphabet, "it", "was", "\u0120w"]
    library = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(tokens)}, [("i", "t"), ("\u0120", "w")])
    )
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_tokens([AddedToken(token, normalized=False) for token in added])
    library.add_special_tokens(list(SPECIAL_TOKENS))
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, library.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    library.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("missing", "form"),
    [
        (NEVER, {}),
        (NEVER, {"specials_first": True}),  # [PAD] has id 1
        (NEVER, {"added": ("  ", "    ", "|||IP_ADDRESS|||")}),
        ([*NEVER, *range(9), 0x0B, *range(0x0D, 0x20), 0x7F], {}),  # no control characters
        ([0xC1, 0xFE], {"specials_first": True, "added": ("   ",)}),
    ],
)
def test_bytes_that_text_never_has_may_be_missing(tmp_path, missing, form):
    """The ids are those of the library, also for text that spells special tokens."""
    path = byte_level(tmp_path, missing, **form)
    ours = adopt_vocabulary(path, cased=None)
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    expected = library.encode(TEXT, add_special_tokens=False).ids
    ids, _ = SentenceEncoder(ours).encode([TEXT])
    assert ids.tolist() == expected
    assert ours.unk_id not in expected
    assert ours.pad_id == library.token_to_id("[PAD]")
    assert read_tokenizer(tmp_path).encode_batch([TEXT]) == [expected]


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ([0x09], "1 of the 212 bytes that text has (0x09)"),
        ([*NEVER, 0x0A], "1 of the 212 bytes that text has (0x0A)"),
        ([0x41, 0xC2, 0xF4, 0x80], "4 of the 212 bytes that text has (0x41, 0x80, 0xC2, ...)"),
        ([0x7A], "(0x7A)"),
    ],
)
def test_bytes_that_text_has_are_named(tmp_path, missing, named):
    with pytest.raises(InputError, match=re.escape(named)):
        adopt_vocabulary(byte_level(tmp_path, missing), cased=None)


WORDS = ["the", "##s", "b", "Rome", "Oslo", "B"]


def write_vocabulary(folder, words, config):
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "[unused0]", *words]) + "\n")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "vocab.txt"


@pytest.mark.parametrize(
    ("config", "options", "flags"),
    [
        ({"do_lower_case": False}, {}, (False, False)),
        ({"do_lower_case": True}, {}, (True, True)),
        ({}, {}, (True, True)),  # as `transformers` reads it
        ({"do_lower_case": False, "strip_accents": True}, {}, (False, True)),
        ({"do_lower_case": False}, {"strip_accents": True}, (False, True)),
        ({"do_lower_case": False}, {"cased": False}, (True, True)),
        (None, {"cased": True}, (False, False)),
        (None, {"cased": False}, (True, True)),
    ],
)
def test_case_is_what_the_options_or_the_file_beside_say(tmp_path, config, options, flags):
    path = write_vocabulary(tmp_path, WORDS, config)
    found = adopt_vocabulary(path, **{"cased": None} | options).normalization
    assert (found.lowercase, found.strip_accents) == flags


def test_upper_case_without_a_word_about_it_is_refused(tmp_path):
    path = write_vocabulary(tmp_path, WORDS, None)
    with pytest.raises(InputError, match=r"3 of its 6 tokens have upper case.*--cased, or --unca"):
        adopt_vocabulary(path, cased=None)
    few = [f"word{i}" for i in range(200)]
    path = write_vocabulary(tmp_path, [*few, "McDonald"], None)
    assert adopt_vocabulary(path, cased=None).normalization.lowercase
    write_vocabulary(tmp_path, WORDS, {"do_lower_case": "no"})
    with pytest.raises(InputError, match="do_lower_case is 'no'; it must be true or false"):
        adopt_vocabulary(path, cased=None)


def test_a_folder_with_a_vocab_txt_alone_is_adopted(tmp_path):
    (tmp_path / "bert").mkdir()
    write_vocabulary(tmp_path / "bert", WORDS, {"do_lower_case": False})
    (tmp_path / "a.txt").write_text("Rome is a city. Oslo is one, too.\n" * 9)
    line = ("tokenizer", tmp_path / "a.txt", "--vocab", tmp_path / "bert", "--language=german")
    done = invoke(*line, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert load_tokenizer(tmp_path / "out").normalization.lowercase is False


def extended(folder, added, *, cased=False):
    """A WordPiece to which `add_tokens` has added these."""
    words = ["the", "cell", "##s", "##ion", "new", "york", "fis", "a", "##n", "b", "."]
    flags = Normalization(strip_accents=not cased, lowercase=not cased)
    library = wordpiece_library([*SPECIAL_TOKENS, *words], flags)
    library.add_tokens(added)
    library.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


ADDED = {
    "words": ["fission", "neutrino"],
    "a phrase": ["new york", "the cells"],
    "a word that is there": ["cell", "fissioncell"],
    "a special one": [AddedToken("[DOMAIN]", special=True, normalized=False), "proton"],
    "stripping": [AddedToken("ion", single_word=True, lstrip=True, rstrip=True)],
    "other letters": ["\u03b2-decay", "na\u00efve"],
}


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("cased", [False, True])
def test_added_tokens_have_the_ids_of_the_library(tmp_path, kind, cased):
    path = extended(tmp_path, ADDED[kind], cased=cased)
    ours = adopt_vocabulary(path, cased=None)
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    texts = [
        "The cells fission, Fissioncell in New York: neutrino proton cells.",
        "a [DOMAIN] naive na\u00efve \u03b2-decay ion  fis ion. [MASK] the cell",
    ]
    expected = [text.ids for text in library.encode_batch(texts, add_special_tokens=False)]
    ids, lengths = SentenceEncoder(ours).encode(texts)
    assert ids.tolist() == [i for row in expected for i in row]
    assert lengths.tolist() == list(map(len, expected))
    assert ours.vocab_size == library.get_vocab_size(with_added_tokens=True)
    assert read_tokenizer(tmp_path).encode_batch(texts) == expected
    ours.save(tmp_path / "made")
    again: Tokenizer = load_tokenizer(tmp_path / "made")
    assert (again.digest, again.encode_batch(texts)) == (ours.digest, expected)


def test_words_are_known_as_before_tokens_were_added(tmp_path):
    """Whole words can be masked, and tokens are shown as text."""
    ours = adopt_vocabulary(extended(tmp_path, ["fission"]), cased=None)
    shown = dict(zip(ours.tokens, ours.shown_tokens, strict=True))
    assert ours.knows_words
    assert all(shown[token] == token for token in ("##s", "fission", "the"))
    assert ours.is_continuation.tolist() == [token.startswith("##") for token in ours.tokens]


@pytest.mark.parametrize(
    ("part", "other"),
    [("BertPreTokenizer", "Whitespace"), ('per_word": 100', 'per_word": 3'), ("##", "@@")],
)
def test_a_wordpiece_with_other_steps_has_the_ids_of_the_library(part, other, tmp_path):
    path = extended(tmp_path, [])
    path.write_text(path.read_text().replace(part, other))
    ours, library = adopt_vocabulary(path, cased=None), tokenizers.Tokenizer.from_file(str(path))
    texts = ["Cells. fis\u00e9 the cells", "cellsion b."]
    expected = [text.ids for text in library.encode_batch(texts, add_special_tokens=False)]
    assert SentenceEncoder(ours).encode(texts)[0].tolist() == [*chain.from_iterable(expected)]
    inside = ours.tokens.index("##ion".replace(part, other))
    assert (ours.shown_tokens[inside], ours.is_continuation[inside]) == ("##ion", True)


PIECES = ["un", "##aff", "##able", "caf", "##es", "##és", "don", "'", "t", "the", "Cat", "cat", "!"]
TEXTS = [
    "Unaffable caf\u00e9s don't \u4e2d!",
    "",
    " the  \u00adcat\u200d ",
    "\U0001faf6 o\u0301 The Cat",
]


@pytest.mark.parametrize("is_cased", [True, False])
def test_python_encodes_and_decodes_as_transformers_does(is_cased, tmp_path):
    """`[MASK]` in a text is the difference: text never becomes a special token."""
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *PIECES]))
    ours = adopt_vocabulary(vocab, cased=is_cased)
    theirs = transformers.BertTokenizerFast(str(vocab), do_lower_case=not is_cased)
    assert len(ours) == len(theirs) == len(PIECES) + 5
    assert ours(TEXTS) == dict(theirs(TEXTS))
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours(text) == dict(theirs(text))
        pieces = theirs.convert_ids_to_tokens(ids)[1:-1]
        assert ours.decode(ids) == decoders.WordPiece(cleanup=False).decode(pieces)
    assert ours.mask_id not in ours.encode("[MASK]")
    assert ours.decode([ours.cls_id, ours.mask_id, ours.sep_id]) == "[MASK]"


# --- Models that few use: word level, BPE of characters, Unigram with other settings --------------


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
    return adopt_vocabulary(folder / "tokenizer.json", cased=False)


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PLAIN_NAMES = ("PAD", "UNK", "CLS", "SEP", "MASK")


@pytest.mark.parametrize(
    ("library", "special", "more"),
    [
        (word_level([*SPECIAL_TOKENS, "a"], unk_token="[UNK]"), SPECIAL_TOKENS, ()),
        (unigram([*SPECIAL_TOKENS, "<x>", *LETTERS], unk_id=1), SPECIAL_TOKENS, ["<x>"]),
        (
            bpe([*PLAIN_NAMES, *ALPHABET], pre_tokenizers.ByteLevel(False), ignore_merges=True),
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
        (bpe([*SPECIAL_TOKENS, *BYTES]), "its BPE has no token for what .* as unk_token"),
        (bpe([*SPECIAL_TOKENS, *LETTERS], unk_token="<x>"), "and '<x>' is not in its vocabulary"),
        (
            bpe([*SPECIAL_TOKENS, *LETTERS, *FALLBACK], byte_fallback=True),
            "its BPE has no token for what it does not know",
        ),
    ],
)
def test_a_model_that_fails_at_unknown_text_or_loses_it_is_refused(library, message, tmp_path):
    with pytest.raises(InputError, match=message):
        adopted(library, tmp_path)


def test_unknown_text_is_unknown_or_bytes(tmp_path):
    options = {"unk_token": "[UNK]"}
    found = adopted(bpe([*SPECIAL_TOKENS, *LETTERS], **options), tmp_path)
    assert [found.tokens[i] for i in found.encode_batch(["t\u00e9"])[0]] == ["\u2581", "t", "[UNK]"]
    options["byte_fallback"] = True
    found = adopted(bpe([*SPECIAL_TOKENS, *LETTERS, *FALLBACK], **options), tmp_path)
    assert [found.tokens[i] for i in found.encode_batch(["\u00e9"])[0]] == [
        *("\u2581", "<0xC3>", "<0xA9>")
    ]


def test_a_mask_that_has_another_role_is_refused(tmp_path):
    special = ("<s>", "<s>", "<s>", "</s>", "</s>")
    with pytest.raises(InputError, match="its mask token </s> has another role in tokenizer_conf"):
        adopted(bpe(["<s>", "</s>", *ALPHABET], pre_tokenizers.ByteLevel(False)), tmp_path, special)


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
