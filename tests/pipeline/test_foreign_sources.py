"""Sources that are not what their name says, or that a limit of the reader keeps out."""

import gzip
import io
import lzma
import re
import tarfile
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.files import find_files
from clozeline.pipeline.sources.formats import list_blocks
from tests.pipeline.test_dump import FOOTER, SITEINFO
from tests.support.small_sources import PACKERS, read, write

UNKNOWN, NO_PARQUET = "unknown format; give Parquet, .jsonl", "is not a readable Parquet file"
WEB, MAILS = "a web archive or its index", "mail or a mail folder"


def parquet_of(text):
    file, table = io.BytesIO(), pa.table({"text": [text.decode()]})
    pq.write_table(table, file, compression="gzip", store_schema=False)
    return file.getvalue()


def zstd_frame(data, window_log):
    """A frame of one block that is not compressed, which asks for this window (RFC 8878)."""
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3])
    return header + (len(data) << 3 | 1).to_bytes(3, "little") + data


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("a.warc.wet.gz", b"WARC/1.0\r\nWARC-Type: warcinfo\r\n\r\n", WEB),
        ("a.txt", b"WARC/1.1\nWARC-Type: response\n\nRome", WEB),
        ("a.txt", b"filedesc://a.arc 0.0.0.0 20130101000000 text/plain 76\n1 0 x\n", WEB),
        ("a.cdxj", b'com,example)/ 20130101000000 {"url": "http://example.com"}\n', WEB),
        ("a.txt", b"\xef\xbb\xbf\n<!DOCTYPE html>\n<p>Rome</p>", "HTML or XML"),
        ("a.text.bz2", b"<HTML lang=en><body>Rome</body>", "HTML or XML"),
        ("posts.xml", b'<?xml version="1.0"?>\n<posts><row Id="1" /></posts>', "HTML or XML"),
        ("a.txt", b"<p class='x'>Rome.</p>\n", "HTML or XML"),
        ("a.vert", b'<doc id="1" url="x">\n<s>\nRome\tNP\nis\tV\n</s>\n</doc>\n', "HTML or XML"),
        ("a.txt", rb"{\rtf1\ansi Rome}", "RTF"),
        ("a.tex", b"% A paper\n\\documentstyle{article}\nRome", "LaTeX"),
        ("a.txt", b"\\section{Rome}\nRome is \\emph{old}.", "LaTeX"),
        ("inbox", b"From a@b.org Mon Jan  1 00:00:00 2024\nSubject: Rome", MAILS),
        ("a.eml", b"Return-Path: <a@b>\r\nReceived: x\r\n by y\r\nTo: c@d\r\n\r\nHi", MAILS),
        ("a.conllu", b"# id = 1\n# text = R\n1\tR\tR\tX\tN\t_\t0\troot\t_\t_\n", "a CoNLL table"),
        ("a.txt", b"1-2\tThey\t_\t_\t_\t_\t_\t_\t_\t_\n", "a CoNLL table"),
        ("a.conll", b"-DOCSTART- -X- O\n\nRome NNP B-LOC\n", "a CoNLL table"),
        ("a.iob", b"Rome\tB-LOC\nis\tO\nold\tO\n", "a CoNLL table"),
        ("a.srt", b"1\r\n00:00:01,000 --> 00:00:04,000\r\nRome is old.\r\n", "subtitles"),
        ("a.txt", b"WEBVTT\n\n00:01.000 --> 00:04.000\nRome is old.\n", "subtitles"),
        ("a.nt", b'<http://a/b> <http://c> "Rome"@en .\n', "RDF"),
        ("a.sql.gz", b"-- MySQL dump 10.13\nINSERT INTO a VALUES (1);", "an SQL dump"),
        ("de.po", b'# German\n#, fuzzy\nmsgid ""\nmsgstr ""\n', "a translation catalogue"),
        ("a.bib", b"@inproceedings{vaswani,\n  title = {Attention}\n}\n", "BibTeX"),
        ("a.fasta", b">sp|P1\nMKVLAAGIVGLCAKAYNWHGTR\n", "FASTA"),
        ("a.diff", b"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n", "a patch"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid 1\n", "a Git LFS pointer"),
        ("a.json", b'{ \r\n  "data": [\n{"text": "Rome"}]}', "JSON over several lines"),
        ("a.docx", b"PK\3\4" + bytes(40), "a zip archive"),
        ("a.pdf", b"%PDF-1.7 text", "a PDF file"),
        ("a.txt", b"\xd0\xcf\x11\xe0" + b"Rome " * 90, "an old office document"),
        ("a.csv", b"SQLite format 3\0" + bytes(90), "a SQLite database"),
        ("a.pst", b"!BDN" + bytes(90), "a mail folder of Outlook"),
        ("a.txt.gz", tarfile.TarInfo("a.txt").tobuf(), "a tar archive"),
        ("a.txt.gz", PACKERS["bz2"](b"Rome is a city."), "compressed"),
        ("a.txt.xz", b"\x04\x22M\x18" + bytes(90), "compressed"),
        ("a.txt.Z", b"\x1f\x9d\x90" + bytes(90), "compressed"),
        ("a.parquet.gz", parquet_of(b"Oslo."), "packed Parquet"),
        ("a.parquet", b"ARROW1\0\0" + bytes(90), "an Arrow file"),
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0", UNKNOWN),
        ("latin", "caf\xe9 and more".encode("latin-1"), UNKNOWN),
        ("a.tar.gz", b"name\0\0\0", UNKNOWN),
        ("a.parquet", b"", NO_PARQUET),
        ("a.parquet", b"PAR1", NO_PARQUET),
        ("a.parquet", b"PAR1 and no footer PAR1", NO_PARQUET),
    ],
)
def test_other_formats_are_refused_by_their_names(tmp_path, name, data, named):
    pack = PACKERS.get(name.rpartition(".")[2], bytes)
    source = write(tmp_path / name, pack(data))
    is_named = named not in (UNKNOWN, NO_PARQUET)
    line = f"is {named}.*, not plain text; .+" if is_named else named
    with pytest.raises(InputError, match=f"{re.escape(name)}.*{line}"):
        list_blocks([source])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "From Rome to Oslo it is far."),
        ("a.txt", "1\tRome is a city, and this is a list."),
        ("a.txt", "WARC is a format of archives."),
        ("a.txt", "<3 is a heart, and html is a language."),
        ("a.txt", "A line about \\documentclass and {\\rtf."),
        ("a.txt", "To: be or not to be.\nSubject: none.\nThat is it."),
        ("a.txt", "{braces} and [1] brackets"),
        ("a.txt", "<john> hi\n<unk> it is."),
        ("a.txt", "Rome o\nOslo o\nby e-mail\nBern"),
        ("notes", "[1] Rome, SQLite format 3, LZIP"),
        ("notes", "<- an arrow, 1:2:3 --> 4"),
        ("a.txt", "Rome is so\nold O\nas it is."),
        ("page?format=text", "<!doctype html>\n<p>Rome</p>"),
        ("page?format=text", "%!PS-Adobe Rome"),
    ],
)
def test_text_about_other_formats_and_what_is_said_to_be_text_is_text(tmp_path, name, text):
    (tmp_path / name.partition("?")[0]).write_text(text)
    assert read(f"{tmp_path}/{name}").texts == [text]


