"""In whatever order and chunks documents come, a bucket gets them once, sorted by hash."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import CorruptDataError
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.buckets import Buckets, hash_documents
from clozeline.pipeline.dataset.cache_file import (
    CacheFileWriter,
    read_counts,
    read_ends,
    read_index,
    read_runs,
)
from clozeline.pipeline.steps.token_cache import (
    MAX_FILES,
    TokenCache,
    TokenFile,
    digest_of,
    group_files,
    merge_cache_files,
    merged_name,
    write_cache_file,
)
from clozeline.pipeline.tokenization.documents import TokenizedDocuments

VOCAB = 1000
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
    for first, last in pairwise(documents.document_offsets):
        paragraphs: dict[int, list[list[int]]] = {}
        for s in range(first, last):
            start, stop = documents.sentence_offsets[s : s + 2]
            sentence = documents.ids[start:stop].tolist()
            paragraphs.setdefault(int(documents.paragraphs[s]), []).append(sentence)
        found.append(list(paragraphs.values()))
    return found


def write(path, *chunks, buckets=BUCKETS):
    """A cache file, of a chunk each; its name."""
    counted = [(tokenized(chunk), Counts(Counter(documents=len(chunk)))) for chunk in chunks]
    write_cache_file(path, counted, buckets=buckets, vocab_size=VOCAB)
    return path.name


def token_cache(folder, *names, num_buckets=4, vocab_size=VOCAB):
    """These files as shards see them."""
    inputs = map(TokenFile, names)
    return TokenCache(folder, inputs, num_buckets=num_buckets, vocab_size=vocab_size)


def read_all(folder, *names):
    """What each bucket reads out of several cache files."""
    cache = token_cache(folder, *names)
    return [cache.documents(bucket) for bucket in range(len(BUCKETS))]


@settings(max_examples=40)
@given(st.tuples(CORPUS, CORPUS, CORPUS), st.integers(1, 400))
def test_each_document_comes_back_once_in_its_bucket_in_the_order_of_hashes(
    tmp_path_factory, corpora, run_bytes
):
    """In whatever chunks, runs and files it was written, and from a merged file."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clozeline.pipeline.dataset.cache_file.RUN_BYTES", run_bytes)
        chunks = write(folder / "chunks", *corpora[::-1], [])
        files = [write(folder / str(i), corpus) for i, corpus in enumerate(corpora)]
        merge_cache_files(folder, files, num_buckets=len(BUCKETS))
    merged = merged_name(files)
    assert next(read_counts([folder / merged])) == token_cache(folder, *files).counts()
    corpus = [document for part in corpora for document in part]
    hashes = [tuple(int(half[0]) for half in hash_documents([str(x)])) for x in corpus]
    mine, given = [{} for _ in range(len(BUCKETS))], Counter()
    for key, document in zip(hashes, corpus, strict=True):
        [bucket] = BUCKETS.of(*np.array([key], np.uint64).T)
        mine[bucket][key] = [paragraph for paragraph in document if paragraph]
        given[bucket] += 1
    for names in ([chunks], files, files[::-1], [merged]):
        for bucket, (documents, duplicates, *_) in enumerate(read_all(folder, *names)):
            keys = sorted(mine[bucket])
            assert nested(documents) == [mine[bucket][key] for key in keys]
            assert documents.hashes.tolist() == [high for high, _ in keys]
            assert duplicates == given[bucket] - len(keys)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_ids_are_as_wide_as_the_vocabulary_asks(tmp_path, vocab_size, dtype):
    chunk = (tokenized([[[[65_000]]]]), Counts())
    one = Buckets(num_train=1, num_validation=0, validation=0)
    write_cache_file(tmp_path / "a", [chunk], buckets=one, vocab_size=vocab_size)
    cache = token_cache(tmp_path, "a", num_buckets=1, vocab_size=vocab_size)
    ids = cache.documents(0).documents.ids
    assert (ids.dtype, ids.tolist()) == (dtype, [65_000])


def test_counts_of_all_chunks_come_back_from_the_file(tmp_path):
    counts = Counts(Counter(documents=2), Counter(empty=1), [{"where": "a\tß:3", "reason": "no"}])
    more = Counts(Counter(documents=1, tokens=5), Counter(), [{"where": "b", "reason": '"'}])
    chunks = [(tokenized([]), counts), (tokenized([]), more)]
    written = write_cache_file(tmp_path / "a", chunks, buckets=BUCKETS, vocab_size=VOCAB)
    [found] = read_counts([tmp_path / "a"])
    assert found == written
    assert found.read == {"documents": 3, "tokens": 5}
    assert found.dropped == {"empty": 1}
    assert [entry["where"] for entry in found.rejected] == ["a\tß:3", "b"]
    assert Counts.from_json(found.to_json()) == found
    assert "\n" not in found.to_json()


