"""`clozeline inspect`: the literal text that shows an example."""

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.inspect import example_lines, inspect_dataset, shown_example
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from tests.pipeline.test_published_vocabularies import ALPHABET, adopted, bpe
from tests.pipeline.test_steps import build, work
from tests.support.command import invoke, output_of, refused
from tests.support.small import small_tokenizer

TOKENIZER = small_tokenizer()


def ids_of(text):
    return [TOKENIZER.tokens.index(token) for token in text.split()]


def example(text, *, hidden, length_a, label):
    """One row; `hidden` is position -> the token that stood there."""
    ids = np.array(ids_of(text), np.uint16)
    labels = np.array(ids_of(" ".join(hidden.values())), np.uint16)
    return Examples(
        input_ids=Ragged(ids, offsets_of([len(ids)])),
        masked_lm_positions=Ragged(np.array([*hidden], np.uint16), offsets_of([len(hidden)])),
        masked_lm_labels=Ragged(labels, offsets_of([len(hidden)])),
        length_a=np.array([length_a], np.uint16),
        next_sentence_label=np.array([label], np.int8),
        document_a=np.zeros(1, np.uint64),
        document_b=np.zeros(1, np.uint64),
    )


def show(examples, width=80, *, tokenizer=TOKENIZER, negative_pairs="random"):
    title = "train-00000-of-00001.arrow, row 0"
    shown = shown_example(examples, 0, tokenizer, title=title, negative_pairs=negative_pairs)
    return list(example_lines(shown, width=width))


def test_a_pair_with_its_masks_and_the_original_tokens():
    shown = example(
        "[CLS] the [MASK] sat on the river . [SEP] it [MASK] ##ing , dog ##s ran . [SEP]",
        hidden={2: "cat", 6: "mat", 10: "grow", 13: "dog"},
        length_a=9,
        label=0,
    )
    assert show(shown) == [
        "train-00000-of-00001.arrow, row 0: 18 tokens, B follows A",
        "  A        the [1 MASK] sat on the [2 river] .",
        "  B        it [3 MASK]ing , [4 dog]s ran .",
        "  masked   1 cat   2 mat (shown as river)   3 grow   4 dog (kept)",
    ]


def test_a_masked_piece_stays_apart_and_a_cut_word_shows_its_cut():
    shown = example(
        "[CLS] grow ##ing trees ##s [SEP] ##er ran [SEP]",
        hidden={2: "##ed", 4: "##s"},
        length_a=6,
        label=1,
    )
    assert show(shown)[:3] == [
        "train-00000-of-00001.arrow, row 0: 9 tokens, B is random",
        "  A        grow [1 ##ing] trees [2 ##s]",
        "  B        ##er ran",
    ]
    [head, *_] = show(shown, negative_pairs="swapped")
    assert head == "train-00000-of-00001.arrow, row 0: 9 tokens, B is swapped"


def test_a_row_without_b_has_one_span_and_long_ones_are_wrapped():
    words = "the cat sat on the mat and the dog ran to the old town near the river"
    shown = example(f"[CLS] {words} [SEP]", hidden={}, length_a=19, label=-1)
    assert show(shown, width=44) == [
        "train-00000-of-00001.arrow, row 0: 19 tokens, no B",
        "  A        the cat sat on the mat and the",
        "           dog ran to the old town near the",
        "           river",
        "  masked",
    ]


def test_control_characters_of_a_text_are_shown_escaped(tmp_path):
    """So that none of them changes the terminal, or its title."""
    library = bpe([*SPECIAL_TOKENS, *ALPHABET], pre_tokenizers.ByteLevel(False))
    tokenizer = adopted(library, tmp_path)
    [ids] = tokenizer.encode_batch([" a\x1b]0;b\u202e \u2028c"])
    row = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.uint16)
    shown = example("[CLS] the [SEP]", hidden={}, length_a=len(row), label=-1)
    shown = replace(shown, input_ids=Ragged(row, offsets_of([len(row)])))
    assert show(shown, tokenizer=tokenizer)[1] == r"  A        a\x1b]0;b\u202e \u2028c"


@pytest.fixture(scope="module")
def data_set(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    build(*work(folder))
    return folder / "out"


def test_a_data_set_is_introduced_by_a_summary(data_set, tmp_path):
    manifest = read_manifest(data_set)
    train, held_out = manifest.num_examples("train"), manifest.num_examples("validation")
    read = manifest.counts
    lines = list(inspect_dataset(data_set, number=0, seed=0, width=80))
    assert lines[:2] == [
        f"{train} training and {held_out} validation examples of at most 32 tokens, "
        f"pairs: segments, vocabulary {TOKENIZER.vocab_size}",
        f"from 60 documents, {read['sentences']} sentences, {read['tokens']:,} tokens",
    ]
    assert lines[2:] == [
        "dropped: " + ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items())
    ]
    folder, rows = shutil.copytree(data_set, tmp_path / "data"), train + held_out
    write_manifest(folder, replace(manifest, counts=read | {"without_masks": 2}))
    *_, last = inspect_dataset(folder, number=0, seed=0, width=80)
    assert last.startswith(f"2 of {rows} examples ({2 / rows:.1%}) have no masks: all of their")


def test_as_many_examples_as_asked_for_the_same_for_the_same_seed(data_set):
    lines = list(inspect_dataset(data_set, number=5, seed=1, width=80))
    assert lines == list(inspect_dataset(data_set, number=5, seed=1, width=80))
    assert lines != list(inspect_dataset(data_set, number=5, seed=2, width=80))
    heads = [after for before, after in pairwise(lines) if not before]
    assert len(heads) == 5
    for head in heads:  # each is a row there is
        name, row = head.split(":")[0].split(", row ")
        examples = read_shard(data_set / name)
        assert f": {examples.input_ids.lengths[int(row)]} tokens" in head
        assert head.startswith("train-")


def test_a_seed_that_is_too_large_is_refused(data_set):
    done = invoke("inspect", data_set, "--seed", 2**64)
    assert done.exit_code == 2
    assert "18446744073709551616 is not in the range" in done.stderr


def test_a_text_is_shown_as_tokens_with_their_ids(data_set):
    word, part = TOKENIZER.tokens.index("cat"), TOKENIZER.tokens.index("##ing")
    shown = output_of("inspect", data_set, "Cat cating")
    assert shown == f"{word:>7}  cat\n{word:>7}  cat\n{part:>7}  ##ing\n3 tokens of 2 words\n"
    assert output_of("inspect", data_set / "tokenizer", "Cat cating") == shown
    assert "is not a tokenizer folder" in refused("inspect", data_set / "nosuch", "Cat")
