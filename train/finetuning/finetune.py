"""`clozeline finetune`: a pretrained encoder and labelled texts to a classifier.

    start, train, test  ->  compared models, a result each  ->  best candidate  ->  folder, report

The report also scores bag-of-words and, on request, the same model trained from random weights, and
all of them on fewer rows: the difference is what pretraining was worth.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.config_checks import differences
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_kind import kind_of
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.malloc import disable_malloc_trim
from clozeline.pipeline.common.paths import GivenPath, each_given, source_name
from clozeline.train.artifacts.classifier_folder import (
    RESULTS,
    check_room,
    is_classifier,
    read_metadata,
    read_report,
)
from clozeline.train.artifacts.run import positions_note, read_run
from clozeline.train.engine.attempt_store import keep_own_mark
from clozeline.train.engine.distributed import World, is_restart, join_world
from clozeline.train.engine.lost_process import lost_process_in_one_line
from clozeline.train.finetuning.classifier import Classifier, save_classifier
from clozeline.train.finetuning.compared_models import ComparedModels, train_all
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.job import TEST, Job, read_job
from clozeline.train.finetuning.label_efficiency import no_gain, points_of
from clozeline.train.finetuning.report import FinetuneReport, summarize
from clozeline.train.finetuning.results import ModelResult, ResultStore, is_unfinished
from clozeline.train.labelled.calibration import softmax
from clozeline.train.labelled.encoding import MOST_WINDOWS
from clozeline.train.labelled.predictions import PREDICTIONS, Predictions
from clozeline.train.labelled.rows import lone_labels
from clozeline.train.labelled.scores import Scores
from clozeline.train.monitoring.health import HELDOUT
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.store.local_folder import local_folder

#: How long a process that has nothing left to train waits for the others.
PATIENCE = timedelta(days=30)
MANY_CUT = 0.2  # a share of the training rows
NO_SKLEARN = (
    "bag-of-words is not measured: scikit-learn is not installed; "
    "`pip install 'clozeline[baseline]'`"
)


def finetune(
    run: GivenPath,
    train: GivenPath,
    *,
    out: GivenPath,
    test: GivenPath | None = None,
    also_test: GivenPath | Iterable[GivenPath] = (),
    config: FinetuneConfig | None = None,
    resume: bool = False,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> FinetuneReport:
    """Train a classifier and the models it is compared with, or report on a finished one.

        >>> how = FinetuneConfig(text="title", epochs=1, learning_rate=3e-4, baseline=False)
        >>> rows = "sample:reviews?rows=64"
        >>> report = finetune("work/run", rows, out="work/classifier", config=how)
        >>> report.rows, report.finetuned.scores.examples
        (58, 6)

    `run` may also be a Hugging Face folder. `also_test` names more labelled rows to score on. A
    finished classifier with the same rows, weights and config is kept as it is; with `resume` an
    unfinished one continues. Under torchrun, processes share out the compared models; with fewer
    models, several train each; all return the report. `options` of the command are recorded in
    classifier.json. Raises InputError for whatever the user can fix.
    """
    config = config or FinetuneConfig()
    train, test = source_name(train), None if test is None else source_name(test)
    sources = {"run": as_given(run), "train": train, "test": test}
    with join_world(patience=PATIENCE) as world, ExitStack() as stack:
        run = stack.enter_context(local_folder(run))
        out = stack.enter_context(local_folder(out, writes=True)).resolve()  # not replace a link
        resume = stack.enter_context(_locked(out, overwrite, world)) or resume
        stack.enter_context(lost_process_in_one_line(world))
        job = read_job(run, train, test, each_given(also_test), config)
        digests = job.digests()
        existing = {"resume": resume, "overwrite": overwrite}
        if kept := world.broadcast_from_main(partial(_kept_report, out, digests, **existing)):
            return kept
        store = world.broadcast_from_main(partial(ResultStore, out, digests, **existing))
        store.check_shared(world)
        disable_malloc_trim()
        compared = ComparedModels(job, world.device)
        notes = _notes(run, compared, is_shown=world.is_main)
        results = train_all(compared, store, world)
        what: dict[str, Any] = {"run": run, "notes": notes, "sources": sources, "options": options}
        write = partial(_write_best, out, compared, store, results, **what)
        return world.broadcast_from_main(write)


def _write_best(
    out: Path,
    compared: ComparedModels,
    store: ResultStore,
    results: Sequence[ModelResult[Any]],
    *,
    run: Path,
    notes: Sequence[str],
    sources: dict[str, str | None],
    options: Mapping[str, Any] | None,
) -> FinetuneReport:
    """Write the folder of the best candidate; returns its report."""
    job, notes = compared.job, [*notes, *_no_gain(run, compared.job, results)]
    candidates = [result for result in results if compared.is_candidate(result.key)]
    best = min(candidates, key=lambda result: result.chosen.held_out.loss)
    model, logits = compared.restored(store.read_candidate(best.key))
    classifier = Classifier(
        model=model,
        tokenizer=job.start.tokenizer,
        names=job.names,
        text=job.config.text,
        text_pair=job.config.text_pair,
        max_seq_length=job.start.max_seq_length,
        temperature=best.chosen.held_out.temperature,
        prompt=job.config.prompt,
        truncate=job.start.truncate,
    )
    probabilities = softmax(logits, classifier.temperature)
    predictions = Predictions.of(job.tests[TEST], job.names, probabilities)
    report = summarize(job, results, best, logits, predictions, notes=notes, sources=sources)
    save_classifier(
        out,
        classifier,
        job=store.job,
        report=report.to_dict(),
        files=report.figures() | {PREDICTIONS: predictions.csv().encode()},
        options=options,
    )
    return report


@contextmanager
def own_folder(out: Path, overwrite: bool) -> Iterator[None]:
    """The folder is locked meanwhile. Raises InputError for one of another kind."""
    check_room(out, overwrite=overwrite)
    with locked_folder(out):
        yield


@contextmanager
def _locked(out: Path, overwrite: bool, world: World) -> Iterator[bool]:
    """`own_folder` in rank 0; yields whether an earlier attempt of this command began there."""
    has_failed = world.any(is_restart())
    with ExitStack() as stack:

        def lock() -> bool:
            stack.enter_context(own_folder(out, overwrite))
            return keep_own_mark(out / RESULTS, world.store, has_failed=has_failed)

        yield world.broadcast_from_main(lock)


def _kept_report(
    out: Path, job: dict[str, Any], *, resume: bool, overwrite: bool
) -> FinetuneReport | None:
    """The report of a classifier that stays, or None. Raises InputError for one of another job."""
    if overwrite or (resume and is_unfinished(out, job)) or not is_classifier(out):
        return None
    if differs := differences(read_metadata(out)["job"], job):
        raise InputError(
            f"{out} holds a classifier of another config ({'; '.join(differs)}). "
            "Give another --out, or --overwrite."
        )
    return FinetuneReport.from_dict(read_report(out))


def _notes(run: Path, compared: ComparedModels, *, is_shown: bool) -> list[str]:
    """What the user should know before the models are trained; also printed."""
    job, is_cut = compared.job, compared.rows.is_cut
    notes = lone_labels(job.train)
    if is_cut.mean() >= MANY_CUT:
        windows, lost = "", job.start.truncate
        if lost == "nothing":
            windows, lost = f"{MOST_WINDOWS} windows of ", "end"
        notes.append(
            f"{is_cut.sum():,} of {len(is_cut):,} training rows have more than "
            f"{windows}{job.start.max_seq_length} tokens and lose their {lost}; see "
            "--max-seq-length and --truncate."
        )
    if "pooler" in job.start.absent and job.start.pooling == "cls":
        notes.append(f"{run} has no pooler; it was drawn from the seed.")
    if (trained := job.start.trained_positions) is not None:
        notes.append(f"{run} {positions_note(trained)}")
    if job.config.baseline and not find_spec("sklearn"):
        notes.append(NO_SKLEARN)
    for note in notes if is_shown else ():
        print(f"note: {note}", file=sys.stderr)
    return notes


def _no_gain(run: Path, job: Job, results: Sequence[ModelResult[Scores]]) -> list[str]:
    losses, pairs = [], "none"
    if kind_of(run) == "run":
        losses = [line[HELDOUT] for line in read_metrics(run) if HELDOUT in line]
        pairs = read_run(run).data.pairs
    return no_gain(points_of(results), test_rows=len(job.tests[TEST]), losses=losses, pairs=pairs)
