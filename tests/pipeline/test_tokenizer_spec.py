"""Tokenizers of other models than WordPiece: adopted, saved, used for shards and models."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.model.huggingface.convert import save_huggingface
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import TOKENIZER, read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from clozeline.train.artifacts.huggingface import read_tokenizer
from clozeline.train.inference.fill import mask_ids
from tests.support.command import output_of, refused
from tests.support.small import PUNKT, lists
from tests.train.test_export import HOSTILE

pytestmark = pytest.mark.usefixtures("quiet")

TEXT = (
    "It was founded in 1873 as a small house on the river. Nobody saw it, and it fell.\n"
    "Then the cat sat on the mat: it slept (badly). The dog didn't, café or not.\n\n"
    "A second text, with other words. The river ran past the house, slowly and for ever.\n\n"
)


@pytest.fixture(scope="module")
def modern_json(tmp_path_factory):
    """The form of ModernBERT's tokenizer.json, with few merges."""
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    library.train_from_iterator([TEXT] * 4, trainer)
    library.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    library.add_special_tokens([tokenizers.AddedToken("[MASK]", lstrip=True, special=True)])
    library.add_tokens(["[unused0]"])
    ends = [(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    library.enable_padding(pad_id=ends[0][1])
    path = tmp_path_factory.mktemp("modern") / "tokenizer.json"
    library.save(str(path))
    return path


@pytest.fixture(scope="module")
def modern(modern_json):
    """A folder as ModernBERT is published, of one small layer."""
    folder = modern_json.parent
    config = preset(
        "modern-mini",
        vocab_size=adopted(modern_json).vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=96,
    )
    weights = BertForPretraining(config, seed=3).state_dict()
    save_huggingface(folder, config, weights, architecture="ModernBertForMaskedLM")
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 96}
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk")}
    mask = {"content": "[MASK]", "lstrip": True, "normalized": False, "rstrip": False}
    mask |= {"single_word": False, "__type": "AddedToken"}
    config_json = {**values, **special, "mask_token": mask}
    (folder / "tokenizer_config.json").write_text(json.dumps(config_json))
    return folder


@pytest.fixture(scope="module")
def shards(modern):
    source = modern.parent / "text.txt"
    source.write_text(TEXT * 6)
    out = modern.parent / "tokenizer"
    said = output_of("tokenizer", source, "--vocab", modern / "tokenizer.json", "--out", out)
    assert "with its own normalizer" in said
    output_of(
        *("shards", source, "--tokenizer", out, "--out", modern.parent / "shards"),
        *("--max-seq-length", 96, "--masking", "whole-words", "--num-shards", 1),
        *("--min-characters", 0, "--validation", 0),
    )
    return modern.parent / "shards"


def adopted(path, punkt=None):
    made = adopt_vocabulary(path, cased=False)
    return Tokenizer(made.tokens, made.normalization, punkt)


def test_an_adopted_tokenizer_is_saved_loaded_and_pickled_unchanged(modern_json, tmp_path):
    ours = adopted(modern_json, PUNKT)
    ours.save(tmp_path / "made", max_seq_length=32)
    assert not (tmp_path / "made" / "vocab.txt").exists()
    for again in (load_tokenizer(tmp_path / "made"), pickle.loads(pickle.dumps(ours))):
        assert (again.digest, again.tokens, again.punkt) == (ours.digest, ours.tokens, PUNKT)
        assert again.encode_batch(["It was [MASK]."]) == ours.encode_batch(["It was [MASK]."])
    assert ours.digest != adopted(modern_json).digest
    assert ours.mask_id not in ours.encode_batch(["It was [MASK]."])[0]


def test_the_saved_folder_gives_the_same_ids_in_transformers(modern, tmp_path):
    import transformers

    ours = adopted(modern / "tokenizer.json")
    ours.save(tmp_path / "made", max_seq_length=32, has_segments=False)
    load = transformers.AutoTokenizer.from_pretrained
    theirs, published = load(tmp_path / "made"), load(modern)
    assert theirs.model_max_length == 32
    assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.mask_id, ours.pad_id)
    text = "It was [MASK] in the house."
    assert theirs(text)["input_ids"] == published(text)["input_ids"]
    assert mask_ids(text, ours, max_seq_length=32) == published(text)["input_ids"]
    assert "token_type_ids" not in theirs("It was", "not.")
    exact = load(tmp_path / "made", split_special_tokens=True)

    @settings(max_examples=60)
    @given(text=HOSTILE)
    def same_ids(text):
        assert exact(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0]

    same_ids()


