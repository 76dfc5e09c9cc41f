"""A data set against its sources: rebuilt from them, it must have the same rows.

    sources  ->  token cache in a temporary folder  ->  one shard at a time  ->  rows compared

The steps are those of the job.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from clozeline.pipeline.common.progress_bar import ProgressBar
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION, Buckets
from clozeline.pipeline.dataset.manifest import Manifest
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.dataset.shards import read_shard, rows_sha256
from clozeline.pipeline.steps.context import blocks_of, scratch_context
from clozeline.pipeline.steps.finish import Totals
from clozeline.pipeline.steps.stages import choose
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.verify.findings import Findings, differing_rows


@dataclass
class Rebuild:
    """The data set that the sources give: tokenized, with shards built when they are compared."""

    manifest: Manifest
    steps: Steps
    totals: Totals

    def compare(self, bucket: int, examples: Examples | None, findings: Findings) -> None:
        """Compare the rows of a bucket's shard; `examples` is None if they cannot be read."""
        record = self.steps.build_shard(bucket)
        self.totals.add(record)
        path = self.steps.context.shard_path(bucket)
        if examples is not None and rows_sha256(examples) != record.entry.rows_sha256:
            rebuilt = read_shard(path)
            if len(examples) != len(rebuilt):
                findings.add(f"{counted(len(examples), 'row')}, the sources give {len(rebuilt):,}")
            findings.note(differing_rows(examples, rebuilt), "rows other than the sources give")
        path.unlink()

    def differences(self) -> Iterator[str]:
        """Counts of the manifest that differ from the sources', once all shards are compared."""
        rebuilt = self.totals.manifest()
        for field_name in ("counts", "dropped"):
            recorded, found = (getattr(m, field_name) for m in (self.manifest, rebuilt))
            for name in sorted({*recorded, *found}):
                one, two = recorded.get(name, 0), found.get(name, 0)
                if one != two:
                    yield f"{field_name} {name} is {one:,}, the sources give {two:,}"


@contextmanager
def rebuild(
    sources: Sequence[str], manifest: Manifest, tokenizer: Tokenizer, *, exclude: tuple[str, ...]
) -> Iterator[Rebuild]:
    """Tokenize the sources for the config of the data set, into a temporary folder (TMPDIR).

    `exclude` are the sources of --exclude, of which the manifest has only the names.

    Raises InputError if a source cannot be read.
    """
    config = replace(manifest.config, exclude=exclude, format="arrow", compression="none")
    blocks = blocks_of(sources, config)
    buckets = Buckets(
        num_train=len(manifest.of_split(TRAIN)),
        num_validation=len(manifest.of_split(VALIDATION)),
        validation=config.validation,
    )
    with scratch_context(tokenizer, config, buckets) as context:
        inputs = tuple({context.token_file(block) for block in blocks})
        context = replace(context.reading(blocks), inputs=inputs)
        steps = Steps(context)
        size = sum(block.text_bytes for block in blocks)
        with ProgressBar(desc="tokenizing", total=size, unit="B", unit_scale=True) as bar:
            for block in blocks:
                steps.tokenize_block(block)
                bar.update(block.text_bytes)
        choose(steps)
        yield Rebuild(manifest, steps, Totals(steps))
