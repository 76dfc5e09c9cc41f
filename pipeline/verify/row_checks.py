"""Rows against the rules: what must hold of every example, whatever text it was made of."""

import numpy as np

from pipeline.config import DataConfig
from pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, B_IS_SWAPPED, NO_PAIR, Examples
from pipeline.examples.segment_pairs import MAX_RANDOM_PER_FOLLOWING
from pipeline.tokenization.tokenizer import Tokenizer
from pipeline.verify.findings import Findings, rows_with
from pipeline.verify.mask_checks import check_masks, within_chance

# NSP shares are held against 48-52 % where chance alone would not leave those bounds.
ROWS_FOR_SHARES = 4096


def check_rows(
    examples: Examples,
    faults: Findings,
    *,
    split: str,
    shard: int,
    config: DataConfig,
    tokenizer: Tokenizer,
    nothing_to_mask: int,
) -> bool:
    """Note what does not hold of the rows of a shard, and tell whether they can be taken apart.

    `nothing_to_mask` is how many pairs of the data set were left out after they were made, so that
    the shares of what is left may be off by as many.
    """
    if not len(examples):
        return True
    _audit_pairs(examples, faults, config, nothing_to_mask)
    if not (_audit_layout(examples, faults, config, tokenizer) and _has_places(examples, faults)):
        return False
    check_masks(examples, faults, split, shard, config, tokenizer)
    return True


def _audit_layout(
    examples: Examples, faults: Findings, config: DataConfig, tokenizer: Tokenizer
) -> bool:
    """Whether the rows have the right shape: nothing else can be asked of those that do not."""
    ids, lengths = examples.input_ids.values, examples.input_ids.lengths
    longest, vocab_size = config.max_seq_length, tokenizer.vocab_size
    length_a = examples.length_a.astype(np.int64)
    outside = (lengths < 3) | (lengths > longest)
    faults.note(outside, f"rows shorter than 3 or longer than {longest} tokens")
    empty = (length_a > lengths) | (length_a < 3)
    faults.note(empty, "rows with length_a beyond the row, or of an empty A")
    beyond = f"rows with ids beyond the vocabulary of {vocab_size:,}"
    strange = rows_with(ids >= vocab_size, examples.input_ids)
    labels = examples.masked_lm_labels
    strange = np.union1d(strange, rows_with(labels.values >= vocab_size, labels))
    faults.note(strange, beyond)
    if outside.any() or empty.any() or len(strange):
        return False
    starts, ends = examples.input_ids.offsets[:-1], examples.input_ids.offsets[1:]
    has_b = examples.next_sentence_label != NO_PAIR
    wrong = {
        "rows that do not begin with [CLS]": ids[starts] != tokenizer.cls_id,
        "rows that do not end in [SEP]": ids[ends - 1] != tokenizer.sep_id,
        "rows whose A has no [SEP]": ids[starts + length_a - 1] != tokenizer.sep_id,
        "rows with a B and no label, or the reverse": (length_a < lengths) != has_b,
        "rows with an empty B": length_a + 1 == lengths,
    }
    for what, rows in wrong.items():
        faults.note(rows, what)
    return not any(rows.any() for rows in wrong.values())


def _audit_pairs(
    examples: Examples, faults: Findings, config: DataConfig, nothing_to_mask: int
) -> None:
    label = examples.next_sentence_label
    elsewhere = examples.document_a != examples.document_b
    faults.note((label < NO_PAIR) | (label > B_IS_RANDOM), "rows with an unknown label")
    wrong_kind = (label == NO_PAIR) != (config.pairs == "none")
    faults.note(wrong_kind, "rows with the wrong kind of label")
    if config.pairs == "order":
        faults.note(elsewhere, "rows with A and B from different documents")
    else:
        faults.note((label == B_IS_RANDOM) & ~elsewhere, "random Bs from the document of A")
        faults.note((label != B_IS_RANDOM) & elsewhere, "following Bs from another document")
    document = examples.document_a
    descents = np.flatnonzero(document[1:] < document[:-1]) + 1
    if len(descents) >= config.dupe_factor:  # each copy of the bucket begins anew
        rows = descents[config.dupe_factor - 1 :]
        faults.note(rows, "rows out of the order of their documents")
    if config.pairs == "none":
        _audit_spans(examples, faults, config)
    elif config.pairs == "order":
        _audit_swapped(examples, faults)
    else:
        _audit_shares(examples, faults, config, nothing_to_mask)


def _audit_spans(examples: Examples, faults: Findings, config: DataConfig) -> None:
    document = examples.document_a
    is_short = examples.input_ids.lengths[:-1] < config.max_seq_length
    goes_on = document[1:] == document[:-1]
    if (document != document[0]).any():  # else the next copy of the one document may begin
        faults.note(is_short & goes_on, "rows cut short inside their document")


def _audit_swapped(examples: Examples, faults: Findings) -> None:
    count, swapped = len(examples), int((examples.next_sentence_label == B_IS_SWAPPED).sum())
    if not within_chance(swapped, count / 2, count / 4):
        faults.say(f"{swapped / count:.1%} of the pairs are swapped, not 50 %")


def _audit_shares(
    examples: Examples, faults: Findings, config: DataConfig, nothing_to_mask: int
) -> None:
    label = examples.next_sentence_label
    random, following = int((label == B_IS_RANDOM).sum()), int((label == B_FOLLOWS_A).sum())
    if not random and (examples.document_a == examples.document_a[0]).all():
        return  # nobody to be random with
    share = random / len(label)
    if len(label) >= ROWS_FOR_SHARES and not 0.48 <= share <= 0.52:
        faults.say(f"{share:.1%} of the pairs are random, not 48-52 %")
    if config.pairs == "sentences":
        too_many = abs(random - following) > nothing_to_mask
    else:
        too_many = random > MAX_RANDOM_PER_FOLLOWING * (following + nothing_to_mask)
    if too_many:
        faults.say(
            f"{random:,} random pairs beside {following:,} that follow: not the balance of "
            f"--pairs {config.pairs}"
        )


def _has_places(examples: Examples, faults: Findings) -> bool:
    """Whether each masked position is one of its row, with a label, and they ascend."""
    positions, labels = examples.masked_lm_positions, examples.masked_lm_labels
    row_lengths = np.repeat(examples.input_ids.lengths, positions.lengths)
    unlabelled = positions.lengths != labels.lengths
    beyond = rows_with(positions.values >= row_lengths, positions)
    lost = np.union1d(np.flatnonzero(unlabelled), beyond)
    faults.note(lost, "rows with masked positions beyond the row, or without a label")
    if len(lost):
        return False
    disorder = np.zeros(len(positions.values), dtype=bool)
    disorder[1:] = np.diff(examples.flat_positions()) <= 0
    faults.note(rows_with(disorder, positions), "rows whose masked positions do not ascend")
    return not disorder.any()
