"""Text to tokenized documents, in columns, and these as bytes: a piece for each bucket.

A piece has its counts and then its columns:

    3 documents, 40 sentences, 12 paragraphs, 800 tokens
    high [3]  low [3]  sentences in each [3]  paragraphs in each [3]
    tokens in each sentence [40]  sentences in each paragraph [12]  ids [800]
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import UInt64Array
from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.buckets import Buckets, hash_encoded
from clozeline.pipeline.dataset.schema import id_type
from clozeline.pipeline.sentences.marks import is_other_script
from clozeline.pipeline.sentences.splitter import Sentences, SentenceSplitter
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

CHECKED_IN = np.uint64(1000)  #: one of so many documents is encoded by `tokenizers`, too
HEADER: Final = struct.Struct("<4I")  # documents, sentences, paragraphs, tokens of a piece


@dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as columns: D documents, S sentences, T tokens."""

    high: UInt64Array  # [D] high and low half of the hash
    low: UInt64Array
    sentence_lengths: Ragged  # D rows, S values: tokens of each sentence
    paragraph_lengths: Ragged  # D rows: sentences of each paragraph
    input_ids: Ragged  # D rows, T values

    def __len__(self) -> int:
        return len(self.high)

    def take(self, rows: NDArray[np.int64]) -> "TokenizedDocuments":
        """The given documents, in the given order."""
        return TokenizedDocuments(
            self.high[rows],
            self.low[rows],
            self.sentence_lengths.take(rows),
            self.paragraph_lengths.take(rows),
            self.input_ids.take(rows),
        )


def tokenize_documents(
    texts: Sequence[str],
    *,
    splitter: SentenceSplitter,
    tokenizer: SentenceEncoder,
    min_characters: int,
) -> tuple[TokenizedDocuments, list[str], Counts]:
    """Documents as columns, their texts, and the counts of what was read and dropped.

    A line is a paragraph. Paragraphs and documents with fewer than `min_characters` are dropped, as
    are sentences and documents without tokens. Raises JobFailedError if a document that is checked
    does not have the ids of the library `tokenizers`.

        ["It was old. So it fell.\nNobody saw it."]  ->  1 document, sentences of 4, 4 and 4 tokens,
                                                         paragraphs of 2 and 1 sentences
    """
    joined, paragraphs_in, counts = clean_texts(texts, min_characters)
    encoded = list(map(str.encode, joined))
    high, low = hash_encoded(encoded)
    cut = np.repeat(list(map(is_other_script, joined, encoded)), paragraphs_in)
    sentences, sentences_in = splitter.split(b"\n".join(encoded), cut=cut)
    starts = offsets_of(sentences_in)[offsets_of(paragraphs_in)]  # of documents
    inputs = _in_text(sentences, starts, tokenizer.tokenizer)
    ids, tokens_in = tokenizer.encode(inputs)
    bounds = offsets_of(tokens_in)[starts]
    is_checked = high % CHECKED_IN == 0
    is_checked[:1] = True  # the first document of each block
    for row in np.flatnonzero(is_checked):
        within = slice(starts[row], starts[row + 1])
        of_document = ids[bounds[row] : bounds[row + 1]]
        tokenizer.check(inputs[within], of_document, name=f"{high[row]:016x}")
    # A sentence of control characters only has no tokens; it does not count.
    has_tokens = tokens_in > 0
    sentences_in = np.diff(offsets_of(has_tokens)[offsets_of(sentences_in)])
    tokens_in = tokens_in[has_tokens]
    sentence_offsets = offsets_of(sentences_in)[offsets_of(paragraphs_in)]
    documents = TokenizedDocuments(
        high,
        low,
        sentence_lengths=Ragged(tokens_in, sentence_offsets),
        paragraph_lengths=Ragged(sentences_in, offsets_of(paragraphs_in)),
        input_ids=Ragged(ids, offsets_of(tokens_in)[sentence_offsets]),
    )
    keep = np.flatnonzero(np.diff(sentence_offsets))
    counts.dropped["no_tokens"] += len(documents) - len(keep)
    counts.read.update(documents=len(keep), sentences=len(tokens_in), tokens=len(ids))
    if len(keep) < len(documents):
        documents, joined = documents.take(keep), [joined[row] for row in keep.tolist()]
    return documents, joined, counts


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not empty, without the whitespace around them."""
    return [line for line in map(str.strip, text.split("\n")) if line]


def clean_texts(texts: Sequence[str], min_characters: int) -> tuple[list[str], list[int], Counts]:
    """The texts of documents, which are what is hashed, the paragraphs of each, and the counts."""
    lines_in = list(map(lines_of, texts))
    long = [[line for line in lines if len(line) >= min_characters] for lines in lines_in]
    kept = list(filter(None, long))
    paragraphs_in = list(map(len, kept))
    paragraphs = sum(paragraphs_in)
    dropped: Counter[str] = Counter()
    dropped["short_paragraph"] = sum(map(len, lines_in)) - paragraphs
    dropped["short_document"] = len(long) - len(kept)
    characters = sum(len(line) for lines in kept for line in lines)
    read = Counter(characters=characters, paragraphs=paragraphs)
    return list(map("\n".join, kept)), paragraphs_in, Counts(read, dropped)


def _in_text(
    sentences: Sentences, starts: NDArray[np.int64], of: Tokenizer
) -> Sentences | list[str]:
    """The sentences, each after a space if the tokens depend on it, but not a document's first."""
    if not of.needs_space:
        return sentences
    firsts, listed = set(starts.tolist()), sentences.to_list()
    return [s if i in firsts else of.after_space(s) for i, s in enumerate(listed)]


