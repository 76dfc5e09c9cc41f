"""In whatever order and chunks documents come, a bucket gets them once, sorted by hash."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.common.counts import Counts
from pipeline.common.errors import CorruptDataError
from pipeline.common.ragged import Ragged, offsets_of
from pipeline.dataset.buckets import Buckets, hash_documents
from pipeline.job.token_cache import (
    CacheSlice,
    cache_file_name,
    cache_schema,
    list_slices,
    read_counts,
    read_documents,
    write_cache_file,
)
from pipeline.tokenization.documents import TokenizedDocuments

VOCAB = 1000
SCHEMA = cache_schema(VOCAB)
BUCKETS = Buckets(num_train=3, num_validation=1, validation=0.3)

IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)  # a sentence
DOCUMENT = st.lists(st.lists(IDS, max_size=3), min_size=1, max_size=3).filter(any)
CORPUS = st.lists(DOCUMENT, max_size=8)


def tokenized(corpus):
    """Documents of paragraphs of sentences of ids, as columns; the hash is that of their text."""
    sentences = [[s for paragraph in document for s in paragraph] for document in corpus]
    high, low = hash_documents(list(map(str, corpus)))
    return TokenizedDocuments(
        high,
        low,
        _ragged([[len(s) for s in document] for document in sentences]),
        _ragged([[len(paragraph) for paragraph in document] for document in corpus]),
        _ragged([[i for s in document for i in s] for document in sentences]),
    )


def _ragged(rows):
    values = np.array([value for row in rows for value in row], dtype=np.int64)
    return Ragged(values, offsets_of([len(row) for row in rows]))


def nested(documents):
    """A bucket taken apart: ids in sentences in paragraphs (those that have any) in documents."""
    found = []
    for first, last in zip(
        documents.document_offsets, documents.document_offsets[1:], strict=False
    ):
        paragraphs: dict[int, list[list[int]]] = {}
        for s in range(first, last):
            start, stop = documents.sentence_offsets[s : s + 2]
            paragraphs.setdefault(int(documents.paragraphs[s]), []).append(
                documents.ids[start:stop].tolist()
            )
        found.append(list(paragraphs.values()))
    return found


def write(path: Path, *chunks):
    write_cache_file(
        path,
        [(tokenized(chunk), Counts(Counter(documents=len(chunk)))) for chunk in chunks],
        buckets=BUCKETS,
        schema=SCHEMA,
    )
    return list_slices(path)


def read_all(folder, *files):
    """What each bucket reads out of the slices of several cache files."""
    return [
        read_documents(folder, [slices[bucket] for slices in files if bucket in slices], VOCAB)
        for bucket in range(len(BUCKETS))
    ]


@settings(max_examples=40)
@given(CORPUS)
def test_each_document_comes_back_once_in_its_bucket_in_the_order_of_hashes(
    tmp_path_factory, corpus
):
    folder = tmp_path_factory.mktemp("cache")
    found = read_all(folder, write(folder / "a", corpus))
    hashes = [hash_documents([str(document)]) for document in corpus]
    for bucket, (documents, duplicates) in enumerate(found):
        mine = {
            (int(high[0]), int(low[0])): [paragraph for paragraph in document if paragraph]
            for (high, low), document in zip(hashes, corpus, strict=True)
            if BUCKETS.of(high, low)[0] == bucket
        }
        assert nested(documents) == [mine[key] for key in sorted(mine)]
        assert documents.hashes.tolist() == [high for high, _ in sorted(mine)]
        assert duplicates == sum(BUCKETS.of(h, low)[0] == bucket for h, low in hashes) - len(mine)


@settings(max_examples=40)
@given(CORPUS, CORPUS, CORPUS)
def test_chunks_and_files_and_their_order_do_not_matter(tmp_path_factory, first, second, third):
    folder = tmp_path_factory.mktemp("cache")
    one = read_all(folder, write(folder / "one", first + second + third))
    chunks = read_all(folder, write(folder / "chunks", third, first, [], second))
    files = write(folder / "x", second), write(folder / "y", first, third)
    for other in (chunks, read_all(folder, *files), read_all(folder, *files[::-1])):
        for (documents, duplicates), (expected, expected_duplicates) in zip(
            other, one, strict=True
        ):
            assert nested(documents) == nested(expected)
            assert documents.hashes.tolist() == expected.hashes.tolist()
            assert duplicates == expected_duplicates


def test_a_slice_that_comes_twice_is_read_once(tmp_path):
    corpus = [[[[1, 2]]], [[[3]]], [[[4]]], [[[5]]]]
    for part in write(tmp_path / "a", corpus).values():
        once = read_documents(tmp_path, [part], VOCAB)
        twice = read_documents(tmp_path, [part, part], VOCAB)
        assert nested(once[0]) == nested(twice[0])
        assert twice[1] == 0


def test_a_bucket_without_anything_is_empty(tmp_path):
    write(tmp_path / "a", [[[[1, 2]]]])
    for slices in ([], [CacheSlice("a", ())]):
        documents, duplicates = read_documents(tmp_path, slices, VOCAB)
        assert (len(documents), duplicates) == (0, 0)
        assert documents.ids.dtype == np.uint16
        assert documents.sentence_offsets.tolist() == documents.document_offsets.tolist() == [0]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_ids_are_as_wide_as_the_vocabulary_asks(tmp_path, vocab_size, dtype):
    chunk = (tokenized([[[[65_000]]]]), Counts())
    one = Buckets(num_train=1, num_validation=0, validation=0)
    write_cache_file(tmp_path / "a", [chunk], buckets=one, schema=cache_schema(vocab_size))
    documents, _ = read_documents(tmp_path, list_slices(tmp_path / "a").values(), vocab_size)
    assert documents.ids.dtype == dtype
    assert documents.ids.tolist() == [65_000]


def test_counts_of_all_chunks_come_back_from_the_file(tmp_path):
    counts = Counts(Counter(documents=2), Counter(empty=1), [{"where": "a\tß:3", "reason": "no"}])
    more = Counts(Counter(documents=1, tokens=5), Counter(), [{"where": "b", "reason": '"'}])
    nothing = tokenized([])
    chunks = [(nothing, counts), (nothing, more)]
    write_cache_file(tmp_path / "a", chunks, buckets=BUCKETS, schema=SCHEMA)
    found = read_counts(tmp_path / "a")
    assert found.read == {"documents": 3, "tokens": 5}
    assert found.dropped == {"empty": 1}
    assert [entry["where"] for entry in found.rejected] == ["a\tß:3", "b"]
    assert Counts.from_json(found.to_json()) == found
    assert "\n" not in found.to_json()
    assert list_slices(tmp_path / "a") == {}


def test_a_cache_file_is_named_by_all_it_depends_on_and_the_version():
    assert cache_file_name("a", 1, BUCKETS) == cache_file_name("a", 1, BUCKETS)
    names = [("a", 1), ("a", 2), ("b", 1), ("a",), ("a", 1, BUCKETS), ("a1",), ("a, 1",)]
    assert len({cache_file_name(*parts) for parts in names}) == len(names)
    assert cache_file_name("a").endswith(".tokens.arrow")


@pytest.mark.parametrize("keep", [0, 50, -20])
def test_a_damaged_cache_file_is_named_wherever_it_is_read(tmp_path, keep):
    slices = write(tmp_path / "a.tokens.arrow", [[[[1, 2, 3]]]] * 3)
    data = (tmp_path / "a.tokens.arrow").read_bytes()
    (tmp_path / "a.tokens.arrow").write_bytes(data[:keep])
    message = r"a\.tokens\.arrow is damaged .*; delete it and rerun the command"
    with pytest.raises(CorruptDataError, match=message):
        list_slices(tmp_path / "a.tokens.arrow")
    with pytest.raises(CorruptDataError, match=message):
        read_counts(tmp_path / "a.tokens.arrow")
    if keep >= 0:  # the bytes of the batches themselves
        with pytest.raises(CorruptDataError, match=message):
            read_documents(tmp_path, slices.values(), VOCAB)


def test_each_flipped_byte_of_a_batch_is_named(tmp_path):
    slices = write(tmp_path / "a.tokens.arrow", [[[[1, 2, 3]]]] * 3)
    data = (tmp_path / "a.tokens.arrow").read_bytes()
    (part,) = slices.values()
    (span,) = part.spans
    for place in range(span.start, span.start + span.length, 7):
        damaged = bytearray(data)
        damaged[place] ^= 1
        (tmp_path / "a.tokens.arrow").write_bytes(damaged)
        with pytest.raises(CorruptDataError, match=r"is damaged \(its checksum differs\)"):
            read_documents(tmp_path, [part], VOCAB)


def test_a_failed_block_leaves_no_file(tmp_path):
    def chunks():
        yield tokenized([[[[1, 2]]]]), Counts()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_cache_file(tmp_path / "a", chunks(), buckets=BUCKETS, schema=SCHEMA)
    assert list(tmp_path.iterdir()) == []


def test_equal_documents_are_equal_batches(tmp_path):
    corpus = [[[[i, 2], [3]]] for i in range(20)]
    write(tmp_path / "a", corpus)
    write(tmp_path / "b", corpus)
    a, b = pa.ipc.open_file(tmp_path / "a"), pa.ipc.open_file(tmp_path / "b")
    assert a.read_all().equals(b.read_all())
    assert a.num_record_batches == len(list_slices(tmp_path / "a")) + 1  # one a bucket, the counts


def test_documents_are_duplicates_only_if_all_of_the_hash_is_equal(tmp_path):
    documents = replace(
        tokenized([[[[3]]], [[[1]]], [[[2]]], [[[2]]]]),
        high=np.full(4, 7, np.uint64),
        low=np.array([9, 1, 5, 5], np.uint64),
    )
    one = Buckets(num_train=1, num_validation=0, validation=0)
    write_cache_file(tmp_path / "a", [(documents, Counts())], buckets=one, schema=SCHEMA)
    found, duplicates = read_documents(tmp_path, list_slices(tmp_path / "a").values(), VOCAB)
    assert nested(found) == [[[[1]]], [[[2]]], [[[3]]]]
    assert duplicates == 1
