"""Texts with a class or a number, as columns: read from a table, split, sampled; their classes.

    label  title        content                 texts                                  labels
    1      "Excellent"  "I liked this blade."   ("Excellent", "I liked this blade.")   "1"

    labels ["1", "0", "1"]           ->  classes ("0", "1"), ids [1, 0, 1]
    of test rows, ["0.0", "1"]       ->  ids [0, 1]

Labels are text from the start, because CSV has no types: a model trained on a Parquet file with
numeric labels can be tested on a CSV file. Training labels that differ only in how they are written
are two classes, with a note. The labels of a regression are numbers.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.counter_rng import permutation, stream_key
from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.common.paths import is_table
from clozeline.pipeline.common.ragged import ordinals
from clozeline.pipeline.sources.documents import fix_unicode
from clozeline.pipeline.sources.formats import read_table
from clozeline.pipeline.sources.tables import MissingColumnError, is_string

AS_REGRESSION = 'run a regression: `clozeline benchmark` with metrics = ["pearson"]'
HELD_OUT_PARTS = 10  # one of them is tested on where there is no test source
REAL = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?", re.IGNORECASE)
MANY_CLASSES = 1_000  # more, of less than two rows each, are none
MOST_SHOWN = 40  # characters of a label: of the wrong column it may be a whole text
SHOWN_LABELS = 3  # in a note
EXACT_DIGITS = 15  # of a float
#: What tables have where a value is missing, as text.
MISSING = {"nan", "none", "null", "na", "n/a", "#n/a", "<na>"}

Text = tuple[str, ...]  # one, or a pair
Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Logits = NDArray[np.float32]  # [N, C]
Labels = NDArray[Any]  # [N], int64 classes, or float32 targets of a regression


@dataclass(frozen=True)
class Labelled:
    """N texts and their N labels; `source` is their path, for messages."""

    texts: list[Text]
    labels: Sequence[Any]  # str: classes; float: targets of a regression
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Rows) -> "Labelled":
        texts, labels = ([column[row] for row in rows] for column in (self.texts, self.labels))
        return Labelled(texts, labels, self.source)

    def joined(self) -> list[str]:
        """Each text with its second one, on a line of its own, for models that read no pairs."""
        return ["\n".join(text) for text in self.texts]

    def digest(self) -> str:
        """sha256, hex, of texts and labels in order; the same for equal rows of two files."""
        first, *second = zip(*self.texts, strict=True)
        columns = [first, second[0] if second else None, self.labels]
        return hashlib.sha256(json.dumps(columns).encode()).hexdigest()


def given_texts(texts: str | Iterable[object], advice: str = "give strings") -> Iterator[str]:
    """One text, or several, as valid Unicode: a string is one, not its characters.

    Raises InputError for what is not a string: as "nan", a missing value would get a class, too.
    """
    check_no_table(texts)
    if isinstance(texts, pa.Array | pa.ChunkedArray):
        texts = texts.to_pylist()
    is_one = isinstance(texts, str | bytes) or not isinstance(texts, Iterable)
    for number, text in enumerate([texts] if is_one else texts, 1):
        if not isinstance(text, str):
            raise InputError(
                f"text {number} is {text!r:.40}, of type {type(text).__name__}; {advice}."
            )
        yield fix_unicode(text)


def check_no_table(texts: object) -> None:
    """Raises InputError for a table: one of its columns would be read without a word."""
    if is_table(texts):
        kind = type(texts).__name__
        raise InputError(f'the texts are a {kind}; give one column of it, as in table["text"].')


def read_labelled(
    source: str,
    *,
    text: str,
    text_pair: str | None,
    label: str,
    is_regression: bool = False,
    is_test: bool = False,
) -> Labelled:
    """All rows of a file, glob, `hf://` or `sample:reviews` source, by column name.

    `text` and `text_pair` may name several columns, as in "title,content"; they become one text, a
    line each. Raises InputError for a source that cannot be read, and for columns that are missing
    or do not hold text, or classes, or the finite numbers of a regression. The labels of
    test rows may be real numbers, such as 1.0 for the class "1".
    """
    texts, table = _read(source, text, text_pair, extra=[label])
    kind, column = table.schema.field(label).type, table.column(label)
    is_real = pa.types.is_floating(kind) and not (is_regression or is_test)
    if pa.types.is_nested(kind) or is_real:
        raise InputError(
            f"{source}: column '{label}' holds {kind}, but classes must be text or whole numbers; "
            f"name another --label, convert the column, or {AS_REGRESSION}."
        )
    try:
        labels = column.cast(pa.float64() if is_regression else pa.string()).to_pylist()
    except pa.ArrowException as error:
        problem = "does not hold numbers" if is_regression else "is not text"
        raise InputError(f"{source}: column '{label}' {problem}: {one_line(error)}") from error
    if is_regression and not all(map(math.isfinite, labels)):
        row = next(row for row, value in enumerate(labels, 1) if not math.isfinite(value))
        raise InputError(f"{source}: '{label}' of row {row} is not a finite number.")
    return Labelled(texts, labels, source)


def read_texts(source: str, *, text: str, text_pair: str | None) -> list[Text]:
    """As `read_labelled`, without labels."""
    return _read(source, text, text_pair, extra=[])[0]


def hold_out(labelled: Labelled, *, seed: int) -> tuple[Labelled, Labelled]:
    """Split into training rows and a random tenth that is held out; both have at least one row.

    A class of which all rows would be held out keeps one to train on.
    """
    order = permutation(stream_key(seed, "finetune/hold-out"), len(labelled))
    held = min(max(round(len(labelled) / HELD_OUT_PARTS), 1), len(labelled) - 1)
    train: list[int] = order[held:].tolist()
    test: list[int] = []
    known = {labelled.labels[row] for row in train}
    for row in order[:held].tolist():
        (test if labelled.labels[row] in known else train).append(row)
        known.add(labelled.labels[row])
    if not test:
        raise InputError(
            f"{labelled.source} has too few rows to hold some out: each class needs a row to train "
            "on; add rows, or give --test."
        )
    return labelled.take(np.sort(train)), labelled.take(np.sort(test))


def sample(labelled: Labelled, size: int, *, seed: int) -> Labelled:
    """`size` random rows, or all if there are fewer; smaller samples start larger ones."""
    order = permutation(stream_key(seed, "finetune/examples"), len(labelled))
    return labelled.take(order[:size])


def balanced_order(labels: Rows, *, seed: int) -> Rows:
    """All rows in a random order in which the classes take turns, int64 [N].

    labels 0 0 0 1 0 1  ->  classes 0 1 0 1 0 0:  the first n rows are balanced while there are rows
    of each class, and part of the first n + 1.
    """
    order = permutation(stream_key(seed, "finetune/balanced"), len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    turn = ordinals(np.bincount(labels))
    return order[np.lexsort((labels[order], turn))]


def _read(
    source: str, text: str, text_pair: str | None, *, extra: list[str]
) -> tuple[list[Text], pa.Table]:
    columns = [text] if text_pair is None else [text, text_pair]
    names = [column.split(",") for column in columns]
    try:
        table = read_table(source, list(dict.fromkeys([*chain(*names), *extra])))
    except MissingColumnError as error:
        options = "--text, --text-pair or --label" if extra else "--text or --text-pair"
        raise InputError(f"{error}; name one of them with {options}") from error
    return list(zip(*(_joined(source, table, some) for some in names), strict=True)), table


def _joined(source: str, table: pa.Table, names: Sequence[str]) -> list[str]:
    """One text per row, each column on its own line, as sources join them."""
    for name in names:
        if not is_string(kind := table.schema.field(name).type):
            raise InputError(
                f"{source}: column '{name}' holds {kind}, not text; name another column with "
                "--text or --text-pair."
            )
    columns = (table.column(name).to_pylist() for name in names)
    return ["\n".join(row) for row in zip(*columns, strict=True)]


def class_names(labelled: Labelled) -> tuple[str, ...]:
    """The distinct labels, sorted (as numbers if all are).

    Raises InputError for fewer than two, and where they look like the numbers of a regression, or
    like names of rows.
    """
    names, rows = set(labelled.labels), len(labelled)
    if len(names) < 2:
        raise InputError(
            f"{labelled.source}: every row has the label {_quoted(labelled.labels[0])}, but a "
            "classifier needs two classes; add rows of another class, or name another --label."
        )
    are_numbers, are_many = all(map(REAL.fullmatch, names)), len(names) > MANY_CLASSES
    is_real = are_numbers and any("." in name for name in names)
    if 2 * len(names) > rows and (are_many or is_real):
        kind = "numbers to predict" if are_numbers else "names of rows"
        raise InputError(
            f"{labelled.source}: the labels look like {kind}, not like classes: {len(names):,} "
            f"different ones in {rows:,} rows, such as {_cut(min(names))}; name another --label"
            + (f", or {AS_REGRESSION}." if are_numbers else ".")
        )
    if all(re.fullmatch("-?[0-9]{1,19}", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def class_ids(labelled: Labelled, names: Sequence[str]) -> Rows:
    """The index of each label in `names`, int64 [N].

    A label that is not one of them is read as the class that is the same number, where exactly one
    class is: "01" and "1.0" as "1". Raises InputError for any other.
    """
    index = {name: i for i, name in enumerate(names)}
    numbers = [_normalized(name) for name in names]
    for label in {*labelled.labels} - index.keys():
        number = _normalized(label)
        if REAL.fullmatch(number) and numbers.count(number) == 1:
            index[label] = numbers.index(number)
    ids = np.array([index.get(label, -1) for label in labelled.labels], dtype=np.int64)
    if (ids < 0).any():
        row = int(np.argmax(ids < 0))
        label = labelled.labels[row]
        shown = ", ".join(map(_cut, names[:10])) + (", ..." if len(names) > 10 else "")
        alike = [
            _quoted(names[i]) for i, number in enumerate(numbers) if number == _normalized(label)
        ]
        meant = f"; {_first(alike)} differs only in how it is written" if alike else ""
        raise InputError(
            f"{labelled.source}: row {row + 1} has the label {_quoted(label)}, which no training "
            f"row has; the classes are {shown}{meant}."
        )
    return ids


def label_notes(labelled: Labelled) -> list[str]:
    """Notes on labels that are hardly meant as classes of their own, with their numbers of rows.

    Those of a single row, and in one note: labels that are written in several ways, such as
    "1", "01" and "1.0" or "Good" and "good ", and words for missing values.
    """
    counts = Counter(labelled.labels)
    ways: dict[str, list[str]] = {}
    for name in counts:
        ways.setdefault(_normalized(name), []).append(name)
    alike = [" and ".join(_with_rows(name, counts) for name in w) for w in ways.values() if w[1:]]
    missing = [_with_rows(name, counts) for name in counts if _normalized(name) in MISSING]
    notes = []
    if alike or missing:
        parts = [f"{_first(alike)} differ only in how they are written"] if alike else []
        parts += [f"{_first(missing)} may stand for a missing value"] if missing else []
        notes.append(f"each of these labels is a class of its own: {'; '.join(parts)}.")
    lone = [_quoted(w[0]) for way, w in ways.items() if way not in MISSING and counts[w[0]] == 1]
    if 0 < len(lone) < len(counts):
        notes.append(f"only one training row has the label {_first(lone)}.")
    return notes


def _normalized(label: str) -> str:
    """ "Good " -> "good";  "01" and "1.0" -> "1.0";  characters without width do not count."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    text = " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())
    try:
        return str(float(text) + 0.0) if len(text) <= EXACT_DIGITS and "_" not in text else text
    except ValueError:
        return text


def _with_rows(name: str, counts: Counter[str]) -> str:
    return f"{_quoted(name)} ({counted(counts[name], 'row')})"


def _first(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - SHOWN_LABELS} more" if len(parts) > SHOWN_LABELS else ""
    return ", ".join(parts[:SHOWN_LABELS]) + more


def _quoted(label: str) -> str:
    return repr(_cut(label))


def _cut(label: str) -> str:
    return label if len(label) <= MOST_SHOWN else f"{label[:MOST_SHOWN]}..."
