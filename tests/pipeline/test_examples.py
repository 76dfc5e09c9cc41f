"""Examples: the pairs of a bucket between special tokens, masked, without losses."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.counter_rng import stream_key
from clozeline.pipeline.config import DataConfig, PairScheme
from clozeline.pipeline.dataset.shards import rows_sha256
from clozeline.pipeline.examples.examples import SLAB, make_examples
from clozeline.pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from clozeline.pipeline.examples.pairs import SCHEMES
from tests.support.small import lists, make_documents, small_tokenizer

TOKENIZER = small_tokenizer()
CLS, SEP, UNK = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.unk_id
WORDS = TOKENIZER.replacement_ids.astype(np.uint16)
CONFIG = DataConfig(max_seq_length=24, num_shards=1)
TALK = [[[3, 5, 4], [6, 2, 7, 5]], [[9]], [[4, 4], [12, 3, 5]], [[8, 8, 2, 3, 4]]] * 5

DOCUMENT = st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=5), min_size=1, max_size=3)


def documents_of(shape):
    """A bucket whose ids are words of the small vocabulary, no two neighbours alike."""
    documents = make_documents(shape)
    return replace(documents, ids=WORDS[documents.ids % len(WORDS)])


def examples_of(documents, config=CONFIG, *, split="train", shard=0):
    return make_examples(documents, split=split, shard=shard, config=config, tokenizer=TOKENIZER)


@settings(max_examples=40)
@given(
    st.lists(DOCUMENT, max_size=6),
    st.sampled_from(["segments", "order", "sentences", "none"]),
    st.integers(0, 1000),
    st.integers(1, 3),
)
def test_unmasked_rows_are_the_spans_of_the_pairs_between_special_tokens(shape, kind, seed, copies):
    config = replace(CONFIG, pairs=kind, seed=seed, dupe_factor=copies)
    documents = documents_of(shape)
    rows, length_a, labels, hashes = [], [], [], []
    for copy in range(copies):
        key = stream_key(seed, "pairs/train", 0, copy)
        pairs, _ = SCHEMES[kind](documents, key, 24, config.short_seq_prob)
        for i in range(len(pairs)):
            a = documents.ids[pairs.a_start[i] : pairs.a_stop[i]].tolist()
            b = documents.ids[pairs.b_start[i] : pairs.b_stop[i]].tolist()
            rows.append([CLS, *a, SEP] if kind == "none" else [CLS, *a, SEP, *b, SEP])
            length_a.append(len(a) + 2)
            labels.append(pairs.next_sentence_label[i])
            hashes.append(documents.hashes[[pairs.document_a[i], pairs.document_b[i]]].tolist())
    examples, _ = examples_of(documents, config)
    assert lists(examples.unmasked().input_ids) == rows
    assert examples.length_a.tolist() == length_a
    assert examples.next_sentence_label.tolist() == labels
    assert list(map(list, zip(examples.document_a, examples.document_b, strict=True))) == hashes
    assert all(len(row) <= 24 for row in rows)


def test_masks_depend_on_the_row_number_in_the_shard():
    config = replace(CONFIG, dupe_factor=3)
    examples, _ = examples_of(documents_of(TALK), config, split="validation", shard=7)
    key = mask_keys(0, split="validation", shard=7, epoch=0)
    again = mask_examples(
        examples.unmasked(),
        keys=np.broadcast_to(key, len(examples)),
        rows=np.arange(len(examples)),
        rules=MaskRules.of(config, TOKENIZER),
    )
    assert rows_sha256(again) == rows_sha256(examples)
    assert (examples.masked_lm_positions.lengths > 0).all()


def test_a_shard_of_many_slabs_equals_its_slabs():
    spans = replace(CONFIG, pairs="none", max_seq_length=8)
    documents = documents_of([[[6]]] * (SLAB + 5))
    examples, _ = examples_of(documents, spans)
    assert len(examples) == SLAB + 5
    whole = examples.unmasked().input_ids.values.reshape(-1, 8)
    assert (whole[:, 1:7].ravel() == documents.ids).all()
    key = np.broadcast_to(mask_keys(0, split="train", shard=0, epoch=0), 5)
    last = examples.take(np.arange(SLAB, SLAB + 5))
    rules = MaskRules.of(spans, TOKENIZER)
    again = mask_examples(last.unmasked(), keys=key, rows=SLAB + np.arange(5), rules=rules)
    assert rows_sha256(again) == rows_sha256(last)


def test_copies_of_the_text_have_different_pairs_and_masks():
    documents = documents_of(TALK)
    once, _ = examples_of(documents)
    twice, _ = examples_of(documents, replace(CONFIG, dupe_factor=2))
    first = twice.take(np.arange(len(once)))
    second = twice.take(np.arange(len(once), len(twice)))
    assert rows_sha256(first) == rows_sha256(once)
    assert lists(second.unmasked().input_ids) != lists(first.unmasked().input_ids)

    spans, _ = examples_of(documents, replace(CONFIG, dupe_factor=2, pairs="none"))
    half = len(spans) // 2
    first, second = spans.take(np.arange(half)), spans.take(np.arange(half, 2 * half))
    assert lists(second.unmasked().input_ids) == lists(first.unmasked().input_ids)
    assert lists(second.input_ids) != lists(first.input_ids)


@pytest.mark.parametrize("change", [{"split": "validation"}, {"shard": 1}])
def test_each_shard_has_its_own_random_stream(change):
    one, _ = examples_of(documents_of(TALK))
    other, _ = examples_of(documents_of(TALK), **change)
    assert lists(one.unmasked().input_ids) != lists(other.unmasked().input_ids)


def test_rows_of_unknown_words_are_dropped_and_counted():
    documents = documents_of([[[4]], [[3]], [[5]]])
    ids = documents.ids.copy()
    ids[4:7] = UNK  # all of the second document
    ids[8] = UNK  # not all of the third
    documents = replace(documents, ids=ids)
    examples, dropped = examples_of(documents, replace(CONFIG, pairs="none"))
    assert dropped["nothing_to_mask"] == 1
    assert examples.document_a.tolist() == [0, 2000]
    assert lists(examples.unmasked().input_ids)[1] == [CLS, *ids[7:12].tolist(), SEP]


def test_dropped_pairs_are_counted_once_per_copy():
    documents = documents_of([[[30]], [[2, 30, 4]]])
    of_copies = []
    for copy in (0, 1):
        key = stream_key(CONFIG.seed, "pairs/train", 0, copy)
        _, cut = SCHEMES[CONFIG.pairs](documents, key, 24, CONFIG.short_seq_prob)
        of_copies.append(cut["cut_tokens"])
    assert min(of_copies) > 0
    for copies in (1, 2):
        _, dropped = examples_of(documents, replace(CONFIG, dupe_factor=copies))
        assert dropped["cut_tokens"] == sum(of_copies[:copies])


@pytest.mark.parametrize("kind", get_args(PairScheme))
def test_an_empty_bucket_gives_an_empty_shard_of_the_right_types(kind):
    documents = replace(make_documents([]), ids=WORDS[:0])
    examples, dropped = examples_of(documents, replace(CONFIG, pairs=kind))
    full, _ = examples_of(documents_of(TALK), replace(CONFIG, pairs=kind))
    assert len(examples) == 0
    assert not dropped.total()
    for name, wanted in full.columns().items():
        found = getattr(examples, name)
        assert getattr(found, "values", found).dtype == getattr(wanted, "values", wanted).dtype