@pytest.mark.parametrize(
    "lines",
    [
        "# Rome # is # old   \n" * 500,
        "#\r\n" * 500,
        "% Rome % is   \n" * 500,
        "Subject: Rome\r\n" + "\tis\r\n" * 500,
        "]])/)/ " * 500,
    ],
)
def test_many_lines_that_begin_like_another_format_take_no_longer_than_others(tmp_path, lines):
    """A pattern with two ways to match each of them would take for ever."""
    (tmp_path / "a.txt").write_text(f"{lines}Rome is old.", newline="")
    assert list_blocks([str(tmp_path / "a.txt")])[0].format == "text"


@pytest.mark.parametrize(
    ("name", "data", "format"),
    [
        ("a.txt", b'{"text": "Rome"}\n', "jsonl"),
        ("a.parquet", b'\xef\xbb\xbf{ "text": "Rome"}\n', "jsonl"),
        ("a.csv", b'<doc id="1" title="A">\nA\n\nRome\n</doc>\n', "wikiextractor"),
        ("a.tab", b"text\tn\nRome\t1\n", "csv"),
        ("a.psv", b"n|text\n1|Rome\n", "csv"),
        ("a.txt.gz", b"Rome" + b"\n" * 12, "text"),  # as a browser saves it
        ("a.jsonl.zst", b'{"text": "Rome"}\n', "jsonl"),
        ("a.lzma", lzma.compress(b"Rome", format=lzma.FORMAT_ALONE), "text"),
        ("a", b"\x50*M\x18\4\0\0\0skip" + PACKERS["zst"](b"Rome"), "text"),
        ("a.txt.zst", zstd_frame(b"Rome", 10), "text"),
        ("a.txt.zst", zstd_frame(b"Rome", 27), "text"),  # a window of 128 MB
    ],
)  # fmt: skip
def test_content_beats_the_name(tmp_path, name, data, format):
    (tmp_path / name).write_bytes(data)
    assert {block.format for block in list_blocks([str(tmp_path / name)])} == {format}
    assert read(tmp_path / name).texts == ["Rome"]


