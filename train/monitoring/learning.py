"""RUN/learning.jsonl: what the model answers on the same held-out rows at every evaluation.

    {"rows": [{"input_ids": [2, 7, 4, 3], "positions": [2], "answers": [11], "length_a": 4, ...}]}
    {"step": 100, "guesses": [[15]], "probabilities": [[0.31]], "of_answers": [[0.02]], ...}
    {"step": 200, "guesses": [[11]], "probabilities": [[0.44]], "of_answers": [[0.44]], ...}

The first line has the rows, each other line one evaluation. Nothing reads the file in training.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.run import LEARNING
from clozeline.train.monitoring.json_lines import finished_lines, full_disk_in_one_line, keep_until

ROWS = 32  # held-out rows, the first ones


@dataclass(frozen=True, kw_only=True)
class HeldOutRow:
    """A row as it is shown to the model, and the answers."""

    input_ids: list[int]  # masked, with [CLS] and [SEP]
    positions: list[int]
    answers: list[int]  # original ids at the positions
    length_a: int
    next_sentence_label: int  # as in the shards
    piece_lengths: list[int] = field(default_factory=list)  # of a packed row


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """What a model answers for some rows: a list for each row, a value for each mask."""

    guesses: list[list[int]]  # most probable ids
    probabilities: list[list[float]]  # of the guesses
    of_answers: list[list[float]]  # probabilities of the right ids
    label_1: list[float | None]  # probability of next_sentence_label 1; None: there is no B

    def rounded(self) -> "Guesses":
        """With four decimals, as the file has them."""
        return Guesses(
            guesses=self.guesses,
            probabilities=[[round(p, 4) for p in row] for row in self.probabilities],
            of_answers=[[round(p, 4) for p in row] for row in self.of_answers],
            label_1=[None if p is None else round(p, 4) for p in self.label_1],
        )


@dataclass(frozen=True)
class Learning:
    """The rows of a run, and its guesses by step."""

    rows: list[HeldOutRow]
    guesses: dict[int, Guesses]

    @classmethod
    def of(cls, run: Path) -> Self:
        """Without rows and guesses where the run has not been evaluated.

        A line that a killed process did not finish is left out. Raises InputError for a file that
        cannot be read.
        """
        path = run / LEARNING
        found: list[HeldOutRow] = []
        guesses = {}
        lines = finished_lines(path, is_right=_is_right) if path.exists() else ()
        for number, (values, _) in enumerate(lines):
            try:
                if number == 0:
                    found = [HeldOutRow(**row) for row in values["rows"]]
                    continue
                step = int(values.pop("step"))
                guesses[step] = Guesses(**values)
            except (LookupError, TypeError, ValueError) as error:
                raise InputError(
                    f"line {number + 1} of {path} cannot be read ({error}); remove the file."
                ) from error
        return cls(found, guesses)


class LearningLog:
    """Writes the file of one run, in only one of its processes.

    Lines after `start_step` were written by a process that died before it saved; they are removed.
    """

    def __init__(self, run: Path, *, start_step: int) -> None:
        self._run, self._path = run, run / LEARNING
        keep_until(self._path, start_step, is_right=_is_right)

    def write(self, step: int, rows: list[HeldOutRow], guesses: Guesses) -> None:
        """Append one evaluation; the first one writes the rows, too.

        Other rows, as after a resumption that skips a bad shard, replace the file. Raises
        JobFailedError where it cannot be written.
        """
        is_known = self._has(rows)
        lines = [] if is_known else [{"rows": [asdict(row) for row in rows]}]
        with (
            full_disk_in_one_line(f"{LEARNING} of {self._run}"),
            self._path.open("a" if is_known else "w", encoding="utf-8") as file,
        ):
            for values in (*lines, {"step": step, **asdict(guesses.rounded())}):
                file.write(json.dumps(values, separators=(",", ":")) + "\n")

    def _has(self, rows: list[HeldOutRow]) -> bool:
        """Whether the file is of these rows."""
        if not self._path.exists():
            return False
        with self._path.open(encoding="utf-8") as file:
            known = json.loads(file.readline())["rows"]
        return [HeldOutRow(**row) for row in known] == rows


def _is_right(number: int, values: dict[str, Any]) -> bool:
    """The first line has the rows, the others a step each."""
    name, kind = ("rows", list) if number == 1 else ("step", int)
    return isinstance(values.get(name), kind)
