"""`clozeline inspect RUN --steps`: what a run read at some steps, from its order and shards alone.

step 12: positions 2,816 to 3,071, epoch 1 (masks drawn anew), 256 examples of 201 documents
train-00003-of-00008.arrow, row 12: 27 tokens, B follows A
  A        the [1 MASK] sat on the [2 river] .
  ...
  from     51c2aa0190ffe201, 8b1d2203c5a7e944

A step's examples are the same for any number of processes and any accumulation. Where metrics.jsonl
has the data digest of a step, it is compared.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import TOKENIZER, read_manifest
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.inspect import example_lines
from clozeline.pipeline.report.inspect import documents_of, shown_example
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import TrainState, read_states
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import Located
from clozeline.train.data.phases import DataPhase, data_sets_of, state_of
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.schedule import phase_at
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.pretraining.start import cool_down_origin


class StepRows(NamedTuple):
    """The examples of a step, in the order of the global batch."""

    start: int  #: its first position
    shards: ShardSet  #: of its phase
    located: Located
    examples: Examples  #: with the masks that the model saw, and the ids of their documents


class ReadSteps:
    """What a run read: its steps by number, from `first_step` on.

    Of a run with phases, `shards` are one of its data sets; the others are where they were. Raises
    InputError for shards that the run was not trained on, and for a run whose data set depended on
    the time.
    """

    def __init__(self, run: Path, shards: AnyPath) -> None:
        self.run, config = run, read_run(run)
        self.training = config.training
        self.phases = config.phases
        if self.training.for_ and len(self.phases) > 1:
            raise InputError(f"{run}: its schedule followed the time, so its steps are not known.")
        #: Those before it were trained by the run from which this one was cooled down.
        before = cool_down_origin(config)
        self.first_step = 1 + (before.step or 0 if before else 0)
        self._folders = data_sets_of(self.phases)
        given = read_manifest(shards).dataset_digest
        if given not in self._folders:
            raise InputError(f"{shards} is not the data set that {run} was trained on; give that.")
        self._folders[given] = str(shards)
        self.states = [x for x in read_states(run) if x.loader] or [TrainState(step=0)]
        self._loader = cache(self._open)
        self.shards = self._loader(given).shards
        digests = ((line["step"], line.get("data_digest")) for line in read_metrics(run))
        self.digests = {step: digest for step, digest in digests if digest}
        self._stored = lru_cache(maxsize=8)(self._read)

    @property
    def last_step(self) -> int:
        """The last step that the run's files know."""
        return int(max([self.states[-1].step, *self.digests]))

    def start_of(self, step: int) -> int:
        """The first position of a step in its data set, from the nearest checkpoint after it."""
        later = (state for state in self.states if state.step >= step)
        near = next(later, self.states[-1])
        position = self._state(near, digest := self.phase(step).dataset_digest)["next_position"]
        before, after = (
            sum(self._size(one) for one in steps if self.phase(one).dataset_digest == digest)
            for steps in (range(step, near.step + 1), range(near.step + 1, step))
        )
        return int(position - before + after)

    def rows(self, step: int) -> StepRows:
        """The examples of a step. Raises InputError if the run read others there."""
        self._check_phases(step)
        phase, start, size = self.phase(step), self.start_of(step), self._size(step)
        if start < 0:
            raise InputError(
                f"{self.run}: step {step} cannot be found: it was read with another batch size or "
                "in another run, of which no checkpoint is left."
            )
        loader = self._loader(phase.dataset_digest)
        loader.next_position = start
        reader = loader.reader()
        located = reader.located(np.array([start]))
        found = digest_text(int(reader.order.hashes(located, start + np.arange(size)).sum()))
        if self.digests.get(step, found) != found:
            raise InputError(
                f"{self.run}: at step {step} other examples were read (data digest "
                f"{self.digests[step]}, here {found}); was it resumed with another batch size?"
            )
        return StepRows(start, loader.shards, located, self._examples(phase, located))

    def phase(self, step: int) -> DataPhase:
        return phase_at(self.phases, self.training, step)

    def _check_phases(self, step: int) -> None:
        """Raises InputError where the checkpoints around a step show that others were trained."""
        if len(self.phases) == 1:
            return
        start = TrainState(step=0)
        before = next((x for x in reversed(self.states) if x.step < step), start)
        after = next((x for x in self.states if x.step >= step), start)
        sizes: Counter[str] = Counter()
        for one in range(before.step + 1, after.step + 1):
            sizes[self.phase(one).dataset_digest] += self._size(one)
        for digest in self._folders if after.step else ():
            first, last = (self._state(x, digest)["next_position"] for x in (before, after))
            if last - first != sizes[digest]:
                raise InputError(
                    f"{self.run}: step {step} cannot be shown: its phases or its batch changed "
                    f"between steps {before.step} and {after.step}; was it resumed with another "
                    "--max-steps or --batch-size?"
                )

    def _size(self, step: int) -> int:
        return self.training.batch_size * self.phase(step).batch_factor

    def _open(self, digest: str) -> Loader:
        """The loader of a data set, with the order that the run recorded."""
        factors = {phase.dataset_digest: phase.batch_factor for phase in self.phases}
        loader = Loader(
            self._folders[digest],
            batch_size=self.training.batch_size * factors[digest],
            seed=self.training.seed,
            length_bins=self.training.length_bins,
            prefetch=0,
        )
        if len(state := self._state(self.states[-1], digest)) > 1:
            loader.load_state_dict(state)
        return loader

    def _state(self, state: TrainState, digest: str) -> dict[str, Any]:
        """That of the loader of a data set, in a checkpoint."""
        return state_of(state.loader, digest) or {"next_position": 0}

    def _read(self, digest: str, shard: int) -> Examples:
        shards = self._loader(digest).shards
        entry = shards.entries[shard]
        return read_shard(shards.folder / entry.name, expected=entry.checksum)

    def _examples(self, phase: DataPhase, located: Located) -> Examples:
        parts, order = [], []
        rate = self.training.masked_lm_prob
        is_redrawn = (located.epochs > 0) | (rate is not None)
        of_phase = self._loader(phase.dataset_digest).shards
        for shard in np.unique(located.shards).tolist():
            for redraw in (False, True):
                here = np.flatnonzero((located.shards == shard) & (is_redrawn == redraw))
                epochs, shards, rows = (x[here] for x in located)
                part = self._stored(phase.dataset_digest, shard).take(rows)
                if redraw:
                    part = of_phase.remasked(part, shards, rows, epochs, masked_lm_prob=rate)
                parts.append(part)
                order.append(here)
        return concatenate_examples(parts).take(np.argsort(np.concatenate(order)))