def xz_with_another_filter(data):
    """Its block names filter 10, which is ARM64 and newer than most readers."""
    packed = bytearray(lzma.compress(data))
    header = packed[12 : 12 + 4 * (packed[12] + 1)]
    header[2] = 0x0A
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    return bytes(packed[:12] + header + packed[12 + len(header) :])


def parquet_with_lzo(data):
    """As another writer may pack a column: only the name of the codec is another one."""
    packed = bytearray(parquet_of(data))
    packed[packed.rindex(b"text") + len("text") + 1] = 2 * 3
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "pack", "message"),
    [
        ("a.txt.xz", xz_with_another_filter, r"unsupported opt.*ptions.* xz -d -c OLD \|"),
        ("a.txt.gz", lambda data: gzip.compress(data).replace(b"\x1f\x8b\x08", b"\x1f\x8b\x09"),
         r"unsupported opt.*method.* gzip -d -c OLD"),
        ("a.txt.zst", lambda data: zstd_frame(data, 28), r"unsupported opt.* zstd .*--long=31 -c"),
        ("a.jsonl.zst", lambda data: zstd_frame(data, 31), r"unsupported opt.* zstd .*--long=31"),
        ("a.jsonl.zst", lambda data: b"\x28\xb5\x2f\xfd\x21\x05\x05\x01\x00\x00",
         r"unsupported opt.*Dictionary mismatch.* zstd -d --long=31 -D DICTIONARY -c OLD"),
        ("a.parquet", parquet_with_lzo, r"feature of Parquet .*LZO.*; write it anew"),
        ("a.parquet", lambda data: b"PARE" + bytes(40) + b"\x10\0\0\0PARE",
         r"feature of Parquet .*encrypted.*; write it anew"),
    ],
)  # fmt: skip
def test_what_a_reader_lacks_is_not_called_damage(tmp_path, name, pack, message):
    (tmp_path / name).write_bytes(pack(b"Oslo is cold."))
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert not re.search("corrupt|truncated|damaged", str(error.value))


def revision(text, model=None, time=None):
    parts = [f"<timestamp>{time}</timestamp>"] if time else []
    parts += [f"<model>{model}</model>"] if model else []
    return f"<revision><id>1</id>{''.join(parts)}<text>{text}</text></revision>"


def dump_of(tmp_path, *revisions):
    page = f"<page><title>A</title><ns>0</ns><id>7</id>{''.join(revisions)}</page>\n"
    (tmp_path / "a.xml").write_text(f"{SITEINFO}{page}{FOOTER}")
    return read(tmp_path / "a.xml")


@pytest.mark.parametrize("model", [None, "wikitext", " wikitext ", "proofread-page"])
def test_wikitext_is_read_whatever_its_text_says_and_other_pages_are_counted(tmp_path, model):
    text = "Rome &lt;model&gt;json&lt;/model&gt;"
    assert dump_of(tmp_path, revision(text, model)).texts == ["Rome <model>json</model>"]
    for other in ("wikibase-item", "json", "Scribunto", "sanitized-css", "text"):
        found = dump_of(tmp_path, revision("{}", other))
        assert (found.texts, found.counts) == ([], {"other_model": 1})


@pytest.mark.parametrize(
    "times", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (1, 3, 3), (None, 2, None), (None, None)]
)
def test_the_newest_revision_counts(tmp_path, times):
    stamps = [time and f"2024-01-0{time}T00:00:00Z" for time in times]
    found = dump_of(tmp_path, *(revision(f"text {i}", None, t) for i, t in enumerate(stamps)))
    newest = max((stamp or "", i) for i, stamp in enumerate(stamps))[1]
    assert found.texts == [f"text {newest}"]


