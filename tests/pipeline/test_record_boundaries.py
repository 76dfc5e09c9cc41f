"""Where records end, in files of every format (see also tests/pipeline/test_hostile_sources.py)."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.sources.record_boundaries import cut_chunks
from clozeline.pipeline.sources.text_files import BOUNDARIES

PARTS = [b"a", b"bc", b" ", b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"<doc ", b"\xff"]
FILES = st.lists(st.sampled_from(PARTS), max_size=40).map(b"".join)
FORMATS = st.sampled_from(sorted(BOUNDARIES))


def starts(data, boundary):
    return {0, *(found.end() for found in boundary.finditer(data))} - {len(data)}


@given(FILES, FORMATS)
def test_the_smallest_chunks_are_single_documents(data, format):
    boundary = BOUNDARIES[format]
    cut = cut_chunks(io.BytesIO(data), boundary, chunk_bytes=1)
    assert {offset for offset, _ in cut} == starts(data, boundary)


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
