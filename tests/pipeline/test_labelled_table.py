"""Tables: every row by column name, labelled or as a document; else the bad one is named."""

import csv
import gzip
import io
import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.formats import list_blocks, read_block, read_table
from clozeline.pipeline.sources.sample.reviews import make_reviews
from tests.support.small_sources import read, write

DATA = os.environ.get("CLOZELINE_DATA")
ROWS: list[dict[str, Any]] = [
    {"label": 1, "text": 'Good,\nvery "good".', "id": 0},
    {"label": 0, "text": "Ça ne va\tpas.", "id": 1},
    {"label": 1, "text": "", "id": 2},
]


def write_rows(path, rows, line_end="\r\n"):
    """The rows in the format that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return str(path)
    name, stream = path.name.removesuffix(".gz"), io.StringIO()
    if name.endswith("l"):
        stream.write("\n".join(map(json.dumps, rows)))
    else:
        form = {"delimiter": "," if "c" in name else "\t", "lineterminator": line_end}
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, **form)
        writer.writerows([rows[0].keys(), *(row.values() for row in rows)])
    data = stream.getvalue().encode()
    return write(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


QUOTED = " has a field that begins with a quotation mark"
FORMATS = ["a.csv", "a.tsv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows_and_names_its_columns(name, tmp_path):
    source = write_rows(tmp_path / name, ROWS)
    table = read_table(source, ["text", "label"])
    assert table.column_names == ["text", "label"]
    assert table.column("text").to_pylist() == [row["text"] for row in ROWS]
    assert [str(label) for label in table.column("label").to_pylist()] == ["1", "0", "1"]
    with pytest.raises(InputError, match=f"{name} has no column 'body'; its columns are label, te"):
        read_table(source, ["label", "body"])


def test_categories_are_read_as_their_text(tmp_path):
    """As pandas writes them: numbers of values, of which one may be bad UTF-8."""
    offsets, data = np.array([0, 2, 5, 5], np.int32), b"okb\xffd"
    values = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(data))
    codes = pa.array([1, 0, 1, 2], pa.int32())
    categories = pa.DictionaryArray.from_arrays(codes, values)
    pq.write_table(pa.table({"text": categories}), tmp_path / "a.parquet")
    found = read_table(str(tmp_path / "a.parquet"), ["text"]).column("text")
    assert found.to_pylist() == ["b\ufffdd", "ok", "b\ufffdd", ""]


def test_a_column_whose_name_is_not_utf8_is_one_line(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["One."], "xxxx": ["Two."]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"x\xff\xfex"))
    for call in (lambda: read_table(str(path), ["text"]), lambda: list_blocks([str(path)])):
        with pytest.raises(InputError, match=r"a\.parquet is not a readable Parquet .*0xff"):
            call()


def test_several_files_are_one_table_in_the_order_of_their_names(tmp_path):
    for i in (2, 0, 1):
        write_rows(tmp_path / f"part-{i}.parquet", [{"n": 10 * i}, {"n": 10 * i + 1}])
    table = read_table(f"{tmp_path}/part-*", ["n"])
    assert table.column("n").to_pylist() == [0, 1, 10, 11, 20, 21]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_a_byte_order_mark_is_not_part_of_a_name_and_invalid_utf8_is_fixed(name, tmp_path):
    path = tmp_path / name
    write_rows(path, [{"label": 0, "text": "caf#"}, {"label": 1, "text": "é"}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"#", b"\xe9"))
    table = read_table(str(path), ["label", "text"])
    assert table.column("text").to_pylist() == ["caf\ufffd", "é"]
    table.validate(full=True)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", "label,text\n1,a\n,b\n", "a.csv: row 2 has no 'label'"),
        ("a.tsv", "label\ttext\n1\t\n", "a.tsv: row 1 has no 'text'"),
        ("a.csv", "label,text\n1,a\n2\n", "a.csv: row 2 has 1 field, not 2; give it as many as"),
        ("a.tsv", "text\tlabel\n\na\t1\tb\n", "row 1 has 3 fields, not 2; give it as many as"),
        ("a.csv", 'label,text\n1,"a\nb"\n\n2,"c" d\n', f"a.csv: row 2{QUOTED}"),
        ("a.csv", 'label,text\r1,"a"\r"2,c', f"a.csv: row 2{QUOTED}"),
        ("a.csv", '"label,text\n1,a\n', f"a.csv: the header{QUOTED}"),
        ("a.csv", '\ufeff"label,text\n1,a\n', f"a.csv: the header{QUOTED}"),
        ("a.csv", 'label,text\n1,"""a"", b\n', f"a.csv: row 1{QUOTED}"),
        ("a.csv", "label,text\n", "a.csv has no rows"),
        ("a.csv", "", "a.csv has no rows"),
        ("a.csv", "text,label,text\na,1,b\n", "has more than one column 'text'"),
        ("a.csv", "label,body\n1,a\n", "a.csv has no column 'text'; its columns are label, body"),
        ("a.jsonl", '{"label": 1, "text": "a"}\n{"label": 0}', "a.jsonl: row 2 has no 'text'"),
        ("a.jsonl", '{"label": 1, "text": "a"}\n\n{"label"', "a.jsonl:3: not JSON: "),
        ("a.jsonl", '{"label": 1, "text": "a"}\n{"label": "x", "text": "a"}', "more than one type"),
        ("a.jsonl", '{"label": 1, "text": ["\\ud800"]}', "column 'text' holds lists or objects"),
        ("a.jsonl", "", "has no column 'label'; its columns are none"),
        ("a.parquet", "PAR1", "a.parquet is not a readable Parquet file"),
        ("a.csv.gz", gzip.compress(b"label,text\n1,a\n", mtime=0)[:-12], "truncated or corrupt gz"),
        ("a.txt", "label text", "a.txt is not a table; give a .csv, .tsv, .jsonl or .parquet"),
        ("b.csv", "label,text\n1,a\n", "a.csv: no such file"),
    ],
)
def test_bad_tables_are_one_clear_line(name, data, message, tmp_path):
    write(tmp_path / name, data)
    with pytest.raises(InputError, match=re.escape(message)):
        read_table(str(tmp_path / name.replace("b.csv", "a.csv")), ["label", "text"])


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("rows", [(100,), (100, 900), (1,), (1000,), (999, 1000)])
def test_a_quotation_mark_that_is_not_closed_names_its_row(name, rows, tmp_path):
    """One at which a field begins, in some of 1,000 rows."""
    mark = "," if name == "a.csv" else "\t"
    texts = ['"' * (i in rows) + f"Brilliant, said {i}" for i in range(1, 1001)]
    lines = [f"label{mark}text", *(f"1{mark}{text.replace(mark, ';')}" for text in texts)]
    data = "\n".join(lines)
    with pytest.raises(InputError, match=rf'{name}: row {rows[0]} has .*: .*"Brilliant[,;] said'):
        read_table(write(tmp_path / name, data), ["label", "text"])


