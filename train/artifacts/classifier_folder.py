"""The files of a classifier folder, and its metadata without loading the weights.

    DIR/classifier.json     classes, columns, model config, and what it was trained on
    DIR/model.safetensors   weights by name
    DIR/tokenizer/          a copy
    DIR/report.json         scores on held-out rows, and what they are compared with
    DIR/predictions.csv     probabilities and texts of these rows
    DIR/SHA256SUMS          of these files but predictions.csv, which no prediction needs

The folder is whole or absent, except for finetuned.json and finetuned.safetensors, those of an
unfinished comparison. The texts of a pair are joined by a line end in predictions.csv:

    row,label,predicted,confidence,P(bad),P(good),text
    1,good,good,0.973100,0.026900,0.973100,A fine lamp.
"""

import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clozeline.pipeline.common.errors import InputError, one_line
from clozeline.pipeline.common.folders import check_kind, check_replaceable, wrong_folder
from clozeline.pipeline.common.json_files import SUMS, check_sums, json_values
from clozeline.pipeline.common.paths import names_in
from clozeline.pipeline.tokenization.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer
from clozeline.train.artifacts.checkpoint import check_finite
from clozeline.train.artifacts.huggingface import check_links
from clozeline.train.artifacts.partial_folder import restore_folder

CLASSIFIER, MODEL, REPORT = "classifier.json", "model.safetensors", "report.json"
PREDICTIONS = "predictions.csv"
TOKENIZER, RESULTS, RESULT_WEIGHTS = "tokenizer", "finetuned.json", "finetuned.safetensors"
METADATA = (
    *("model", "names", "max_seq_length", "pooling", "mask_position", "job"),
    *("text", "text_pair", "prompt", "truncate", "tokenizer_digest", "options"),
)
REPORTED = ("finetuned", "results", "notes", "examples", "plan", "label_efficiency")
#: Patterns of what `clozeline finetune` and `clozeline report` write.
OWN_FILES = (
    *(CLASSIFIER, MODEL, REPORT, SUMS, "report.html", PREDICTIONS),
    *(f"{TOKENIZER}/{name}" for name in TOKENIZER_FILES),
    *(RESULTS, RESULT_WEIGHTS, ".finetuned.*.partial"),
)


def read_metadata(folder: Path) -> dict[str, Any]:
    """The content of classifier.json.

    Raises InputError where it is missing or damaged, or another version wrote it.
    """
    values = _read_json(folder, CLASSIFIER, METADATA)
    if unknown := sorted(values.keys() - METADATA):
        raise InputError(
            f"{folder / CLASSIFIER} has {', '.join(unknown)}, so another version of Clozeline "
            "wrote it; make it again with `clozeline finetune`."
        )
    return values


def read_report(folder: Path) -> dict[str, Any]:
    """The content of report.json. Raises InputError as `read_metadata`."""
    read_metadata(folder)
    return _read_json(folder, REPORT, REPORTED)


def read_model(folder: Path) -> tuple[dict[str, Any], Tokenizer, dict[str, Tensor]]:
    """The metadata, the tokenizer and the weights by name.

    Raises InputError where a file is missing, damaged or replaced.
    """
    metadata = read_metadata(folder)
    check_links(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != metadata["tokenizer_digest"]:
        raise InputError(
            f"{folder / TOKENIZER} has the digest {tokenizer.digest[:12]}, but the model was "
            f"trained with {metadata['tokenizer_digest'][:12]}; restore the original tokenizer."
        )
    check_sums(folder)
    try:
        weights = load_file(folder / MODEL)
    except (OSError, SafetensorError) as error:
        raise unreadable_model(folder, error) from error
    check_finite(folder, weights)
    return metadata, tokenizer, weights


class Predicted(NamedTuple):
    """What the classifier says of a test row, by class names."""

    label: str
    predicted: str
    confidence: float  # the probability of the predicted class
    text: str


def predictions_csv(
    names: Sequence[str],
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    texts: Sequence[str],
) -> str:
    """The content of predictions.csv, of C names, N labels, probabilities [N, C] and N texts."""
    file = io.StringIO()
    writer = csv.writer(file)
    of_classes = [f"P({name})" for name in names]
    writer.writerow(["row", *Predicted._fields[:-1], *of_classes, "text"])
    for number, text in enumerate(texts):
        row = probabilities[number]
        answer = (names[labels[number]], names[row.argmax()])
        writer.writerow([number + 1, *answer, *(f"{p:.6f}" for p in (row.max(), *row)), text])
    return file.getvalue()


def read_predictions(folder: Path) -> list[Predicted]:
    """The rows of predictions.csv. Raises InputError where it cannot be read."""
    csv.field_size_limit(sys.maxsize)  # a text has no limit
    try:
        with (folder / PREDICTIONS).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if any(None in row.values() for row in rows):
            raise ValueError("a row has too few columns")
        if not all(0 <= float(row["confidence"]) <= 1 for row in rows):  # NaN is not, either
            raise ValueError("a confidence is not between 0 and 1")
        return [
            Predicted(row["label"], row["predicted"], float(row["confidence"]), row["text"])
            for row in rows
        ]
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise InputError(
            f"{folder / PREDICTIONS} cannot be read ({error}); make it again with "
            "`clozeline finetune`."
        ) from error


def unreadable_model(folder: Path, error: Exception) -> InputError:
    """What is raised for weights or a model config that cannot be used."""
    return InputError(
        f"{folder / MODEL} cannot be read ({one_line(error)}); rerun `clozeline finetune` with "
        "--overwrite."
    )


def is_classifier(folder: Path) -> bool:
    return (folder / CLASSIFIER).exists()


def check_room(folder: Path, *, overwrite: bool) -> None:
    """Raises InputError where the folder cannot be written, or has foreign files in it."""
    restore_folder(folder)
    own = {CLASSIFIER, RESULTS, RESULT_WEIGHTS}
    check_kind(folder, "a classifier", is_own=not own.isdisjoint(names_in(folder)))
    if overwrite or not is_classifier(folder):
        check_replaceable(folder, "a classifier", own=OWN_FILES)
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"{above} is not writable; give another --out.")


def _read_json(folder: Path, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    restore_folder(folder)
    if not is_classifier(folder):
        raise wrong_folder(folder, "a classifier of `clozeline finetune`")
    with json_values(folder / name, "make it again with `clozeline finetune`") as values:
        check_sums(folder, [name])
        if missing := [key for key in keys if key not in values]:
            raise ValueError(f"it has no {', '.join(missing)}")
        return values
