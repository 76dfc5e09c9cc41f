"""The chapter of a data set: examples, lengths, masks, pairs, and what was dropped.

    work/shards  ->  DatasetSummary: manifest, tokenizer, counts over the rows of each split, ...
                 ->  Chapter("Data set", ...)

Counts add up: a split's are the sum of its record batches'.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import check_types, size_in_words
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import refuse_malformed, unsealed
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.dropped import documents_read, mixture_lines
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.dataset.manifest import (
    DROPPED,
    REJECTED,
    TOKENIZER,
    Manifest,
    read_manifest,
)
from clozeline.pipeline.dataset.schema import NO_PAIR, Examples, from_record_batch
from clozeline.pipeline.dataset.shards import read_batches
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.inspect import random_examples
from clozeline.pipeline.report.page import Chapter, Section, Table
from clozeline.pipeline.sources.documents import Rejected
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

EXAMPLES_SHOWN, REJECTED_SHOWN = 10, 10
Record = TypeVar("Record")


@dataclass(frozen=True)
class DroppedDocument:
    """A line of dropped.jsonl: a sample of the documents that curation dropped."""

    reason: str
    document: str  # its hash
    text: str
    value: float  # what decided


@dataclass(frozen=True, kw_only=True)
class DatasetSummary:
    manifest: Manifest
    tokenizer: Tokenizer
    counts: dict[str, Counter[str]]  # by split, those of `count_rows`
    lengths: dict[str, NDArray[np.int64]]  # by split, rows by number of tokens, [S + 1]
    rejected: list[Rejected]
    dropped: list[DroppedDocument]


@lru_cache(maxsize=1)
def dataset_chapter(folder: AnyPath, digest: str) -> Chapter:
    """What all rows of a data set are like; read once for each dataset digest.

    Raises InputError if the folder is not a data set, or a file of it cannot be read.
    """
    summary = summarize_dataset(folder)
    manifest, tokenizer = summary.manifest, summary.tokenizer
    shown = list(random_examples(folder, manifest, tokenizer, number=EXAMPLES_SHOWN, seed=0))
    sentence = "Random training examples, those of clozeline inspect with --seed 0."
    examples = Section(heading="Examples", sentence=sentence, examples=shown)
    sections = [_statistics(summary), _dropped(summary)]
    return Chapter(
        name="Data set",
        figures=list(_figures(summary)),
        sections=[examples, *sections] if shown else sections,
    )


def summarize_dataset(folder: AnyPath) -> DatasetSummary:
    """Read the whole data set, a record batch at a time. Raises InputError as `dataset_chapter`."""
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer_digest:
        raise InputError(
            f"{folder / TOKENIZER} is not the tokenizer of the shards; restore it, or build them "
            "again with `clozeline shards --overwrite`."
        )
    longest = manifest.config.max_seq_length
    counts: dict[str, Counter[str]] = {TRAIN: Counter(), VALIDATION: Counter()}
    lengths = {split: np.zeros(longest + 1, np.int64) for split in counts}
    for entry in manifest.shards:
        for batch in read_batches(folder / entry.name, expected=entry.checksum):
            examples = from_record_batch(batch)
            counts[entry.split] += count_rows(examples, tokenizer)
            of_rows = examples.input_ids.lengths
            lengths[entry.split] += np.bincount(of_rows, minlength=longest + 1)
    return DatasetSummary(
        manifest=manifest,
        tokenizer=tokenizer,
        counts=counts,
        lengths=lengths,
        rejected=list(_records(folder / REJECTED, Rejected)),
        dropped=list(_records(folder / DROPPED, DroppedDocument)),
    )


def _records(path: AnyPath, kind: type[Record]) -> Iterator[Record]:
    """The lines of a file, the fields of this dataclass of each; none if there is no file."""
    with refuse_malformed(path, "delete it"):
        data = path.read_bytes() if path.exists() else b""
        for line in data.splitlines():  # of bytes: U+2028 ends no line of JSON
            values = unsealed(json.loads(line), required=False)
            record = kind(**{name: values[name] for name in kind.__annotations__})
            check_types(record)
            yield record


def count_rows(examples: Examples, tokenizer: Tokenizer) -> Counter[str]:
    """Rows by their label; tokens, [CLS] and [SEP] included; masks by what is shown instead."""
    original = examples.unmasked().input_ids.values
    shown = examples.input_ids.values[examples.flat_positions()]
    is_mask, is_kept = shown == tokenizer.mask_id, shown == examples.masked_lm_labels.values
    unknown = (original == tokenizer.unk_id).sum()
    # In GPT-2's vocabulary [CLS] and [SEP] are the same token, and do not count.
    for mark, places in zip(
        (tokenizer.cls_id, tokenizer.sep_id), examples.cls_and_sep(), strict=True
    ):
        unknown -= places.sum() if mark == tokenizer.unk_id else 0
    labels = examples.next_sentence_label.astype(np.int64) - NO_PAIR
    by_label, pieces = np.bincount(labels, minlength=3), examples.piece_lengths
    counts = {
        "rows": len(examples),
        "no B": by_label[0],
        "B follows A": by_label[1],
        "negative": by_label[2],  # random or swapped
        "pieces": len(pieces.values) if pieces else 0,  # of packed rows
        "tokens": len(original),
        "unknown": unknown,  # before masking
        "maskable": (~tokenizer.is_special[original]).sum(),
        "masked": is_mask.sum(),
        "random": (~is_mask & ~is_kept).sum(),
        "kept": is_kept.sum(),
    }
    return Counter({name: int(count) for name, count in counts.items()})


def _figures(summary: DatasetSummary) -> Iterator[tuple[str, str]]:
    manifest = summary.manifest
    yield "training examples", f"{manifest.num_examples(TRAIN):,}"
    yield "validation examples", f"{manifest.num_examples(VALIDATION):,}"
    yield "documents read", f"{documents_read(manifest.counts, manifest.dropped):,}"
    yield "vocabulary", f"{manifest.vocab_size:,}"
    yield "shards", f"{len(manifest.shards):,}"
    yield "size on disk", size_in_words(sum(shard.bytes for shard in manifest.shards))
    yield "dataset digest", manifest.dataset_digest
    yield "tokenizer digest", manifest.tokenizer_digest


def _statistics(summary: DatasetSummary) -> Section:
    """A column for each split that has rows, and the chart of their lengths."""
    longest = summary.manifest.config.max_seq_length
    splits = {split: rows for split, rows in summary.counts.items() if rows["rows"]}
    columns = [_statistics_of(rows, summary) for rows in splits.values()]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]] if columns else []
    lines = []
    for number, split in enumerate(splits):
        up_to = np.cumsum(summary.lengths[split]) / splits[split]["rows"]
        lines.append(Line(x=np.arange(longest + 1), y=up_to, label=split, number=number))
    chart = lines and draw_lines(
        "lengths",
        lines,
        caption="fraction of the examples with at most so many tokens",
        x_label="tokens per example",
        percent=True,
    )
    return Section(
        heading="Statistics",
        sentence="Counted over all examples, [CLS] and [SEP] included.",
        charts=[chart] if chart else [],
        tables=[Table(heads=("statistic", *splits), rows=rows)],
    )


def _statistics_of(rows: Counter[str], summary: DatasetSummary) -> dict[str, str]:
    """The statistics of a split by name."""
    config, tokenizer = summary.manifest.config, summary.tokenizer
    tokens, negative = rows["tokens"], config.negative_pairs
    masked = rows["masked"] + rows["random"] + rows["kept"]
    shown = {
        f"masked, shown as {tokenizer.mask_token}": ("masked", config.mask_token_prob),
        "masked, shown as a random token": ("random", config.random_token_prob),
        "masked, shown as themselves": ("kept", config.keep_token_prob),
    }
    numbers = {
        "examples": f"{rows['rows']:,}",
        "tokens": f"{tokens:,}",
        f"real tokens in batches padded to {config.max_seq_length:,}": _percent(
            tokens, rows["rows"] * config.max_seq_length
        ),
        f"tokens that are {tokenizer.special_tokens[1]}": _percent(rows["unknown"], tokens),
        "masked tokens": f"{masked:,}",
        "masked, of the tokens that may be": _percent(masked, rows["maskable"]),
        **{
            f"{name} ({expected:.0%} expected)": _percent(rows[way], masked)
            for name, (way, expected) in shown.items()
        },
    }
    if pieces := rows["pieces"]:
        numbers["pieces"] = f"{pieces:,}"
        numbers["real tokens without packing"] = _percent(tokens, pieces * config.max_seq_length)
    if pairs := rows["B follows A"] + rows["negative"]:
        numbers["B follows A"] = f"{rows['B follows A']:,}"
        numbers[f"B is {negative}"] = f"{rows['negative']:,}"
        numbers[f"{negative} pairs"] = _percent(rows["negative"], pairs)
        numbers["no B"] = f"{rows['no B']:,}"
    return numbers


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "-"


def _dropped(summary: DatasetSummary) -> Section:
    """What was read, dropped and rejected, by reason, with samples."""
    manifest, rejected = summary.manifest, summary.rejected
    read = documents_read(manifest.counts, manifest.dropped)
    by_number = dict(sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0])))
    listed = [(entry.where, entry.reason) for entry in rejected[:REJECTED_SHOWN]]
    budgets = [(line,) for line in mixture_lines(manifest)]
    more = f"; the first {REJECTED_SHOWN} are listed" if len(rejected) > REJECTED_SHOWN else ""
    return Section(
        heading="Dropped and rejected",
        sentence=f"Documents read: {read:,}; rejected: {len(rejected):,}{more}. "
        "A reason's name says what it counts: documents, paragraphs, pairs or tokens.",
        tables=[
            _count_table("read", manifest.counts),
            _count_table("dropped, by reason", by_number),
            Table(heads=("rejected", "reason"), rows=listed, is_numeric=False),
            Table(heads=("source with a budget of tokens",), rows=budgets, is_numeric=False),
            _samples(summary.dropped),
        ],
    )


def _count_table(what: str, counts: Mapping[str, int]) -> Table:
    return Table(heads=(what, "count"), rows=[(name, f"{n:,}") for name, n in counts.items()])


def _samples(dropped: list[DroppedDocument]) -> Table:
    """Samples of what curation dropped, each with the value that decided.

    That is what a rule measured, or the number of n-grams shared with excluded texts.
    """
    return Table(
        title="samples of dropped documents",
        heads=("reason: value (document)", "text"),
        rows=[
            (
                f"{sample.reason.replace('_', ' ')}: {sample.value:.4g} ({sample.document[:8]})",
                sample.text,
            )
            for sample in sorted(dropped, key=lambda sample: sample.reason)
        ],
        is_numeric=False,
    )