def pieces_of(
    documents: TokenizedDocuments, buckets: Buckets, vocab_size: int
) -> Iterator[tuple[int, bytes]]:
    """The piece of each bucket that has documents."""
    bucket_of = buckets.of(documents.high, documents.low)
    _, of_ids = _columns(vocab_size)[-1]
    narrow = Ragged(documents.input_ids.values.astype(of_ids), documents.input_ids.offsets)
    rows = replace(documents, input_ids=narrow).take(np.argsort(bucket_of, kind="stable"))
    found, sizes = np.unique(bucket_of, return_counts=True)
    cuts, ragged = offsets_of(sizes), (rows.sentence_lengths, rows.paragraph_lengths)
    bounds = [cuts, *(column.offsets[cuts] for column in (*ragged, rows.input_ids))]
    columns = [rows.high, rows.low, *(column.lengths for column in ragged)]
    columns += [column.values for column in (*ragged, rows.input_ids)]
    parts = [
        _cut(values.astype(dtype, copy=False), bounds[which])
        for values, (which, dtype) in zip(columns, _columns(vocab_size), strict=True)
    ]
    headers = np.diff(bounds).T.tolist()  # [buckets, 4]
    for bucket, header, *of_columns in zip(found.tolist(), headers, *parts, strict=True):
        yield bucket, b"".join((HEADER.pack(*header), *of_columns))


def from_pieces(
    slices: Iterable[Any], vocab_size: int
) -> tuple[TokenizedDocuments, NDArray[np.int64]]:
    """The documents, and where in the data the piece of each begins, [D]."""
    data, offset, columns = b"".join(slices), 0, _columns(vocab_size)
    parts = [[np.zeros(0, dtype)] for _, dtype in columns]
    starts = [np.zeros(0, np.int64)]
    while offset < len(data):
        header = HEADER.unpack_from(data, offset)
        starts.append(np.full(header[0], offset))
        offset += HEADER.size
        for part, (which, dtype) in zip(parts, columns, strict=True):
            part.append(np.frombuffer(data, dtype, header[which], offset))
            offset += part[-1].nbytes
    high, low, sentences, paragraphs, tokens_in, sentences_in, ids = map(np.concatenate, parts)
    sentence_offsets = offsets_of(sentences)
    documents = TokenizedDocuments(
        high,
        low,
        Ragged(tokens_in, sentence_offsets),
        Ragged(sentences_in, offsets_of(paragraphs)),
        Ragged(ids, offsets_of(tokens_in)[sentence_offsets]),
    )
    return documents, np.concatenate(starts)


def _cut(values: NDArray[Any], bounds: NDArray[np.int64]) -> Iterator[memoryview]:
    """The bytes of values[bounds[i] : bounds[i + 1]], for each i."""
    view = values.view(np.uint8).data
    for start, stop in pairwise((bounds * values.itemsize).tolist()):
        yield view[start:stop]


def _columns(vocab_size: int) -> list[tuple[int, np.dtype[Any]]]:
    """Which header field is the length of each column of a piece, and its dtype."""
    ids = np.dtype(str(id_type(vocab_size))).newbyteorder("<")
    columns = (0, "<u8"), (0, "<u8"), (0, "<u4"), (0, "<u4"), (1, "<u4"), (2, "<u4"), (3, ids)
    return [(which, np.dtype(dtype)) for which, dtype in columns]