def step_lines(read: ReadSteps, steps: range, *, number: int, width: int) -> Iterator[str]:
    """Each step, its first `number` examples, and the hashes of their documents."""
    tokenizer = load_tokenizer(read.shards.folder / TOKENIZER)
    for step in steps:
        start, shards, located, examples = read.rows(step)
        every = {hash for row in range(len(examples)) for hash in documents_of(examples, row)}
        last, epochs = start + len(examples) - 1, sorted(set(located.epochs.tolist()))
        rate = read.training.masked_lm_prob
        anew = " (masks drawn anew)" if epochs[-1] else ""
        anew = anew if rate is None else f" ({100 * rate:g} % masked)"
        yield (
            f"step {step:,}: positions {start:,} to {last:,}, epoch "
            f"{' and '.join(map(str, epochs))}{anew}, {len(examples):,} examples of {len(every):,} "
            "documents"
        )
        for row in range(min(number, len(examples))):
            shard, in_shard = int(located.shards[row]), int(located.rows[row])
            example = shown_example(
                examples,
                row,
                tokenizer,
                title=f"{shards.entries[shard].name}, row {in_shard}",
                negative_pairs=shards.manifest.config.negative_pairs,
            )
            yield from example_lines(example, width=width)
            yield f"  {'from':<9}{', '.join(example.documents)}"
        yield ""


def parse_steps(text: str, first: int, last: int) -> range:
    """ "1000-1010" or "7", within the steps of a run. Raises InputError."""
    begin, dash, end = text.partition("-")
    if not all(part.isdecimal() for part in (begin, end if dash else begin)):
        raise InputError(f"--steps is {text!r}; give a step or a range, such as 1000-1010.")
    steps = range(int(begin), int(end or begin) + 1)
    if not steps or steps[0] < first or steps[-1] > last:
        raise InputError(f"--steps is {text}; the run has steps {first:,} to {last:,}.")
    return steps
