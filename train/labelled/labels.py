"""The labels of rows as classes: which there are, and which one each row has.

    ["1", "0", "1"]                  ->  classes ("0", "1"), ids [1, 0, 1]
    of test rows, ["0.0", "1"]       ->  ids [0, 1]

Training labels that differ only in how they are written are two classes, with a note.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.errors import InputError
from clozeline.train.labelled.rows import AS_REGRESSION, Labelled, Rows

REAL = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?", re.IGNORECASE)
MANY_CLASSES = 1_000  # more, of less than two rows each, are none
MOST_SHOWN = 40  # characters of a label: of the wrong column it may be a whole text
SHOWN_LABELS = 3  # in a note
EXACT_DIGITS = 15  # of a float
#: What tables have where a value is missing, as text.
MISSING = {"nan", "none", "null", "na", "n/a", "#n/a", "<na>"}


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
