"""Sources that are cut, rewritten, of another encoding or endless are named, not taken silently."""

import gzip
import io
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import tracemalloc
from itertools import pairwise, product
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.counter_rng import random_bits
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig, PairScheme
from clozeline.pipeline.curation.dropped import CLEANED, REASONS, dropped_lines
from clozeline.pipeline.curation.rules import RULES
from clozeline.pipeline.dataset.manifest import Manifest, ShardEntry
from clozeline.pipeline.sources.formats import find_sources, list_blocks, read_block
from clozeline.pipeline.sources.record_boundaries import cut_chunks
from clozeline.pipeline.sources.text_files import BOUNDARIES
from tests.support import small_sources
from tests.support.small_sources import write

PIPELINE = Path(__file__).parents[2] / "pipeline"


def read(source, *, longest=64_000_000, **sizes):
    """Texts, and rejections by the names of their files."""
    found = small_sources.read(source, max_document_bytes=longest, **sizes)
    return found.texts, [(Path(bad.where).name, bad.reason) for bad in found.rejected]


def rewrite(path):
    stamp = path.stat()
    path.write_bytes(b"New.\n\n" * (stamp.st_size // 6))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite, "a.txt changed while it was read; run the command again"),
        (lambda path: path.write_bytes(b""), "a.txt changed while it was read"),
        (Path.unlink, "a.txt was removed while it was read; restore it"),
    ],
)
def test_a_source_that_changes_while_it_is_read_is_an_error(change, message, tmp_path):
    source = tmp_path / "a.txt"
    source.write_bytes(b"Old.\n\n" * 10_000)
    chunks = read_block(list_blocks([str(source)], block_bytes=10_000)[2], chunk_bytes=1000)
    next(chunks)
    change(source)
    with pytest.raises(InputError, match=message):
        list(chunks)


def test_a_parquet_file_that_is_replaced_is_not_called_corrupt(tmp_path):
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), source)
    [block] = list_blocks([str(source)])
    source.write_bytes(b"PAR1 is being written")
    with pytest.raises(InputError, match=r"a\.parquet changed while it was read"):
        list(read_block(block))


# --- another encoding or format -------------------------------------------------------------------

TEXT = "Ein Satz über Oslo. Noch einer.\n\n" * 20


@pytest.mark.parametrize("name", ["a.txt", "my data.csv", "a.jsonl.gz"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TEXT.encode("utf-16"), "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {} > FILE"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "is UTF-16; convert it"),
        (TEXT.encode("utf-32"), "is UTF-32; convert it"),
        (b"\0\0\xfe\xff" + TEXT.encode("utf-32-be"), "is UTF-32; convert it"),
        (TEXT.encode("utf-16-le"), "is UTF-16 without a byte-order mark, or binary data, not"),
        (random_bits(7, np.arange(100)).tobytes(), "is not in UTF-8 (350 of its first 800 bytes"),
    ],
)
def test_text_in_another_encoding_is_refused_by_its_first_bytes(name, data, message, tmp_path):
    source = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(InputError, match=re.escape(message.format(shlex.quote(source)))):
        find_sources(source)


def test_utf8_with_a_mark_and_text_with_a_nul_are_text(tmp_path):
    for name, data in (("a.txt", b"\xef\xbb\xbfOne."), ("b.txt", b"\0Two\0\0."), ("c.txt", b"\0")):
        (tmp_path / name).write_bytes(data)
    assert read(tmp_path / "*.txt")[0] == ["One.", "Two."]


GERMAN = "Die Bären mögen süße Äpfel.\n\n" * 300
ENCODED = {
    "a.txt": GERMAN,
    "a.jsonl": "".join(
        json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in GERMAN.split("\n\n")
    ),
    "wiki_00": f'<doc id="1" title="Bären">\nBären\n\n{GERMAN}</doc>\n',
    "a.xml": f"<mediawiki><page><title>B</title><revision><text>{GERMAN}</text></revision></page>"
    "</mediawiki>",
    "data": '{"text": "' + "Bären. " * 300 + '"}\n',
}


@pytest.mark.parametrize("name", ENCODED)
def test_latin1_is_refused_with_the_command_that_converts_it(name, tmp_path):
    source, text = tmp_path / name, ENCODED[name]
    source.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=rf"not in UTF-8 \(.*: iconv -f WINDOWS-1252 .*/{name} >"):
        list_blocks([str(source)])
    source.write_bytes(text.encode())
    assert "Bären" in read(source)[0][0]


