"""The Data set page: what all rows of a data set are like, in figures, charts and tables."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from clozeline.pipeline.common.packages import check_packages
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.units import size_in_words
from clozeline.pipeline.curation.reasons import documents_read
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.report.dataset_summary import DatasetSummary, summarize_dataset
from clozeline.pipeline.report.html import make_sections
from clozeline.pipeline.report.sections import SECTIONS
from clozeline.pipeline.view.site import Tab


def dataset_tab(folder: AnyPath) -> Tab:
    """The page, which reads the whole data set when it is first asked for."""

    @cache
    def page() -> dict[str, Any]:
        check_packages("a report", "matplotlib")
        summary = summarize_dataset(folder)
        return {"figures": list(_figures(summary)), "sections": make_sections(SECTIONS, summary)}

    return Tab(
        name="Data set",
        path="/dataset",
        template="clozeline.pipeline.view/sections.html.jinja",
        values=lambda _: page(),
        is_slow=True,
    )


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
