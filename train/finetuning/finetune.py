"""`clozeline finetune`: a pretrained encoder and labelled texts to a classifier.

Beside the classifier stand, on the same held-out rows and the same part of each text: bag-of-words,
and on request the same model started from random weights, and all of them after fewer rows.
Pretraining is worth what lies between them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.common.differences import differences
from pipeline.common.errors import InputError
from train.artifacts.classifier_folder import check_room, is_classifier, read_metadata, read_report
from train.artifacts.pretrained import Pretrained, load_pretrained
from train.artifacts.run import with_dropout
from train.engine.distributed import join_world
from train.engine.malloc import disable_malloc_trim
from train.finetuning.baseline import has_sklearn
from train.finetuning.classifier import Classifier, save_classifier
from train.finetuning.comparison import ComparedModels
from train.finetuning.config import FinetuneConfig
from train.finetuning.labelled import Labelled, class_names, hold_out, read_labelled, sample
from train.finetuning.report import FinetuneReport

NO_SKLEARN = (
    "bag-of-words was not measured: scikit-learn is not installed; "
    "`pip install 'clozeline[baseline]'`"
)


def finetune(
    run: Path,
    train_source: str,
    *,
    out: Path,
    test_source: str | None = None,
    config: FinetuneConfig,
    overwrite: bool = False,
) -> FinetuneReport:
    """Make a classifier of pretrained weights, or report on the one that is there already.

    `run` may also be a Hugging Face folder. A finished classifier made of the same rows, weights
    and config is left as it is. Raises InputError for all that the user can mend.
    """
    check_room(out)
    start = load_start(run, config)
    train, test = read_rows(train_source, test_source, config)
    curve = _curve_rows(train, config)
    job = _job(start, train, test, config)
    if is_classifier(out) and not overwrite:
        _check_same(out, job)
        return FinetuneReport.from_dict(read_report(out))
    disable_malloc_trim()
    with join_world() as world:
        if world.size > 1:
            raise InputError("fine-tuning runs in one process; start it without torchrun.")
        rivals = ComparedModels(start, test, class_names(train), config, world.device)
        standing, model = rivals.compare(train)
        report = FinetuneReport(
            is_new=True,
            standing=standing,
            label_efficiency=tuple(rivals.compare(rows)[0] for rows in curve),
            notes=_notes(run, start, config),
            sources={"run": str(run), "train": train_source, "test": test_source},
        )
    classifier = Classifier(
        model=model,
        tokenizer=start.tokenizer,
        names=rivals.names,
        text=config.text,
        text_pair=config.text_pair,
        max_seq_length=start.max_seq_length,
    )
    save_classifier(out, classifier, job=job, report=report.to_dict())
    return report


def load_start(run: Path, config: FinetuneConfig) -> Pretrained:
    """The pretrained model, with the dropout, maximum length and pooling of the config."""
    found = load_pretrained(run, seed=config.seed)
    model = with_dropout(found.model, config.dropout)
    max_seq_length = config.max_seq_length or found.max_seq_length
    if max_seq_length > model.max_position_embeddings:
        raise InputError(
            f"max_seq_length is {max_seq_length}, and the model of {run} reads "
            f"{model.max_position_embeddings} tokens at most; give that or less."
        )
    pooling = config.pooling or found.pooling
    return replace(found, model=model, max_seq_length=max_seq_length, pooling=pooling)


def read_rows(
    train_source: str, test_source: str | None, config: FinetuneConfig
) -> tuple[Labelled, Labelled]:
    """Rows to train on, and rows to test on: a file of their own, or a part that is held out."""
    read = partial(read_labelled, text=config.text, text_pair=config.text_pair, label=config.label)
    train = read(train_source)
    if test_source is None:
        train, test = hold_out(train, share=config.test_share, seed=config.seed)
    else:
        test = read(test_source)
    if config.max_examples is not None:
        train = sample(train, config.max_examples, seed=config.seed)
    return train, test


def _notes(run: Path, start: Pretrained, config: FinetuneConfig) -> tuple[str, ...]:
    notes = []
    if "pooler" in start.absent and start.pooling == "cls":
        notes.append(f"{run} has no pooler; it was drawn from the seed.")
    if config.baseline and not has_sklearn():
        notes.append(NO_SKLEARN)
    return tuple(notes)


def _curve_rows(train: Labelled, config: FinetuneConfig) -> list[Labelled]:
    """The rows of each point of the curve: the smaller ones are part of the larger ones."""
    curve = []
    for size in config.label_efficiency:
        if size > len(train):
            raise InputError(
                f"label_efficiency asks for {size:,} examples, and there are {len(train):,} "
                "training rows; give fewer."
            )
        curve.append(sample(train, size, seed=config.seed))
        class_names(curve[-1])
    return curve


def _job(
    start: Pretrained, train: Labelled, test: Labelled, config: FinetuneConfig
) -> dict[str, Any]:
    """All that decides the classifier: its folder keeps this, to be known again."""
    return {
        **config.to_dict(),
        "max_seq_length": start.max_seq_length,
        "pooling": start.pooling,
        "pretrained": _weights_digest(start.weights),
        "tokenizer": start.tokenizer.digest,
        "training rows": train.digest(),
        "test rows": test.digest(),
    }


def _check_same(out: Path, job: dict[str, Any]) -> None:
    if differs := differences(read_metadata(out)["job"], job):
        raise InputError(
            f"{out} holds a classifier of another config ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )


def _weights_digest(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
