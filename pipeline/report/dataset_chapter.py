"""The chapter of a data set: examples, lengths, masks, pairs, and what was dropped.

work/shards  ->  counts over the rows of each split, a record batch at a time
             ->  Chapter("Data set", ...)
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import check_types, size_in_words
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import refuse_malformed, unsealed
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.dropped import REASONS, documents_read, mixture_lines
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
from clozeline.pipeline.report.page import Chapter, Section, Table, table_of
from clozeline.pipeline.sources.documents import Rejected
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

EXAMPLES_SHOWN, REJECTED_SHOWN = 10, 10
Record = TypeVar("Record")
#: What counts of the manifest count, where their names do not say it.
READ: Mapping[str, str] = {
    "repeat": "uses of a document, at most",
    "without_masks": "examples without masks",
    "in_long_words": "tokens of words too long to mask as a whole",
    "hard_wrapped": "documents whose lines end at one width",
    "invalid_utf8": "documents with bytes that are not UTF-8",
    "nul": "documents with NUL characters",
}


@dataclass(frozen=True)
class DroppedDocument:
    """A line of dropped.jsonl: a sample of the documents that curation dropped."""

    reason: str
    document: str  # its hash
    text: str
    value: float  # what decided


@lru_cache(maxsize=1)
def dataset_chapter(folder: AnyPath, digest: str) -> Chapter:
    """What all rows of a data set are like; read once for each dataset digest.

    Raises InputError if the folder is not a data set, or a file of it cannot be read.
    """
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer_digest:
        raise InputError(
            f"{folder / TOKENIZER} is not the tokenizer of the shards; restore it, or build them "
            "again with `clozeline shards --overwrite`."
        )
    sections = [_statistics(folder, manifest, tokenizer), _dropped(folder, manifest)]
    if shown := list(random_examples(folder, manifest, tokenizer, number=EXAMPLES_SHOWN, seed=0)):
        sentence = "Random training examples, those of clozeline inspect with --seed 0."
        sections.insert(0, Section(heading="Examples", sentence=sentence, examples=shown))
    return Chapter(
        name="Data set",
        figures=[
            ("training examples", f"{manifest.num_examples(TRAIN):,}"),
            ("validation examples", f"{manifest.num_examples(VALIDATION):,}"),
            ("documents read", f"{documents_read(manifest.counts, manifest.dropped):,}"),
            ("vocabulary", f"{manifest.vocab_size:,}"),
            ("shards", f"{len(manifest.shards):,}"),
            ("size on disk", size_in_words(sum(shard.bytes for shard in manifest.shards))),
            ("dataset digest", manifest.dataset_digest),
            ("tokenizer digest", manifest.tokenizer_digest),
        ],
        sections=sections,
    )


def count_split(
    folder: AnyPath, manifest: Manifest, tokenizer: Tokenizer, split: str
) -> tuple[Counter[str], NDArray[np.int64]]:
    """The counts of all rows of a split, and its rows by number of tokens, [S + 1]."""
    counts: Counter[str] = Counter()
    lengths = np.zeros(manifest.config.max_seq_length + 1, np.int64)
    for entry in manifest.of_split(split):
        for batch in read_batches(folder / entry.name, expected=entry.checksum):
            examples = from_record_batch(batch)
            counts += count_rows(examples, tokenizer)
            lengths += np.bincount(examples.input_ids.lengths, minlength=len(lengths))
    return counts, lengths


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


def _statistics(folder: AnyPath, manifest: Manifest, tokenizer: Tokenizer) -> Section:
    """A column for each split that has rows, and the chart of their lengths."""
    columns: dict[str, dict[str, str]] = {}
    lines: list[Line] = []
    for split in (TRAIN, VALIDATION):
        counts, lengths = count_split(folder, manifest, tokenizer, split)
        if rows := counts["rows"]:
            columns[split] = _statistics_of(counts, manifest.config, tokenizer)
            x, y = np.arange(len(lengths)), np.cumsum(lengths) / rows
            lines.append(Line(x=x, y=y, label=split, number=len(lines)))
    charts = []
    if lines:
        caption = "fraction of the examples with at most so many tokens"
        label = "tokens per example"
        charts.append(draw_lines("lengths", lines, caption=caption, x_label=label, percent=True))
    return Section(
        heading="Statistics",
        sentence="Counted over all examples, [CLS] and [SEP] included.",
        charts=charts,
        tables=[table_of("statistic", columns)],
    )


def _statistics_of(rows: Counter[str], config: DataConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """The statistics of a split by name."""
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


def _dropped(folder: AnyPath, manifest: Manifest) -> Section:
    """What was read, dropped and rejected, by reason, with samples."""
    rejected = list(_records(folder / REJECTED, Rejected))
    read = documents_read(manifest.counts, manifest.dropped)
    counts = {READ.get(name, name.replace("_", " ")): n for name, n in manifest.counts.items()}
    by_number = {
        ": ".join(REASONS.get(reason, (reason,))): count
        for reason, count in sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0]))
    }
    listed = [(entry.where, entry.reason) for entry in rejected[:REJECTED_SHOWN]]
    budgets = [(line,) for line in mixture_lines(manifest)]
    more = f"; the first {REJECTED_SHOWN} are listed" if len(rejected) > REJECTED_SHOWN else ""
    return Section(
        heading="Dropped and rejected",
        sentence=f"Documents read: {read:,}; rejected: {len(rejected):,}{more}.",
        tables=[
            _count_table("read", counts),
            _count_table("dropped, by reason", by_number),
            Table(heads=("rejected", "reason"), rows=listed, is_numeric=False),
            Table(heads=("source with a budget of tokens",), rows=budgets, is_numeric=False),
            _samples(_records(folder / DROPPED, DroppedDocument)),
        ],
    )


def _count_table(what: str, counts: Mapping[str, int]) -> Table:
    return Table(heads=(what, "count"), rows=[(name, f"{n:,}") for name, n in counts.items()])


def _samples(dropped: Iterable[DroppedDocument]) -> Table:
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
