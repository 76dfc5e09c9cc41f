"""Blocks to documents: the same at any block size, and hostile input never ends the job."""

import bz2
import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.formats import list_blocks, read_block, read_table
from clozeline.pipeline.sources.sample.articles import make_articles
from clozeline.pipeline.sources.sample.reviews import make_reviews
from clozeline.pipeline.sources.tables import CHOOSE, load_hub_dataset
from tests.support.small_sources import PACKERS, page, read, write, write_multistream

DATA = os.environ.get("CLOZELINE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set")
REPLACED = "\ufffd"

JSON_LINES = st.sampled_from(
    [b'{"text": "One."}', b'{"text": "Two\\nlines."}', b'{"text": "\xff"}', b"{", b"[]", b" ", b""]
)
TEXT_LINES = st.sampled_from([b"One.", b"  two ", b"\xc3\xa9", b"\xff", b"\0", b" \t", b"", b""])
WIKI_LINES = st.sampled_from(
    [b'<doc id="1" title="A &amp; B">', b"A &amp; B", b"Text.", b"</doc>", b"</doc>", b"", b"\xff"]
)
LINES = {"jsonl": JSON_LINES, "txt": TEXT_LINES, "wiki": WIKI_LINES}
PACKED = {"": bytes, **{f".{name}": pack for name, pack in PACKERS.items()}}


def reasons(documents):
    return [(Path(bad.where).name, bad.reason) for bad in documents.rejected]


