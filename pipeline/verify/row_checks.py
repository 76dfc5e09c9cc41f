"""Rows against the rules: what must hold for every example, whatever its text.

Masks are a function of the row and the seed: made again, they must equal those stored.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import B_IS_RANDOM, NO_PAIR, Examples
from clozeline.pipeline.examples.columns import SHORTEST
from clozeline.pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

Flags = NDArray[np.bool_]


class Findings:
    """The problems of a shard, by kind, in the order in which they were found."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int]] = {}
        self._others: list[str] = []

    def note(self, rows: NDArray[Any], problem: str, *, first: int = 0) -> None:
        """Add rows that have the problem: flags [R] or row numbers, counted from row `first`."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else np.unique(rows)
        if len(numbers):
            count, row = self._rows.get(problem, (0, int(numbers[0]) + first))
            self._rows[problem] = (count + len(numbers), min(row, int(numbers[0]) + first))

    def add(self, problem: str) -> None:
        """Add a problem of the shard as a whole."""
        self._others.append(problem)

    def lines(self) -> list[str]:
        rows = [f"{what}: {n:,}, the first at {row:,}" for what, (n, row) in self._rows.items()]
        return rows + self._others


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """The rows of a shard, what they are checked against, and what is wrong with them."""

    examples: Examples
    config: DataConfig
    tokenizer: Tokenizer
    split: str
    shard: int  #: its number in the split
    copies: int  #: how often the bucket may occur, each time with new pairs
    findings: Findings = field(default_factory=Findings)


def rows_with(flags: Flags, ragged: Ragged) -> NDArray[np.int64]:
    """The rows in which a value is flagged, each once."""
    return np.unique(np.searchsorted(ragged.offsets, np.flatnonzero(flags), side="right") - 1)


def differing_rows(one: Examples, two: Examples) -> NDArray[np.int64]:
    """The rows that are not the same in both, up to the end of the shorter one."""
    number = min(len(one), len(two))
    differs = np.zeros(number, dtype=bool)
    for name, a in one.columns().items():
        b = getattr(two, name)
        if isinstance(a, Ragged):
            same_length = a.lengths[:number] == b.lengths[:number]
            differs |= ~same_length
            rows = np.flatnonzero(same_length)
            a, b = (x if len(rows) == len(x) else x.take(rows) for x in (a, b))
            differs[rows[rows_with(a.values != b.values, a)]] = True
        else:
            differs |= a[:number] != b[:number]
    return np.flatnonzero(differs)


SLAB = 8192  # rows masked at once: the working set stays in the processor's cache


def check_rows(shard: ShardRows) -> bool:
    """Note which rows break the rules; return whether they have the shape of examples."""
    examples, config = shard.examples, shard.config
    if not len(examples):
        return True
    if config.is_packed != (examples.piece_lengths is not None):
        shard.findings.add(f"packed rows do not fit --pairs {config.pairs}, or lack their pieces")
        return False
    _check_pairs(shard)
    if not (_check_layout(shard) and _check_pieces(shard) and _check_positions(shard)):
        return False
    check_masks(shard)
    return True


def _check_layout(shard: ShardRows) -> bool:
    """Whether the rows have the shape of examples; other checks need it."""
    examples, findings, tokenizer = shard.examples, shard.findings, shard.tokenizer
    ids, lengths = examples.input_ids.values, examples.input_ids.lengths
    longest, vocab_size = shard.config.max_seq_length, tokenizer.vocab_size
    length_a = examples.length_a.astype(np.int64)
    wrong_length = (lengths < 3) | (lengths > longest)
    findings.note(wrong_length, f"rows shorter than 3 or longer than {longest} tokens")
    wrong_a = (length_a > lengths) | (length_a < 3)
    findings.note(wrong_a, "rows with an empty A, or a length_a beyond the row")
    unknown = rows_with(ids >= vocab_size, examples.input_ids)
    labels = examples.masked_lm_labels
    unknown = np.union1d(unknown, rows_with(labels.values >= vocab_size, labels))
    findings.note(unknown, f"rows with ids beyond the vocabulary of {vocab_size:,}")
    if wrong_length.any() or wrong_a.any() or len(unknown):
        return False
    starts, ends = examples.input_ids.offsets[:-1], examples.input_ids.offsets[1:]
    has_b = examples.next_sentence_label != NO_PAIR
    wrong = {
        "rows that do not begin with [CLS]": ids[starts] != tokenizer.cls_id,
        "rows that do not end in [SEP]": ids[ends - 1] != tokenizer.sep_id,
        "rows whose A has no [SEP]": ids[starts + length_a - 1] != tokenizer.sep_id,
        "rows with a B and no label, or a label and no B": (length_a < lengths) != has_b,
        "rows with an empty B": length_a + 1 == lengths,
    }
    for what, rows in wrong.items():
        findings.note(rows, what)
    return not any(rows.any() for rows in wrong.values())


def _check_pairs(shard: ShardRows) -> None:
    examples, findings, config = shard.examples, shard.findings, shard.config
    label = examples.next_sentence_label
    same = examples.document_a == examples.document_b
    findings.note((label < NO_PAIR) | (label > B_IS_RANDOM), "rows with an unknown label")
    wrong_kind = (label == NO_PAIR) == config.has_pairs
    findings.note(wrong_kind, "rows with a label that does not fit --pairs")
    random = label == B_IS_RANDOM
    if config.pairs == "order":
        findings.note(~same, "rows with A and B from different documents")
    elif not config.is_packed:
        if config.deduplicate != "none":  # else it may be from another copy of it
            findings.note(random & same, "rows with a random B from the document of A")
        findings.note(~random & ~same, "rows with a following B from another document")
    document = examples.document_a
    descents = np.flatnonzero(document[1:] < document[:-1]) + 1
    if len(descents) >= shard.copies:  # each copy of the bucket starts over
        findings.note(descents[shard.copies - 1 :], "rows not in the order of their documents")
    if config.is_packed:
        _check_packing(shard)


def _check_positions(shard: ShardRows) -> bool:
    """Whether the masked positions are inside their row, have labels and are ascending."""
    examples, findings = shard.examples, shard.findings
    positions, labels = examples.masked_lm_positions, examples.masked_lm_labels
    row_lengths = np.repeat(examples.input_ids.lengths, positions.lengths)
    unlabelled = positions.lengths != labels.lengths
    outside = rows_with(positions.values >= row_lengths, positions)
    wrong = np.union1d(np.flatnonzero(unlabelled), outside)
    findings.note(wrong, "rows with masked positions beyond the row, or without a label")
    if len(wrong):
        return False
    disorder = np.zeros(len(positions.values), dtype=bool)
    disorder[1:] = np.diff(examples.flat_positions()) <= 0
    findings.note(rows_with(disorder, positions), "rows whose masked positions are not ascending")
    return not disorder.any()


def _check_pieces(shard: ShardRows) -> bool:
    """Whether the pieces, each from [CLS] to [SEP], make up their rows; true without pieces."""
    examples, findings, tokenizer = shard.examples, shard.findings, shard.tokenizer
    if examples.piece_lengths is None or examples.piece_documents is None:
        return True
    pieces, documents, ids = examples.piece_lengths, examples.piece_documents, examples.input_ids
    lengths = pieces.values.astype(np.int64)
    wrong = pieces.lengths != documents.lengths
    wrong[rows_with(lengths < SHORTEST, pieces)] = True
    ends = np.cumsum(lengths)
    wrong |= (pieces.sums != ids.lengths) | (examples.length_a != ids.lengths)
    findings.note(wrong, "rows that their pieces do not make up")
    if wrong.any():
        return False
    at_ends = ids.values[ends - 1] == tokenizer.sep_id
    at_starts = ids.values[ends - lengths] == tokenizer.cls_id
    rows = rows_with(~(at_starts & at_ends), pieces)
    findings.note(rows, "rows with pieces that are not from [CLS] to [SEP]")
    return not len(rows)


def _check_packing(shard: ShardRows) -> None:
    """Note rows with pieces in disorder, and those whose A or B is not from a piece."""
    examples, findings = shard.examples, shard.findings
    pieces, documents = examples.piece_lengths, examples.piece_documents
    assert pieces is not None
    assert documents is not None
    if (pieces.lengths != documents.lengths).any() or not pieces.lengths.all():
        return  # `_check_pieces` reports it
    first, last = documents.offsets[:-1], documents.offsets[1:] - 1
    is_a = documents.values[first] == examples.document_a
    is_b = documents.values[last] == examples.document_b
    findings.note(~(is_a & is_b), "rows whose A or B is not from their first or last piece")
    descends = np.zeros(len(documents.values), dtype=bool)
    descends[1:] = documents.values[1:] < documents.values[:-1]
    descends[first] = False
    findings.note(rows_with(descends, documents), "rows with pieces in disorder")


def check_masks(shard: ShardRows) -> None:
    """Note rows whose masks are not those of the config and the seed."""
    examples, config = shard.examples, shard.config
    rules = MaskRules.of(config, shard.tokenizer)
    key = mask_keys(config.seed, split=shard.split, shard=shard.shard, epoch=0)
    for start in range(0, len(examples), SLAB):
        rows = examples.slice(start, min(start + SLAB, len(examples)))
        originals, numbers = rows.unmasked(), start + np.arange(len(rows))
        _check_special_tokens(rows, originals, shard, start)
        keys = np.broadcast_to(key, len(rows))
        again = mask_examples(originals, keys=keys, rows=numbers, rules=rules)
        problem = "rows with masks other than those of the config and the seed"
        shard.findings.note(differing_rows(rows, again), problem, first=start)


def _check_special_tokens(
    rows: Examples, originals: Examples, shard: ShardRows, first: int
) -> None:
    findings, tokenizer, labels = shard.findings, shard.tokenizer, rows.masked_lm_labels
    masked = rows_with(tokenizer.is_special[labels.values], labels)
    findings.note(masked, "rows with masked special tokens", first=first)
    ids, (of_cls, of_sep) = originals.input_ids, rows.cls_and_sep()
    is_special = tokenizer.is_special[ids.values] & (ids.values != tokenizer.unk_id)
    counts = np.add.reduceat(is_special, ids.offsets[:-1], dtype=np.int64)
    # Either may be the token for unknown text, too, as in GPT-2.
    is_cls, is_sep = (mark != tokenizer.unk_id for mark in (tokenizer.cls_id, tokenizer.sep_id))
    expected = of_cls * is_cls + of_sep * is_sep
    findings.note(counts != expected, "rows with special tokens inside A or B", first=first)
