"""The newest model of a run that may still be training, loaded on first use."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import numpy as np

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import Manifest
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.report.shown_example import ShownGuess
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.artifacts.checkpoint import latest_checkpoint, read_newest, weights_digest
from clozeline.train.artifacts.pretrained import Pretrained, load_pretrained
from clozeline.train.artifacts.run import check_fits, read_run
from clozeline.train.data.batch import collate
from clozeline.train.evaluation.guesses import guess
from clozeline.train.inference.fill import Filled, fill_with
from clozeline.train.monitoring.learning import Guesses

ROWS_AT_ONCE = 32
LEAST_PROBABILITY = 1e-9  # a loss stays finite


class RunModel:
    """A run's newest model, on the CPU: a page takes no memory from the GPU that trains it.

    Requests come from several threads and take turns.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._lock = Lock()
        self._weights: tuple[Path, str] | None = None
        self._loaded: tuple[Pretrained, BertForPretraining] | None = None

    def fill(self, text: str, *, top: int) -> Filled:
        """As `clozeline fill`. Raises InputError as that does."""
        with self._lock:
            pretrained, model = self._newest()
            return fill_with(pretrained, model, text, top=top, name=self.run)

    def guess_rows(self, examples: Examples) -> tuple[list[list[ShownGuess]], list[float]]:
        """The guesses for the masks of each row, and the mean masked-LM loss of each, in nats."""
        with self._lock:
            pretrained, model = self._newest()
            rows = np.arange(len(examples))
            most = max(1, int(examples.masked_lm_positions.lengths.max(initial=1)))
            batches = (
                collate(
                    examples,
                    rows[start : start + ROWS_AT_ONCE],
                    max_seq_length=int(examples.input_ids.lengths.max(initial=1)),
                    max_predictions=most,
                    pad_id=pretrained.tokenizer.pad_id,
                )
                for start in range(0, len(rows), ROWS_AT_ONCE)
            )
            found = guess(model, batches, precision="fp32")
        guesses = list(shown_guesses(found, pretrained.tokenizer))
        return guesses, [_loss(of_answers) for of_answers in found.of_answers]

    def check_fits(self, folder: AnyPath, manifest: Manifest) -> None:
        """Raises InputError where the run cannot read the rows of a data set."""
        check_fits(folder, manifest, self.run, read_run(self.run))

    def newest_weights(self) -> tuple[Path, str] | None:
        """The newest checkpoint and its digest: another run in the folder has the same steps.

        Raises InputError where it cannot be read.
        """
        if latest_checkpoint(self.run) is None:
            return None
        return read_newest(self.run, lambda folder: (folder, weights_digest(folder)))

    def _newest(self) -> tuple[Pretrained, BertForPretraining]:
        newest = self.newest_weights()
        if self._loaded is None or newest != self._weights:
            pretrained = load_pretrained(self.run)
            model = BertForPretraining(pretrained.model)
            model.load_state_dict(pretrained.weights)
            self._loaded, self._weights = (pretrained, model.eval()), newest
        return self._loaded


def shown_guesses(found: Guesses, tokenizer: Tokenizer) -> Iterator[list[ShownGuess]]:
    """The guesses for the masks of each row, as text."""
    for row in zip(found.guesses, found.probabilities, found.of_answers, strict=True):
        yield [
            ShownGuess(token=tokenizer.shown_tokens[token], probability=p, of_answer=of_answer)
            for token, p, of_answer in zip(*row, strict=True)
        ]


def _loss(of_answers: list[float]) -> float:
    """The mean negative log-probability of the answers; 0 for a row without masks."""
    if not of_answers:
        return 0.0
    return float(-np.log(np.maximum(of_answers, LEAST_PROBABILITY)).mean())
