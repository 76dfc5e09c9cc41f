"""The sections of a data set's report: one function each, listed in SECTIONS."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozeline.pipeline.common.units import size_in_words
from clozeline.pipeline.report.charts import draw_bars, draw_columns, draw_lines, draw_points
from clozeline.pipeline.report.curation_sections import dropped, mixture, samples
from clozeline.pipeline.report.dataset_summary import MEASURED, DatasetSummary
from clozeline.pipeline.report.html import Chart, Section, Table
from clozeline.pipeline.report.row_statistics import PARTS, RowStatistics, fraction

COLUMNS = 64  # of a histogram, at most
TOKENS_SHOWN = 30
RANKS_SHOWN = 200
BALANCED = (0.48, 0.52)  # fraction of random or swapped pairs


def _config(summary: DatasetSummary) -> Section:
    config = summary.manifest.config.to_dict()
    rows = [(name, _value(value)) for name, value in config.items()]
    return Section(
        heading="Configuration",
        sentence="Text, tokenizer and these options determine every byte of the shards.",
        tables=[Table(heads=("option", "value"), rows=rows, is_numeric=False)],
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
    heads = ("shard", "rows", "tokens", "size", negatives)
    return Section(
        heading="Shards",
        sentence="A document's hash determines its shard, so shards are similar but not equal in "
        "size.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _lengths(summary: DatasetSummary) -> Section:
    longest = summary.manifest.config.max_seq_length
    filled = {name: rows for name, rows in summary.splits.items() if rows.rows}
    rates = ", ".join(f"{rows.fill_rate:.1%} in {name}" for name, rows in filled.items())
    charts = []
    for name, rows in filled.items():
        caption = f"Lengths in {name} (log scale), {rows.fill_rate:.1%} filled"
        charts.append(_histogram(f"lengths-{name}", rows.lengths, "example", caption=caption))
    return Section(
        heading="Example lengths",
        sentence=f"In batches padded to {longest:,} tokens, real tokens fill {rates or 'nothing'}.",
        charts=[*charts, *_lengths_a_b(summary.all_rows)],
    )


def _histogram(name: str, lengths: NDArray[np.int64], noun: str, *, caption: str) -> Chart:
    svg = draw_columns(
        name,
        _edges(len(lengths) - 1),
        _binned(lengths[1:]) / lengths.sum(),
        x_label=f"tokens per {noun}",
        y_label=f"fraction of {noun}s",
        log=True,
    )
    return Chart(svg=svg, caption=caption)


def _lengths_a_b(rows: RowStatistics) -> Iterator[Chart]:
    if rows.lengths_b.any():  # else A is the whole example
        edges = _edges(len(rows.lengths) - 1)[:-1]
        counts = {"A": rows.lengths_a[1:], "B": rows.lengths_b[1:]}
        series = {name: (edges, _binned(of) / of.sum()) for name, of in counts.items()}
        svg = draw_lines(
            "lengths-a-b", series, x_label="tokens", y_label="fraction", percent=True, steps=True
        )
        yield Chart(svg=svg, caption="Tokens of A and B, without [CLS] and [SEP]")


def _packed_rows(summary: DatasetSummary) -> Section | None:
    rows = summary.all_rows
    pieces = int(rows.pieces.sum())
    if not pieces:
        return None
    caption = "Lengths of the pieces (log scale)"
    return Section(
        heading="Packed rows",
        sentence=f"{rows.rows:,} rows hold {pieces:,} pieces of documents, "
        f"{fraction(pieces, rows.rows):.1f} per row; attention stays inside each. Without packing "
        f"real tokens would fill {fraction(rows.tokens, pieces * (len(rows.lengths) - 1)):.1%}.",
        charts=[_histogram("pieces", rows.pieces, "piece", caption=caption)],
    )


def _masks(summary: DatasetSummary) -> Section:
    rows, config = summary.all_rows, summary.manifest.config
    expected = {
        summary.tokenizer.mask_token: config.mask_token_prob,
        "a random token": config.random_token_prob,
        "the token itself": config.keep_token_prob,
    }
    number = int(rows.masked_at.sum())
    mean = fraction(number, rows.rows)
    rate = fraction(number, rows.maskable_at.sum())
    lines = [
        (name, f"{count:,}", f"{fraction(count, number):.1%}", f"{probability:.0%}")
        for (name, probability), count in zip(expected.items(), rows.shown_as, strict=True)
    ]
    heads = ("masked token shown as", "count", "fraction", "expected")
    return Section(
        heading="Masks",
        sentence=f"{number:,} tokens are masked, {mean:.1f} per example: {rate:.1%} of the tokens "
        "that may be masked (special tokens never are). Both charts are flat if no position is "
        "preferred.",
        charts=list(_mask_charts(rows)) if number else [],
        tables=[Table(heads=heads, rows=lines)],
    )


def _mask_charts(rows: RowStatistics) -> Iterator[Chart]:
    y_label = "fraction masked"
    width = len(rows.maskable_at)
    masked, maskable = _binned(rows.masked_at), _binned(rows.maskable_at)
    present = np.flatnonzero(maskable)  # there may be no row that long
    series = {"masked": (_edges(width)[present], _ratio(masked, maskable)[present])}
    svg = draw_lines("masks-at", series, x_label="position", y_label=y_label, percent=True)
    yield Chart(svg=svg, caption="Masked tokens by position")
    rates = _ratio(rows.masked_along, rows.maskable_along)
    edges = np.linspace(0, 1, PARTS + 1)
    svg = draw_columns("masks-along", edges, rates, x_label="relative position", y_label=y_label)
    yield Chart(svg=svg, caption="Masked tokens from the first (0) to the last (1) of an example")


def _pairs(summary: DatasetSummary) -> Section:
    heading = "Sentence pairs"
    if not any(shard.pairs for shard in summary.shards):
        return Section(heading=heading, sentence="There are no pairs: no example has a B.")
    negative = summary.manifest.config.negative_pairs
    names = ("no B", "B follows A", f"B is {negative}")
    rows = [
        (name, *(f"{count:,}" for count in split.labels), f"{split.negative_share:.2%}")
        for name, split in summary.splits.items()
        if split.rows
    ]
    low, high = BALANCED
    return Section(
        heading=heading,
        sentence=f"{summary.all_rows.negative_share:.2%} of the pairs are {negative}; {low:.0%} to "
        f"{high:.0%} is balanced. A small shard may be outside by chance.",
        charts=[_balance(summary)],
        tables=[Table(heads=("split", *names, f"{negative} pairs"), rows=rows)],
    )


def _balance(summary: DatasetSummary) -> Chart:
    series: dict[str, tuple[ArrayLike, ArrayLike]] = {}
    for split in summary.splits:
        shards = [shard for shard in summary.shards if shard.entry.split == split]
        points = [(i, shard.negative_share) for i, shard in enumerate(shards) if shard.pairs]
        if points:
            numbers, fractions = np.array(points).T
            series[split] = (numbers, fractions)
    pairs = f"{summary.manifest.config.negative_pairs} pairs"
    svg = draw_points("balance", series, band=BALANCED, x_label="shard number", y_label=pairs)
    return Chart(svg=svg, caption=f"{pairs.capitalize()} per shard; balanced band")


def _tokens(summary: DatasetSummary) -> Section:
    counts = np.array(summary.manifest.token_counts, dtype=np.int64)
    total, used = int(counts.sum()), int((counts > 0).sum())
    ordinary = int((~summary.tokenizer.is_special).sum())
    unknown = fraction(summary.all_rows.unknown[0], summary.all_rows.tokens)
    return Section(
        heading="Tokens",
        sentence=f"{used:,} of the {ordinary:,} tokens of the vocabulary occur "
        f"({fraction(used, ordinary):.1%}) among {total:,} training tokens, counted before masking "
        f"and without special tokens. {unknown:.2%} of all tokens are "
        f"{summary.tokenizer.special_tokens[1]}.",
        charts=list(_token_charts(summary, counts)) if total else [],
    )


def _token_charts(summary: DatasetSummary, counts: NDArray[np.int64]) -> Iterator[Chart]:
    order = np.argsort(-counts, kind="stable")
    fractions = counts[order] / counts.sum()
    shown = min(TOKENS_SHOWN, int((counts > 0).sum()))
    names = [summary.tokenizer.shown_tokens[token] for token in order[:shown]]
    bars = dict(zip(names, fractions[:shown].tolist(), strict=True))
    svg = draw_bars("tokens", bars, text="{:.2%}".format)
    yield Chart(svg=svg, caption=f"The {shown} most common tokens and their fraction of all")
    used = int((counts > 0).sum())
    ranks = np.unique(np.geomspace(1, used, RANKS_SHOWN).astype(np.int64))
    series = {"tokens": (ranks, counts[order][ranks - 1])}
    svg = draw_lines("zipf", series, x_label="rank of the token", y_label="count", log=True)
    yield Chart(svg=svg, caption="Counts by rank (log scales; Zipf's law is a straight line)")


def _time(summary: DatasetSummary) -> Section:
    job = summary.job
    rows = [(label, f"{job[key]:,} {unit}") for key, label, unit in MEASURED if key in job]
    stages = dict(sorted(job.get("stages", {}).items(), key=lambda stage: (-stage[1], stage[0])))
    total = sum(stages.values())
    charts = []
    if total:
        svg = draw_bars("stages", stages, text=lambda x: f"{x:,.1f} s ({x / total:.0%})")
        charts.append(Chart(svg=svg, caption="CPU seconds by stage"))
    found = f"{total:,.1f} s, summed over all workers" if total else "not recorded"
    return Section(
        heading="Time",
        sentence=f"CPU time of the stages: {found}.",
        charts=charts,
        tables=[Table(heads=("job", ""), rows=rows)] if rows else [],
    )


def _value(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _edges(width: int) -> NDArray[np.int64]:
    """The edges of at most COLUMNS equal columns over 0 to width, or a little beyond."""
    step = -(-width // COLUMNS)
    return np.arange(0, width + step, step)


def _binned(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counts of [S] added up in the columns of `_edges(S)`."""
    return np.add.reduceat(counts, _edges(len(counts))[:-1])


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """part / whole, and 0 for an empty whole."""
    return part / np.maximum(whole, 1)


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[DatasetSummary], Section | None], ...]] = (
    _config,
    _shards,
    _lengths,
    _packed_rows,
    _masks,
    _pairs,
    dropped,
    samples,
    mixture,
    _tokens,
    _time,
)