def test_sentences_are_encoded_as_in_the_text_and_words_masked_whole(shards):
    output_of("verify", shards, "--source", shards.parent / "text.txt")
    tokenizer = load_tokenizer(shards / TOKENIZER)
    entry = read_manifest(shards).of_split("train")[0]
    examples = read_shard(shards / entry.name)
    whole = examples.unmasked().input_ids
    texts = {
        tokenizer.library.decode([i for i in row if not tokenizer.is_special[i]])
        for row in lists(whole)
    }
    assert any("river. Nobody saw it, and it fell." in text for text in texts), texts
    assert not any("river.Nobody" in text for text in texts)
    is_masked = np.zeros(len(whole.values), bool)
    starts = np.repeat(whole.offsets[:-1], examples.masked_lm_positions.lengths)
    is_masked[starts + examples.masked_lm_positions.values] = True
    continues = tokenizer.is_continuation[whole.values]
    after_text = np.roll(~tokenizer.is_special[whole.values], 1)
    inside = continues & after_text
    assert is_masked[inside].any()
    assert np.array_equal(is_masked[inside], np.roll(is_masked, 1)[inside])


def test_pretraining_continues_on_such_shards(modern, shards, tmp_path):
    options = ("--max-steps", 1, "--batch-size", 4, "--eval-every", 0, "--dropout", 0)
    output_of("pretrain", shards, "--from", modern, "--out", tmp_path / "run", *options)
    assert "house" in output_of("fill", tmp_path / "run", "the [MASK] house")
    output_of("export", tmp_path / "run", "--out", tmp_path / "out")
    assert read_tokenizer(tmp_path / "out").encode_batch(["It fell."]) == (
        adopted(modern / "tokenizer.json").encode_batch(["It fell."])
    )


def test_a_published_folder_fills_is_fine_tuned_predicts_and_leaves(modern, tmp_path):
    import transformers

    text = "It was [MASK] in the house."
    tokenizer = transformers.AutoTokenizer.from_pretrained(modern)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(modern).eval()
    ids = tokenizer(text, return_tensors="pt")
    mask = ids["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.no_grad():
        best = reference(**ids).logits[0, mask].argmax().item()
    filled = output_of("fill", modern, text).splitlines()
    assert filled[1].split()[1] == adopted(modern / "tokenizer.json").shown_tokens[best]
    (tmp_path / "rows.csv").write_text("text,label\n" + "the cat sat,yes\nthe dog sat,no\n" * 8)
    out, fixed = tmp_path / "classifier", ("--learning-rate=3e-3", "--epochs=1", "--no-baseline")
    output_of("finetune", modern, tmp_path / "rows.csv", "--out", out, *fixed)
    label = output_of("predict", out, "the cat sat").split("\t")[:2]
    output_of("export", out, "--out", tmp_path / "hf")
    assert output_of("predict", tmp_path / "hf", "the cat sat").split("\t")[:2] == label
    their = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert their("the cat sat")["input_ids"] == tokenizer("the cat sat")["input_ids"]


def without_mask(spec):
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] != "[MASK]"]
    spec["added_tokens"][-1]["id"] -= 1


def add_tokens(spec, *tokens):
    usual = {**spec["added_tokens"][-1], "special": False}
    spec["added_tokens"] += [{**usual, "content": content, "id": i} for content, i in tokens]


