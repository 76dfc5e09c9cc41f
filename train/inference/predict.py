"""`clozeline predict`: stream texts in, stream predicted classes out.

Texts are read one batch at a time, so standard input may be endless. Each line is one text. For a
classifier of text pairs, a tab separates the two; without a tab the second text is empty.
"""

import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from shlex import quote

from clozeline.pipeline.common.config_checks import check_at_least, takes_keywords
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import GivenPath, each_given
from clozeline.pipeline.sources.encoding import check_utf8
from clozeline.pipeline.sources.files import (
    File,
    bare_name,
    find_files,
    open_unpacked,
    unpacked_head,
)
from clozeline.pipeline.sources.formats import has_scheme
from clozeline.pipeline.sources.source_query import split_options
from clozeline.pipeline.sources.text_files import BYTE_ORDER_MARK
from clozeline.train.artifacts.pretrained import kind_of_model
from clozeline.train.engine.distributed import join_world
from clozeline.train.finetuning.classifier import (
    Classifier,
    load_huggingface_classifier,
    read_classifier,
)
from clozeline.train.labelled.rows import Text, given_texts, read_texts
from clozeline.train.store.local_folder import local_folder

STANDARD_INPUT = "-"
TABLES = ("csv", "tsv", "json", "jsonl", "ndjson", "parquet")  # any other file is read line by line
FILES = (*TABLES, "txt")


@dataclass(frozen=True)
class Prediction:
    """The most probable class of a text, and the probability of each class."""

    text: str  # a tab between the two texts of a pair
    label: str
    probability: float
    probabilities: dict[str, float]

    def line(self) -> str:
        """Class, probability and text, as columns; line ends, and tabs in a class, are spaces."""
        text = " ".join(self.text.splitlines())
        return f"{' '.join(self.label.split())}\t{self.probability:.4f}\t{text}"

    def json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


@takes_keywords
def predict(
    folder: GivenPath,
    texts: str | Iterable[str] = (),
    *,
    files: GivenPath | Iterable[GivenPath] = (),
    text: str | None = None,
    text_pair: str | None = None,
    batch_size: int = 32,
) -> Iterator[Prediction]:
    """Predict the class of each text, then of each row of each file, in order.

        >>> [prediction] = predict("work/classifier", "A lovely lamp.")
        >>> list(prediction.probabilities)
        ['negative', 'positive']

    `folder` comes from `clozeline finetune`, or is a Hugging Face classifier, which reads pairs
    if `text_pair` is given.

    A file is a table if its name says so (Parquet, .jsonl, .csv, .tsv; `hf://`, `sample:reviews`);
    its columns default to those used in training. Any other file has one text per line; "-" is
    standard input. Empty lines count as texts, so prediction i belongs to line i. A pair is one
    string, with a tab between its two texts. Raises InputError immediately if `folder` is not a
    classifier, or `text` or `text_pair` names a column of no table, and during iteration for a
    text that is not a string, such as a missing value, and for a file that cannot be read.
    """
    check_at_least("batch_size", batch_size, 1)
    sources = list(each_given(files))
    if "" in (text, text_pair):
        raise InputError("--text or --text-pair is empty; name a column, or leave it out.")
    has_table = any(map(_is_table, sources))
    if text is not None and not has_table:
        raise InputError("--text names a column, but no --file is a table; leave it out.")
    classifier = _load(folder, text_pair)
    if text_pair not in (None, classifier.text_pair) and not has_table:
        raise InputError("--text-pair names a column, but no --file is a table; leave it out.")
    text, text_pair = text or classifier.text, text_pair or classifier.text_pair or None
    tables_and_lines = (_texts_of_file(file, text, text_pair) for file in sources)
    advice = "give strings, for a pair one string with a tab between the two texts"
    listed = given_texts(texts, advice)
    given = chain([_as_texts(listed, is_pair=bool(text_pair))], tables_and_lines)
    return _predictions(classifier, (part for some in given for part in _batches(some, batch_size)))


def _load(folder: GivenPath, text_pair: str | None) -> Classifier:
    """A classifier of `clozeline finetune` or of Hugging Face."""
    with local_folder(folder) as local, join_world() as world:
        kind = kind_of_model(local)
        if kind == "run":
            raise InputError(
                f"{folder} is a pretraining run, not a classifier; make one with "
                f"`clozeline finetune {quote(str(folder))} TRAIN --out DIR`."
            )
        if kind == "Hugging Face":
            return load_huggingface_classifier(local, text_pair=text_pair, device=world.device)
        classifier = read_classifier(local, device=world.device)
    if text_pair and not classifier.text_pair:
        raise InputError(f"{folder} was trained on single texts; leave --text-pair out.")
    return classifier


def _predictions(classifier: Classifier, batches: Iterable[Sequence[Text]]) -> Iterator[Prediction]:
    for texts in batches:
        probabilities = classifier.probabilities(texts)
        for line, row in zip(map("\t".join, texts), probabilities.tolist(), strict=True):
            if not all(map(math.isfinite, row)):
                raise InputError(f"the classifier's probabilities of {line!r} are not finite.")
            by_label = dict(zip(classifier.names, row, strict=True))
            label = max(by_label, key=by_label.__getitem__)
            yield Prediction(line, label, by_label[label], by_label)


def _texts_of_file(source: str, text: str, text_pair: str | None) -> Iterable[Text]:
    if _is_table(source):
        return read_texts(source, text=text, text_pair=text_pair)
    return _as_texts(_lines(source), is_pair=bool(text_pair))


def _as_texts(lines: Iterable[str], *, is_pair: bool) -> Iterator[Text]:
    return (line.partition("\t")[::2] if is_pair else (line,) for line in lines)


def _batches(texts: Iterable[Text], size: int) -> Iterator[list[Text]]:
    texts = iter(texts)
    while batch := list(islice(texts, size)):
        yield batch


def is_file_name(text: str) -> bool:
    """Whether a text is one word that ends like a table or a text file: "rows.csv.gz"."""
    stem, _, ending = bare_name(text).rpartition(".")
    return bool(stem) and len(text.split()) == 1 and ending.lower() in FILES


def _is_table(source: str) -> bool:
    is_url = has_scheme(source) is not None
    name, _ = split_options(source, is_url=is_url)
    return is_url or bare_name(name).rpartition(".")[2].lower() in TABLES


def _lines(source: str) -> Iterator[str]:
    """Lines of a file or of standard input, as valid Unicode without line endings."""
    if source == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError(f"{STANDARD_INPUT} is closed; pipe text into the command.")
        assert isinstance(sys.stdin.buffer, io.BufferedReader)
        head = sys.stdin.buffer.peek()
        check_utf8(STANDARD_INPUT, head)
        yield from _decoded(sys.stdin.buffer)
        return
    for file in _files_of_lines(source):
        head, compression = unpacked_head(file.path)
        check_utf8(file.path, head)
        with open_unpacked(file.path, compression) as stream:
            yield from _decoded(stream)


def _files_of_lines(source: str) -> list[File]:
    """The files of a path, glob or URL. Raises InputError for tables of a glob."""
    files = find_files(source)
    if table := next((file.path for file in files if _is_table(file.path)), None):
        raise InputError(
            f"{table} is a table, and the files of {source} are read line by line; name tables by "
            "their ending, as in '*.csv'."
        )
    return files


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0:
            line = line.removeprefix(BYTE_ORDER_MARK)
        yield line.rstrip(b"\r\n").decode("utf-8", "replace")
