"""Names to files, files to bytes and blocks; missing, cut, corrupt and unknown files."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.files import CHUNK, find_files, open_file, open_unpacked
from clozeline.pipeline.sources.formats import check_columns_used, list_blocks
from clozeline.pipeline.sources.record_boundaries import cut_chunks
from clozeline.pipeline.sources.sample.source import count_articles
from clozeline.pipeline.sources.text_files import BOUNDARIES
from tests.support.small_sources import PACKERS, write, write_multistream

TEXT = b"".join(b"line %d of a file\n" % i for i in range(40_000))


def read(path, compression):
    with open_unpacked(str(path), compression) as stream:
        return stream.read()


@pytest.mark.parametrize("size", [0, 4, 3 * CHUNK + 4])
def test_xz_may_have_padding_between_and_after_streams(size, tmp_path):
    for rest, end in ((b"", b""), (lzma.compress(b"the end"), b"the end")):
        (tmp_path / "file").write_bytes(lzma.compress(b"begin ") + bytes(size) + rest)
        assert read(tmp_path / "file", "xz") == b"begin " + end


def test_a_truncated_file_with_a_name_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "caf\udce9.txt.gz").write_bytes(gzip.compress(b"The end.")[:-8])
    with pytest.raises(InputError, match=r"caf\\udce9\.txt\.gz is not whole: truncated"):
        list_blocks([str(tmp_path / "*.txt.gz")])


@pytest.mark.parametrize("compression", PACKERS)
def test_concatenated_streams_are_read_to_the_end_or_to_a_damaged_one(compression, tmp_path):
    path, pack = tmp_path / "file", PACKERS[compression]
    path.write_bytes(b"")
    with pytest.raises(InputError, match=f"truncated or corrupt {compression}: the file is empty"):
        read(path, compression)
    for whole, data in ((pack(b""), b""), (pack(TEXT) + pack(b"the end"), TEXT + b"the end")):
        path.write_bytes(whole)
        assert read(path, compression) == data
    path.write_bytes(pack(TEXT) + b"garbage, not a stream" * 100)
    chunks: list[bytes] = []
    with (
        open_unpacked(str(path), compression) as stream,
        pytest.raises(InputError, match=f"truncated or corrupt {compression}: "),
    ):
        chunks.extend(iter(lambda: stream.read1(CHUNK), b""))
    data = b"".join(chunks)
    assert TEXT.startswith(data)
    assert len(data) >= len(TEXT) - CHUNK


def test_files_of_a_glob_are_sorted_and_a_link_to_a_missing_one_is_named(tmp_path):
    for name in ("a[1].txt", "a.txt", "a.log"):
        (tmp_path / name).write_text(name)
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "folder.txt").mkdir()
    found = [(Path(file.path).name, file.size) for file in find_files(f"{tmp_path}/**/*.*")]
    assert found == [("a.log", 5), ("a.txt", 5), ("a[1].txt", 8), ("b.txt", 5)]
    [file] = find_files(str(tmp_path / "a[1].txt"))  # it looks like a glob
    assert file.size == 8
    assert find_files(str(tmp_path / "*a[[]1].*")) == [file]
    (tmp_path / "c.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"/c\.txt links to a file that is missing; restore it"):
        find_files(str(tmp_path / "*.txt"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{}/missing.txt", "missing.txt: no such file; check the path"),
        ("{}/*.parquet", "*.parquet matches no file; check the path"),
        (
            "{}/a.txt?txt=body",
            "matches no file; check the path, or the option: text, repeat, limit, tokens",
        ),
        ("{}/a[1]/*.txt", "; a [ that is part of a name is written [[]"),
        ("{}", "is a folder; name its files, as in '{}/*'"),
        ("nowhere://x", "nowhere://x cannot be opened: Protocol not known: nowhere"),
        ("", "a source has an empty name; give the path of a file, a glob or a URL."),
    ],
)
def test_a_missing_file_is_one_clear_line(source, message, tmp_path):
    message = re.escape(message.replace("{}", str(tmp_path)))
    with pytest.raises(InputError, match=message):
        find_files(source.replace("{}", str(tmp_path)))


def test_what_can_be_read_only_once_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    with (tmp_path / "b.jsonl").open("w") as file:
        for source in (tmp_path / "a.jsonl", f"/dev/fd/{file.fileno()}", "/dev/null"):
            with pytest.raises(InputError, match=rf"^{source} is a pipe or .* save its text as a "):
                find_files(str(source))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.txt cannot be opened"):
        open_file(str(tmp_path / "gone.txt"))


def test_a_block_inside_a_huge_document_reads_no_further_than_itself():
    class Counted(io.BytesIO):
        read_bytes = 0

        def read(self, size=-1):
            data = super().read(size)
            self.read_bytes += len(data)
            return data

    stream = Counted(b"x" * 50_000_000)
    block = cut_chunks(
        stream, BOUNDARIES["jsonl"], start=1_000_000, stop=2_000_000, chunk_bytes=1 << 20
    )
    assert list(block) == []
    assert stream.read_bytes < 4_000_000


# --- Sources to blocks: formats, slices that cover everything once, and clear refusals ------------
WIKI = '<doc id="1" url="" title="A">\nA\n\nText.\n</doc>\n'
XML = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">\n</mediawiki>\n'


def write_parquet(path, texts, **options):
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, **options)
    return str(path)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.jsonl", "x", ("jsonl", None)),
        ("a.JSON", "x", ("jsonl", None)),
        ("a.ndjson.gz", gzip.compress(b"x", mtime=0), ("jsonl", "gz")),
        ("a.txt.zst", PACKERS["zst"](b"x"), ("text", "zst")),
        ("wiki_00", WIKI, ("wikiextractor", None)),
        ("wiki_00", '{"text": "as --json writes it"}', ("jsonl", None)),
        ("wiki_07.bz2", bz2.compress(b"x"), ("wikiextractor", "bz2")),
        ("a.xml", "<page><title>No root</title></page>", ("mediawiki", None)),
        ("enwiki-multistream4.xml-p1p99.bz2", bz2.compress(XML.encode()), ("mediawiki", "bz2")),
        ("dump", XML, ("mediawiki", None)),
        ("dump", XML.encode("utf-16"), ("mediawiki", None)),
        ("dump", bz2.compress(XML.encode()), ("mediawiki", "bz2")),
        ("file", gzip.compress(b' {"text": "a"}\n', mtime=0), ("jsonl", "gz")),
        ("a.txt", gzip.compress(b"a\n", mtime=0), ("text", "gz")),
        ("README", "Some words, é.", ("text", None)),
        ("notes.md", "\ufeff" + "é" * 40_000, ("text", None)),
    ],
)
def test_formats_are_recognized_by_name_or_first_bytes(name, data, expected, tmp_path):
    [block] = list_blocks([write(tmp_path / name, data)])
    assert (block.format, block.compression) == expected


def test_a_json_array_is_refused_with_the_command_that_converts_it(tmp_path):
    for name, start in (("a.json", "[{"), ("array", "\ufeff[\n  {")):
        source = write(tmp_path / name, f'{start}"text": "a"}}, {{"text": "b"}}]')
        with pytest.raises(InputError, match=r"is one JSON array, .*: jq -c '\.\[\]' ARRAY\.json "):
            list_blocks([source])


def test_blocks_cover_a_file_and_their_text_does_not_depend_on_their_size(tmp_path):
    packed = gzip.compress(b"{}\n" * 1000)
    sources = [
        write(tmp_path / "a.txt", "x" * 1000),
        write(tmp_path / "b.jsonl.gz", packed),
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
        assert list(last.values()) == [1000, len(packed), 15, count_articles(64_000), 150]
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
    pages = ["<page></page>\n" * 100] * 3
    _, offsets = write_multistream(tmp_path, [XML[:70], *pages, "</mediawiki>"])
    (whole,) = list_blocks([f"{tmp_path}/*"])
    blocks = list_blocks([f"{tmp_path}/*"], block_bytes=1)
    assert [block.start for block in blocks] == [0, *offsets[1:]]
    assert [block.stop for block in blocks] == [*offsets[1:], whole.stop]
    assert sum(block.text_bytes for block in blocks) == whole.text_bytes
    index = tmp_path / "x-multistream-index.txt.bz2"
    write(index, bz2.compress(b"7:1:not its index\n9:2:neither\n"))
    (uncut,) = list_blocks([f"{tmp_path}/*"], block_bytes=1)
    assert (uncut.start, uncut.stop) == (0, whole.stop)
    with pytest.raises(InputError, match="nothing to read"):
        list_blocks([str(index)])


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