def leave_hole(spec):
    """Take out the last token that is not added; the ids of those after it stay."""
    last = max(spec["model"]["vocab"].values())
    [token] = [token for token, i in spec["model"]["vocab"].items() if i == last]
    del spec["model"]["vocab"][token]
    spec["model"]["merges"] = [pair for pair in spec["model"]["merges"] if "".join(pair) != token]
    spec["model"]["vocab"] |= {added["content"]: added["id"] for added in spec["added_tokens"]}
    return last


def fill_hole(spec, content):
    """The library would give it the id of the last token, and then two have it."""
    add_tokens(spec, (content, leave_hole(spec)))


CHANGES: dict[str, Callable[[Any], object]] = {
    r"lacks \[MASK\]; only tokenizers with BERT's": without_mask,
    "cannot read it": lambda spec: spec["model"].update(merges=3),
    "drops merges at random": lambda spec: spec["model"].update(dropout=0.1),
    r"'\[unused0\]' with id 5000, which the library would read as 375": (
        lambda spec: spec["added_tokens"][-1].update(id=5000)
    ),
    "'<new>' with id 300, which the library would read as 376: .* last": (
        lambda spec: add_tokens(spec, ("<new>", 300))
    ),
    "'<two>' with id 300, which the library would read as 377": (
        lambda spec: add_tokens(spec, ("<new>", 376), ("<two>", 300))
    ),
    "'<new>' with id 300, which": lambda spec: add_tokens(spec, ("<new>", 300), ("<new>", 376)),
    "'<two>' with id 376, which": lambda spec: add_tokens(spec, ("<new>", 376), ("<two>", 376)),
    "'<new>' with id 369, which": lambda spec: fill_hole(spec, "<new>"),
    "adds the token '' with id 376, which the library leaves out; rem": lambda spec: add_tokens(
        spec, ("", 376)
    ),
    "ids of its 375 tokens are not 0 to 374, each once": lambda spec: leave_hole(spec),
}


def changed(modern_json, folder, change):
    """A copy of the file with other values."""
    spec = json.loads(modern_json.read_text())
    change(spec)
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("message", CHANGES)
def test_what_cannot_be_used_is_refused(message, modern_json, tmp_path):
    with pytest.raises(InputError, match=message):
        adopted(changed(modern_json, tmp_path, CHANGES[message]))


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(post_processor=None),
        lambda spec: spec["post_processor"]["special_tokens"].pop("[CLS]"),
        lambda spec: spec["post_processor"]["pair"].reverse(),
        lambda spec: spec.update(post_processor={"type": "ByteLevel", "trim_offsets": False}),
    ],
)
def test_pairs_are_berts_whatever_the_template(change, modern_json, tmp_path):
    found = adopted(changed(modern_json, tmp_path, change))
    assert found.digest == adopted(modern_json).digest
    assert found.library.encode("a", "b").tokens == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]


def test_text_never_becomes_a_special_token_whatever_the_file_says(modern_json, tmp_path):
    def unmark(spec):
        for token in spec["added_tokens"]:
            token["special"] = False

    found = adopted(changed(modern_json, tmp_path, unmark))
    (ids,) = found.encode_batch(["It was [MASK] [CLS]."])
    assert not found.is_special[ids].any()


