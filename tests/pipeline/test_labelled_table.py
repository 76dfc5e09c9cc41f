"""Labelled rows by column name: every row, or an error that names the bad one."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.sources.labelled_table import read_table
from clozeline.pipeline.sources.sample.reviews import make_reviews
from tests.support.small_sources import write

DATA = os.environ.get("CLOZELINE_DATA")
ROWS: list[dict[str, Any]] = [
    {"label": 1, "text": 'Good,\nvery "good".', "id": 0},
    {"label": 0, "text": "Ça ne va\tpas.", "id": 1},
    {"label": 1, "text": "", "id": 2},
]


def delimited(rows, delimiter):
    lines = [list(rows[0]), *(row.values() for row in rows)]
    quoted = [['"' + str(cell).replace('"', '""') + '"' for cell in line] for line in lines]
    return "\n".join(delimiter.join(line) for line in quoted)


def json_lines(rows):
    return "\n".join(map(json.dumps, rows))


def write_rows(path, rows):
    """The rows in the format that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return str(path)
    name = path.name.removesuffix(".gz")
    text = json_lines(rows) if name.endswith("l") else delimited(rows, "," if "c" in name else "\t")
    return write(path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text)


FORMATS = ["a.csv", "a.tsv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(name, tmp_path):
    table = read_table(write_rows(tmp_path / name, ROWS), ["text", "label"])
    assert table.column_names == ["text", "label"]
    assert table.column("text").to_pylist() == [row["text"] for row in ROWS]
    assert [str(label) for label in table.column("label").to_pylist()] == ["1", "0", "1"]


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
    for read in (lambda: read_table(str(path), ["text"]), lambda: list_blocks([str(path)])):
        with pytest.raises(InputError, match=r"a\.parquet is not a readable Parquet .*0xff"):
            read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet="a,\t\"'\n\r\\é\u2028 1", max_size=8), min_size=1, max_size=8))
def test_quoted_text_survives_csv(tmp_path, texts):
    rows = [{"text": text, "label": i} for i, text in enumerate(texts)]
    for name in ("a.csv", "a.tsv"):
        table = read_table(write_rows(tmp_path / name, rows), ["text", "label"])
        assert table.column("text").to_pylist() == texts


def test_several_files_are_one_table_in_the_order_of_their_names(tmp_path):
    for i in (2, 0, 1):
        write_rows(tmp_path / f"part-{i}.parquet", [{"n": 10 * i}, {"n": 10 * i + 1}])
    table = read_table(f"{tmp_path}/part-*", ["n"])
    assert table.column("n").to_pylist() == [0, 1, 10, 11, 20, 21]


def test_numbers_in_csv_stay_text(tmp_path):
    source = write(tmp_path / "a.csv", "label,text\n1,1984\n01,NA\n")
    table = read_table(source, ["label", "text"])
    assert table.to_pydict() == {"label": ["1", "01"], "text": ["1984", "NA"]}


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_invalid_utf8_is_fixed(name, tmp_path):
    source = write_rows(tmp_path / name, [{"label": 0, "text": "caf#"}, {"label": 1, "text": "é"}])
    data = Path(source).read_bytes()
    if name == "a.parquet":
        values = pa.array([b"caf\xe9", "é".encode()], pa.binary())
        broken = pa.Array.from_buffers(pa.string(), 2, values.buffers())
        pq.write_table(pa.table({"label": [0, 1], "text": broken}), source)
    else:
        write(Path(source), data.replace(b"#", b"\xe9"))
    table = read_table(source, ["label", "text"])
    assert table.column("text").to_pylist() == ["caf\ufffd", "é"]
    table.validate(full=True)


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path):
    for name in ("a.csv", "a.jsonl"):
        path = tmp_path / name
        write(path, b"\xef\xbb\xbf" + Path(write_rows(path, ROWS)).read_bytes())
        assert len(read_table(str(path), ["label"])) == 3


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_column_names_those_found(name, tmp_path):
    with pytest.raises(InputError, match=f"{name} has no column 'body'; its columns are label, te"):
        read_table(write_rows(tmp_path / name, ROWS), ["label", "body"])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", "label,text\n1,a\n,b\n", "a.csv: row 2 has no 'label'"),
        ("a.tsv", "label\ttext\n1\t\n", "a.tsv: row 1 has no 'text'"),
        (
            "a.csv",
            "label,text\n1,a\n2\n",
            "a.csv: row 2 has 1 field, not 2; give it as many as the",
        ),
        (
            "a.tsv",
            "text\tlabel\n\na\t1\tb\n",
            "row 1 has 3 fields, not 2; give it as many as the header, and quote fields that hold",
        ),
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
    with pytest.raises(InputError) as error:
        read_table(str(tmp_path / name.replace("b.csv", "a.csv")), ["label", "text"])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def with_stray_quotes(delimiter, *rows):
    """A header and 1,000 rows, of which some begin with a quotation mark that does not close."""
    texts = ['"' * (i in rows) + f"Brilliant, said {i}" for i in range(1, 1001)]
    texts = [text.replace(delimiter, ";") for text in texts]
    return "\n".join(["label" + delimiter + "text", *(f"1{delimiter}{text}" for text in texts)])


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("rows", [(100,), (100, 900), (1,), (1000,), (999, 1000)])
def test_a_quotation_mark_that_is_not_closed_names_its_row(name, rows, tmp_path):
    data = with_stray_quotes("," if name == "a.csv" else "\t", *rows)
    with pytest.raises(InputError, match=rf'{name}: row {rows[0]} has .*: .*"Brilliant[,;] said'):
        read_table(write(tmp_path / name, data), ["label", "text"])


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ('label,text\n1,"a\nb"\n\n2,"c" d\n', "row 2"),
        ('label,text\r1,"a"\r"2,c', "row 2"),
        ('"label,text\n1,a\n', "the header"),
        ('\ufeff"label,text\n1,a\n', "the header"),
        ('label,text\n1,"""a"", b\n', "row 1"),
    ],
)
def test_a_bad_field_is_named_by_its_row(data, named, tmp_path):
    with pytest.raises(InputError, match=f"a.csv: {named} has a field that begins with") as error:
        read_table(write(tmp_path / "a.csv", data), ["label", "text"])
    assert "\n" not in str(error.value)


def test_marks_inside_a_field_and_whole_quoted_fields_are_text(tmp_path):
    rows = [
        '\ufeff"label",text',
        '1,He said "no".',
        '2,"""Well"", she\n\nsaid, no"',
        '3,""""',
        '4,""',
    ]
    table = read_table(write(tmp_path / "a.csv", "\r\n".join(rows)), ["label", "text"])
    expected = ['He said "no".', '"Well", she\n\nsaid, no', '"', ""]
    assert table.column("text").to_pylist() == expected


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


def test_a_sample_of_absurd_size_is_refused_and_not_made():
    with pytest.raises(InputError, match="has at most 1,000,000 rows, not 1,000,001; ask for few"):
        read_table("sample:reviews?rows=1000001", ["label"])
    for size in ("reviews?rows=999999999999999999", "articles?size=999999999999T"):
        with pytest.raises(InputError, match=r"is more than 1\.0 TB of text; ask for less"):
            list_blocks([f"sample:{size}"])


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
