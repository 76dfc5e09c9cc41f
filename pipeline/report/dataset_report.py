"""`clozeline report`: a page of what a data set holds, and its card for the Hub.

SHARDS/report.html    pictures and tables: from the manifest, every row, and how the job went
SHARDS/README.md      the card; one that was edited by hand is kept
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline.common.errors import InputError
from pipeline.common.paths import is_local, whole_file
from pipeline.dataset.buckets import TRAIN, VALIDATION
from pipeline.report.dataset_card import CARD, write_card
from pipeline.report.dataset_summary import DatasetSummary, summarize_dataset
from pipeline.report.html import Page, page_html
from pipeline.report.sections import SECTIONS, size

REPORT = "report.html"
LIBRARIES = ("huggingface_hub", "jinja2", "matplotlib")


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a report wrote."""

    page: Path
    card: Path | None  # None: not asked for, or kept because it was edited


def write_report(folder: Path, *, out: Path | None) -> Written:
    """Write the page, to `out` alone if that is given; else the card as well.

    Raises InputError where there is no data set, where `out` cannot be a file, or where a library
    is missing.
    """
    if missing := [name for name in LIBRARIES if find_spec(name) is None]:
        raise InputError(f"a report needs {', '.join(missing)}: pip install 'clozeline[pipeline]'.")
    _check_out(out)
    facts = summarize_dataset(folder)
    page = out or folder / REPORT
    with whole_file(page) as file:
        file.write(page_html(page_of(facts)).encode())
    has_card = out is None and write_card(folder, facts.manifest, facts.job)
    return Written(page=page, card=folder / CARD if has_card else None)


def _check_out(out: Path | None) -> None:
    if out is None or not is_local(out):  # a store has no folders
        return
    if out.is_dir() or not out.parent.is_dir():
        found = "is a folder" if out.is_dir() else f"lies in {out.parent}, which is no folder"
        raise InputError(f"{out} {found}; give --out the name of a file.")


def page_of(facts: DatasetSummary) -> Page:
    """The whole report."""
    return Page(
        title=f"{facts.manifest.num_examples(TRAIN):,} examples to pretrain BERT",
        facts=list(_head(facts)),
        sections=[section(facts) for section in SECTIONS],
    )


def _head(facts: DatasetSummary) -> Iterator[tuple[str, str]]:
    manifest, train = facts.manifest, facts.splits[TRAIN]
    yield "training examples", f"{train.rows:,}"
    yield "validation examples", f"{facts.splits[VALIDATION].rows:,}"
    yield "tokens in examples", f"{facts.all_rows.tokens:,}"
    yield "fill rate", f"{train.fill_rate:.1%}"
    yield "documents read", f"{manifest.counts.get('documents', 0):,}"
    yield "vocabulary", f"{manifest.vocab_size:,}"
    yield "shards", f"{len(manifest.shards):,}"
    yield "on disk", size(sum(shard.bytes for shard in manifest.shards))
    yield "dataset digest", manifest.dataset_digest
    yield "tokenizer digest", manifest.tokenizer_digest
