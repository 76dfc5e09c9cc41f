"""A fine-tuned classifier: a model, its tokenizer and the names of its classes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForClassification
from clozeline.model.huggingface.config import CLASSIFICATION
from clozeline.pipeline.common.config_checks import takes_keywords
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import write_json, write_sums
from clozeline.pipeline.common.paths import GivenPath
from clozeline.train.artifacts.classifier_folder import (
    CLASSIFIER,
    MODEL,
    PREDICTIONS,
    REPORT,
    TOKENIZER,
    read_model,
    unreadable_model,
)
from clozeline.train.artifacts.huggingface import load_model, longest_text, side_cut
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder
from clozeline.train.finetuning.finetune import predict_logits
from clozeline.train.labelled.encoding import Encoder
from clozeline.train.labelled.rows import Floats, Text, check_no_table, given_texts
from clozeline.train.labelled.scores import softmax
from clozeline.train.store.local_folder import local_folder

#: Stored as they are, of a classifier and of its encoder.
COLUMNS, ENCODING = ("text", "text_pair"), ("max_seq_length", "prompt", "truncate")


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A model with its encoder and class names: texts in, probabilities out."""

    model: BertForClassification = field(repr=False)
    encoder: Encoder = field(repr=False)  # of texts, to token ids
    names: tuple[str, ...]  # [C]
    text: str  # columns it was trained on
    text_pair: str | None

    def __call__(self, texts: str | Iterable[str | Sequence[str]]) -> list[dict[str, float]]:
        """For each text the probability of each class by its name; raises as `classify`."""
        rows = self.classify(texts).tolist()
        return [dict(zip(self.names, row, strict=True)) for row in rows]

    def classify(self, texts: str | Iterable[str | Sequence[str]]) -> Floats:
        """The probability of each class for each text, or pair (first, second), [N, C].

        Raises InputError for pairs where it reads single texts, and the other way round.
        """
        if not self.text_pair:
            return self.probabilities([(text,) for text in given_texts(texts)])
        check_no_table(texts)
        advice = "the classifier reads pairs: give (first, second) for each text"
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise InputError(f"{advice}.")
        pairs = [tuple(given_texts(pair, advice)) for pair in texts]
        if any(len(pair) != 2 for pair in pairs):
            raise InputError(f"{advice}.")
        return self.probabilities(pairs)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """As `classify`, of texts that are known to be of its kind."""
        if not texts:
            return np.empty((0, len(self.names)))
        return softmax(predict_logits(self.model, self.encoder.encode(texts)))


def save_classifier(
    folder: Path,
    classifier: Classifier,
    *,
    job: dict[str, Any],
    report: dict[str, Any],
    predictions: str,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write the folder, replacing an existing one.

    `job`: the config and data digests. `predictions`: the content of predictions.csv. `options`:
    the command's, as `--config` reads them.
    """
    encoder = classifier.encoder
    metadata = {
        "model": classifier.model.config.to_dict(),
        "pooling": classifier.model.pooling,
        "mask_position": classifier.model.mask_position,
        "names": list(classifier.names),
        **{name: getattr(classifier, name) for name in COLUMNS},
        **{name: getattr(encoder, name) for name in ENCODING},
        "tokenizer_digest": encoder.tokenizer.digest,
        "job": job,
        "options": options or {},
    }
    weights = {name: value.contiguous() for name, value in classifier.model.state_dict().items()}
    with partial_folder(folder) as partial:
        encoder.tokenizer.save(
            partial / TOKENIZER,
            max_seq_length=encoder.max_seq_length,
            has_segments=classifier.model.config.type_vocab_size > 0,
            cuts_start=encoder.truncate == "start",
        )
        save_file(weights, partial / MODEL)
        write_json(partial / REPORT, report)
        (partial / PREDICTIONS).write_bytes(predictions.encode())
        write_json(partial / CLASSIFIER, metadata)
        # safetensors makes the file readable by its owner alone.
        (partial / MODEL).chmod((partial / REPORT).stat().st_mode)
        write_sums(partial, (CLASSIFIER, MODEL, REPORT, TOKENIZER))
        replace_folder(partial, folder)


@takes_keywords
def load_classifier(folder: GivenPath, *, device: torch.device | str = "cpu") -> Classifier:
    """Load the classifier of a folder for inference.

        >>> classifier = load_classifier("work/classifier")
        >>> classifier.classify(["A lovely lamp.", "It broke."]).shape
        (2, 2)
        >>> [probabilities] = classifier("A lovely lamp.")
        >>> list(probabilities)
        ['negative', 'positive']

    Raises InputError if `clozeline finetune` did not write the folder, if a file is missing,
    damaged or replaced, and for an unknown device.
    """
    try:
        torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device is {device!r}; give cpu, cuda or cuda:1.") from error
    with local_folder(folder) as local:
        return read_classifier(local, device=device)


def read_classifier(folder: Path, *, device: torch.device | str = "cpu") -> Classifier:
    """As `load_classifier`, from a local folder."""
    metadata, tokenizer, weights = read_model(folder)
    names = tuple(metadata["names"])
    try:
        config = BertConfig(**metadata["model"])
        model = BertForClassification(
            config,
            len(names),
            pooling=metadata["pooling"],
            mask_position=metadata["mask_position"],
        )
        model.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise unreadable_model(folder, error) from error
    return Classifier(
        model=model.to(device).eval(),
        encoder=Encoder(tokenizer, **{name: metadata[name] for name in ENCODING}),
        names=names,
        **{name: metadata[name] for name in COLUMNS},
    )


def load_huggingface_classifier(
    folder: Path, *, text_pair: str | None, device: torch.device | str = "cpu"
) -> Classifier:
    """A Hugging Face classifier, of pairs if `text_pair` is given; raises as `load_model`."""
    source, tokenizer = load_model(folder)
    config = source.config
    if config.architecture not in CLASSIFICATION:
        raise InputError(
            f"{folder} is a {config.architecture or 'BERT'}, not a {CLASSIFICATION[0]}; "
            f"fine-tune it first: `clozeline finetune {quote(str(folder))} TRAIN --out DIR`."
        )
    model = BertForClassification(config.model, len(config.labels), pooling=config.pooling)
    model.load_state_dict({name: source.weights[name] for name in model.state_dict()})
    longest = longest_text(folder, config.model)
    return Classifier(
        model=model.to(device).eval(),
        encoder=Encoder(tokenizer, longest, truncate=side_cut(folder)),
        names=config.labels,
        text="text",
        text_pair=text_pair,
    )
