"""Blocks and chunks of any size hold the same documents, each once."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.pipeline.sources import record_boundaries
from clozeline.pipeline.sources.record_boundaries import cut_chunks
from clozeline.pipeline.sources.text_files import BOUNDARIES

PARTS = [b"a", b"bc", b" ", b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"<doc ", b"\xff"]
FILES = st.lists(st.sampled_from(PARTS), max_size=40).map(b"".join)
FORMATS = st.sampled_from(sorted(BOUNDARIES))


def starts(data, boundary):
    return {0, *(found.end() for found in boundary.finditer(data))} - {len(data)}


@given(FILES, FORMATS, st.integers(1, 50), st.integers(1, 50), st.integers(1, 9))
def test_blocks_of_any_size_hold_every_byte_once_and_begin_at_documents(
    data, format, block_bytes, chunk_bytes, step
):
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_boundaries, "STEP", step)  # boundaries beyond what was read
        for start in range(0, len(data), block_bytes):
            stop = min(start + block_bytes, len(data))
            cut = cut_chunks(
                io.BytesIO(data),
                BOUNDARIES[format],
                start=start,
                stop=stop,
                chunk_bytes=chunk_bytes,
            )
            block = list(cut)
            assert all(start <= offset < stop for offset, _ in block)
            found += block
    assert b"".join(chunk for _, chunk in found) == data
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    assert {offset for offset, _ in found} <= starts(data, BOUNDARIES[format])
    assert all(data.startswith(chunk, offset) for offset, chunk in found)


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
