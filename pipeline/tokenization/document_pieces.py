"""Tokenized documents as bytes: a piece for each bucket, as counts and then columns.

3 documents, 40 sentences, 12 paragraphs, 800 tokens
high [3]  low [3]  sentences in each [3]  paragraphs in each [3]
tokens in each sentence [40]  sentences in each paragraph [12]  ids [800]
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import mul
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.schema import id_type
from clozeline.pipeline.tokenization.documents import TokenizedDocuments

HEADER: Final = struct.Struct("<4I")  # documents, sentences, paragraphs, tokens of a piece


def pieces_of(
    documents: TokenizedDocuments, buckets: Buckets, vocab_size: int
) -> Iterator[tuple[int, bytes]]:
    """The piece of each bucket that has documents."""
    bucket_of = buckets.of(documents.high, documents.low)
    rows = documents.take(np.argsort(bucket_of, kind="stable"))
    found, sizes = np.unique(bucket_of, return_counts=True)
    cuts, ragged = offsets_of(sizes), (rows.sentence_lengths, rows.paragraph_lengths)
    bounds = [cuts, *(column.offsets[cuts] for column in (*ragged, rows.input_ids))]
    columns = [rows.high, rows.low, *(column.lengths for column in ragged)]
    columns += [column.values for column in (*ragged, rows.input_ids)]
    parts = [
        _cut(values.astype(dtype), bounds[which])
        for values, (which, dtype) in zip(columns, _columns(vocab_size), strict=True)
    ]
    headers = np.diff(bounds).T.tolist()  # [buckets, 4]
    for bucket, header, *of_columns in zip(found.tolist(), headers, *parts, strict=True):
        yield bucket, b"".join((HEADER.pack(*header), *of_columns))


def from_pieces(
    slices: Iterable[Any], vocab_size: int
) -> tuple[TokenizedDocuments, NDArray[np.int64]]:
    """The documents, and where in the data the piece of each begins, [D]."""
    data, headers, offset = b"".join(slices), [], 0
    counted, types = zip(*_columns(vocab_size), strict=True)
    sizes = [0, 0, 0, 0]  # bytes for each document, sentence, paragraph and token
    for which, dtype in zip(counted, types, strict=True):
        sizes[which] += dtype.itemsize
    while offset < len(data):
        header = HEADER.unpack_from(data, offset)
        headers.append(header)
        offset += HEADER.size + sum(map(mul, sizes, header))
    counts = np.array(headers, dtype=np.int64).reshape(-1, 4)[:, counted]
    lengths = np.insert(counts * [dtype.itemsize for dtype in types], 0, HEADER.size, axis=1)
    parts = Ragged(np.frombuffer(data, np.uint8), offsets_of(lengths.ravel()))
    columns = [
        parts.take(np.arange(number, len(parts), 1 + len(types))).values.view(dtype)
        for number, dtype in enumerate(types, 1)
    ]
    high, low, sentences, paragraphs, tokens_in, sentences_in, ids = columns
    sentence_offsets = offsets_of(sentences)
    starts = np.repeat(offsets_of(lengths.sum(axis=1))[:-1], counts[:, 0])
    documents = TokenizedDocuments(
        high,
        low,
        Ragged(tokens_in, sentence_offsets),
        Ragged(sentences_in, offsets_of(paragraphs)),
        Ragged(ids, offsets_of(tokens_in)[sentence_offsets]),
    )
    return documents, starts


def _cut(values: NDArray[Any], bounds: NDArray[np.int64]) -> Iterator[memoryview]:
    """The bytes of values[bounds[i] : bounds[i + 1]], for each i."""
    view = memoryview(values.tobytes())
    for start, stop in pairwise((bounds * values.itemsize).tolist()):
        yield view[start:stop]


def _columns(vocab_size: int) -> list[tuple[int, np.dtype[Any]]]:
    """Which header field is the length of each column of a piece, and its dtype."""
    ids = np.dtype(id_type(vocab_size).to_pandas_dtype()).newbyteorder("<")
    columns = (0, "<u8"), (0, "<u8"), (0, "<u4"), (0, "<u4"), (1, "<u4"), (2, "<u4"), (3, ids)
    return [(which, np.dtype(dtype)) for which, dtype in columns]
