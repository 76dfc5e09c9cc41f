"""CSV and TSV as sources: the rows are documents, however the file is cut into blocks."""

import csv
import gzip
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.sources.labelled_table import read_table
from tests.support.small_sources import read

FIELD = st.text(alphabet="ab,;\t\"'\n é", max_size=9)
ROWS = st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=9)


def write(path, rows):
    stream = io.StringIO()
    delimiter = "," if "csv" in path.name else "\t"
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("title", "text"), *rows])
    data = stream.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def texts_of(source, block_bytes, chunk_bytes=20):
    found = read(source, block_bytes=block_bytes, chunk_bytes=chunk_bytes)
    assert not found.rejected
    return found.texts


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.sampled_from(["a.csv", "a.tsv", "a.csv.gz"]), st.integers(1, 60))
def test_documents_are_the_rows_however_they_are_chunked(tmp_path, rows, name, chunk_bytes):
    source = write(tmp_path / name, [(a, f"x{b}") for a, b in rows])
    assert texts_of(f"{source}?text=text", 1 << 20, chunk_bytes) == [f"x{b}" for _, b in rows]
    both = [f"{a}\nx{b}" for a, b in rows]
    assert texts_of(f"{source}?text=title,text", 1 << 20, chunk_bytes) == both
    assert read_table(source, ["title"]).column(0).to_pylist() == [a for a, _ in rows]


def test_a_large_file_is_one_block(tmp_path):
    source = write(tmp_path / "a.csv", [("t", f'a "row",\n{i}') for i in range(500)])
    [block] = list_blocks([source], block_bytes=1000)
    assert block.text_bytes == Path(source).stat().st_size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.sampled_from(["\n", "\r", "\r\n"]))
def test_any_line_end_separates_rows(tmp_path, rows, line_end):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator=line_end, quoting=csv.QUOTE_ALL)
        writer.writerows([("title", "text"), *((f"'{a}", f"x{b}") for a, b in rows)])
    assert texts_of(str(tmp_path / "a.csv"), 20) == [f"x{b}" for _, b in rows]


def test_reading_a_file_takes_the_memory_of_a_part(tmp_path):
    source = write(tmp_path / "a.csv", [("t", f'a "row",\n{i}' * 2000) for i in range(300)])
    [block] = list_blocks([source])
    tracemalloc.start()
    try:
        for _ in read_block(block, chunk_bytes=1 << 14):
            pass
        assert tracemalloc.get_traced_memory()[1] < Path(source).stat().st_size / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("row", "label"), [("a,", None), (',""', ""), ('"a,"","",b",', None), ('"a""\n,""",""', "")]
)
def test_an_empty_cell_without_quotes_is_null(tmp_path, row, label):
    (tmp_path / "a.csv").write_text(f"text,label\na,0\n\n{row}\n")
    source = str(tmp_path / "a.csv")
    if label is None:
        with pytest.raises(InputError, match="row 2 has no 'label'"):
            read_table(source, ["label", "text"])
    else:
        assert read_table(source, ["label"]).column(0).to_pylist() == ["0", label]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", "sep=,\ntext,b\nx y,1\n"),
        ("a.csv", "sep=;\r\ntext;b\r\nx y;1\r\n"),
        ("a.csv", '\ufeffsep=|\nb|"text"\n1|"x y"\n'),
        ("a.tsv", "sep=\t\nb\ttext\n1\tx y"),
        ("a.csv", "b, text\n1,x y\n"),
        ("a.csv", 'text ," b"\nx y,1\n'),
    ],
)
def test_the_dialects_of_spreadsheets_are_read(tmp_path, name, data):
    """A first line that names the delimiter, and blanks around the names of columns."""
    (tmp_path / name).write_bytes(data.encode())
    assert texts_of(str(tmp_path / name), 20) == ["x y"]
    assert read_table(str(tmp_path / name), ["text", "b"]).to_pylist() == [
        {"text": "x y", "b": "1"}
    ]


def test_an_open_field_far_into_a_file_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("text,b\n" + "1,2\n" * 9 + '"1,2\n3,4\n')
    with pytest.raises(InputError, match=r"a\.csv: row 10 has a field that begins .*: \"1,2"):
        read(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("chunk_bytes", [1, 9, 1 << 20])
def test_bad_rows_are_rejected_and_the_others_keep_their_order_and_numbers(chunk_bytes, tmp_path):
    rows = ["bad", "x,y", "x,y", "bad", "bad", "x,too long", "x,y", "bad"]
    source = tmp_path / "a.csv"
    source.write_text("\n".join(["title,text", *rows, ""]))
    found = read(source, chunk_bytes=chunk_bytes, max_document_bytes=5)
    assert found.texts == ["y"] * 3
    reasons = dict.fromkeys((1, 4, 5, 8), "1 field, not 2")
    reasons[6] = "longer than --max-document-bytes 5"
    assert [(bad.where, bad.reason) for bad in found.rejected] == [
        (f"{source}: row {number}", reason) for number, reason in sorted(reasons.items())
    ]


@pytest.mark.parametrize("block_bytes", [60, 300, 1 << 20])
def test_the_bad_rows_before_the_end_of_a_limited_source_count(block_bytes, tmp_path):
    (tmp_path / "a.csv").write_text("title,text\n" + "bad\nx,some text\n" * 50)
    found = read(f"{tmp_path / 'a.csv'}?text=text&limit=30", block_bytes=block_bytes)
    assert (len(found.texts), len(found.rejected)) == (30, 30)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_the_header_says_what_separates_the_columns(mark, ending, tmp_path):
    path = tmp_path / f"a.{ending}"
    path.write_text(f'id{mark}text\n1{mark}"one{mark} ""two"""\n2{mark}plain\n')
    assert texts_of(f"{path}?text=text", 1 << 20) == [f'one{mark} "two"', "plain"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a,b\n1,2\n", "no column 'text'; its columns are a, b; choose with --text-columns"),
        ("a;b\n1, c;2\n", "no column 'text'; its columns are a, b; choose with"),
        ('text,b\n"1,2\n3,4\n', "row 1 has a field that begins with a quotation mark"),
        ("", "a.csv has no rows"),
        ("text\n", "a.csv (a table has a header and no rows); give a source that is not empty."),
        ("text\r\n\r\n", "(a table has a header and no rows)"),
        ("text", "(a table has a header and no rows)"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path, data, message):
    (tmp_path / "a.csv").write_text(data)
    with pytest.raises(InputError) as error:
        list_blocks([str(tmp_path / "a.csv")])
    assert message in str(error.value)


def test_a_file_without_rows_beside_others_is_left_out(tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"text\n"))
    (tmp_path / "c.csv").write_text("text\n\n1\n")
    (tmp_path / "d.csv").write_text("text")
    assert [block.path[-5:] for block in list_blocks([f"{tmp_path}/*"])] == ["c.csv"]
    assert texts_of(f"{tmp_path}/*", 1 << 20) == ["1"]
