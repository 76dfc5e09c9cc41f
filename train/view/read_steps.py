"""`clozeline inspect RUN --steps`: what a run read at some steps, from its order and shards alone.

step 12: positions 2,816 to 3,071, epoch 1 (masks drawn anew), 256 examples of 201 documents
train-00003-of-00008.arrow, row 12: 27 tokens, B follows A
  A        the [1 MASK] sat on the [2 river] .
  ...
  from     51c2aa0190ffe201, 8b1d2203c5a7e944

A step's examples are the same for any number of processes and any accumulation. Where metrics.jsonl
has the data digest of a step, it is compared.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.dataset.schema import NO_PAIR, Examples, concatenate_examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.find_documents import find_documents
from clozeline.pipeline.report.inspect import show_example
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import TrainState, list_checkpoints, read_state
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import Located
from clozeline.train.engine.schedule import batch_size_at
from clozeline.train.monitoring.metrics import read_metrics

AT_ONCE: Final = 4096  #: steps that are searched for a document at once
SHOWN: Final = 100  #: characters of a document


class StepRows(NamedTuple):
    """The examples of a step, in the order of the global batch."""

    start: int  #: its first position
    located: Located
    examples: Examples  #: with the masks that the model saw, and the ids of their documents


class ReadSteps:
    """What a run read: its steps by number, from 1 on.

    Raises InputError for shards that the run was not trained on, and for a run whose batch size
    depended on the time.
    """

    def __init__(self, run: Path, shards: AnyPath) -> None:
        self.run, config = run, read_run(run)
        self.training, self.data = config.training, config.data
        if self.training.batch_ramp and self.training.for_:
            raise InputError(f"{run}: its batch grew with the time, so its steps are not known.")
        self.loader = Loader(
            str(shards),
            batch_size=self.training.batch_size,
            seed=self.training.seed,
            remask=self.training.remask,
            length_bins=self.training.length_bins,
            skip_bad_shards=self.training.skip_bad_shards,
            prefetch=0,
        )
        self.shards = self.loader.shards
        if self.shards.manifest.dataset_digest != config.dataset_digest:
            raise InputError(f"{shards} is not the data set that {run} was trained on; give that.")
        self.states = [read_state(folder) for folder in list_checkpoints(run)]
        self.states = [state for state in self.states if state.loader] or [TrainState(step=0)]
        if self.states[-1].loader:
            self.loader.load_state_dict(self.states[-1].loader)
        digests = ((line["step"], line.get("data_digest")) for line in read_metrics(run))
        self.digests = {step: digest for step, digest in digests if digest}
        self._stored = lru_cache(maxsize=8)(self._read)

    @property
    def last_step(self) -> int:
        """The last step that the run's files know."""
        return int(max([self.states[-1].step, *self.digests]))

    def start_of(self, step: int) -> int:
        """The first position of a step, counted from the nearest checkpoint after it."""
        later = (state for state in self.states if state.step >= step)
        near = next(later, self.states[-1])
        position = near.loader.get("next_position", 0)
        before = sum(map(self._size, range(step, near.step + 1)))
        after = sum(map(self._size, range(near.step + 1, step)))
        return int(position - before + after)

    def rows(self, step: int) -> StepRows:
        """The examples of a step. Raises InputError if the run read others there."""
        start = self.start_of(step)
        if start < 0:
            raise InputError(
                f"{self.run}: step {step} cannot be found: another batch size or another run began "
                "it, and no checkpoint is left of that."
            )
        located = self._located(range(step, step + 1))
        slots = start + np.arange(self._size(step))
        found = digest_text(int(self.loader.reader().order.hashes(located, slots).sum()))
        if self.digests.get(step, found) != found:
            raise InputError(
                f"{self.run}: at step {step} other examples were read (data digest "
                f"{self.digests[step]}, here {found}); was it resumed with another batch size?"
            )
        return StepRows(start, located, self._examples(located))

    def steps_of(self, document: int, steps: range) -> Iterator[tuple[int, int]]:
        """The steps that read examples of a document, and how many each."""
        rows = [
            np.flatnonzero(_has_document(self._read(shard), document))
            for shard in range(len(self.shards.entries))
        ]
        sizes = groupby(steps, key=lambda step: (self._size(step), step // self._at_once))
        for (size, _), group in sizes:
            some = list(group)
            located = self._located(range(some[0], some[-1] + 1))
            hits = np.zeros(len(located.rows), np.bool_)
            for shard in np.unique(located.shards).tolist():
                here = located.shards == shard
                hits[here] = np.isin(located.rows[here], rows[shard])
            for index, count in enumerate(hits.reshape(-1, size).sum(axis=1).tolist()):
                if count:
                    yield some[0] + index, count

    @property
    def _at_once(self) -> int:
        return 1 if self.training.length_bins else AT_ONCE

    def _size(self, step: int) -> int:
        return batch_size_at(self.training, step)

    def _located(self, steps: range) -> Located:
        """Where the examples of steps of one batch size are stored."""
        size, start = self._size(steps[0]), self.start_of(steps[0])
        self.loader.next_position = start
        self.loader.set_batch_size(size)
        return self.loader.reader().located(start + size * np.arange(len(steps)))

    def _read(self, shard: int) -> Examples:
        entry = self.shards.entries[shard]
        return read_shard(self.shards.folder / entry.name, expected=entry.checksum)

    def _examples(self, located: Located) -> Examples:
        parts, order = [], []
        is_redrawn = (located.epochs > 0) & self.training.remask
        for shard in np.unique(located.shards).tolist():
            for redraw in (False, True):
                here = np.flatnonzero((located.shards == shard) & (is_redrawn == redraw))
                epochs, shards, rows = (column[here] for column in located)
                part = self._stored(shard).take(rows)
                if redraw:
                    part = self.shards.remasked(part, shards, rows, epochs)
                parts.append(part)
                order.append(here)
        return concatenate_examples(parts).take(np.argsort(np.concatenate(order)))


def documents_of(examples: Examples, row: int) -> list[int]:
    """The documents of a row, each once: that of A and that of B, or those of its pieces."""
    if (pieces := examples.piece_documents) is not None:
        found = pieces.slice(row, row + 1).values.tolist()
    else:
        has_b = bool(examples.next_sentence_label[row] != NO_PAIR)
        found = [int(examples.document_a[row]), *([int(examples.document_b[row])] * has_b)]
    return list(dict.fromkeys(found))


def step_lines(
    read: ReadSteps, steps: range, *, number: int, width: int, sources: Sequence[str] = ()
) -> Iterator[str]:
    """Each step, its first `number` examples, and where their documents are in the sources."""
    tokenizer = load_tokenizer(read.shards.folder / TOKENIZER)
    shown: set[int] = set()
    for step in steps:
        start, located, examples = read.rows(step)
        every = {hash for row in range(len(examples)) for hash in documents_of(examples, row)}
        last, epochs = start + len(examples) - 1, sorted(set(located.epochs.tolist()))
        anew = " (masks drawn anew)" if read.training.remask and epochs[-1] else ""
        yield (
            f"step {step:,}: positions {start:,} to {last:,}, epoch "
            f"{' and '.join(map(str, epochs))}{anew}, {len(examples):,} examples of {len(every):,} "
            "documents"
        )
        for row in range(min(number, len(examples))):
            shard, in_shard = int(located.shards[row]), int(located.rows[row])
            first, *others = show_example(
                examples,
                row,
                tokenizer,
                name=read.shards.entries[shard].name,
                width=width,
                negative_pairs=read.data.negative_pairs,
            )
            yield first.replace(f", row {row}:", f", row {in_shard}:", 1)
            yield from others
            documents = documents_of(examples, row)
            shown.update(documents)
            yield f"  {'from':<9}{', '.join(f'{hash:016x}' for hash in documents)}"
        yield ""
    if sources:
        yield from source_lines(read, sources, shown)


def document_lines(
    read: ReadSteps, document: str, steps: range, sources: Sequence[str] = ()
) -> Iterator[str]:
    """The steps that read a document, given by the first 16 digits of its hash or more."""
    try:
        hash = int(document[:16], 16)
    except ValueError:
        hash = -1
    if hash < 0 or len(document) < 16:
        raise InputError(f"--document {document!r} is not a hash; give its first 16 digits.")
    count = 0
    for step, examples in read.steps_of(hash, steps):
        count += 1
        yield f"step {step:,}: {examples:,} example{'s' * (examples != 1)}"
    yield f"{hash:016x} was read in {count:,} of steps {steps[0]:,} to {steps[-1]:,}"
    if sources:
        yield from source_lines(read, sources, {hash})


def source_lines(read: ReadSteps, sources: Sequence[str], wanted: set[int]) -> Iterator[str]:
    """Where documents are in the sources, and how they begin."""
    missing = set(wanted)
    for hash, path, text in find_documents(sources, wanted, read.data):
        missing.discard(hash)
        yield f"{hash:016x} {path}: {text[:SHOWN]!r}"
    for hash in sorted(missing):
        yield f"{hash:016x} is not in these sources"


def parse_steps(text: str, last: int) -> range:
    """ "1000-1010" or "7", within the steps of a run. Raises InputError."""
    first, dash, stop = text.partition("-")
    if not all(part.isdecimal() for part in (first, stop if dash else first)):
        raise InputError(f"--steps is {text!r}; give a step or a range, such as 1000-1010.")
    steps = range(int(first), int(stop or first) + 1)
    if not steps or steps[0] < 1 or steps[-1] > last:
        raise InputError(f"--steps is {text}; the run has steps 1 to {last:,}.")
    return steps


def _has_document(examples: Examples, document: int) -> NDArray[np.bool_]:
    """Whether each row has a part of the document, [R]."""
    wanted = np.uint64(document)
    if (pieces := examples.piece_documents) is not None:
        rows = np.repeat(np.arange(len(pieces)), pieces.lengths)
        found = np.isin(np.arange(len(pieces)), rows[pieces.values == wanted])
    else:
        has_b = examples.next_sentence_label != NO_PAIR
        found = (examples.document_a == wanted) | (has_b & (examples.document_b == wanted))
    return found