@pytest.mark.parametrize("name", LINES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_size_of_block_and_chunk_gives_the_same_documents(name, data, tmp_path):
    parts = data.draw(st.lists(LINES[name], max_size=12))
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"] if name == "txt" else [b"\n", b"\r\n"]))
    last = data.draw(st.sampled_from([b"", end]))
    begin = b'<doc id="0" title="0">' + end if name == "wiki" else b"x" + end
    path = tmp_path / ("wiki_00" if name == "wiki" else f"file.{name}")
    source = write(path, begin + end.join(parts) + last)
    whole = read(source)
    for block_bytes, chunk_bytes in [(1, 1), (2, 100), (7, 3), (100, 1)]:
        assert read(source, block_bytes=block_bytes, chunk_bytes=chunk_bytes) == whole
    packed = write(path.with_name(path.name + ".gz"), gzip.compress(path.read_bytes()))
    for bad in (unpacked := read(packed, chunk_bytes=3)).rejected:
        assert bad.where.startswith(packed)
    assert (unpacked.texts, unpacked.counts) == (whole.texts, whole.counts)
    assert [b.where.replace(".gz", "") for b in unpacked.rejected] == [
        b.where for b in whole.rejected
    ]


@given(st.lists(st.one_of(TEXT_LINES, st.text(alphabet="ab \t\r\u2028\x0b")), max_size=12))
def test_text_is_what_a_slow_reading_line_by_line_gives(tmp_path, parts):
    data = b"\n".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    source = write(tmp_path / "file.txt", b"x\n" + data)
    text = (b"x\n" + data).decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    expected, document = [], ""
    for line in [*text.split("\n"), ""]:
        if line.strip(" \t"):
            document += line + "\n"
        elif document:
            expected.append(document.strip().replace("\0", ""))
            document = ""
    assert read(source, block_bytes=5).texts == [text for text in expected if text.strip()]


def test_the_bytes_of_a_json_line_are_fixed_and_counted(tmp_path):
    source = write(
        tmp_path / "a.jsonl",
        b'\xef\xbb\xbf{"text": "a\\r\\nb\\rc"}\r\n'
        b'{"text": "caf\xe9 \xe2\x82 x"}\n'
        b'{"text": "nul \\u0000 and \x00."}\n'
        b'{"text": "\\ud800 lone, \\ud83d\\ude00 a pair"}\n'
        b'{"text": ""}\n{"text": " \\n\\u0000"}\n'
        b'{"text": "tab\tand\x0bmore", "id": 1e999, "text2": NaN}\n'
        b'{"text": "first", "text": "last"}',
    )
    found = read(source)
    assert found.texts == [
        "a\nb\nc",
        f"caf{REPLACED} {REPLACED} x",
        "nul  and .",
        f"{REPLACED} lone, \U0001f600 a pair",
        "tab\tand\x0bmore",
        "last",
    ]
    assert found.counts == Counter(invalid_utf8=2, nul=1, empty=2)
    assert found.rejected == []


def test_bad_json_lines_are_rejected_by_the_byte_at_which_they_begin(tmp_path):
    bad = ["{", "[1]", '"text"', '{"id": 1}', '{"text": null}', '{"text": 7}', "[" * 100_000]
    bad += ['{"text": "a"} {"text": "b"}', "{" + '"a":' + "9" * 5000 + "}", "\0", "\ud800"]
    data = "\n\n".join(f'{line}\n{{"text": "good"}}' for line in bad)
    source = write(tmp_path / "a.jsonl", data.encode("utf-8", "surrogatepass"))
    found = read(source, block_bytes=40)
    assert found.texts == ["good"] * len(bad)
    starts = [int(where.rpartition(" ")[2].replace(",", "")) for where, _ in reasons(found)]
    written = Path(source).read_bytes()
    begun = [written[start:].partition(b"\n")[0] for start in starts]
    assert begun == [line.encode("utf-8", "surrogatepass") for line in bad]
    assert [reason for _, reason in reasons(found)][:8] == [
        "not JSON: Expecting property name enclosed in double quotes at character 2",
        "not a JSON object",
        "not a JSON object",
        "no 'text' in the JSON object; its keys are id",
        "'text' is not text",
        "'text' is not text",
        "JSON that is nested too deep",
        "not JSON: Extra data at character 15",
    ]


def test_several_columns_are_joined_by_line_ends(tmp_path):
    rows = [{"title": "A", "text": "b"}, {"text": "no title"}, {}, dict.fromkeys("abcd")]
    source = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    found = read(source, text_columns=("title", "text"))
    assert found.texts == ["A\nb"]
    assert reasons(found) == [
        (f"a.jsonl: byte {start}", f"no 'title' in the JSON object; its keys are {keys}")
        for start, keys in ((28, "text"), (49, "none"), (52, "a, b, c, ..."))
    ]


def test_a_document_of_20_megabytes_on_one_line_is_a_document(tmp_path):
    text = "Some words." + " Some words." * 1_700_000
    lines = f'{{"text": "a"}}\n{{"text": "{text}"}}\n{{"text": "b"}}'
    packed = gzip.compress(lines.encode(), 1)
    for name, data in (("a.jsonl", lines), ("b.jsonl.gz", packed), ("c.txt", f"a\n\n{text}\n\nb")):
        assert read(write(tmp_path / name, data)).texts == ["a", text, "b"]


def test_wikiextractor_output_loses_titles_and_entities(tmp_path):
    source = write(
        tmp_path / "wiki_00",
        'before\n<doc id="1" url="u" title="A &amp; "B"">\nA &amp; "B"\n\n'
        "AT&T &lt;b&gt; &amp;lt; &copy\n"
        "A line that begins &amp; goes on.\n\n</doc>\n"
        '<doc id="2" url="u" title="C">\nNo title line.\nC\n</doc>\n'
        '<doc id="3" url="u" title="D">\nD\n\n</doc>\n'
        '<doc id="4" url="u" title="E">\nCut.\n'
        '<doc id="5" url="u" title="F">\nF\r\n\r\nG\r\n</doc>\n'
        '<doc id="6" url="u" title="H">\nText.\n</doc>\nafter\n',
    )
    found = read(source)
    assert found.texts == [
        "AT&T <b> &lt; &copy\nA line that begins & goes on.",
        "No title line.\nC",
        "G",
    ]
    assert found.counts == Counter(empty=1)
    assert reasons(found) == [
        ("wiki_00", "text before the first <doc>"),
        ("wiki_00: E", "no </doc>: the document is truncated"),
        ("wiki_00: H", "text after </doc>"),
    ]


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        ("a.jsonl", '{{"text": "Sentence {} is here."}}\n', "Sentence {} is here."),
        ("a.txt", "Sentence {} is here.\n\n", "Sentence {} is here."),
        ("wiki_00", '<doc id="" title="">\nSentence {0} is.\n</doc>\n\n', "Sentence {0} is."),
        ("a.csv", "Row {} is here.\r\n", "Row {} is here."),
        ("a.csv", '"Row {},\nor ""row""."\n', 'Row {},\nor "row".'),
        ("x.xml", page("T{0}", "Row {0} is here."), "Row {0} is here."),
    ],
)
def test_a_truncated_file_is_an_error_after_its_whole_documents(name, line, text, ending, tmp_path):
    """Wherever it is cut, also in what is read to list it."""
    head = {"a.csv": "text\n", "x.xml": "<mediawiki>\n"}.get(name, "")
    packed = PACKERS[ending]((head + "".join(line.format(i) for i in range(20_000))).encode())
    source = write(tmp_path / f"{name}.{ending}", packed[: len(packed) * 2 // 3])
    found = []
    message = rf"/{name}\.{ending} is not whole: truncated or corrupt {ending}: .* -c OLD > part-"
    [block] = list_blocks([source])
    texts = (text for chunk in read_block(block, chunk_bytes=10_000) for text in chunk.texts)
    with pytest.raises(InputError, match=message):
        found.extend(texts)  # what came before the error stays in the list
    assert len(found) > 1000
    assert found == [text.format(i) for i in range(len(found))]
    for cut in (packed[:12], packed[:1]):
        with pytest.raises(InputError, match=message):
            read(write(tmp_path / f"{name}.{ending}", cut))
    if name in ("a.csv", "a.jsonl"):
        with pytest.raises(InputError, match=message):
            read_table(source, ["text"])


DUMP = (
    "<mediawiki>\n"
    + page("A", "'''A''' is a [[letter]].")
    + page("B", "#REDIRECT [[A]]", redirect='<redirect title="A" />')
    + page("Talk:A", "Hello.", ns=1)
    + page("Empty", "")
    + page("Deep", "{{" * 5000 + "}}" * 5000)
    + page("C", "Ünïcode &amp;amp; more.")
    + "</mediawiki>\n"
)


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_dump_gives_its_articles_and_counts_the_rest(encoding, ending, tmp_path):
    data = PACKED[ending](DUMP.encode(encoding))
    found = read(write(tmp_path / f"dump.xml{ending}", data), chunk_bytes=1)
    assert found.texts == ["A is a letter.", "Ünïcode & more."]
    assert found.counts == Counter(redirect=1, other_namespace=1, empty=1)
    assert reasons(found) == [(f"dump.xml{ending}: Deep", "over the page budget: nesting_depth")]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("cut", ["", page("C", "Cut.")[:-20]], ids=["no footer", "inside a page"])
def test_a_dump_whose_xml_is_truncated_is_an_error_after_its_pages(cut, ending, tmp_path):
    texts = [f"Sentence {i} stands here." for i in range(40)]
    xml = "<mediawiki>\n" + "".join(page(text, text) for text in texts) + cut
    source = write(tmp_path / f"x.xml{ending}", PACKED[ending](xml.encode()))
    advice = r"keep its whole pages: (cat|\w+ -d( --long=31)? -c) OLD \| awk .* > NEW\.xml$"
    [block] = list_blocks([source])
    found = []
    with pytest.raises(InputError, match=rf"is not whole: .* after 40 pages.*, or {advice}"):
        found.extend(text for chunk in read_block(block, chunk_bytes=1) for text in chunk.texts)
    assert found == texts


def test_a_multistream_dump_gives_the_same_in_ranges(tmp_path):
    pages = (page(f"T{i}", f"Text {i}.") + page(f"U{i}", f"More {i}.") for i in range(5))
    source, offsets = write_multistream(tmp_path, ["<mediawiki>\n", *pages, "</mediawiki>\n"])
    whole, index = read(source), tmp_path / "x-multistream-index.txt.bz2"
    assert len(list_blocks([source])) == 1
    for block_bytes, blocks in ((1, 5), (450, 3)):
        assert len(list_blocks([source], block_bytes=block_bytes)) == blocks
        assert read(source, block_bytes=block_bytes) == whole
    assert len(whole.texts) == 10
    good = index.read_bytes()
    lines = bz2.decompress(good)
    last = lines.index(f"{offsets[1]}:1:U".encode())  # cut there, it would fit the dump
    write(index, bz2.compress(lines[:last] + bytes(9_000_000), 9)[:-20])
    assert len(list_blocks([source], block_bytes=1)) == 1
    write(index, good)
    write(Path(source), Path(source).read_bytes()[: offsets[3]])  # cut where a stream begins
    message = r"after 6 pages .* without a footer.*bzip2 -d -c OLD \| awk"
    with pytest.raises(InputError, match=message):
        read(source, block_bytes=1)


def test_parquet_reads_columns_by_name_and_rejects_nulls(tmp_path):
    texts = [f"Row {i}." for i in range(100)]
    table = pa.table({"n": range(100), "text": [*texts[:41], None, *texts[42:]], "t": ["T"] * 100})
    source = str(tmp_path / "a.parquet")
    pq.write_table(table, source, row_group_size=7)
    for block_bytes, chunk_bytes in [(1, 1), (30, 20), (1 << 20, 1 << 20)]:
        found = read(source, block_bytes=block_bytes, chunk_bytes=chunk_bytes)
        assert found.texts == texts[:41] + texts[42:]
        assert reasons(found) == [("a.parquet: row 42", "null text")]
    assert read(source, text_columns=("t", "text")).texts[:2] == ["T\nRow 0.", "T\nRow 1."]


@pytest.mark.parametrize(
    "type",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_parquet_text_may_have_any_string_type(type, tmp_path):
    source = str(tmp_path / "a.parquet")
    table = pa.table({"text": pa.array(["é", None, "a\r\nb", "\0"], type)})
    try:
        pq.write_table(table, source)
    except pa.ArrowNotImplementedError:
        pytest.skip(f"pyarrow {pa.__version__} cannot write {type} to Parquet")
    found = read(source)
    assert found.texts == ["é", "a\nb"]
    assert found.counts == Counter(empty=1)


@pytest.mark.parametrize("binary", [True, False])
def test_invalid_utf8_in_parquet_is_fixed_and_counted(binary, tmp_path):
    values = pa.array([b"caf\xe9 \xe2\x82", "é".encode(), None], pa.binary())
    column = values if binary else pa.Array.from_buffers(pa.string(), 3, values.buffers())
    source = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": column}), source)
    found = read(source)
    assert found.texts == [f"caf{REPLACED} {REPLACED}", "é"]
    assert found.counts == Counter(invalid_utf8=1)
    assert reasons(found) == [("a.parquet: row 3", "null text")]


def test_a_huge_row_group_is_read_in_chunks(tmp_path):
    source = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [f"{i:09} " * 100 for i in range(20_000)]}), source)
    (block,) = list_blocks([source], block_bytes=1 << 30)
    sizes = [sum(map(len, chunk.texts)) for chunk in read_block(block, chunk_bytes=1 << 20)]
    assert sum(sizes) == 20_000_000
    assert max(sizes) < 3 << 20


