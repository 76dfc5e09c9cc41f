"""In whatever order and chunks documents come, a bucket gets them once, sorted by hash."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.counts import Counts
from clozeline.pipeline.common.errors import CorruptDataError
from clozeline.pipeline.common.paths import whole_file
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.dataset.buckets import Buckets, hash_documents
from clozeline.pipeline.job.cache_file import (
    CacheFileWriter,
    read_counts,
    read_ends,
    read_index,
    read_runs,
)
from clozeline.pipeline.job.token_cache import (
    MAX_FILES,
    CacheInput,
    TokenCache,
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


def write(path: Path, *chunks, buckets=BUCKETS):
    """A cache file, of a chunk each; its name."""
    counted = [(tokenized(chunk), Counts(Counter(documents=len(chunk)))) for chunk in chunks]
    write_cache_file(path, counted, buckets=buckets, vocab_size=VOCAB)
    return path.name


def token_cache(folder, *names, num_buckets=4, vocab_size=VOCAB):
    """These files as shards see them."""
    inputs = map(CacheInput, names)
    return TokenCache(folder, inputs, num_buckets=num_buckets, vocab_size=vocab_size)


def read_all(folder, *names):
    """What each bucket reads out of several cache files."""
    cache = token_cache(folder, *names)
    return [cache.documents(bucket) for bucket in range(len(BUCKETS))]


@settings(max_examples=40)
@given(CORPUS)
def test_each_document_comes_back_once_in_its_bucket_in_the_order_of_hashes(
    tmp_path_factory, corpus
):
    folder = tmp_path_factory.mktemp("cache")
    found = read_all(folder, write(folder / "a", corpus))
    hashes = [hash_documents([str(document)]) for document in corpus]
    for bucket, (documents, duplicates, *_) in enumerate(found):
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
        for (documents, duplicates, *_), (expected, expected_duplicates, *_) in zip(
            other, one, strict=True
        ):
            assert nested(documents) == nested(expected)
            assert documents.hashes.tolist() == expected.hashes.tolist()
            assert duplicates == expected_duplicates


def test_a_bucket_without_anything_is_empty(tmp_path):
    write(tmp_path / "a", [[[[1, 2]]]])
    write(tmp_path / "none")
    empty = [bucket for bucket in range(4) if not token_cache(tmp_path, "a").inputs_of(bucket)]
    assert len(empty) == 3
    for cache in (token_cache(tmp_path), token_cache(tmp_path, "none"), token_cache(tmp_path, "a")):
        documents, duplicates, *_ = cache.documents(empty[0])
        assert (len(documents), duplicates) == (0, 0)
        assert documents.ids.dtype == np.uint16
        assert documents.sentence_offsets.tolist() == documents.document_offsets.tolist() == [0]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_ids_are_as_wide_as_the_vocabulary_asks(tmp_path, vocab_size, dtype):
    chunk = (tokenized([[[[65_000]]]]), Counts())
    one = Buckets(num_train=1, num_validation=0, validation=0)
    write_cache_file(tmp_path / "a", [chunk], buckets=one, vocab_size=vocab_size)
    cache = token_cache(tmp_path, "a", num_buckets=1, vocab_size=vocab_size)
    documents = cache.documents(0).documents
    assert documents.ids.dtype == dtype
    assert documents.ids.tolist() == [65_000]


def test_counts_of_all_chunks_come_back_from_the_file(tmp_path):
    counts = Counts(Counter(documents=2), Counter(empty=1), [{"where": "a\tß:3", "reason": "no"}])
    more = Counts(Counter(documents=1, tokens=5), Counter(), [{"where": "b", "reason": '"'}])
    nothing = tokenized([])
    chunks = [(nothing, counts), (nothing, more)]
    written = write_cache_file(tmp_path / "a", chunks, buckets=BUCKETS, vocab_size=VOCAB)
    [found] = read_counts([tmp_path / "a"])
    assert found == written
    assert found.read == {"documents": 3, "tokens": 5}
    assert found.dropped == {"empty": 1}
    assert [entry["where"] for entry in found.rejected] == ["a\tß:3", "b"]
    assert Counts.from_json(found.to_json()) == found
    assert "\n" not in found.to_json()


def test_counts_are_read_again_where_another_writer_replaced_the_file(tmp_path):
    """Between its end and its counts; CPU seconds of another length come from another writer."""
    names = ["a", "b"]
    for name in names:
        write_timed(tmp_path / name, 0.5)
    found = read_counts([tmp_path / name for name in names])
    first = next(found)  # the ends of both are read
    write_timed(tmp_path / "b", 0.123456789)
    [second] = found
    assert second == first
    assert second.seconds == {"read": 0.123456789}


def write_timed(path, seconds):
    counts = Counts(Counter(documents=3), seconds=Counter({"read": seconds}))
    with whole_file(path) as file:
        CacheFileWriter(file, 4).finish(counts)


def test_a_cache_file_is_named_by_all_it_depends_on_and_the_version():
    assert digest_of(["a", 1, BUCKETS]) == digest_of(["a", 1, BUCKETS])
    names = [("a", 1), ("a", 2), ("b", 1), ("a",), ("a", 1, BUCKETS), ("a1",), ("a, 1",)]
    assert len({digest_of(parts) for parts in names}) == len(names)


def rewrite(path, change):
    """Change the bytes of a file."""
    path.write_bytes(change(path.read_bytes()))


def read_everything(path):
    """All that is read of a file anywhere."""
    list(read_counts([path]))
    read_all(path.parent, path.name)


@pytest.mark.parametrize("keep", [0, 50, -20])
def test_a_damaged_cache_file_is_named_wherever_it_is_read(tmp_path, keep):
    path = tmp_path / "a.tokens"
    write(path, [[[[1, 2, 3]]]] * 3)
    rewrite(path, lambda data: data[:keep])
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
        entry, byte = divmod(place - end.index, 16)
        if entry in empty and byte < 8:
            continue  # where an empty slice begins does not matter
        with pytest.raises(CorruptDataError, match="is damaged"):
            read_everything(path)


def test_an_index_of_zeros_is_named(tmp_path):
    """As a file system leaves a page that it lost: it does not say that there is nothing."""
    path = tmp_path / "a.tokens"
    write(path, [[[[1, 2, 3]]]] * 3)
    [end] = read_ends([path])
    rewrite(
        path, lambda data: data[: end.index] + bytes(end.counts - end.index) + data[end.counts :]
    )
    for bucket in range(len(BUCKETS)):
        with pytest.raises(CorruptDataError, match="its checksum differs"):
            token_cache(tmp_path, path.name).documents(bucket)


def test_a_failed_block_leaves_no_file(tmp_path):
    def chunks():
        yield tokenized([[[[1, 2]]]]), Counts()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_cache_file(tmp_path / "a", chunks(), buckets=BUCKETS, vocab_size=VOCAB)
    assert list(tmp_path.iterdir()) == []


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


# ---- many files --------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(CORPUS, min_size=1, max_size=5), st.integers(1, 200))
def test_a_merged_file_has_what_its_files_have(tmp_path_factory, corpora, run_bytes):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:  # files of many runs
        patch.setattr("clozeline.pipeline.job.cache_file.RUN_BYTES", run_bytes)
        names = [write(folder / str(i), corpus, corpus) for i, corpus in enumerate(corpora)]
        merge_cache_files(folder, names, num_buckets=len(BUCKETS))
    for one, other in zip(
        read_all(folder, *names), read_all(folder, merged_name(names)), strict=True
    ):
        assert nested(one[0]) == nested(other[0])
        assert one[1] == other[1]
    [counts] = read_counts([folder / merged_name(names)])
    assert counts == token_cache(folder, *names).counts()


def test_a_file_has_a_run_each_time_so_much_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr("clozeline.pipeline.job.cache_file.RUN_BYTES", 10)
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
    monkeypatch.setattr(
        "clozeline.pipeline.job.token_cache.INDEX_BYTES", 70
    )  # two buckets of two files
    cache = token_cache(tmp_path, *names)
    for bucket in (3, 0, 1, 2):
        documents = cache.documents(bucket).documents
        assert len(cache._index[0]) == 2
        assert nested(documents) == nested(whole[bucket][0])


def test_files_are_merged_where_they_are_more_than_a_shard_may_read():
    files = [CacheInput(f"{i:05}", 1 + (i % 10 == 0)) for i in range(10 * MAX_FILES)]
    few = group_files(files[:MAX_FILES])
    assert few == {file: [file.name] for file in files[:MAX_FILES]}
    many = group_files([*files, *files[:5]])
    assert len(many) <= MAX_FILES + 1
    assert sorted((n, group.repeat, "") for group, names in many.items() for n in names) == files
    more = group_files([*files, CacheInput("one more")])
    assert len(set(more) & set(many)) >= len(many) - 1