def test_nulls_in_parquet_are_named_by_row(tmp_path):
    source = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"label": [1, 0, None]}), source, row_group_size=1)
    with pytest.raises(InputError, match="row 3 has no 'label'"):
        read_table(source, ["label"])


def test_sample_reviews_are_a_table():
    made = make_reviews(5, 20, 30)
    table = read_table("sample:reviews?rows=10&seed=5&start=20", ["title", "label", "content"])
    assert table.to_pydict() == {
        "title": made.titles,
        "label": [("negative", "positive")[label] for label in made.labels],
        "content": made.contents,
    }
    turning = read_table("sample:reviews?rows=500&turning=0.5", ["turning", "content"])
    made = make_reviews(0, 0, 500, turning=0.5)
    assert turning.to_pydict() == {"turning": made.turning.tolist(), "content": made.contents}
    assert 200 < sum(turning.column("turning").to_pylist()) < 300
    odd = read_table("sample:reviews?rows=50&words=odd", ["content"])
    assert odd.to_pydict() == {"content": make_reviews(0, 0, 50, words="odd").contents}
    with pytest.raises(InputError, match="has no labels; sample:reviews has"):
        read_table("sample:articles", ["label"])
    with pytest.raises(InputError, match="has no rows"):
        read_table("sample:reviews?rows=0", ["label"])
    with pytest.raises(InputError, match="has at most 1,000,000 rows, not 1,000,001; ask for few"):
        read_table("sample:reviews?rows=1000001", ["label"])


@pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set")
@pytest.mark.parametrize(
    ("source", "columns", "rows"),
    [
        ("amazon_polarity/train-*", ["label", "title", "content"], 59_242),
        ("sst2/validation-*", ["label", "sentence"], 872),
    ],
)
def test_real_tables_are_whole(source, columns, rows):
    table = read_table(f"{DATA}/{source}", columns)
    assert len(table) == rows
    assert set(table.column("label").to_pylist()) == {0, 1}


