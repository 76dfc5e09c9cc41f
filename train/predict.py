"""`clozeline predict`: texts in, classes out, as they come.

Texts are taken a batch at a time, so standard input may be endless. A line is one text; for a
classifier of pairs a tab parts it in two, and without a tab the second text is empty.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from pipeline.common.errors import InputError
from pipeline.sources.documents import fix_unicode
from pipeline.sources.files import bare_name, compression_by_name, damage, find_files, open_unpacked
from pipeline.sources.source_query import HUB, SAMPLE
from train.artifacts.pretrained import kind_of
from train.engine.distributed import join_world
from train.finetuning.classifier import Classifier, load_classifier, load_huggingface_classifier
from train.finetuning.labelled import Texts, read_texts

STANDARD_INPUT = "-"
TABLES = ("csv", "tsv", "json", "jsonl", "ndjson", "parquet")  # any other file is lines


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of a text."""

    text: str  # as it was given; a pair with a tab between
    label: str
    probability: float


def predict(
    folder: Path,
    texts: Iterable[str] = (),
    *,
    files: Sequence[str] = (),
    text: str | None = None,
    text_pair: str | None = None,
    batch_size: int = 32,
) -> Iterator[Prediction]:
    """The class of each text, then of each row of the files, in order.

    The folder is one of `clozeline finetune`, or of a Hugging Face classifier, which reads pairs
    where there is a `text_pair`.

    A file is a table (by its name: Parquet, .jsonl, .csv, .tsv; `hf://`, `sample:reviews`), whose
    columns are named as in training unless given here, or else a text a line, and "-" is standard
    input. An empty line is a text, so that answer i is that of line i. Raises InputError: at once
    for a folder that is no classifier, on the way for a file that cannot be read.
    """
    with join_world() as world:
        classifier = _load(folder, text_pair, device=world.device)
    text, text_pair = text or classifier.text, text_pair or classifier.text_pair
    if text_pair and not classifier.text_pair:
        raise InputError(f"{folder} was trained on single texts; leave --text-pair out.")
    is_pair = bool(text_pair)
    batches = chain(
        _batches_of_lines(map(fix_unicode, texts), is_pair, batch_size),
        *(_batches_of_file(file, text, text_pair, batch_size) for file in files),
    )
    return _answers(classifier, batches)


def _load(folder: Path, text_pair: str | None, *, device: torch.device) -> Classifier:
    kind = kind_of(folder)
    if kind == "run":
        raise InputError(
            f"{folder} is a run and no classifier; `clozeline finetune {folder} TRAIN --out DIR` "
            "makes one of it."
        )
    if kind == "hugging face":
        return load_huggingface_classifier(folder, text_pair=text_pair, device=device)
    return load_classifier(folder, device=device)


def _answers(classifier: Classifier, batches: Iterable[Texts]) -> Iterator[Prediction]:
    for texts in batches:
        probabilities = classifier.classify(texts)
        best = probabilities.argmax(1)
        shown = ("\t".join(row) for row in zip(*texts.columns, strict=True))
        for text, row, label in zip(shown, probabilities, best.tolist(), strict=True):
            yield Prediction(text, classifier.names[label], float(row[label]))


def _batches_of_file(
    source: str, text: str, text_pair: str | None, batch_size: int
) -> Iterator[Texts]:
    if not _is_table(source):
        yield from _batches_of_lines(_lines(source), bool(text_pair), batch_size)
        return
    texts = read_texts(source, text=text, text_pair=text_pair)
    for start in range(0, len(texts), batch_size):
        yield texts.take(np.arange(start, min(start + batch_size, len(texts))))


def _batches_of_lines(lines: Iterable[str], is_pair: bool, batch_size: int) -> Iterator[Texts]:
    lines = iter(lines)
    while batch := list(islice(lines, batch_size)):
        if is_pair:
            parts = [line.partition("\t") for line in batch]
            yield Texts([first for first, _, _ in parts], [second for _, _, second in parts])
        else:
            yield Texts(batch)


def _is_table(source: str) -> bool:
    ending = bare_name(source).rpartition(".")[2].lower()
    return source.startswith((HUB, SAMPLE)) or ending in TABLES


def _lines(source: str) -> Iterator[str]:
    """The lines of a file, or of standard input, as valid Unicode and without their ends."""
    if source == STANDARD_INPUT:
        yield from map(_line, sys.stdin.buffer)
        return
    for file in find_files([source]):
        with open_unpacked(file.path, compression_by_name(file.path)) as stream:
            yield from map(_line, stream)
            if reason := damage(stream):
                raise InputError(f"{file.path}: {reason}; fetch it again.")


def _line(raw: bytes) -> str:
    return raw.rstrip(b"\r\n").decode("utf-8", "replace")
