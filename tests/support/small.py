"""A small tokenizer and small documents for tests of several modules."""

import numpy as np

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.examples.columns import BucketDocuments
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization

SENTENCE = (
    "the cat sat on mat it slept dog ran to river and town was old small people came from "
    "house green trees grow near water every year some are tall other not"
)
WORDS = sorted(set(SENTENCE.split()))
PUNKT = {
    "language": "none",
    "abbrev_types": [],
    "collocations": [],
    "sent_starters": [],
    "ortho_context": {},
}
PIECES = ("##s", "##ing", "##ed", "##er", ".", ",", "!", "?")


def small_tokenizer(punkt=None):
    """5 specials, one unused piece, whole words, and a few continuation pieces."""
    tokens = [*SPECIAL_TOKENS, "[unused0]", *WORDS, *PIECES]
    return Tokenizer(tokens, Normalization(lowercase=True, strip_accents=True), punkt)


def lists(rows):
    """Ragged rows as lists."""
    return [rows.slice(i, i + 1).values.tolist() for i in range(len(rows))]


def make_examples(rows, *, length_a=None, labels=None):
    """Unmasked examples of the given rows of ids."""
    count = len(rows)
    ids = np.array([token for row in rows for token in row], dtype=np.uint16)
    nothing = Ragged(np.zeros(0, np.uint16), np.zeros(count + 1, np.int64))
    numbers = np.arange(count, dtype=np.uint64)
    return Examples(
        input_ids=Ragged(ids, offsets_of([len(row) for row in rows])),
        masked_lm_positions=nothing,
        masked_lm_labels=nothing,
        length_a=np.array(length_a or [len(row) for row in rows], dtype=np.uint16),
        next_sentence_label=np.array([-1] * count if labels is None else labels, dtype=np.int8),
        document_a=numbers,
        document_b=numbers,
    )


def make_documents(shape, *, ids=None):
    """A bucket: documents of paragraphs of sentences, each given as its number of tokens.

    The ids count up, so that a span of them shows where it comes from.
    """
    lengths = [tokens for document in shape for paragraph in document for tokens in paragraph]
    sentences = [len(paragraph) for document in shape for paragraph in document]
    return BucketDocuments(
        ids=np.arange(sum(lengths), dtype=np.uint32) if ids is None else ids,
        sentence_offsets=offsets_of(lengths),
        document_offsets=offsets_of([sum(map(len, document)) for document in shape]),
        paragraphs=np.repeat(np.arange(len(sentences)), sentences),
        hashes=np.arange(len(shape), dtype=np.uint64) * np.uint64(1000),
    )


def small_splitter():
    """Punkt without parameters: a sentence ends at every full stop."""
    return SentenceSplitter(PunktData.from_json(PUNKT))
