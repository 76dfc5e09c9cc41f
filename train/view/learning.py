"""The Learning page: what a run answers for the same held-out rows, evaluation by evaluation."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.report.shown_example import ShownExample, shown_example
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.view.site import Tab, Values, number_of
from clozeline.train.artifacts.run import TOKENIZER, read_run
from clozeline.train.monitoring.learning import HeldOutRow, Learning
from clozeline.train.view.run_model import shown_guesses

EVALUATIONS = 200  # per page; if there are more, some in between are left out


class LearningPages:
    """The learning of some runs, one at a time. Raises InputError if a folder is not a run."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = runs
        self._names = [as_given(run) for run in runs]  # requests come without the command's context
        self._negatives = [read_run(run).data.negative_pairs for run in runs]
        self._tokenizers = [load_tokenizer(run / TOKENIZER) for run in runs]

    def tab(self) -> Tab:
        return Tab(
            name="Learning",
            path="/learning",
            template="clozeline.train.view/learning.html.jinja",
            scripts=("clozeline.train.view/page.js", "clozeline.train.view/learning.js"),
            values=self.values,
            data=self.data,
        )

    def values(self, query: Values) -> dict[str, Any]:
        """What the template shows: the last evaluation, and all of them for the script."""
        number = self._number(query)
        learning = Learning.of(self._runs[number])
        negative, tokenizer = self._negatives[number], self._tokenizers[number]
        return {
            "number": number,
            "names": dict(enumerate(self._names)),
            "examples": list(shown_rows(learning, tokenizer, negative_pairs=negative)),
            "data": self.data({"run": number}),
        }

    def data(self, query: Values) -> Any:
        """Rows and evaluations after step `after` as plain values, tokens as text."""
        number = self._number(query)
        learning = Learning.of(self._runs[number])
        is_first = str(query.get("after", -1)) == "-1"
        least = -1 if is_first else number_of(query, "after")
        tokens = self._tokenizers[number].shown_tokens
        rows, guesses = learning.rows, learning.guesses
        steps = _spread([step for step in guesses if step > least])
        return {
            "run": number,
            "negative": self._negatives[number],
            "labels": [row.next_sentence_label for row in rows],
            "answers": _texts([row.answers for row in rows], tokens),
            "evaluations": [
                {
                    "step": step,
                    "guesses": _texts(guesses[step].guesses, tokens),
                    "probabilities": [_finite(row) for row in guesses[step].probabilities],
                    "of_answers": [_finite(row) for row in guesses[step].of_answers],
                    "label_1": _finite(guesses[step].label_1),
                }
                for step in steps
            ],
        }

    def _number(self, query: Values) -> int:
        number = number_of(query, "run")
        if number >= len(self._runs):
            raise InputError(f"there is no run {number}; there are {len(self._runs)}.")
        return number


def shown_rows(
    learning: Learning, tokenizer: Tokenizer, *, negative_pairs: str
) -> Iterator[ShownExample]:
    """The rows with the guesses of the last evaluation, if there is one."""
    if not learning.guesses:
        return
    last = learning.guesses[max(learning.guesses)]
    rows = zip(learning.rows, shown_guesses(last, tokenizer), strict=True)
    for number, (row, guesses) in enumerate(rows):
        yield shown_example(
            _examples(row),
            0,
            tokenizer,
            title=f"Held-out row {number:,}",
            negative_pairs=negative_pairs,
            guesses=guesses,
        )


def _examples(row: HeldOutRow) -> Examples:
    def ragged(values: list[int]) -> Ragged:
        return Ragged(np.array(values, np.uint32), np.array([0, len(values)]))

    pieces = row.piece_lengths
    return Examples(
        input_ids=ragged(row.input_ids),
        masked_lm_positions=ragged(row.positions),
        masked_lm_labels=ragged(row.answers),
        length_a=np.array([row.length_a], np.uint16),
        next_sentence_label=np.array([row.next_sentence_label], np.int8),
        document_a=np.zeros(1, np.uint64),
        document_b=np.zeros(1, np.uint64),
        piece_lengths=ragged(pieces) if pieces else None,
        piece_documents=ragged([0] * len(pieces)) if pieces else None,
    )


def _finite(values: Sequence[float | None]) -> list[float | None]:
    """None for what JSON has no number for: a diverged run answers NaN."""
    return [None if p is None or not math.isfinite(p) else p for p in values]


def _texts(rows: Sequence[Sequence[int]], tokens: Sequence[str]) -> list[list[str]]:
    return [[tokens[token] for token in row] for row in rows]


def _spread(steps: Sequence[int]) -> list[int]:
    """At most EVALUATIONS of the steps, evenly, the last one among them."""
    if len(steps) <= EVALUATIONS:
        return list(steps)
    chosen = np.linspace(0, len(steps) - 1, EVALUATIONS).round().astype(int)
    return [steps[index] for index in chosen]
