"""`clozeline report SHARDS`: a page about a data set, and its card for the Hugging Face Hub.

SHARDS/report.html    charts and tables from the manifest, every row, and job.json
SHARDS/README.md      the card; a card that was edited by hand is kept
"""

from collections.abc import Iterator
from dataclasses import dataclass

from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.report.dataset_card import CARD, write_card
from clozeline.pipeline.report.dataset_summary import DatasetSummary, summarize_dataset
from clozeline.pipeline.report.html import (
    LIBRARIES,
    REPORT,
    Page,
    check_report,
    make_sections,
    write_page,
)
from clozeline.pipeline.report.sections import SECTIONS, size


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files that a report wrote."""

    page: AnyPath
    card: AnyPath | None  # None: not asked for, or kept because it was edited


def write_report(folder: AnyPath, *, out: AnyPath | None) -> Written:
    """Write the page and the card into the folder, or only the page, to `out`.

    Raises InputError if the folder is not a data set or a file of it cannot be read, `out` cannot
    be a file, or a library is missing.
    """
    check_report(out, (*LIBRARIES, "huggingface_hub"))
    summary = summarize_dataset(folder)
    path = out or folder / REPORT
    write_page(path, page_of(summary))
    has_card = out is None and write_card(folder, summary.manifest, summary.job)
    return Written(page=path, card=folder / CARD if has_card else None)


def page_of(summary: DatasetSummary) -> Page:
    """The whole report."""
    return Page(
        title=f"{summary.manifest.num_examples(TRAIN):,} examples to pretrain BERT",
        figures=list(_figures(summary)),
        sections=make_sections(SECTIONS, summary),
    )


def _figures(summary: DatasetSummary) -> Iterator[tuple[str, str]]:
    manifest, train = summary.manifest, summary.splits[TRAIN]
    yield "training examples", f"{train.rows:,}"
    yield "validation examples", f"{summary.splits[VALIDATION].rows:,}"
    yield "tokens in examples", f"{summary.all_rows.tokens:,}"
    yield "fill rate", f"{train.fill_rate:.1%}"
    yield "documents read", f"{manifest.counts.get('documents', 0):,}"
    yield "vocabulary", f"{manifest.vocab_size:,}"
    yield "shards", f"{len(manifest.shards):,}"
    yield "size on disk", size(sum(shard.bytes for shard in manifest.shards))
    yield "dataset digest", manifest.dataset_digest
    yield "tokenizer digest", manifest.tokenizer_digest
