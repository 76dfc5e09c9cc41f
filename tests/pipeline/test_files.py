"""Names to files, files to bytes; missing, truncated and corrupt files."""

import io
import lzma
import os
from pathlib import Path

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.files import (
    CHUNK,
    bare_name,
    damage,
    find_files,
    open_file,
    open_unpacked,
)
from clozeline.pipeline.sources.record_boundaries import cut_chunks
from clozeline.pipeline.sources.text_files import BOUNDARIES
from tests.support.small_sources import PACKERS

TEXT = b"".join(b"line %d of a file\n" % i for i in range(40_000))


def read(path: Path, compression: str) -> tuple[bytes, str | None]:
    with open_unpacked(str(path), compression) as stream:
        return stream.read(), damage(stream)


@pytest.mark.parametrize("compression", PACKERS)
def test_concatenated_streams_are_read_to_the_end(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(PACKERS[compression](TEXT) + PACKERS[compression](b"the end"))
    assert read(path, compression) == (TEXT + b"the end", None)


@pytest.mark.parametrize("compression", PACKERS)
def test_an_empty_file_is_cut_and_packed_nothing_is_not(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    reason = f"truncated or corrupt {compression}: the file is empty"
    assert read(path, compression) == (b"", reason)
    path.write_bytes(PACKERS[compression](b""))
    assert read(path, compression) == (b"", None)


@pytest.mark.parametrize("size", [0, 4, 8, 3 * CHUNK + 4, 3, 5, CHUNK + 1])
def test_xz_may_have_padding_between_and_after_streams(size: int, tmp_path: Path) -> None:
    path, padding = tmp_path / "file", bytes(size)
    data, reason = b"", f"truncated or corrupt xz: {size} bytes of padding, which are not a"
    for rest in (b"", lzma.compress(b"the end")):
        path.write_bytes(lzma.compress(b"begin ") + padding + rest)
        data, found = read(path, "xz")
        assert data == b"begin " + (b"the end" if rest and size % 4 == 0 else b"")
        assert (found or "").startswith(reason if size % 4 else "")
        assert bool(found) == bool(size % 4)


@pytest.mark.parametrize("compression", PACKERS)
def test_a_damaged_stream_after_a_good_one_is_reported(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(PACKERS[compression](TEXT) + b"garbage, not a stream" * 100)
    data, reason = read(path, compression)
    assert TEXT.startswith(data)
    assert len(data) >= len(TEXT) - CHUNK
    assert reason is not None


def test_files_of_a_glob_are_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "a.log"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.txt").mkdir()
    found = find_files(f"{tmp_path}/**/*.*")
    names = ["a.log", "a.txt", "b.txt"]
    assert [file.path for file in found] == [str(tmp_path / name) for name in names]
    assert [file.size for file in found] == [5, 5, 5]


def test_a_link_to_a_missing_file_is_named_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"One.")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "folder.txt").mkdir()
    found = [Path(file.path).name for file in find_files(str(tmp_path / "*.txt"))]
    assert found == ["a.txt", "b.txt"]
    (tmp_path / "c.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"/c\.txt links to a file that is missing; restore it"):
        find_files(str(tmp_path / "*.txt"))


def test_a_name_that_looks_like_a_glob_is_a_file_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("")
    assert [file.size for file in find_files(str(tmp_path / "a[1].txt"))] == [0]


def test_a_changed_file_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = find_files(str(path))[0]
    assert find_files(str(path))[0] == before
    path.write_text("two!")
    assert find_files(str(path))[0].version != before.version


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{}/missing.txt", "missing.txt: no such file; check the path"),
        ("{}/*.parquet", "*.parquet matches no file; check the path"),
        (
            "{}/a.txt?txt=body",
            "matches no file; check the path, or the option: text, repeat, limit, tokens or mix",
        ),
        ("{}", "is a folder; name its files, as in '{}/*'"),
        ("nowhere://x", "nowhere://x cannot be opened: Protocol not known: nowhere"),
    ],
)
def test_a_missing_file_is_one_clear_line(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        find_files(source.replace("{}", str(tmp_path)))
    assert message.replace("{}", str(tmp_path)) in str(error.value)


def test_what_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with (tmp_path / "b.jsonl").open("w") as file:
        for source in (tmp_path / "a.jsonl", f"/dev/fd/{file.fileno()}", "/dev/null"):
            with pytest.raises(InputError, match=rf"^{source} is a pipe or .* save its text as a "):
                find_files(str(source))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt cannot be opened"):
        open_file(str(tmp_path / "gone.txt"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a.b/wiki_00", "wiki_00"),
        ("/a/x.jsonl.gz", "x.jsonl"),
        ("x.xml-p1p99.BZ2", "x.xml-p1p99"),
        ("https://h/a/x.txt.xz?download=true", "x.txt"),
    ],
)
def test_bare_names_have_no_folder_query_or_compression(path: str, name: str) -> None:
    assert bare_name(path) == name


def test_an_empty_name_is_no_folder():
    with pytest.raises(InputError, match="a source has an empty name"):
        find_files("")


# Where records end, in files of every format (see also tests/pipeline/test_hostile_sources.py)


@pytest.mark.parametrize(
    ("format", "data", "expected"),
    [
        ("jsonl", b"{}\n\r\n {}\r\n{}", [b"{}\n\r\n ", b"{}\r\n", b"{}"]),
        (
            "text",
            b"a\r\nb\r\n\r\nc\r\rd\n \t\ne\n",
            [b"a\r\nb\r\n\r\n", b"c\r\r", b"d\n \t\n", b"e\n"],
        ),
        ("wikiextractor", b"<doc 1>\na\n\n<doc 2>\n", [b"<doc 1>\na\n\n", b"<doc 2>\n"]),
    ],
)
def test_documents_begin_after_these(format, data, expected):
    cut = cut_chunks(io.BytesIO(data), BOUNDARIES[format], chunk_bytes=1)
    assert [chunk for _, chunk in cut] == expected


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
