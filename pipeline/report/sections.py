"""What a report says of a data set, a section for each question."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.report.charts import draw_bars, draw_columns, draw_lines, draw_points
from pipeline.report.dataset_summary import DatasetSummary
from pipeline.report.html import Chart, Section, Table
from pipeline.report.row_statistics import PARTS, RowStatistics, share

COLUMNS = 64  # of a histogram at most
TOKENS_SHOWN = 30
RANKS_SHOWN = 200
REJECTED_SHOWN = 10
BALANCED = (0.48, 0.52)  # of random pairs
#: In job.json, in words, and in which unit.
MEASURED = (
    ("seconds", "on the clock", "s"),
    ("cpu_seconds", "of all processors", "s"),
    ("megabytes_per_second", "text read", "MB/s"),
    ("peak_memory_megabytes", "memory at the peak", "MB"),
)


def size(number: int) -> str:
    """A number of bytes, for a person."""
    return f"{number / 1e6:,.1f} MB" if number >= 10**6 else f"{number / 1e3:,.1f} kB"


def _config(facts: DatasetSummary) -> Section:
    config = facts.manifest.config.to_dict()
    rows = [(name, _value(value)) for name, value in config.items()]
    return Section(
        heading="What was asked for",
        sentence="Text, tokenizer and these choices decide every byte of the shards.",
        tables=[Table(heads=("choices", ""), rows=rows, of_numbers=False)],
    )


def _shards(facts: DatasetSummary) -> Section:
    rows = [
        (
            shard.entry.name,
            f"{shard.entry.rows:,}",
            f"{shard.tokens:,}",
            size(shard.entry.bytes),
            f"{shard.random_share:.1%}" if shard.pairs else "-",
        )
        for shard in facts.shards
    ]
    heads = ("shards", "rows", "tokens", "size", "random pairs")
    return Section(
        heading="Shards",
        sentence="A document's hash picks its shard, so shards are alike but not equally long.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _lengths(facts: DatasetSummary) -> Section:
    longest = facts.manifest.config.max_seq_length
    filled = {name: tally for name, tally in facts.splits.items() if tally.rows}
    rates = ", ".join(f"{tally.fill_rate:.1%} in {name}" for name, tally in filled.items())
    return Section(
        heading="How long the examples are",
        sentence=f"Of the places in a batch padded to {longest:,} tokens, real tokens fill "
        f"{rates or 'none'}.",
        pictures=[
            *(_histogram(name, tally) for name, tally in filled.items()),
            *_lengths_a_b(facts.all_rows),
        ],
    )


def _histogram(split: str, tally: RowStatistics) -> Chart:
    svg = draw_columns(
        f"lengths-{split}",
        _edges(len(tally.lengths) - 1),
        _binned(tally.lengths[1:]) / tally.rows,
        x_label="tokens of an example",
        y_label="share of examples",
        log=True,
    )
    caption = f"Lengths in {split}, on a scale of powers of ten: {tally.fill_rate:.1%} filled"
    return Chart(svg=svg, caption=caption)


def _lengths_a_b(tally: RowStatistics) -> Iterator[Chart]:
    if tally.lengths_b.any():  # else A is the whole example
        places = _edges(len(tally.lengths) - 1)[:-1]
        counts = {"A": tally.lengths_a[1:], "B": tally.lengths_b[1:]}
        series = {name: (places, _binned(of) / of.sum()) for name, of in counts.items()}
        svg = draw_lines(
            "lengths-a-b", series, x_label="tokens", y_label="share", percent=True, steps=True
        )
        yield Chart(svg=svg, caption="Tokens of A and of B, without [CLS] and [SEP]")


def _masks(facts: DatasetSummary) -> Section:
    tally, config = facts.all_rows, facts.manifest.config
    number = int(tally.masked_at.sum())
    mean = share(number, tally.rows)
    rate = share(number, tally.maskable_at.sum())
    intended = {
        "[MASK]": config.mask_token_prob,
        "a random token": config.random_token_prob,
        "the token itself": config.keep_token_prob,
    }
    rows = [
        (name, f"{count:,}", f"{share(count, number):.1%}", f"{expected:.0%}")
        for (name, expected), count in zip(intended.items(), tally.stand_ins, strict=True)
    ]
    heads = ("in a masked place stands", "counted", "share", "meant")
    return Section(
        heading="Where the masks fall",
        sentence=f"{number:,} tokens are masked, {mean:.1f} in an example: {rate:.1%} of those "
        "that may be. Special tokens are never masked; where no place is preferred, both pictures "
        "are flat.",
        pictures=list(_mask_pictures(tally)) if number else [],
        tables=[Table(heads=heads, rows=rows)],
    )


def _mask_pictures(tally: RowStatistics) -> Iterator[Chart]:
    y_label = "share masked"
    width = len(tally.maskable_at)
    masked, maskable = _binned(tally.masked_at), _binned(tally.maskable_at)
    there = np.flatnonzero(maskable)  # [CLS] never is, and no row may be so long
    series = {"masked": (_edges(width)[there], _ratio(masked, maskable)[there])}
    svg = draw_lines("masks-at", series, x_label="position", y_label=y_label, percent=True)
    yield Chart(svg=svg, caption="Masked tokens by position")
    rates = _ratio(tally.masked_along, tally.maskable_along)
    edges = np.linspace(0, 1, PARTS + 1)
    svg = draw_columns("masks-along", edges, rates, x_label="place in the example", y_label=y_label)
    yield Chart(svg=svg, caption="Masked tokens from the first (0) to the last (1) of an example")


def _pairs(facts: DatasetSummary) -> Section:
    heading = "Next sentences"
    if not any(shard.pairs for shard in facts.shards):
        return Section(
            heading=heading, sentence="There are no pairs: each example is one stretch of text."
        )
    names = ("without B", "B follows A", "B is random")
    rows = [
        (name, *(f"{count:,}" for count in tally.labels), f"{tally.random_share:.2%}")
        for name, tally in facts.splits.items()
        if tally.rows
    ]
    low, high = BALANCED
    return Section(
        heading=heading,
        sentence=f"{facts.all_rows.random_share:.2%} of the pairs are random; {low:.0%} to "
        f"{high:.0%} is balanced. A small shard may lie outside by chance.",
        pictures=[
            Chart(svg=_balance(facts), caption="Random pairs of each shard, and the balanced band")
        ],
        tables=[Table(heads=("split", *names, "random pairs"), rows=rows)],
    )


def _balance(facts: DatasetSummary) -> str:
    series: dict[str, tuple[ArrayLike, ArrayLike]] = {}
    for split in facts.splits:
        shards = [shard for shard in facts.shards if shard.entry.split == split]
        shares = [(i, shard.random_share) for i, shard in enumerate(shards) if shard.pairs]
        if shares:
            series[split] = tuple(np.array(shares).T)
    return draw_points(
        "balance", series, band=BALANCED, x_label="number of the shard", y_label="random pairs"
    )


def _left_out(facts: DatasetSummary) -> Section:
    manifest, rejected = facts.manifest, facts.rejected
    dropped = dict(sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0])))
    reasons = Counter(entry["reason"] for entry in rejected)
    tables = [
        _count_table("read", manifest.counts),
        _count_table("left out, by reason", dropped),
        _count_table("rejected, by reason", dict(reasons.most_common())),
        Table(
            heads=("rejected", "reason"),
            rows=[(entry["where"], entry["reason"]) for entry in rejected[:REJECTED_SHOWN]],
            of_numbers=False,
        ),
    ]
    pictures = []
    if dropped:
        texts = [f"{count:,}" for count in dropped.values()]
        svg = draw_bars("left-out", dropped, texts=texts, log=True)
        pictures.append(Chart(svg=svg, caption="Left out by reason, on a scale of powers of ten"))
    more = f"; the first {REJECTED_SHOWN} are below" if len(rejected) > REJECTED_SHOWN else ""
    return Section(
        heading="What was left out",
        sentence=f"{manifest.counts.get('documents', 0):,} documents were read and "
        f"{len(rejected):,} rejected{more}. A reason names what it counts: paragraphs, documents, "
        "tokens.",
        pictures=pictures,
        tables=[table for table in tables if table.rows],
    )


def _count_table(what: str, counts: dict[str, int]) -> Table:
    rows = [(name, f"{count:,}") for name, count in counts.items()]
    return Table(heads=(what, "count"), rows=rows)


def _tokens(facts: DatasetSummary) -> Section:
    counts = np.array(facts.manifest.token_counts, dtype=np.int64)
    total, used = int(counts.sum()), int((counts > 0).sum())
    pieces = int((~facts.tokenizer.is_special).sum())
    unknown = share(facts.all_rows.unknown[0], facts.all_rows.tokens)
    return Section(
        heading="Which tokens",
        sentence=f"{used:,} of {pieces:,} pieces are used ({share(used, pieces):.1%}) in {total:,} "
        f"training tokens before masking, special tokens left out; {unknown:.2%} of all tokens are "
        "[UNK].",
        pictures=list(_token_pictures(facts, counts)) if total else [],
    )


def _token_pictures(facts: DatasetSummary, counts: NDArray[np.int64]) -> Iterator[Chart]:
    order = np.argsort(-counts, kind="stable")
    shares = counts[order] / counts.sum()
    shown = min(TOKENS_SHOWN, int((counts > 0).sum()))
    names = [facts.tokenizer.tokens[token] for token in order[:shown]]
    bars = dict(zip(names, shares[:shown].tolist(), strict=True))
    texts = [f"{value:.2%}" for value in bars.values()]
    svg = draw_bars("tokens", bars, texts=texts, log=False)
    yield Chart(svg=svg, caption=f"The {shown} most common tokens, share of all")
    used = int((counts > 0).sum())
    ranks = np.unique(np.geomspace(1, used, RANKS_SHOWN).astype(np.int64))
    series = {"tokens": (ranks, counts[order][ranks - 1])}
    svg = draw_lines("zipf", series, x_label="rank of the token", y_label="count", log=True)
    yield Chart(svg=svg, caption="Counts by rank, both in powers of ten (Zipf's law is a line)")


def _time(facts: DatasetSummary) -> Section:
    job = facts.job
    rows = [(what, f"{job[key]:,} {unit}") for key, what, unit in MEASURED if key in job]
    stages = dict(sorted(job.get("stages", {}).items(), key=lambda stage: (-stage[1], stage[0])))
    total = sum(stages.values())
    pictures = []
    if total:
        texts = [f"{value:,.1f} s ({value / total:.0%})" for value in stages.values()]
        svg = draw_bars("stages", stages, texts=texts, log=False)
        pictures.append(Chart(svg=svg, caption="CPU seconds of each stage"))
    found = f"{total:,.1f} s, of all workers together" if total else "not recorded"
    return Section(
        heading="Where the time went",
        sentence=f"CPU time of the stages: {found}.",
        pictures=pictures,
        tables=[Table(heads=("the job", ""), rows=rows)] if rows else [],
    )


def _examples(facts: DatasetSummary) -> Section:
    return Section(
        heading="Some examples",
        sentence="Hidden tokens are numbered, and their answers stand below.",
        text=facts.examples,
    )


def _value(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _edges(width: int) -> NDArray[np.int64]:
    """The bounds of at most COLUMNS equal columns over 0 to width, or a little beyond."""
    step = -(-width // COLUMNS)
    return np.arange(0, width + step, step)


def _binned(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counts of [S] added up in the columns of `_edges(S)`."""
    return np.add.reduceat(counts, _edges(len(counts))[:-1])


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """0 of nothing is 0."""
    return part / np.maximum(whole, 1)


#: In the order of the page.
SECTIONS: Final[tuple[Callable[[DatasetSummary], Section], ...]] = (
    *(_config, _shards, _lengths, _masks, _pairs, _left_out, _tokens, _time, _examples),
)
