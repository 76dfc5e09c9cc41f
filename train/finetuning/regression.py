"""Regression on texts: a model with one output, trained with the squared error.

    "A plane takes off." | "An air plane takes off."  ->  5.0

Targets are standardized with the mean and deviation of the training rows. Learning rate and epochs
are chosen as for a classifier, by the squared error on held-out training rows. The baseline is
ridge regression on the bag-of-words features of `baseline.py`.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sources.labelled_table import read_table
from clozeline.train.artifacts.pretrained import Pretrained
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.fitting import Fitter
from clozeline.train.finetuning.training import predict_logits
from clozeline.train.labelled.baseline import count_words
from clozeline.train.labelled.correlations import Correlations
from clozeline.train.labelled.encoding import Encoder
from clozeline.train.labelled.rows import Rows, Texts, read_texts

RIDGE = 1.0  # scikit-learn's default regularization

Targets = NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """N texts or pairs, each with a real-valued target; `source` is their path, for messages."""

    texts: Texts
    targets: Targets  # [N]
    source: str

    def take(self, rows: Rows) -> "Measured":
        """The given rows, in the given order."""
        return Measured(self.texts.take(rows), self.targets[rows], self.source)

    def digest(self) -> str:
        """sha256, hex, of texts and targets in order."""
        digest = hashlib.sha256(json.dumps([self.texts.first, self.texts.second]).encode())
        digest.update(self.targets.tobytes())
        return digest.hexdigest()


def read_measured(source: str, *, text: str, text_pair: str | None, label: str) -> Measured:
    """All rows of a source, with numbers as labels.

    Raises InputError for a source that cannot be read, missing columns, and a label that is not a
    finite number.
    """
    column = read_table(source, [label]).column(label)
    try:
        targets = pc.cast(column, pa.float64()).to_numpy().astype(np.float32)
    except pa.ArrowException as error:
        raise InputError(f"{source}: column '{label}' does not hold numbers ({error}).") from error
    if not np.isfinite(targets).all():
        row = int(np.argmin(np.isfinite(targets))) + 1
        raise InputError(f"{source}: '{label}' of row {row} is not a finite number.")
    return Measured(read_texts(source, text=text, text_pair=text_pair), targets, source)


class Regression:
    """Trains regression models on the same rows and scores them on named test sets."""

    def __init__(
        self,
        start: Pretrained,
        train: Measured,
        tests: dict[str, Measured],
        config: FinetuneConfig,
        device: torch.device,
    ) -> None:
        self._start, self._config, self._device = start, config, device
        self._train, self._tests = train, tests
        self._mean = train.targets.mean()
        self._deviation = train.targets.std() or np.float32(1)
        self._encoder = Encoder(start.tokenizer, max_seq_length=start.max_seq_length)

    def fine_tuned(self, *, is_pretrained: bool, seed: int) -> dict[str, Correlations]:
        """Train from pretrained or random weights; returns the scores on each test set."""
        fitter = Fitter(
            start=self._start,
            is_pretrained=is_pretrained,
            classes=1,
            config=self._config,
            device=self._device,
        )
        model = fitter.fit(
            self._encoder.encode(self._train.texts),
            (self._train.targets - self._mean) / self._deviation,
            seed=seed,
            title="fine-tuned" if is_pretrained else "from scratch",
            needs_held_out=False,
        ).model
        precision = self._config.precision
        return {
            name: Correlations.of(
                test.targets,
                predict_logits(model, self._encoder.encode(test.texts), precision=precision)[:, 0],
            )
            for name, test in self._tests.items()
        }

    def bag_of_words(self) -> dict[str, Correlations]:
        """Train ridge regression on the same part of each text; returns scores as `fine_tuned`."""
        from sklearn.linear_model import Ridge

        texts = self._encoder.truncate(self._train.texts).joined()
        features, counts = count_words(texts, source=self._train.source)
        model = Ridge(alpha=RIDGE).fit(counts, self._train.targets)
        return {
            name: Correlations.of(
                test.targets,
                model.predict(features.transform(self._encoder.truncate(test.texts).joined())),
            )
            for name, test in self._tests.items()
        }
