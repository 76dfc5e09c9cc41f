"""Sources to blocks: formats, slices that cover everything once, and clear refusals."""

import bz2
import gzip
import pickle
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.formats import check_columns_used, list_blocks
from clozeline.pipeline.sources.sample.articles import count_articles
from tests.support.small_sources import write

WIKI = '<doc id="1" url="" title="A">\nA\n\nText.\n</doc>\n'
XML = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">\n</mediawiki>\n'


def write_parquet(path, texts, **options):
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, **options)
    return str(path)


def formats(blocks):
    return [(block.format, block.compression) for block in blocks]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.jsonl", "x", ("jsonl", None)),
        ("a.JSON", "x", ("jsonl", None)),
        ("a.ndjson.gz", "x", ("jsonl", "gz")),
        ("a.txt.zst", "x", ("text", "zst")),
        ("a.txt", '{"text": "a text all the same"}', ("text", None)),
        ("wiki_00", WIKI, ("wikiextractor", None)),
        ("wiki_00", '{"text": "as --json writes it"}', ("jsonl", None)),
        ("wiki_07.bz2", "cut before its first block", ("wikiextractor", "bz2")),
        ("a.xml.bz2", "x", ("mediawiki", "bz2")),
        ("a.xml", "<page><title>No root</title></page>", ("mediawiki", None)),
        ("enwiki-multistream4.xml-p1p99.bz2", "x", ("mediawiki", "bz2")),
        ("dump", XML, ("mediawiki", None)),
        ("dump", XML.encode("utf-16"), ("mediawiki", None)),
        ("dump", bz2.compress(XML.encode()), ("mediawiki", "bz2")),
        ("file", gzip.compress(b' {"text": "a"}\n', mtime=0), ("jsonl", "gz")),
        ("a.txt", gzip.compress(b"a\n", mtime=0), ("text", "gz")),
        ("README", "Some words, é.", ("text", None)),
        ("notes.md", "\ufeff" + "é" * 40_000, ("text", None)),
        ("extracted", WIKI, ("wikiextractor", None)),
    ],
)
def test_formats_are_recognized_by_name_or_first_bytes(name, data, expected, tmp_path):
    assert formats(list_blocks([write(tmp_path / name, data)])) == [expected]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0"),
        ("a.pdf", b"%PDF-1.7 text"),
        ("a.html", b"<!doctype html>"),
        ("posts.xml", b'<?xml version="1.0"?>\n<posts><row Id="1" Body="Text." /></posts>'),
        ("latin", "caf\xe9 and more".encode("latin-1")),
        ("a.tar.gz", gzip.compress(b"name\0\0\0", mtime=0)),
    ],
)
def test_an_unknown_format_is_refused(name, data, tmp_path):
    with pytest.raises(InputError, match=f"{name}: unknown format; give Parquet, .jsonl"):
        list_blocks([write(tmp_path / name, data)])


@pytest.mark.parametrize("name", ["a.json", "array", "b.jsonl.gz"])
@pytest.mark.parametrize("start", ["[{", "\ufeff[\n  {"])
def test_a_json_array_is_refused_with_the_command_that_converts_it(name, start, tmp_path):
    data = f'{start}"text": "a"}}, {{"text": "b"}}]'.encode()
    source = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(InputError, match=r"is one JSON array; .*: jq -c '\.\[\]' ARRAY\.json > "):
        list_blocks([source])


def test_blocks_cover_a_file_and_their_text_does_not_depend_on_their_size(tmp_path):
    sources = [
        write(tmp_path / "a.txt", "x" * 1000),
        write(tmp_path / "b.jsonl.gz", "y" * 1000),
        write_parquet(tmp_path / "c.parquet", ["some text", "more"] * 50, row_group_size=7),
        "sample:articles?size=64KB&seed=3",
        "sample:reviews?rows=100&start=50",
    ]
    sums = set()
    for block_bytes in (1, 10, 333, 1 << 20):
        blocks = list_blocks(sources, block_bytes=block_bytes)
        assert [block.index for block in blocks] == list(range(len(blocks)))
        sums.add(sum(block.text_bytes for block in blocks))
        last: dict[str, int] = {}
        for block in blocks:
            assert block.start < block.stop
            assert block.start == last.get(block.path, block.start)
            last[block.path] = block.stop
        assert list(last.values()) == [1000, 1000, 15, count_articles(64_000), 150]
    assert len(sums) == 1
    assert len(list_blocks(sources[:1], block_bytes=100)) == 10
    assert len(list_blocks(sources[2:3], block_bytes=1)) == 15
    assert len(list_blocks(sources, block_bytes=1 << 20)) == 5


def test_blocks_can_be_pickled_and_have_unique_identities(tmp_path):
    path = tmp_path / "a.txt"
    before = list_blocks([write(path, "x" * 100), "sample:articles"], block_bytes=50)
    assert pickle.loads(pickle.dumps(before)) == before
    again = list_blocks(["sample:articles", str(path)], block_bytes=50)
    assert {block.identity for block in again} == {block.identity for block in before}
    assert len({block.identity for block in before}) == len(before)
    twin = tmp_path / "b.txt"
    shutil.copy2(path, twin)  # of the same size and time
    assert list_blocks([str(twin)])[0].identity != list_blocks([str(path)])[0].identity
    path.write_text("y" * 101)
    after = list_blocks([str(path)], block_bytes=50)
    assert not {block.identity for block in after} & {block.identity for block in before}


