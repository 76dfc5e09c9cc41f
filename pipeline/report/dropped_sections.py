"""The sections of a data set about documents: left out, and used how often."""

from collections import Counter

from clozeline.pipeline.curation.dropped import mixture_lines
from clozeline.pipeline.curation.reasons import documents_read
from clozeline.pipeline.report.page import Section, Table
from clozeline.pipeline.report.statistics import DatasetSummary, DroppedDocument
from clozeline.pipeline.sources.documents import TRUNCATED

REJECTED_SHOWN = 10
TEXTS = {"text": "text", "kept_text": "text of the document that was kept"}  #: of a sample


def dropped(summary: DatasetSummary) -> Section:
    manifest, rejected = summary.manifest, summary.rejected
    found = dict(sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0])))
    reasons = Counter(entry.reason for entry in rejected)
    tables = [
        _count_table("read", manifest.counts),
        _count_table("dropped, by reason", found),
        _count_table("rejected, by reason", dict(reasons.most_common())),
        Table(
            heads=("rejected", "reason"),
            rows=[(entry.where, entry.reason) for entry in rejected[:REJECTED_SHOWN]],
            is_numeric=False,
        ),
    ]
    read = documents_read(Counter(manifest.counts), Counter(manifest.dropped))
    truncated = sum(entry.kind == TRUNCATED for entry in rejected)
    early = f"; sources that end early: {truncated:,}" if truncated else ""
    more = f"; the first {REJECTED_SHOWN} are listed" if len(rejected) > REJECTED_SHOWN else ""
    return Section(
        heading="Dropped and rejected",
        sentence=f"Documents read: {read:,}; rejected: {len(rejected) - truncated:,}{early}{more}. "
        "A reason's name says what it counts: documents, paragraphs, pairs or tokens.",
        tables=[table for table in tables if table.rows],
    )


def samples(summary: DatasetSummary) -> Section | None:
    """Samples of what curation dropped; a near copy stands beside the document that was kept."""
    if not summary.dropped:
        return None
    reasons: dict[str, list[DroppedDocument]] = {}
    for sample in summary.dropped:
        reasons.setdefault(sample.reason, []).append(sample)
    tables = []
    for reason, shown in sorted(reasons.items()):
        texts = [name for name in TEXTS if any(getattr(sample, name) for sample in shown)]
        heads = (f"{reason.replace('_', ' ')}: value (document)", *(TEXTS[name] for name in texts))
        rows = [
            (
                f"{sample.value:.4g} ({sample.document[:8]})",
                *(getattr(sample, name) for name in texts),
            )
            for sample in shown
        ]
        tables.append(Table(heads=heads, rows=rows, is_numeric=False))
    return Section(
        heading="Dropped documents",
        sentence="Samples of the documents that curation dropped, by reason, with the value that "
        "decided: the similarity of a near copy, what a rule measured, the number of excluded "
        "texts found.",
        tables=tables,
    )


def mixture(summary: DatasetSummary) -> Section | None:
    """The sources with a budget of tokens, and the use of their documents."""
    rows = [(line,) for line in mixture_lines(summary.manifest)]
    if not rows:
        return None
    return Section(
        heading="Mixture",
        sentence="Tokens of the training documents of each source with a budget, before pairs and "
        "special tokens, and how often its documents are used.",
        tables=[Table(heads=("source",), rows=rows, is_numeric=False)],
    )


def _count_table(what: str, counts: dict[str, int]) -> Table:
    rows = [(name, f"{count:,}") for name, count in counts.items()]
    return Table(heads=(what, "count"), rows=rows)
