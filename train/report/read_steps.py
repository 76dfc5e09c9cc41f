"""`clozeline inspect RUN --steps`: what a run read at some steps, from its order and shards alone.

step 12: positions 2,816 to 3,071, epoch 1 (masks drawn anew), 256 examples of 201 documents
train-00003-of-00008.arrow, row 12: 27 tokens, B follows A
  A        the [1 MASK] sat on the [2 river] .
  ...
  from     51c2aa0190ffe201, 8b1d2203c5a7e944

A step's examples are the same for any number of processes and any accumulation. Where metrics.jsonl
has the data digest of a step, it is compared.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import TOKENIZER, read_manifest
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.report.inspect import documents_of, example_lines, shown_example
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.checkpoint import TrainState, list_checkpoints, read_state
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.order import Located
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.pretraining.start import cool_down_origin


class ReadSteps:
    """What a run read: its steps by number, from `first_step` on.

    Raises InputError for shards that the run was not trained on, and for a run of several phases.
    """

    def __init__(self, run: Path, shards: AnyPath) -> None:
        self.run, config = run, read_run(run)
        self.training = config.training
        if len(config.phases) > 1:
            raise InputError(f"{run} has read several data sets (--phase); give a run on one.")
        #: Those before it were trained by the run from which this one was cooled down.
        before = cool_down_origin(config)
        self.first_step = 1 + (before.step or 0 if before else 0)
        if read_manifest(shards).dataset_digest != config.dataset_digest:
            raise InputError(f"{shards} is not the data set that {run} was trained on; give that.")
        states = [state for state in map(read_state, list_checkpoints(run)) if state.loader]
        self.states = states or [TrainState(step=0)]
        self.loader = Loader(
            shards,
            batch_size=self.training.batch_size,
            seed=self.training.seed,
            masked_lm_prob=self.training.masked_lm_prob,
            length_bins=self.training.length_bins,
            prefetch=0,
        )
        if state := self.states[-1].loader:
            self.loader.load_state_dict(state)
        self.shards, self.reader = self.loader.shards, self.loader.reader()
        self.shards.has_documents = True
        digests = ((line["step"], line.get("data_digest")) for line in read_metrics(run))
        self.digests = {step: digest for step, digest in digests if digest}

    @property
    def last_step(self) -> int:
        """The last step that the run's files know."""
        return int(max([self.states[-1].step, *self.digests]))

    def rows(self, step: int) -> tuple[int, Located, Examples]:
        """The first position of a step, and its rows, as the model saw them and with document ids.

        Raises InputError if the run read others there.
        """
        near = next((state for state in self.states if state.step >= step), self.states[-1])
        size, position = self.training.batch_size, near.loader.get("next_position", 0)
        start = int(position - size * (near.step - step + 1))
        if start < 0:
            raise InputError(
                f"{self.run}: step {step} cannot be found: it was read with another batch size or "
                "in an earlier run whose checkpoints are gone."
            )
        located, examples = self.reader.rows(start)
        hashes = self.reader.order.hashes(located, start + np.arange(size))
        digest = digest_text(int(hashes.sum()))
        if self.digests.get(step, digest) != digest:
            raise InputError(
                f"{self.run}: at step {step} other examples were read (data digest "
                f"{self.digests[step]}, here {digest}); was it resumed with another batch size?"
            )
        return start, located, examples


def step_lines(run: Path, *, shards: AnyPath, steps: str, number: int, width: int) -> Iterator[str]:
    """Each step, its first `number` examples, and the hashes of their documents."""
    read = ReadSteps(run, shards)
    tokenizer = load_tokenizer(read.shards.folder / TOKENIZER)
    for step in parse_steps(steps, read.first_step, read.last_step):
        start, located, examples = read.rows(step)
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
            name = read.shards.entries[int(located.shards[row])].name
            example = shown_example(
                examples,
                row,
                tokenizer,
                title=f"{name}, row {int(located.rows[row])}",
                negative_pairs=read.shards.manifest.config.negative_pairs,
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
