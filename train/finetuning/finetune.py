"""`clozeline finetune`: a pretrained encoder and labelled texts to a classifier.

    start, train, test  ->  compared models, one cell each  ->  best candidate  ->  folder, report

Besides the classifier, the report scores bag-of-words and, on request, the same model trained from
random weights, and all of them on fewer training rows. All see the same part of each text. The
difference is what pretraining was worth. The test rows are the same, and used for scores only.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozeline.pipeline.common.differences import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.train.artifacts.classifier_folder import (
    check_room,
    is_classifier,
    read_metadata,
    read_report,
)
from clozeline.train.artifacts.pretrained import Pretrained, load_pretrained
from clozeline.train.artifacts.run import with_dropout
from clozeline.train.engine.distributed import World, is_restart, join_world
from clozeline.train.engine.lost_process import lost_process_in_one_line
from clozeline.train.engine.malloc import disable_malloc_trim
from clozeline.train.finetuning.cells import CellStore, is_unfinished
from clozeline.train.finetuning.classifier import Classifier, save_classifier
from clozeline.train.finetuning.comparison import TEST, ComparedModels, train_all
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.report import FinetuneReport, summarize
from clozeline.train.labelled.baseline import has_sklearn
from clozeline.train.labelled.rows import (
    COLUMNS,
    Labelled,
    class_names,
    hold_out,
    read_labelled,
    read_named,
    sample,
)

#: How long a process that has nothing left to train waits for the others.
PATIENCE = timedelta(days=30)
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
    also_test: Sequence[str] = (),
    config: FinetuneConfig,
    resume: bool = False,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> FinetuneReport:
    """Train a classifier and the models it is compared with, or report on a finished one.

    `run` may also be a Hugging Face folder. `also_test` names more labelled rows to score on. A
    finished classifier with the same rows, weights and config is kept as it is; with `resume` an
    unfinished one continues. Under torchrun each process trains some of the compared models; all
    of them return the report. `options` of the command are recorded in classifier.json. Raises
    InputError for whatever the user can fix.
    """
    out = out.resolve()  # follow a link: renaming would replace the link, not its folder
    sources = (run, train_source, test_source, also_test)
    with join_world(patience=PATIENCE) as world, ExitStack() as stack:
        resume = resume or world.any(is_restart())
        world.broadcast_from_main(lambda: stack.enter_context(_own_folder(out, overwrite)))
        stack.enter_context(lost_process_in_one_line(world))
        how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "options": options or {}}
        return _finetune_into(out, *sources, config, world, **how)


@contextmanager
def _own_folder(out: Path, overwrite: bool) -> Iterator[None]:
    check_room(out, overwrite=overwrite)
    with locked_folder(out):
        yield


def _finetune_into(
    out: Path,
    run: Path,
    train_source: str,
    test_source: str | None,
    also_test: Sequence[str],
    config: FinetuneConfig,
    world: World,
    *,
    options: Mapping[str, Any],
    **existing: bool,
) -> FinetuneReport:
    start = load_start(run, config)
    train, test = read_rows(train_source, test_source, config)
    tests = {TEST: test, **_read_others(also_test, config)}
    _check_sizes(train, config)
    job = _job(start, train, tests, config)
    if world.broadcast_from_main(partial(_is_kept, out, job, **existing)):
        return world.broadcast_from_main(lambda: _finished(out, job))
    store = world.broadcast_from_main(partial(CellStore, out, job, **existing))
    store.check_shared(world)
    disable_malloc_trim()
    compared = ComparedModels(start, train, tests, class_names(train), config, world.device)
    cells, best, weights = train_all(compared, store, world)

    def write() -> FinetuneReport:
        assert best.selection is not None  # it is fine-tuned
        classifier = Classifier(
            model=compared.model_of(weights or store.read_weights(best.key)),
            tokenizer=start.tokenizer,
            names=compared.names,
            text=config.text,
            text_pair=config.text_pair,
            max_seq_length=start.max_seq_length,
            temperature=best.selection.held_out.temperature,
        )
        logits = compared.logits(classifier.model, TEST)
        report = summarize(
            *(cells, best, logits),
            train=train,
            test=test,
            notes=_notes(run, start, config),
            sources={"run": str(run), "train": train_source, "test": test_source},
        )
        result: dict[str, Any] = {"report": report.to_dict(), "files": report.figures()}
        save_classifier(out, classifier, job=job, options=options, **result)
        return report

    return world.broadcast_from_main(write)


def _is_kept(out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool) -> bool:
    """Whether the folder has a classifier to keep instead of training again."""
    if overwrite or (resume and is_unfinished(out, job)):
        return False
    return is_classifier(out)


def _read_others(sources: Sequence[str], config: FinetuneConfig) -> dict[str, Labelled]:
    if TEST in sources:
        raise InputError(f"--also-test {TEST} has the name of the --test rows; give ./{TEST}.")
    columns: dict[str, Any] = {name: getattr(config, name) for name in COLUMNS}
    return {source: read_named(source, **columns) for source in sources}


def load_start(run: Path, config: FinetuneConfig) -> Pretrained:
    """The pretrained model, with the dropout, maximum length and pooling of the config."""
    found = load_pretrained(run, seed=config.seed)
    model = with_dropout(found.model, config.dropout)
    max_seq_length = config.max_seq_length or found.max_seq_length
    if max_seq_length > model.max_position_embeddings:
        raise InputError(
            f"max_seq_length is {max_seq_length}, but the model of {run} has only "
            f"{model.max_position_embeddings} positions; give at most that."
        )
    pooling = config.pooling or found.pooling
    return replace(found, model=model, max_seq_length=max_seq_length, pooling=pooling)


def read_rows(
    train_source: str, test_source: str | None, config: FinetuneConfig
) -> tuple[Labelled, Labelled]:
    """Training and test rows: each from its own source, or test rows held out of the first."""
    read = partial(read_labelled, text=config.text, text_pair=config.text_pair, label=config.label)
    train = read(train_source)
    if test_source is None:
        train, test = hold_out(train, share=config.test_share, seed=config.seed, are_classes=True)
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


def _check_sizes(train: Labelled, config: FinetuneConfig) -> None:
    """Raises InputError if a training size exceeds the number of training rows."""
    *_, largest = config.sizes(len(train))
    if largest > len(train):
        raise InputError(
            f"label_efficiency asks for {largest:,} rows, but there are {len(train):,} training "
            "rows; give fewer."
        )


def _job(
    start: Pretrained, train: Labelled, tests: Mapping[str, Labelled], config: FinetuneConfig
) -> dict[str, Any]:
    """What the classifier and its report depend on; compared when the command is rerun."""
    return {
        **config.to_dict(),
        "max_seq_length": start.max_seq_length,
        "pooling": start.pooling,
        "pretrained": weights_digest(start.weights),
        "tokenizer": start.tokenizer.digest,
        "training rows": train.digest(),
        **{f"{name} rows": rows.digest() for name, rows in tests.items()},
    }


def _finished(out: Path, job: dict[str, Any]) -> FinetuneReport:
    """The report of the existing classifier. Raises InputError if its job was a different one."""
    if differs := differences(read_metadata(out)["job"], job):
        raise InputError(
            f"{out} holds a classifier of another config ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )
    return FinetuneReport.from_dict(read_report(out))


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """sha256, hex, of all weights by name."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
