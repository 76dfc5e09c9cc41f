"""The chapter of a data set: one function a section, listed in SECTIONS."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import size_in_words
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.dropped import documents_read, mixture_lines
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.inspect import random_examples
from clozeline.pipeline.report.page import Chapter, Section, Table, make_sections
from clozeline.pipeline.report.statistics import (
    DatasetSummary,
    fraction,
    summarize_dataset,
)

BINS = 64  # of a chart over positions, at most
EXAMPLES_SHOWN, REJECTED_SHOWN = 10, 10
BALANCED = (0.48, 0.52)  # fraction of random or swapped pairs


def dataset_chapter(folder: AnyPath) -> Chapter:
    """What all rows of a data set are like. Raises InputError as `summarize_dataset` does."""
    summary = summarize_dataset(folder)
    sections = make_sections(SECTIONS, summary)
    shown = random_examples(
        folder, summary.manifest, summary.tokenizer, number=EXAMPLES_SHOWN, seed=0
    )
    if examples := list(shown):
        sentence = "Random training examples, those of clozeline inspect with --seed 0."
        sections.insert(0, Section(heading="Examples", sentence=sentence, examples=examples))
    return Chapter(name="Data set", figures=list(_figures(summary)), sections=sections)


def _figures(summary: DatasetSummary) -> Iterator[tuple[str, str]]:
    manifest, train = summary.manifest, summary.splits[TRAIN]
    yield "training examples", f"{train.rows:,}"
    yield "validation examples", f"{summary.splits[VALIDATION].rows:,}"
    yield "tokens in examples", f"{summary.all_rows.tokens:,}"
    yield "fill rate", f"{train.fill_rate:.1%}"
    unknown = fraction(summary.all_rows.unknown[0], summary.all_rows.tokens)
    yield f"tokens that are {summary.tokenizer.special_tokens[1]}", f"{unknown:.2%}"
    yield "documents read", f"{_documents_read(summary):,}"
    yield "vocabulary", f"{manifest.vocab_size:,}"
    yield "shards", f"{len(manifest.shards):,}"
    yield "size on disk", size_in_words(sum(shard.bytes for shard in manifest.shards))
    yield "dataset digest", manifest.dataset_digest
    yield "tokenizer digest", manifest.tokenizer_digest


def _documents_read(summary: DatasetSummary) -> int:
    return documents_read(Counter(summary.manifest.counts), Counter(summary.manifest.dropped))


def _lengths(summary: DatasetSummary) -> Section:
    rows, longest = summary.all_rows, summary.manifest.config.max_seq_length
    filled = {name: split for name, split in summary.splits.items() if split.rows}
    rates = ", ".join(f"{split.fill_rate:.1%} in {name}" for name, split in filled.items())
    sentence = f"In batches padded to {longest:,} tokens, real tokens fill {rates or 'nothing'}."
    if pieces := int(rows.pieces[0]):
        unpacked = fraction(rows.tokens, pieces * longest)
        sentence += f" Without packing, their {pieces:,} pieces would fill {unpacked:.1%}."
    lines = [
        Line(
            x=_edges(longest),
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
        caption="Examples by length",
        x_label="tokens per example",
        y_label="fraction of examples",
        percent=True,
        from_zero=True,
    )
    return Section(heading="Example lengths", sentence=sentence, charts=[chart] if chart else [])


def _masks(summary: DatasetSummary) -> Section:
    rows, config = summary.all_rows, summary.manifest.config
    expected = {
        summary.tokenizer.mask_token: config.mask_token_prob,
        "a random token": config.random_token_prob,
        "the token itself": config.keep_token_prob,
    }
    number = int(rows.shown_as.sum())
    mean, rate = fraction(number, rows.rows), fraction(number, rows.maskable[0])
    cells = [
        (name, f"{count:,}", f"{fraction(count, number):.1%}", f"{probability:.0%}")
        for (name, probability), count in zip(expected.items(), rows.shown_as, strict=True)
    ]
    heads = ("masked token shown as", "count", "fraction", "expected")
    return Section(
        heading="Masks",
        sentence=f"{number:,} tokens are masked, {mean:.1f} per example: {rate:.1%} of the tokens "
        "that may be masked (special tokens never are).",
        tables=[Table(heads=heads, rows=cells)],
    )


def _pairs(summary: DatasetSummary) -> Section:
    heading = "Sentence pairs"
    if not summary.all_rows.labels[1:].any():
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
        f"{high:.0%} is balanced.",
        tables=[Table(heads=heads, rows=rows)],
    )


def _dropped(summary: DatasetSummary) -> Section:
    """What was read, dropped and rejected, by reason, and the first rejected documents."""
    manifest, rejected = summary.manifest, summary.rejected
    found = dict(sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0])))
    listed = [(entry.where, entry.reason) for entry in rejected[:REJECTED_SHOWN]]
    budgets = [(line,) for line in mixture_lines(manifest)]
    tables = [
        _count_table("read", manifest.counts),
        _count_table("dropped, by reason", found),
        Table(heads=("rejected", "reason"), rows=listed, is_numeric=False),
        Table(heads=("source with a budget of tokens",), rows=budgets, is_numeric=False),
    ]
    more = f"; the first {REJECTED_SHOWN} are listed" if len(rejected) > REJECTED_SHOWN else ""
    return Section(
        heading="Dropped and rejected",
        sentence=f"Documents read: {_documents_read(summary):,}; "
        f"rejected: {len(rejected):,}{more}. "
        "A reason's name says what it counts: documents, paragraphs, pairs or tokens.",
        tables=[table for table in tables if table.rows],
    )


def _count_table(what: str, counts: Mapping[str, int]) -> Table:
    rows = [(name, f"{count:,}") for name, count in counts.items()]
    return Table(heads=(what, "count"), rows=rows)


def _samples(summary: DatasetSummary) -> Section | None:
    """Samples of what curation dropped; a near copy stands beside the document that was kept."""
    if not summary.dropped:
        return None
    rows = [
        (
            f"{sample.reason.replace('_', ' ')}: {sample.value:.4g} ({sample.document[:8]})",
            sample.text,
            sample.kept_text,
        )
        for sample in sorted(summary.dropped, key=lambda sample: sample.reason)
    ]
    heads = ("reason: value (document)", "text", "text of the document that was kept")
    return Section(
        heading="Dropped documents",
        sentence="Samples of the documents that curation dropped, with the value that decided: the "
        "similarity of a near copy, what a rule measured, the number of excluded texts found.",
        tables=[Table(title="samples", heads=heads, rows=rows, is_numeric=False)],
    )


def _edges(width: int) -> NDArray[np.int64]:
    """The edges of at most BINS equal bins over 0 to width, or a little beyond."""
    step = -(-width // BINS)
    return np.arange(0, width + step, step)


def _binned(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counts of [S] added up from each of `_edges(S)` on; the last bin is there twice."""
    binned = np.add.reduceat(counts, _edges(len(counts))[:-1])
    return np.append(binned, binned[-1])


#: In the order of the page, after the examples.
SECTIONS: Final[tuple[Callable[[DatasetSummary], Section | None], ...]] = (
    _lengths,
    _masks,
    _pairs,
    _dropped,
    _samples,
)