def test_samples_are_those_of_the_generator():
    articles = read("sample:articles?size=100KB&seed=4", block_bytes=30_000, chunk_bytes=9000)
    assert articles.texts == make_articles(4, 0, len(articles.texts))
    reviews = make_reviews(4, 50, 80)
    expected = [f"{t}\n{c}" for t, c in zip(reviews.titles, reviews.contents, strict=True)]
    assert read("sample:reviews?rows=30&start=50&seed=4", block_bytes=900).texts == expected


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder for a data set of the Hub, which `datasets` copies into another one of the test."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "copies")
    load_hub_dataset.cache_clear()
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_hub_datasets_are_read_in_ranges_of_rows(hub):
    rows = [
        {"text": f"Row {i} of a data set." if i != 7 else None, "label": i % 2} for i in range(50)
    ]
    write(hub / "train.jsonl", "\n".join(map(json.dumps, rows)))
    source, kept = f"hf://{hub}", [row["text"] for row in rows if row["text"]]
    found = read(f"{source}?split=train", block_bytes=200)
    assert found.texts == kept
    assert [bad.where for bad in found.rejected] == [f"{source}?split=train: row 8"]
    assert read_table(source, ["label"]).column("label").to_pylist() == [r["label"] for r in rows]
    assert len(list_blocks([source], block_bytes=200)) == 5
    for size in (9, 99):
        sizes = [block.text_bytes for block in list_blocks([source], block_bytes=size)]
        assert sum(sizes) == sum(map(len, map(str, kept)))
    nowhere = " (name None, split train) cannot be loaded: "
    columns = f"hf://{hub} has no column 'body'; its columns are text, label{CHOOSE}"
    for name, message in (
        (f"{source}-missing", f"data-missing{nowhere}"),
        ("hf://nobody/nothing", f"hf://nobody/nothing{nowhere}"),
        (f"{source}?text=body", columns),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            list_blocks([name])


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_other_types_of_text_in_a_hub_dataset_are_text(hub, kind):
    texts = pa.array(["One.", None, "Two."]).cast(kind)
    pq.write_table(pa.table({"text": texts}), hub / "train.parquet")
    [block] = list_blocks([f"hf://{hub}"])
    assert block.text_bytes == 8
    assert read(f"hf://{hub}").texts == ["One.", "Two."]


def test_the_first_rows_of_a_hub_dataset_are_read_without_the_rest(hub):
    """The second file is damaged, so reading all of the data set fails."""
    rows = [{"text": f"Row {i} of a data set.", "label": i % 2} for i in range(3000)]
    write(hub / "train-1.jsonl", "{damaged")
    source = f"hf://{hub}"
    for first in ("Row 0 of a data set.", "Another."):  # also after a change of the file
        rows[0]["text"] = first
        write(hub / "train-0.jsonl", "\n".join(map(json.dumps, rows)))
        load_hub_dataset.cache_clear()  # as in another process
        blocks = list_blocks([f"{source}?limit=30&text=text"], block_bytes=200)
        assert (len(blocks), len({block.version for block in blocks})) == (3, 1)
        found = read(f"{source}?limit=30&text=text", block_bytes=200)
        assert found.texts == [row["text"] for row in rows[:30]]
        assert read_table(f"{source}?limit=3", ["label"]).column(0).to_pylist() == [0, 1, 0]
    for query, message in {
        "": "cannot be loaded",
        "?limit=0": "limit is 0; give at least 1$",
        "?limit=x": "limit is a whole number",
        "?split=nosuch&limit=3": "nosuch",
    }.items():
        with pytest.raises(InputError, match=message):
            list_blocks([source + query])


@needs_data
def test_a_real_file_of_wikiextractor_gives_as_many_documents():
    found = read(f"{DATA}/wikiextractor/wiki_00")
    assert (len(found.texts), found.counts, found.rejected) == (366, {"empty": 23}, [])
