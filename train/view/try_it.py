"""The Try it page: fill masks with a run, classify texts with a classifier."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.packages import check_packages
from clozeline.pipeline.report.html import make_sections
from clozeline.pipeline.sources.documents import fix_unicode
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.view.site import Tab, Values
from clozeline.train.artifacts.classifier_folder import read_metadata, read_report
from clozeline.train.artifacts.run import TOKENIZER
from clozeline.train.finetuning.classifier import Classifier, load_classifier
from clozeline.train.finetuning.report import FinetuneReport
from clozeline.train.inference.word_effects import word_effects
from clozeline.train.labelled.predictions import PREDICTIONS, Predictions
from clozeline.train.labelled.rows import Texts
from clozeline.train.view.classifier_sections import SECTIONS, ClassifierSummary, results
from clozeline.train.view.run_model import RunModel

GUESSES = 5  # for each mask
LONGEST = 5000  # characters of a text


class ClassifierPages:
    """One classifier: its report, and its answers. Raises InputError if the folder is not one."""

    def __init__(self, folder: Path) -> None:
        check_packages("a report", "matplotlib")
        self._folder = folder
        self._lock = Lock()
        self._report = FinetuneReport.from_dict(read_report(folder))
        self.metadata = read_metadata(folder)
        self.predictions = Predictions.read(folder / PREDICTIONS)
        rows, tested = len(self.predictions.texts), self._report.finetuned.scores.examples
        if rows != tested:
            raise InputError(
                f"{folder / PREDICTIONS} has {rows:,} rows, but {tested:,} test rows are in the "
                "report; restore it, or make it again with `clozeline finetune`."
            )

    def tab(self) -> Tab:
        template = "clozeline.pipeline.view/sections.html.jinja"
        return Tab(
            name="Classifier",
            path="/classifier",
            template=template,
            values=lambda _: self._page,
        )

    @cached_property
    def _page(self) -> dict[str, Any]:
        summary = ClassifierSummary(
            report=self._report, job=self.metadata["job"], predictions=self.predictions
        )
        return {
            "figures": list(results(self._report)),
            "sections": make_sections(SECTIONS, summary),
        }

    @cached_property
    def _classifier(self) -> Classifier:
        return load_classifier(self._folder)

    def classify(self, values: Values) -> Any:
        """{"text": ..., "second": ...} -> the probability of each class, the effect of each word.

        The effect is how much the predicted class's probability falls without the word.
        """
        names = ("text", "second") if self.metadata["text_pair"] else ("text",)
        texts = [_text_of(values, name) for name in names]
        with self._lock:
            classifier = self._classifier
            probabilities = classifier.classify(Texts.of([texts]))[0]
            words = word_effects(classifier, texts, label=int(probabilities.argmax()))
        classes = sorted(
            zip(classifier.names, probabilities.tolist(), strict=True), key=lambda c: -c[1]
        )
        return {
            "classes": [{"name": name, "probability": p} for name, p in classes],
            "words": [asdict(word) for word in words],
        }


class TryPages:
    """Forms for the given runs and classifier."""

    def __init__(self, runs: Sequence[RunModel], classifier: ClassifierPages | None) -> None:
        self._runs, self._classifier = runs, classifier

    def tab(self) -> Tab:
        metadata = self._classifier.metadata if self._classifier else {}
        tokenizers = [load_tokenizer(model.run / TOKENIZER) for model in self._runs[:1]]
        values = {
            "mask": tokenizers[0].mask_token if tokenizers else None,
            "runs": dict(enumerate(as_given(model.run) for model in self._runs)),
            "classes": metadata.get("names", []),
            "columns": [metadata.get("text"), metadata.get("text_pair")],
        }
        return Tab(
            name="Try it",
            path="/try",
            template="clozeline.train.view/try.html.jinja",
            scripts=("clozeline.train.view/page.js", "clozeline.train.view/try.js"),
            values=lambda _: values,
            needs_server=True,
        )

    def fill(self, values: Values) -> Any:
        """{"text": "The [MASK].", "run": 0} -> the filled text, the best words of each mask."""
        number = values.get("run", 0)
        if type(number) is not int or not 0 <= number < len(self._runs):
            raise InputError(f"there is no run {number!r}; there are {len(self._runs)}.")
        return asdict(self._runs[number].fill(_text_of(values, "text"), top=GUESSES))


def _text_of(values: Values, name: str) -> str:
    """A text that was posted. Raises InputError if there is none or it is too long."""
    text = values.get(name)
    if not isinstance(text, str) or not text.strip():
        raise InputError("the text is empty; write some words.")
    if len(text) > LONGEST:
        raise InputError(f"the text has {len(text):,} characters; {LONGEST:,} is the most.")
    return fix_unicode(text)