@pytest.mark.parametrize(
    "data",
    [
        b"A caf\xe9. " + b"Plain text. " * 9000 + b"\xe9" * 19,  # few
        ("語" * 40 + " ").encode() * 600 + b"\xe8\xaa. " * 90,  # cut characters, most are whole
        b"x" + "語".encode() * 40_000,  # the first bytes end inside a character
        b"caf\xe9",
    ],
)
def test_text_with_a_rare_bad_byte_is_read(data, tmp_path):
    (tmp_path / "a.txt").write_bytes(data)
    [text] = read(tmp_path / "a.txt")[0]
    assert text == data.decode(errors="replace").strip()


def test_a_parquet_page_is_compared_with_its_checksum(tmp_path):
    source = tmp_path / "a.parquet"
    table = pa.table({"text": ["Ein Satz, der lang genug ist."] * 50})
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, source, **options)
    data = bytearray(source.read_bytes())
    data[data.rindex(b"Satz", 0, len(data) // 2)] ^= 1
    source.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet is corrupt near row 1 \(.*checksum"):
        read(source)


PARTS = [
    *(b"a", b"bcd", b"<doc ", b"x" * 9, b"y" * 30),
    *(b" ", b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff"),
]
FILES = st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join)


@settings(max_examples=60)
@given(
    FILES, st.sampled_from(sorted(BOUNDARIES)), st.integers(1, 60), st.integers(1, 40),
    st.integers(1, 9), st.integers(1, 25) | st.just(sys.maxsize),
)  # fmt: skip
@example(b"a\n" + b" " * 90 + b"b\nc", "jsonl", 200, 200, 500, 10)
@example(b"a\n" + b" " * 90 + b"b\nc", "jsonl", 50, 1, 1, 10)
@example(b"a\n\n" + b"\n" * 18 + b"b\n\nc", "text", 30, 1, 1, 10)
@example(b"a\n \r\n" + b"\r\n\t" * 99 + b"\n" * 99 + b"b\n\nc", "text", 900, 1, 7, 3)
@example(b"a\r\n" + b" \t" * 99 + b"<doc b\r<doc c", "wikiextractor", 900, 1, 1, 1)
@example(b"a" + b" \r" * 99 + b"\n" + b" \r" * 99 + b"b\nc", "jsonl", 900, 1, 1, 1)
def test_blocks_and_chunks_of_any_size_hold_the_same_documents_once_but_for_those_too_long(
    data, format, block_bytes, chunk_bytes, step, longest
):
    boundary = BOUNDARIES[format]
    ends = [0, *(found.end() for found in boundary.finditer(data)), len(data)]
    documents = {start: data[start:end] for start, end in pairwise(ends)}
    too_long = {start for start, part in documents.items() if len(part) > longest}
    found, kept = set(), b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clozeline.pipeline.sources.record_boundaries.STEP", step)
        patch.setattr("clozeline.pipeline.sources.record_boundaries.MAX_STEP", step)
        for start in range(0, len(data), block_bytes):
            stop = min(start + block_bytes, len(data))
            sizes = {"start": start, "stop": stop, "chunk_bytes": chunk_bytes}
            for offset, chunk in cut_chunks(io.BytesIO(data), boundary, longest=longest, **sizes):
                assert start <= offset < stop
                assert offset in documents
                if chunk is None:
                    found.add(offset)
                else:
                    assert data.startswith(chunk, offset)
                    kept += chunk
    assert found == too_long
    assert kept == b"".join(part for at, part in documents.items() if at not in found)


@pytest.mark.parametrize(
    ("name", "form", "where"),
    [
        ("a.txt", "{}\n\n", "a.txt: byte 6"),
        ("a.jsonl", '{{"text": "{}"}}\n', "a.jsonl: byte 17"),
        ("wiki_00", '<doc title="">\n{}\n</doc>\n', "wiki_00: byte 27"),
        ("a.xml", "<page><title>L</title><revision><text>{}</text></revision></page>", "a.xml: L"),
        ("a.parquet", "", "a.parquet: row 2"),
    ],
)
def test_a_document_over_the_limit_is_rejected_and_named(name, form, where, tmp_path):
    source, texts = tmp_path / name, ["One.", "long " * 40, "Two."]
    if form:
        text = "".join(map(form.format, texts))
        source.write_text(f"<mediawiki>{text}</mediawiki>" if "xml" in name else text)
    else:
        pq.write_table(pa.table({"text": texts}), source)
    for size in (7, 50, 1 << 20):
        texts, rejected = read(source, longest=150, block_bytes=size, chunk_bytes=size)
        [(named, reason)] = rejected
        assert named == where
        assert reason.startswith("longer than --max-document-bytes 150")
        assert reason.endswith("?document=line") == where.startswith("a.txt")
        assert texts == ["One.", "Two."]
    assert len(read(source, longest=400)[0]) == 3


@pytest.mark.parametrize("name", ["a.txt.xz", "a.jsonl.xz", "a.xml.xz"])
def test_memory_does_not_follow_a_document_without_end(name, tmp_path):
    begin = b"<mediawiki><page><title>L</title><revision><text>" if "xml" in name else b"{"
    end = b"</text></revision></page></mediawiki>" if "xml" in name else b""
    (tmp_path / name).write_bytes(lzma.compress(begin + b"x" * 24_000_000 + end, preset=0))
    tracemalloc.start()
    texts, [(_, reason)] = read(tmp_path / name, longest=500_000, chunk_bytes=250_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason.startswith("longer than --max-document-bytes 500,000")
    assert texts == []
    assert peak < 8_000_000


# --- what is left out -----------------------------------------------------------------------------


DEFAULT = DataConfig()


def manifest(*, dropped, config=DEFAULT, tokens_kept=0, **counts):
    digests = {"sha256": "", "rows_sha256": "", "checksum": 0}
    entry = ShardEntry(name="", split="train", rows=90, bytes=0, length_histogram=[], **digests)
    facts = {"config": config, "tokenizer_digest": "", "vocab_size": 5}
    facts["token_counts"] = [tokens_kept]
    return Manifest(**facts, shards=[entry], counts=counts, dropped=dropped)


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        (
            {"documents": 100, "paragraphs": 198, "tokens_kept": 990, "dropped": {
                "duplicate_document": 3, "short_paragraph": 2, "surplus_random_pair": 10,
                "cut_tokens": 10}},
            ["dropped 3 of 100 documents (3.0%): the same text as another document",
             "dropped 10 of 100 pairs (10.0%): more random pairs than following ones; see --pairs"],
        ),
        (  # what is counted at each use has no share
            {"config": DataConfig(pairs="sentences", dupe_factor=2), "paragraphs": 80,
             "tokens_kept": 240, "dropped": {
                 "short_paragraph": 20, "single_sentence_paragraph": 80, "cut_tokens": 60}},
            ["dropped 20 of 100 paragraphs (20.0%): shorter than --min-characters",
             "dropped 80 paragraphs: a single sentence, so no pair",
             "dropped 60 tokens: cut off pairs that are longer than --max-seq-length"],
        ),
        (
            {"documents": 103, "dropped": {"redirect": 97, "empty": 3}},
            ["dropped 3 of 203 documents (1.5%): no text in them",
             "skipped 97 of 203 pages (47.8%): redirects"],
        ),
        (
            {"documents": 199, "invalid_utf8": 150, "nul": 2, "dropped": {"empty": 1}},
            ["cleaned 150 of 200 documents (75.0%): bytes that are not UTF-8 became U+FFFD; "
             "LC_ALL=C.UTF-8 grep -Hnaxv '.*' FILE lists the lines, and iconv converts a file in "
             "another encoding"],
        ),
        (  # however few
            {"without_masks": 1, "dropped": {}},
            ["1 of 90 examples (1.1%) have no masks: all of their tokens are special or unknown"],
        ),
    ],
    ids=["shares", "at each use", "redirects", "cleaned", "without masks"],
)  # fmt: skip
def test_what_is_dropped_or_cleaned_is_told_in_words_above_one_percent(facts, lines):
    assert list(dropped_lines(manifest(**facts))) == lines


def test_labels_that_cannot_differ_are_named():
    """The data set has one shard, so two documents are each other's random B."""
    said = []
    for case in product(get_args(PairScheme), (1, 2)):
        found = manifest(config=DataConfig(pairs=case[0]), documents=case[1], dropped={})
        lines = [line for line in dropped_lines(found) if "each next_sentence_label is 0" in line]
        said += [case] * len(lines)
    assert said == [("segments", 1), ("sentences", 1)]


def test_every_reason_has_its_words():
    source = "".join(path.read_text() for path in PIPELINE.rglob("*.py"))
    reasons = set(re.findall(r'dropped\["(\w+)"\]', source))
    reasons |= set(re.findall(r'_drop\(\w+, counts, "(\w+)"', source))
    reasons |= set(re.findall(r'Counter\(\{"(\w+)": \w+, "(\w+)"', source)[0])
    counted = set(re.findall(r'\.count\("(\w+)"\)', source))
    assert set(CLEANED) < counted
    reasons |= {f"quality_{rule}" for rule in RULES}
    assert reasons | counted - set(CLEANED) == set(REASONS)


def test_the_command_that_is_given_finds_the_lines_that_are_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes("caf\u00e9\n".encode() + b"caf\xe9\n\ncaf\xe9.")
    command = re.search("LC_ALL.*FILE", CLEANED["invalid_utf8"])[0].replace("FILE", "a.txt")
    found = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True).stdout
    assert found == b"a.txt:2:caf\xe9\na.txt:4:caf\xe9.\n"