@pytest.mark.parametrize("added", [None, []])
def test_special_tokens_may_be_in_the_vocabulary_alone(added, modern_json, tmp_path):
    spec = json.loads(modern_json.read_text())
    spec["model"]["vocab"] |= {token["content"]: token["id"] for token in spec["added_tokens"]}
    spec["added_tokens"] = added
    if added is None:
        del spec["added_tokens"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    found, usual = adopted(tmp_path / "tokenizer.json"), adopted(modern_json)
    assert found.tokens == usual.tokens
    assert found.encode_batch([TEXT]) == usual.encode_batch([TEXT])
    assert not found.is_special[found.encode_batch(["It was [MASK]."])[0]].any()


def test_options_of_wordpiece_do_not_apply(modern_json):
    for options in ({"cased": True}, {"cased": False, "strip_accents": True}):
        with pytest.raises(InputError, match=r"has its own normalizer; leave out --\[un"):
            adopt_vocabulary(modern_json, **options)


def test_whole_words_need_a_vocabulary_that_knows_them(modern_json, tmp_path):
    def change(spec):
        spec["pre_tokenizer"] = {"type": "Whitespace"}
        spec["model"]["unk_token"] = "a"

    path = changed(modern_json, tmp_path, change)
    adopted(path, PUNKT).save(tmp_path / "made")
    (tmp_path / "a.txt").write_text("one\n")
    said = refused(
        *("shards", tmp_path / "a.txt", "--tokenizer", tmp_path / "made"),
        *("--out", tmp_path / "out", "--masking", "whole-words"),
    )
    assert "do not say where a word begins; use --masking tokens" in said
    assert not (tmp_path / "out").exists()


ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


@pytest.fixture
def roberta(tmp_path):
    """A folder as XLM-R is published: special tokens by role, two separators in a pair."""
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=list(ROBERTA), show_progress=False
    )
    library.train_from_iterator([TEXT] * 4, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, library.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    library.save(str(tmp_path / "tokenizer.json"))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = dict(zip(names, ROBERTA, strict=True))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["mask_token"] = {"content": "<mask>", "lstrip": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_special_tokens_are_known_by_their_role(roberta):
    ours = load_tokenizer(roberta)
    assert ours.special_tokens == ROBERTA
    assert [ours.tokens[i] for i in (ours.pad_id, ours.cls_id, ours.mask_id)] == [
        *("<pad>", "<s>", "<mask>")
    ]
    assert ours.is_special.sum() == 5
    [spelled] = ours.encode_batch(["the <mask> sat</s>"])  # pieces of the vocabulary, too
    assert not {ours.mask_id, ours.sep_id} & set(spelled)
    assert ours.library.encode("a", "b").ids.count(ours.sep_id) == 2
    ours.save(roberta / "again")
    again = load_tokenizer(roberta / "again")
    assert (again.digest, again.special_tokens) == (ours.digest, ROBERTA)
    ids = mask_ids("the <mask> sat", ours, max_seq_length=64)
    assert (ids[0], ids.count(ours.mask_id), ids[-1]) == (ours.cls_id, 1, ours.sep_id)
    with pytest.raises(InputError, match=r"no <mask> in 'the \[MASK\]'; write <mask>"):
        mask_ids("the [MASK]", ours, max_seq_length=64)


NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
MAP = {"special_tokens_map.json": NAMES | {"mask_token": {"content": "<hole>"}}}


@pytest.mark.parametrize(
    ("mask", "configs"),
    [
        ("<mask>", {}),  # as roberta-base was published first
        ("<mask>", {"tokenizer_config.json": {"add_prefix_space": False}}),
        ("<hole>", MAP),
        ("<hole>", MAP | {"tokenizer_config.json": {"mask_token": None}}),
    ],
)
def test_roles_are_known_from_either_file_and_from_usual_names(mask, configs, roberta):
    (roberta / "tokenizer_config.json").unlink()
    path = roberta / "tokenizer.json"
    path.write_text(path.read_text().replace("<mask>", mask))
    for name, config in configs.items():
        (roberta / name).write_text(json.dumps(config))
    assert adopted(path).special_tokens == (*ROBERTA[:4], mask)


def test_a_tokenizer_without_a_mask_is_one_line(roberta):
    config = {"pad_token": "[PAD]", "mask_token": "[MASK]"}
    (roberta / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"lacks \[PAD\].*\[MASK\].*names? .*or those that"):
        load_tokenizer(roberta)