def test_a_cache_file_is_named_by_all_it_depends_on_and_the_version():
    assert digest_of(["a", 1, BUCKETS]) == digest_of(["a", 1, BUCKETS])
    names = [("a", 1), ("a", 2), ("b", 1), ("a",), ("a", 1, BUCKETS), ("a1",), ("a, 1",)]
    assert len({digest_of(parts) for parts in names}) == len(names)


def read_everything(path):
    """All that is read of a file anywhere."""
    list(read_counts([path]))
    read_all(path.parent, path.name)


@pytest.mark.parametrize("keep", [0, 50, -20])
def test_a_damaged_cache_file_is_named_wherever_it_is_read(tmp_path, keep):
    path = tmp_path / "a.tokens"
    write(path, [[[[1, 2, 3]]]] * 3)
    path.write_bytes(path.read_bytes()[:keep])
    for read in (
        lambda: read_ends([path]),
        lambda: list(read_counts([path])),
        lambda: list(read_runs(path, 4)),
        lambda: token_cache(tmp_path, path.name).documents(0),
    ):
        message = r"a\.tokens is damaged .*; delete it and rerun the command"
        with pytest.raises(CorruptDataError, match=message):
            read()


def test_each_flipped_byte_is_named(tmp_path):
    path = tmp_path / "a.tokens"
    write(path, [[[[1, 2, 3]]]] * 3, [[[[4, 5]]]])
    whole, [end] = path.read_bytes(), read_ends([path])
    [index] = read_index([path], [end], range(4))
    empty = np.flatnonzero(index["length"][:, 0] == 0)
    read_everything(path)
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        entry, byte = divmod(place - end.index_start, 16)
        if entry in empty and byte < 8:
            continue  # where an empty slice begins does not matter
        with pytest.raises(CorruptDataError, match="is damaged"):
            read_everything(path)


def test_an_index_of_zeros_is_named(tmp_path):
    """As a file system leaves a page that it lost: it does not say that there is nothing."""
    path = tmp_path / "a.tokens"
    write(path, [[[[1, 2, 3]]]] * 3)
    data, [end] = path.read_bytes(), read_ends([path])
    index = slice(end.index_start, end.counts_start)
    path.write_bytes(data[: index.start] + bytes(index.stop - index.start) + data[index.stop :])
    for bucket in range(len(BUCKETS)):
        with pytest.raises(CorruptDataError, match="its checksum differs"):
            token_cache(tmp_path, path.name).documents(bucket)


def test_documents_are_duplicates_only_if_all_of_the_hash_is_equal(tmp_path):
    documents = replace(
        tokenized([[[[3]]], [[[1]]], [[[2]]], [[[2]]]]),
        high=np.full(4, 7, np.uint64),
        low=np.array([9, 1, 5, 5], np.uint64),
    )
    one = Buckets(num_train=1, num_validation=0, validation=0)
    write_cache_file(tmp_path / "a", [(documents, Counts())], buckets=one, vocab_size=VOCAB)
    found, duplicates, *_ = token_cache(tmp_path, "a", num_buckets=1).documents(0)
    assert nested(found) == [[[[1]]], [[[2]]], [[[3]]]]
    assert duplicates == 1


def test_a_file_has_a_run_each_time_so_much_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr("clozeline.pipeline.dataset.cache_file.RUN_BYTES", 10)
    with (tmp_path / "a").open("wb") as file:
        writer = CacheFileWriter(file, 3)
        for bucket in (2, 0, 2, 1, 0, 2):
            writer.add(bucket, b"1234")
        writer.finish(Counts())
    assert read_ends([tmp_path / "a"])[0].runs == 2
    slices = [(bucket, bytes(data)) for bucket, data in read_runs(tmp_path / "a", 3)]
    assert slices == [(0, b"1234"), (2, b"12341234"), (0, b"1234"), (1, b"1234"), (2, b"1234")]


def test_a_bucket_reads_a_part_of_each_index(tmp_path, monkeypatch):
    corpus = [[[[i, 2], [3]]] for i in range(40)]
    names = [write(tmp_path / name, corpus[i::2]) for i, name in enumerate("ab")]
    whole = read_all(tmp_path, *names)
    monkeypatch.setattr("clozeline.pipeline.steps.token_cache.INDEX_BYTES", 70)
    cache = token_cache(tmp_path, *names)
    for bucket in (3, 0, 1, 2):
        documents = cache.documents(bucket).documents
        assert len(cache._index[0]) == 2  # buckets of two files
        assert nested(documents) == nested(whole[bucket][0])


def test_files_are_merged_where_they_are_more_than_a_shard_may_read():
    files = [TokenFile(f"{i:05}", 1 + (i % 10 == 0)) for i in range(10 * MAX_FILES)]
    few = group_files(files[:MAX_FILES])
    assert few == {file: [file.name] for file in files[:MAX_FILES]}
    many = group_files([*files, *files[:5]])
    assert len(many) <= MAX_FILES + 1
    assert sorted((n, group.repeat, "") for group, names in many.items() for n in names) == files
    more = group_files([*files, TokenFile("one more")])
    assert len(set(more) & set(many)) >= len(many) - 1