def test_a_larger_sample_begins_with_the_blocks_of_a_smaller_one():
    small = list_blocks(["sample:articles?size=210KB"], block_bytes=21_000)
    large = list_blocks(["sample:articles?size=420KB"], block_bytes=21_000)
    whole = [block.identity for block in small[:-1]]  # the last one is a part of a block
    assert len(whole) > 5
    assert whole == [block.identity for block in large[: len(whole)]]


def test_a_file_named_twice_is_read_once(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    assert len(list_blocks([path, f"{tmp_path}/*", path])) == 1
    assert list_blocks(["sample:articles"] * 2) == list_blocks(["sample:articles"])


def test_an_index_cuts_the_dump_beside_it_and_is_not_a_source_itself(tmp_path):
    header, pages = bz2.compress(XML[:70].encode()), bz2.compress(b"<page></page>\n" * 100)
    write(tmp_path / "x-multistream.xml.bz2", header + pages * 3 + bz2.compress(b"</mediawiki>"))
    offsets = [len(header) + i * len(pages) for i in range(3)]
    lines = "".join(f"{offset}:{i}:Title: {i}\n" for offset in offsets for i in range(100))
    index = write(tmp_path / "x-multistream-index.txt.bz2", bz2.compress(lines.encode()))
    (whole,) = list_blocks([f"{tmp_path}/*"])
    blocks = list_blocks([f"{tmp_path}/*"], block_bytes=1)
    assert [block.start for block in blocks] == [0, *offsets[1:]]
    assert [block.stop for block in blocks] == [*offsets[1:], whole.stop]
    assert sum(block.text_bytes for block in blocks) == whole.text_bytes
    write(tmp_path / "x-multistream-index.txt.bz2", bz2.compress(b"7:1:not its index\n"))
    (uncut,) = list_blocks([f"{tmp_path}/*"], block_bytes=1)
    assert (uncut.start, uncut.stop) == (0, whole.stop)
    with pytest.raises(InputError, match="nothing to read"):
        list_blocks([index])


@pytest.mark.parametrize("files", [{}, {"a.txt": ""}, {"a.jsonl": "", "b": "", "c.xml": ""}])
def test_an_empty_corpus_is_refused(files, tmp_path):
    sources = [write(tmp_path / name, data) for name, data in files.items()]
    with pytest.raises(InputError, match="nothing to read in"):
        list_blocks(sources)


def test_parquet_without_the_text_column_names_those_it_has(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", ["a"])
    with pytest.raises(InputError, match=r"a\.parquet has no column 'body'; its columns are id"):
        list_blocks([path], text_columns=("text", "body"))
    with pytest.raises(InputError, match="column 'id' holds int64, not text"):
        list_blocks([path], text_columns=("id",))


def test_named_columns_are_refused_where_no_source_is_read_by_them(tmp_path):
    table = write(tmp_path / "a.csv", "text,title\na,b\n")
    sources = [write(tmp_path / "b.txt", "Text."), f"{table}?text=title"]
    with pytest.raises(InputError, match=r"^--text-columns title does nothing: each source is"):
        check_columns_used(("title",), list_blocks(sources))
    check_columns_used(("text",), list_blocks(sources))
    check_columns_used(("title",), list_blocks([*sources, table]))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1 and no footer PAR1"])
def test_corrupt_parquet_is_named(data, tmp_path):
    with pytest.raises(InputError, match=r"a\.parquet is not a readable Parquet file"):
        list_blocks([write(tmp_path / "a.parquet", data)])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sample:essays", "unknown sample; give sample:articles or sample:reviews"),
        ("sample:articles?rows=3", "no option 'rows'; the options are size, seed"),
        ("sample:articles?big", "no option 'big'; the options are size, seed"),
        ("sample:articles?size=huge", "size is 'huge'; give bytes, such as 250MB or 64KB."),
        ("sample:reviews?rows=-1", "rows is a whole number, as in rows=5000, not '-1'"),
        ("sample:articles?size", "size is ''; give bytes, such as 250MB or 64KB."),
        ("sample:reviews?turning=2", "turning is from 0 to 1, as in turning=0.25, not '2'"),
        ("sample:reviews?turn=1", "the options are rows, seed, start, turning, words"),
        ("sample:reviews?words=some", "words is all, even, odd, not 'some'"),
        ("sample:reviews?rows=0", "nothing to read in sample:reviews?rows=0"),
        ("sample:articles?size=0", "nothing to read in sample:articles?size=0; give a source"),
        ("hf://x?config=1", "no option 'config'; the options are name, split"),
        ("sample:articles?repeat=2&rows=3", "options are size, seed, repeat, limit, tokens"),
        ("sample:articles?text=title", "sample:articles has no columns"),
    ],
)
def test_bad_options_list_the_good_ones(source, message):
    with pytest.raises(InputError) as error:
        list_blocks([source])
    assert message in str(error.value)
