"""The pieces of packed rows against the rules of packing (pipeline/examples/packed_rows.py)."""

import numpy as np

from clozeline.pipeline.examples.packed_rows import SHORTEST
from clozeline.pipeline.verify.findings import ShardRows, rows_with


def check_pieces(shard: ShardRows) -> bool:
    """Whether the pieces, each from [CLS] to [SEP], make up their rows; true without pieces."""
    examples, findings, tokenizer = shard.examples, shard.findings, shard.tokenizer
    if examples.piece_lengths is None or examples.piece_documents is None:
        return True
    pieces, documents, ids = examples.piece_lengths, examples.piece_documents, examples.input_ids
    lengths = pieces.values.astype(np.int64)
    wrong = pieces.lengths != documents.lengths
    wrong[rows_with(lengths < SHORTEST, pieces)] = True
    ends = np.cumsum(lengths)
    sums = np.diff(np.append(0, ends)[pieces.offsets])
    wrong |= (sums != ids.lengths) | (examples.length_a != ids.lengths)
    findings.note(wrong, "rows that their pieces do not make up")
    if wrong.any():
        return False
    at_ends = ids.values[ends - 1] == tokenizer.sep_id
    at_starts = ids.values[ends - lengths] == tokenizer.cls_id
    rows = rows_with(~(at_starts & at_ends), pieces)
    findings.note(rows, "rows with pieces that are not from [CLS] to [SEP]")
    return not len(rows)


def check_packing(shard: ShardRows) -> None:
    """Note rows with pieces in disorder or cut short, and rows that would fit into one.

    Each copy of the bucket is packed separately.
    """
    examples, findings, config = shard.examples, shard.findings, shard.config
    pieces, documents = examples.piece_lengths, examples.piece_documents
    assert pieces is not None
    assert documents is not None
    if (pieces.lengths != documents.lengths).any() or not pieces.lengths.all():
        return  # `check_pieces` reports it
    first, last = documents.offsets[:-1], documents.offsets[1:] - 1
    is_a = documents.values[first] == examples.document_a
    is_b = documents.values[last] == examples.document_b
    findings.note(~(is_a & is_b), "rows whose A or B is not from their first or last piece")
    descends = np.zeros(len(documents.values), dtype=bool)
    descends[1:] = documents.values[1:] < documents.values[:-1]
    descends[first] = False
    findings.note(rows_with(descends, documents), "rows with pieces in disorder")
    _, document, uses = np.unique(documents.values, return_inverse=True, return_counts=True)
    is_short = pieces.values < config.max_seq_length
    if config.deduplicate == "none":  # equal texts have one hash, and rests of one length
        rest = np.full(len(uses), config.max_seq_length, pieces.values.dtype)
        np.minimum.at(rest, document[is_short], pieces.values[is_short])
        is_cut = pieces.values != rest[document]
    else:
        is_cut = (np.bincount(document[is_short], minlength=len(uses)) > shard.copies)[document]
    cut = rows_with(is_short & is_cut, pieces)
    findings.note(cut, "rows with pieces cut short inside their document")
    # Best fit opens a row only for what fits into no other.
    half_empty = np.flatnonzero(2 * examples.input_ids.lengths <= config.max_seq_length)
    if len(half_empty) > shard.copies:
        findings.note(half_empty, "rows that would fit into one")
