"""The columns of a shard: the contract between the pipeline and the trainer.

Rows have different lengths. Padding, `attention_mask` and `token_type_ids` are derived from the
columns when a batch is built; `input_ids` are masked already, and writing the labels back at their
positions restores the original.

    input_ids              [CLS] the [MASK] sat [SEP] it slept [SEP]
    masked_lm_positions    [2]
    masked_lm_labels       [cat]
    length_a               5                    tokens of "[CLS] A [SEP]"
    next_sentence_label    0                    0 B follows A, 1 B is random (or, with
                                                --pairs order, B precedes A), -1 there is no B
    document_a, document_b 0x51c2.., 0x51c2..   first 8 bytes of the documents' hashes

A packed row (--pairs packed) has pieces, each a span of one document: attention stays inside a
piece, and positions restart with each. Its A is the whole row; document_a and document_b are
those of the first and the last piece. Only packed shards have the last two columns; their schema
version is 2.

    input_ids              [CLS] the [MASK] sat [SEP] [CLS] it rained [SEP]
    length_a               9
    piece_lengths          5 4                  tokens of each piece, including [CLS] and [SEP]
    piece_documents        0x51c2.. 0x8d0f..    first 8 bytes of the documents' hashes
"""

from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clozeline.pipeline.common import ragged
from clozeline.pipeline.common.ragged import Ragged

SCHEMA_VERSION = 1
PACKED_VERSION = 2  # for packed rows
VERSION_KEY = "clozeline.schema_version"
ROWS_PER_BATCH = 1024

B_FOLLOWS_A = 0
B_IS_RANDOM = 1
B_IS_SWAPPED = 1  # --pairs order
NO_PAIR = -1


@dataclass(frozen=True)
class Examples:
    """R rows of a shard as NumPy columns."""

    input_ids: Ragged  # uint16 or uint32
    masked_lm_positions: Ragged  # uint16, sorted within a row
    masked_lm_labels: Ragged  # as input_ids
    length_a: NDArray[np.uint16]  # [R]
    next_sentence_label: NDArray[np.int8]  # [R]
    document_a: NDArray[np.uint64]  # [R]
    document_b: NDArray[np.uint64]  # [R]
    piece_lengths: Ragged | None = None  # uint16; None: the rows are not packed
    piece_documents: Ragged | None = None  # uint64

    def __len__(self) -> int:
        return len(self.length_a)

    def columns(self) -> dict[str, Any]:
        """The columns by name, in the order of the schema; piece columns in packed rows only."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    def take(self, rows: NDArray[np.int64]) -> "Examples":
        """The given rows, in the given order."""
        return Examples(**{name: column.take(rows) for name, column in self.columns().items()})

    def slice(self, start: int, stop: int) -> "Examples":
        """Rows start to stop; the values are views."""
        columns: dict[str, Any] = {}
        for name, column in self.columns().items():
            is_ragged = isinstance(column, Ragged)
            columns[name] = column.slice(start, stop) if is_ragged else column[start:stop]
        return Examples(**columns)

    def unmasked(self) -> "Examples":
        """The original examples: labels written back at their positions, and no masks."""
        values = self.input_ids.values.copy()
        values[self.flat_positions()] = self.masked_lm_labels.values
        nothing = np.zeros(len(self) + 1, dtype=np.int64)
        return replace(
            self,
            input_ids=Ragged(values, self.input_ids.offsets),
            masked_lm_positions=Ragged(self.masked_lm_positions.values[:0], nothing),
            masked_lm_labels=Ragged(self.masked_lm_labels.values[:0], nothing),
        )

    def cls_and_sep(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many [CLS] and how many [SEP] each row has, int64 [R] each."""
        if self.piece_lengths is not None:
            return self.piece_lengths.lengths, self.piece_lengths.lengths
        one = np.ones(len(self), np.int64)
        return one, one + (self.next_sentence_label != NO_PAIR)

    def flat_positions(self) -> NDArray[np.int64]:
        """The masked positions as indices into `input_ids.values`."""
        row_starts = np.repeat(self.input_ids.offsets[:-1], self.masked_lm_positions.lengths)
        flat: NDArray[np.int64] = row_starts + self.masked_lm_positions.values
        return flat


def concatenate_examples(parts: list[Examples]) -> Examples:
    """All rows of the parts (at least one), in order."""
    joined: dict[str, Any] = {}
    for name in parts[0].columns():
        values = [getattr(part, name) for part in parts]
        is_ragged = isinstance(values[0], Ragged)
        joined[name] = ragged.concatenate(values) if is_ragged else np.concatenate(values)
    return Examples(**joined)


def take_from_each(parts: list[Examples], rows: list[NDArray[np.int64]]) -> Examples:
    """The given rows of each part (at least one), one part after the other."""
    of_arrow = [pa.array(here, pa.int64()) for here in rows]
    columns: dict[str, Any] = {}
    for name, first in parts[0].columns().items():
        of_parts = [getattr(part, name) for part in parts]
        if isinstance(first, Ragged):
            columns[name] = ragged.take_from_each(of_parts, of_arrow)
        else:
            parts_taken = [column[here] for column, here in zip(of_parts, rows, strict=True)]
            columns[name] = np.concatenate(parts_taken)
    return Examples(**columns)


def id_type(vocab_size: int) -> pa.DataType:
    """uint16 if it can hold every id, else uint32."""
    return pa.uint16() if vocab_size <= 65_535 else pa.uint32()


def example_schema(vocab_size: int, tokenizer_digest: str, *, packed: bool = False) -> pa.Schema:
    """The Arrow schema of a shard; its metadata holds the version and the tokenizer's digest."""
    ids = _list_of(id_type(vocab_size))
    types = {
        "input_ids": ids,
        "masked_lm_positions": _list_of(pa.uint16()),
        "masked_lm_labels": ids,
        "length_a": pa.uint16(),
        "next_sentence_label": pa.int8(),
        "document_a": pa.uint64(),
        "document_b": pa.uint64(),
        "piece_lengths": _list_of(pa.uint16()),
        "piece_documents": _list_of(pa.uint64()),
    }
    metadata = {
        VERSION_KEY: str(schema_version(packed=packed)),
        "clozeline.tokenizer": tokenizer_digest,
    }
    columns = [pa.field(name, types[name], nullable=False) for name in _column_names(packed)]
    return pa.schema(columns, metadata=metadata)


def schema_version(*, packed: bool) -> int:
    """The version of a data set's schema: rows that are not packed keep the first one."""
    return PACKED_VERSION if packed else SCHEMA_VERSION


def stored_version(schema: pa.Schema) -> str:
    """The version in the metadata of a shard's schema; "none" where it has none."""
    version: bytes = (schema.metadata or {}).get(VERSION_KEY.encode(), b"none")
    return version.decode(errors="replace")


def from_record_batch(batch: pa.RecordBatch) -> Examples:
    """The columns as NumPy views of the batch's memory."""
    columns: dict[str, Any] = {}
    for name in _column_names(stored_version(batch.schema) == str(PACKED_VERSION)):
        column = batch.column(name)
        is_list = pa.types.is_list(column.type)
        columns[name] = ragged.from_arrow(column) if is_list else column.to_numpy()
    return Examples(**columns)


def _column_names(packed: bool) -> list[str]:
    return [field.name for field in fields(Examples) if packed or field.default is MISSING]


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))
