"""Tokenized documents: the sentences and paragraphs of the text, in columns, and what was left."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.tokenization.documents import tokenize_documents
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from tests.support.small import WORDS, lists, small_splitter, small_tokenizer

TOKENIZER = small_tokenizer()
COLUMNS = SentenceEncoder(TOKENIZER)
SPLITTER = small_splitter()
NOTHING = "\u200b\u200b"  # zero-width spaces: characters, and no token

SENTENCE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5)
DOCUMENT = st.lists(st.lists(SENTENCE, min_size=1, max_size=4), min_size=1, max_size=4)


def tokenize(texts, min_characters=0):
    documents, kept, counts = tokenize_documents(
        texts, splitter=SPLITTER, tokenizer=COLUMNS, min_characters=min_characters
    )
    hashes = hash_documents(kept)  # of exactly these texts
    assert [part.tolist() for part in hashes] == [documents.high.tolist(), documents.low.tolist()]
    return documents, counts


def nested(documents):
    """The columns taken apart again: ids in sentences in paragraphs in documents."""
    columns = (documents.input_ids, documents.sentence_lengths, documents.paragraph_lengths)
    found = []
    for ids, lengths, paragraphs in zip(*map(lists, columns), strict=True):
        sentences = [[ids.pop(0) for _ in range(length)] for length in lengths]
        found.append([[sentences.pop(0) for _ in range(count)] for count in paragraphs])
        assert not ids
        assert not sentences
    return found


@given(st.lists(DOCUMENT, max_size=5), st.sampled_from(["\n", " \t\n\n   "]))
def test_sentences_stay_in_their_paragraphs_and_documents(written, between):
    """Whatever space is around lines."""
    texts = [
        "\n".join(" ".join(" ".join(s) + "." for s in paragraph) for paragraph in document)
        for document in written
    ]
    documents, counts = tokenize([text.replace("\n", between) for text in texts])
    assert documents.input_ids.values.dtype == np.uint32
    assert nested(documents) == [
        [TOKENIZER.encode_batch([" ".join(s) + " ." for s in paragraph]) for paragraph in document]
        for document in written
    ]
    high, low = hash_documents(texts)
    assert (documents.high == high).all()
    assert (documents.low == low).all()
    assert +counts.dropped == {}
    assert +counts.read == +type(counts.read)(
        documents=len(written),
        paragraphs=sum(map(len, written)),
        sentences=sum(len(paragraph) for document in written for paragraph in document),
        tokens=len(documents.input_ids.values),
        characters=sum(len(text.replace("\n", "")) for text in texts),
    )


def test_sentences_without_tokens_are_dropped():
    texts = [
        f"the cat sat. {NOTHING}\n{NOTHING}\nit slept.",
        NOTHING,
        f"{NOTHING}\n{NOTHING}",
        "the dog.",
    ]
    documents, counts = tokenize(texts)
    sat, slept, dog = TOKENIZER.encode_batch(["the cat sat .", "it slept .", "the dog ."])
    assert nested(documents) == [[[sat], [], [slept]], [[dog]]]
    assert counts.dropped["no_tokens"] == 2
    assert counts.read["documents"] == 2
    assert counts.read["sentences"] == 3
    high, _ = hash_documents([texts[0], texts[3]])
    assert (documents.high == high).all()


def test_short_paragraphs_and_documents_are_dropped_and_counted():
    documents, counts = tokenize(["the cat sat.\nthe\n\ndog.", "cat\ndog", "\n \n"], 4)
    sat, dog = TOKENIZER.encode_batch(["the cat sat .", "dog ."])
    assert nested(documents) == [[[sat], [dog]]]
    assert counts.dropped["short_paragraph"] == 3
    assert counts.dropped["short_document"] == 2
    assert counts.read["characters"] == len("the cat sat.dog.")
    # What is left is the document: a dropped heading and blank lines do not change its hash.
    assert documents.high == hash_documents(["the cat sat.\ndog."])[0]
