"""The chapter of a data set: one function a section, listed in SECTIONS."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.units import size_in_words
from clozeline.pipeline.curation.reasons import documents_read
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.dropped_sections import dropped, mixture, samples
from clozeline.pipeline.report.page import Chapter, Chart, Section, Table, make_sections
from clozeline.pipeline.report.shown_example import random_examples
from clozeline.pipeline.report.statistics import (
    MEASURED,
    DatasetSummary,
    RowStatistics,
    fraction,
    summarize_dataset,
)

BINS = 64  # of a chart over positions, at most
TOKENS_SHOWN, RANKS_SHOWN, EXAMPLES_SHOWN = 30, 200, 10
BALANCED = (0.48, 0.52)  # fraction of random or swapped pairs


def dataset_chapter(folder: AnyPath) -> Chapter:
    """What all rows of a data set are like. Raises InputError as `summarize_dataset` does."""
    summary = summarize_dataset(folder)
    shown = random_examples(
        folder, summary.manifest, summary.tokenizer, number=EXAMPLES_SHOWN, seed=0
    )
    examples = Section(
        heading="Examples",
        sentence="Random training examples, those of clozeline inspect with --seed 0.",
        examples=list(shown),
    )
    sections = make_sections(SECTIONS, summary)
    if examples.examples:
        sections.insert(0, examples)
    return Chapter(name="Data set", figures=list(_figures(summary)), sections=sections)


def _figures(summary: DatasetSummary) -> Iterator[tuple[str, str]]:
    manifest, train = summary.manifest, summary.splits[TRAIN]
    yield "training examples", f"{train.rows:,}"
    yield "validation examples", f"{summary.splits[VALIDATION].rows:,}"
    yield "tokens in examples", f"{summary.all_rows.tokens:,}"
    yield "fill rate", f"{train.fill_rate:.1%}"
    read = documents_read(Counter(manifest.counts), Counter(manifest.dropped))
    yield "documents read", f"{read:,}"
    yield "vocabulary", f"{manifest.vocab_size:,}"
    yield "shards", f"{len(manifest.shards):,}"
    yield "size on disk", size_in_words(sum(shard.bytes for shard in manifest.shards))
    yield "dataset digest", manifest.dataset_digest
    yield "tokenizer digest", manifest.tokenizer_digest


def _lengths(summary: DatasetSummary) -> Section:
    rows, longest = summary.all_rows, summary.manifest.config.max_seq_length
    filled = {name: split for name, split in summary.splits.items() if split.rows}
    rates = ", ".join(f"{split.fill_rate:.1%} in {name}" for name, split in filled.items())
    sentence = f"In batches padded to {longest:,} tokens, real tokens fill {rates or 'nothing'}."
    if pieces := int(rows.pieces[0]):
        sentence += (
            f" The rows hold {pieces:,} pieces of documents, {fraction(pieces, rows.rows):.1f} per "
            "row; attention stays inside each. Without packing real tokens would fill "
            f"{fraction(rows.tokens, pieces * longest):.1%}."
        )
    lines = [
        Line(
            x=_edges(longest)[:-1],
            y=_binned(split.lengths[1:]) / split.rows,
            label=name,
            number=number,
            is_stepped=True,
        )
        for number, (name, split) in enumerate(filled.items())
    ]
    chart = lines and draw_lines(
        "lengths",
        lines,
        caption="Examples by length (log scale)",
        x_label="tokens per example",
        y_label="fraction of examples",
        log="y",
        percent=True,
    )
    return Section(heading="Example lengths", sentence=sentence, charts=[chart] if chart else [])


def _masks(summary: DatasetSummary) -> Section:
    rows, config = summary.all_rows, summary.manifest.config
    expected = {
        summary.tokenizer.mask_token: config.mask_token_prob,
        "a random token": config.random_token_prob,
        "the token itself": config.keep_token_prob,
    }
    number = int(rows.masked_at.sum())
    mean, rate = fraction(number, rows.rows), fraction(number, rows.maskable_at.sum())
    cells = [
        (name, f"{count:,}", f"{fraction(count, number):.1%}", f"{probability:.0%}")
        for (name, probability), count in zip(expected.items(), rows.shown_as, strict=True)
    ]
    heads = ("masked token shown as", "count", "fraction", "expected")
    return Section(
        heading="Masks",
        sentence=f"{number:,} tokens are masked, {mean:.1f} per example: {rate:.1%} of the tokens "
        "that may be masked (special tokens never are). The chart is flat if no position is "
        "preferred.",
        charts=[_masks_by_position(rows)] if number else [],
        tables=[Table(heads=heads, rows=cells)],
    )


def _masks_by_position(rows: RowStatistics) -> Chart:
    masked, maskable = _binned(rows.masked_at), _binned(rows.maskable_at)
    present = np.flatnonzero(maskable)  # there may be no row that long
    line = Line(x=_edges(len(rows.masked_at))[present], y=masked[present] / maskable[present])
    return draw_lines(
        "masks",
        [line],
        caption="Masked tokens by position",
        x_label="position",
        y_label="fraction masked",
        percent=True,
        from_zero=True,
    )


def _pairs(summary: DatasetSummary) -> Section:
    heading = "Sentence pairs"
    if not any(shard.pairs for shard in summary.shards):
        return Section(heading=heading, sentence="There are no pairs: no example has a B.")
    negative = summary.manifest.config.negative_pairs
    rows = [
        (name, *(f"{count:,}" for count in split.labels), f"{split.negative_share:.2%}")
        for name, split in summary.splits.items()
        if split.rows
    ]
    low, high = BALANCED
    heads = ("split", "no B", "B follows A", f"B is {negative}", f"{negative} pairs")
    return Section(
        heading=heading,
        sentence=f"{summary.all_rows.negative_share:.2%} of the pairs are {negative}; {low:.0%} to "
        f"{high:.0%} is balanced. A small shard may be outside by chance.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _tokens(summary: DatasetSummary) -> Section:
    counts = np.array(summary.manifest.token_counts, dtype=np.int64)
    total, used = int(counts.sum()), int((counts > 0).sum())
    ordinary = int((~summary.tokenizer.is_special).sum())
    unknown = fraction(summary.all_rows.unknown[0], summary.all_rows.tokens)
    order = np.argsort(-counts, kind="stable")[:used]
    rows = [
        (
            summary.tokenizer.shown_tokens[token],
            f"{counts[token]:,}",
            f"{counts[token] / total:.2%}",
        )
        for token in order[:TOKENS_SHOWN]
    ]
    return Section(
        heading="Tokens",
        sentence=f"{used:,} of the {ordinary:,} tokens of the vocabulary occur "
        f"({fraction(used, ordinary):.1%}) among {total:,} training tokens, counted before masking "
        f"and without special tokens. {unknown:.2%} of all tokens are "
        f"{summary.tokenizer.special_tokens[1]}.",
        charts=[_counts_by_rank(counts[order])] if total else [],
        tables=[Table(heads=("most common token", "count", "fraction"), rows=rows)] if rows else [],
    )


def _counts_by_rank(counts: NDArray[np.int64]) -> Chart:
    """The falling counts of the tokens that occur."""
    ranks = np.unique(np.geomspace(1, len(counts), RANKS_SHOWN).astype(np.int64))
    return draw_lines(
        "zipf",
        [Line(x=ranks, y=counts[ranks - 1])],
        caption="Tokens by rank (log scales; Zipf's law is a straight line)",
        x_label="rank of the token",
        y_label="count",
        log="xy",
    )


def _shards(summary: DatasetSummary) -> Section:
    rows = [
        (
            shard.entry.name,
            f"{shard.entry.rows:,}",
            f"{shard.tokens:,}",
            size_in_words(shard.entry.bytes),
            f"{shard.negative_share:.1%}" if shard.pairs else "-",
        )
        for shard in summary.shards
    ]
    negatives = f"{summary.manifest.config.negative_pairs} pairs"
    return Section(
        heading="Shards",
        sentence="A document's hash determines its shard, so shards are similar but not equal in "
        "size.",
        tables=[Table(heads=("shard", "rows", "tokens", "size", negatives), rows=rows)],
    )


def _time(summary: DatasetSummary) -> Section:
    job = summary.job
    rows = [(label, f"{job[key]:,} {unit}") for key, label, unit in MEASURED if key in job]
    stages = dict(sorted(job.get("stages", {}).items(), key=lambda stage: (-stage[1], stage[0])))
    total = sum(stages.values())
    shares = [(name, f"{x:,.1f} s", f"{fraction(x, total):.0%}") for name, x in stages.items()]
    spent = f"{total:,.1f} s, summed over all workers" if total else "not recorded"
    tables = [
        Table(heads=("job", ""), rows=rows),
        Table(heads=("stage", "CPU time", "share"), rows=shares),
    ]
    return Section(
        heading="Time",
        sentence=f"CPU time of the stages: {spent}.",
        tables=[table for table in tables if table.rows],
    )


def _config(summary: DatasetSummary) -> Section:
    config = summary.manifest.config.to_dict()
    rows = [(name, _value(value)) for name, value in config.items()]
    return Section(
        heading="Configuration",
        sentence="Text, tokenizer and these options determine every byte of the shards.",
        tables=[Table(heads=("option", "value"), rows=rows, is_numeric=False)],
    )


def _value(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _edges(width: int) -> NDArray[np.int64]:
    """The edges of at most BINS equal bins over 0 to width, or a little beyond."""
    step = -(-width // BINS)
    return np.arange(0, width + step, step)


def _binned(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counts of [S] added up in the bins of `_edges(S)`."""
    return np.add.reduceat(counts, _edges(len(counts))[:-1])


#: In the order of the page, after the examples.
SECTIONS: Final[tuple[Callable[[DatasetSummary], Section | None], ...]] = (
    _lengths,
    _masks,
    _pairs,
    dropped,
    samples,
    mixture,
    _tokens,
    _shards,
    _time,
    _config,
)