def test_hidden_files_match_only_where_a_pattern_names_them(tmp_path):
    for name in ("a.txt", ".a.txt.crc", "in/b.txt", ".git/c.txt", "in/.d.txt", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Rome")
    expected = {
        "*": ["_SUCCESS", "a.txt"],
        "*.txt": ["a.txt"],
        "*/*.txt": ["in/b.txt"],
        "**/*.txt": ["a.txt", "in/b.txt"],
        ".*": [".a.txt.crc"],
        "in/.*": ["in/.d.txt"],
    }
    for pattern, names in expected.items():
        found = [file.path for file in find_files(f"{tmp_path}/{pattern}")]
        assert found == [f"{tmp_path}/{name}" for name in names], pattern


def record(kind, text, mark="\r\n"):
    """A record of a WARC file."""
    head = mark.join([f"WARC/1.0{mark}WARC-Type: {kind}", "Content-Type: text/plain"])
    return f"{head}{mark * 2}{text}{mark * 2}".encode()


@pytest.mark.parametrize("mark", ["\r\n", "\n"])
@pytest.mark.parametrize("name", ["crawl.warc.wet.gz", "crawl.txt", "crawl"])
@pytest.mark.parametrize("block_bytes", [60, 1 << 20])
def test_the_texts_of_wet_records_are_the_documents(tmp_path, name, mark, block_bytes):
    texts = ["Rome is old.\n\nIt has hills.", "A format is\nWARC/1.0\n in full.", "Oslo.\nA line."]
    records = [record("warcinfo", "software: x", mark), record("metadata", "y", mark)]
    records += [record("conversion", text, mark) for text in texts]
    records[-1] = records[-1].replace(b"Type: conversion", b"type: Conversion")
    data = b"".join(records)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = read(tmp_path / name, block_bytes=block_bytes)
    assert (found.texts, found.counts["other_record"]) == (texts, 2)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n \n\n"])
@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_each_line_is_a_document_where_that_is_said(tmp_path, end, block_bytes):
    (tmp_path / "a.txt").write_bytes(f"One.{end}Two words.{end}Three.".encode())
    found = read(f"{tmp_path}/a.txt?document=line", block_bytes=block_bytes)
    assert found.texts == ["One.", "Two words.", "Three."]


WRAPPED = (
    "It was a bright cold day in the town of many hills and\n"
    "every clock of it was striking at the same time, which\n"
    "nobody who lived in one of its old narrow houses would\n"
    "have thought to be of interest to a visitor who had no\n"
    "watch of his own and came from far away to see a river."
)


def test_wrapped_lines_are_noticed_and_joined_where_that_is_said(tmp_path):
    (tmp_path / "a.txt").write_text(f"{WRAPPED}\n\nA second part\nof it.\n\n\nAnother.")
    found = read(tmp_path / "a.txt")
    assert found.counts == {"hard_wrapped": 1}
    assert len(found.texts) == 3
    joined = read(f"{tmp_path}/a.txt?lines=wrapped")
    first = WRAPPED.replace("\n", " ")
    assert (joined.texts, joined.counts) == ([f"{first}\nA second part of it.", "Another."], {})


@pytest.mark.parametrize(
    ("wrapped", "joined"),
    [
        ("An inter-\nesting, well-\n  known interesting", "An interesting, well-known interesting"),
        ("Of inter\u00ad\r\nest, 1-\r\n2.", "Of interest, 1- 2."),
        ("\u8fd9\n\u662f\uff0c\n \u7684\nOslo", "\u8fd9\u662f\uff0c\u7684 Oslo"),  # Chinese
        ("\u0e40\u0e21\u0e37\n\u0e40\u0e01\u0e48", "\u0e40\u0e21\u0e37\u0e40\u0e01\u0e48"),  # Thai
        ("\uc624\ub798\n\ub3c4\uc2dc", "\uc624\ub798 \ub3c4\uc2dc"),  # Korean
    ],
)  # fmt: skip
def test_wrapped_words_are_whole_again(tmp_path, wrapped, joined):
    (tmp_path / "a.txt").write_text(wrapped, newline="")
    assert read(f"{tmp_path}/a.txt?lines=wrapped").texts == [joined]


@pytest.mark.parametrize(
    "text",
    [
        "A sentence that ends here, with its mark, in each line of the poem.\n" * 9,
        "\n".join(["short", "lines", "of", "a", "list", "that", "has", "none"]),
        "\n".join(WRAPPED.replace("\n", " ") for _ in range(8)),
        WRAPPED[:120],
    ],
)
def test_other_lines_are_not_taken_for_wrapped_ones(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert read(tmp_path / "a.txt").counts == {}