# --- CSV and TSV as sources: the rows are documents -----------------------------------------------
#: A title, and a text whose line ends need not be made "\n".
PAIRS = st.lists(
    st.tuples(
        st.text(alphabet="ab1,;\t\"'\n\r\\\u2028 é", max_size=9),
        st.text(alphabet="ab,;\t\"'\n é", max_size=9),
    ),
    min_size=1,
    max_size=9,
)


def texts_of(source, block_bytes, chunk_bytes=20):
    found = read(source, block_bytes=block_bytes, chunk_bytes=chunk_bytes)
    assert not found.rejected
    return found.texts


@given(
    PAIRS,
    st.sampled_from(["a.csv", "a.tsv", "a.csv.gz"]),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.integers(1, 60),
)
def test_documents_are_the_rows_however_they_are_chunked(
    tmp_path, rows, name, line_end, chunk_bytes
):
    rows_by_name = [{"title": a, "text": f"x{b}"} for a, b in rows]
    source = write_rows(tmp_path / name, rows_by_name, line_end)
    assert texts_of(f"{source}?text=text", 1 << 20, chunk_bytes) == [f"x{b}" for _, b in rows]
    both = [re.sub("\r\n?", "\n", f"{a}\nx{b}") for a, b in rows]
    assert texts_of(f"{source}?text=title,text", 1 << 20, chunk_bytes) == both
    assert read_table(source, ["title"]).column(0).to_pylist() == [a for a, _ in rows]


def test_a_large_file_is_one_block_and_read_in_the_memory_of_a_part(tmp_path):
    rows = [{"text": f'a "row",\n{i}' * 1000} for i in range(300)]
    source = write_rows(tmp_path / "a.csv", rows)
    [block] = list_blocks([source], block_bytes=1000)
    assert block.text_bytes == Path(source).stat().st_size
    tracemalloc.start()
    try:
        for _ in read_block(block, chunk_bytes=1 << 14):
            pass
        assert tracemalloc.get_traced_memory()[1] < block.text_bytes / 2
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


QUOTES = '\ufeff"b",text\r\n1,He said "no".\r\n2,"""Well"", she\n\nsaid, no"\r\n3,""""\r\n4,""'


@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("a.csv", "b,text\n1,1984\n01,NA\n", {"1": "1984", "01": "NA"}),  # all columns are text
        (
            "a.csv",
            QUOTES,
            {"1": 'He said "no".', "2": '"Well", she\n\nsaid, no', "3": '"', "4": ""},
        ),
        # a first line that names the delimiter, and blanks around the names of columns
        ("a.csv", "sep=,\ntext,b\nx y,1\n", {"1": "x y"}),
        ("a.csv", "sep=;\r\ntext;b\r\nx y;1\r\n", {"1": "x y"}),
        ("a.csv", '\ufeffsep=|\nb|"text"\n1|"x y"\n', {"1": "x y"}),
        ("a.tsv", "sep=\t\nb\ttext\n1\tx y", {"1": "x y"}),
        ("a.csv", "b, text\n1,x y\n", {"1": "x y"}),
        ("a.csv", 'text ," b"\nx y,1\n', {"1": "x y"}),
        *(
            (name, f'b{mark}text\n1{mark}"one{mark} ""two"""\n', {"1": f'one{mark} "two"'})
            for name in ("a.csv", "a.tsv")
            for mark in ",;\t|"  # the header says what separates the columns
        ),
    ],
)
def test_the_dialects_of_spreadsheets_are_read(tmp_path, name, data, rows):
    source = write(tmp_path / name, data)
    assert texts_of(source, 20) == [text for text in rows.values() if text]
    table = read_table(source, ["b", "text"])
    assert dict(zip(*table.to_pydict().values(), strict=True)) == rows


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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a,b\n1,2\n", "no column 'text'; its columns are a, b; choose with --text-columns"),
        ("a;b\n1, c;2\n", "no column 'text'; its columns are a, b; choose with"),
        ('text,b\n"1,2\n3,4\n', "row 1 has a field that begins with a quotation mark"),
        ("", "a.csv has no rows"),
        ("text\n", "a.csv (a table has a header and no rows); give a source that is not empty."),
        ("text", "(a table has a header and no rows)"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path, data, message):
    with pytest.raises(InputError, match=re.escape(message)):
        list_blocks([write(tmp_path / "a.csv", data)])


def test_a_file_without_rows_beside_others_is_left_out(tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"text\n"))
    (tmp_path / "c.csv").write_text("text\n\n1\n")
    (tmp_path / "d.csv").write_text("text")
    assert [block.path[-5:] for block in list_blocks([f"{tmp_path}/*"])] == ["c.csv"]
    assert texts_of(f"{tmp_path}/*", 1 << 20) == ["1"]
