"""`clozeline finetune`: a classifier, and the models that it is compared with.

    RUN, train.csv, test.csv  ->  for each number of rows, start and seed: a result
    the pretrained one on all rows, with the first seed  ->  folder, report

    pretrained       fine-tuned from the pretrained weights
    from_scratch     the same model and the same search, from random weights
    bag_of_words     TF-IDF and logistic regression, or ridge regression for numbers

All are trained on the same rows and score the same test rows, truncated at the same token. The
first seed's search decides the learning rate for all seeds. What is finished is stored, so that a
killed command can resume.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozeline.pipeline.commandline.config_options import typed_path
from clozeline.pipeline.common.config_checks import check_keywords, with_fields
from clozeline.pipeline.common.counts import disable_malloc_trim
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.paths import GivenPath, each_given, source_name
from clozeline.pipeline.common.progress_bar import print_progress
from clozeline.train.artifacts.classifier_folder import (
    check_room,
    is_classifier,
    predictions_csv,
    read_metadata,
    read_report,
)
from clozeline.train.artifacts.run import positions_note
from clozeline.train.engine.distributed import World, is_restart, join_world
from clozeline.train.engine.lost_process import lost_process_in_one_line
from clozeline.train.finetuning.classifier import Classifier, save_classifier
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import new_model, scored, train_model
from clozeline.train.finetuning.job import TEST, FinetuneJob, read_job
from clozeline.train.finetuning.results import (
    FinetuneReport,
    ModelKey,
    ModelName,
    Result,
    ResultFolder,
    check_job,
    doubts,
    points_of,
    report_of,
)
from clozeline.train.finetuning.search import rate_note
from clozeline.train.labelled.baseline import fit_bag_of_words
from clozeline.train.labelled.rows import label_notes
from clozeline.train.labelled.scores import softmax
from clozeline.train.store.local_folder import local_folder

#: How long a process waits for another one, such as that which fits bag-of-words.
PATIENCE = timedelta(days=30)
TEST_LOGITS = "logits of the test rows"  # stored beside the weights, which have other names
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
    **fields: Any,
) -> FinetuneReport:
    """Train a classifier and the models it is compared with, or report on a finished one.

        >>> chosen = {"text": "title", "epochs": 1, "learning_rate": 3e-4, "baseline": False}
        >>> rows = "sample:reviews?rows=64"
        >>> report = finetune("work/run", rows, out="work/classifier", **chosen)
        >>> report.rows, report.finetuned.scores.examples
        (58, 6)

    Options are fields of FinetuneConfig, as keywords or in `config`.
    `run` may also be a Hugging Face folder. `also_test` names more labelled rows to score on. A
    finished classifier with the same rows, weights and config is kept as it is; with `resume` an
    unfinished one continues. Under torchrun, the processes train each model together, and all
    return the report. `options` of the command are recorded in classifier.json. Raises InputError
    for whatever the user can fix.
    """
    check_keywords(finetune, fields, FinetuneConfig)
    config = with_fields(config or FinetuneConfig(), fields)
    train, test = source_name(train), None if test is None else source_name(test)
    sources = {"run": typed_path(run), "train": train, "test": test}
    with join_world(patience=PATIENCE) as world, ExitStack() as stack:
        run = stack.enter_context(local_folder(run))
        out = stack.enter_context(local_folder(out, writes=True)).resolve()  # not replace a link
        world.broadcast_from_main(partial(check_room, out, overwrite=overwrite))
        lock = locked_folder(out)
        world.broadcast_from_main(lambda: stack.enter_context(lock))
        stack.enter_context(lost_process_in_one_line(world))
        job = read_job(run, train, test, each_given(also_test), config)
        if stored := world.broadcast_from_main(lambda: _stored_report(out, job, overwrite)):
            return stored
        kept = {"resume": world.any(resume or is_restart()), "overwrite": overwrite}
        folder = world.broadcast_from_main(lambda: ResultFolder(out, job.digests, **kept))
        disable_malloc_trim()
        notes = _notes(run, job, is_shown=world.is_main)
        results = train_models(job, folder, world)
        write = partial(_write_classifier, job, folder, results, sources, notes, options)
        return world.broadcast_from_main(write)


def train_models(job: FinetuneJob, folder: ResultFolder, world: World) -> list[Result]:
    """Train and store each model that is not stored yet, one after another; returns all results.

    The processes train each together, but for bag-of-words, which the main one fits.
    """
    keys = models_of(job)
    for key in keys:
        if key in folder.results:
            continue
        tensors: dict[str, Tensor] = {}
        if key.start == "bag_of_words":
            result = world.broadcast_from_main(partial(_fit_bag_of_words, job, key))
        else:
            first = folder.results.get(key._replace(seed=job.config.seed))
            model, result, logits = train_model(job, key, world, first)
            if key == _classifier_key(job):
                tensors = {**model.state_dict(), TEST_LOGITS: torch.from_numpy(logits)}
        folder.results[key] = result  # of each process; the main one stores it
        world.broadcast_from_main(partial(folder.write, result, tensors))
        if world.is_main:
            print_progress(result.line())
    return [folder.results[key] for key in keys]


def models_of(job: FinetuneJob) -> list[ModelKey]:
    """Every model to train, in the order of the report; other seeds after the first."""
    config, total = job.config, len(job.train)
    starts: list[ModelName] = ["bag_of_words"] if config.baseline and find_spec("sklearn") else []
    starts += ["from_scratch"] if config.from_scratch or config.label_efficiency else []
    return [
        ModelKey(start, size, seed)
        for size in config.sizes(total)
        for start in (*starts, "pretrained")
        for seed in config.all_seeds
        # On all rows bag-of-words does not depend on the seed.
        if seed == config.seed or size < total or start != "bag_of_words"
    ]


def _fit_bag_of_words(job: FinetuneJob, key: ModelKey) -> Result:
    rows = job.subset(key.examples, seed=key.seed)
    texts = [job.train.truncated[row] for row in rows]
    predict = fit_bag_of_words(texts, job.train.labels[rows], source=job.train.read.source)
    return scored(job, key, {name: predict(test.truncated) for name, test in job.tests.items()})


def _classifier_key(job: FinetuneJob) -> ModelKey | None:
    """The model that becomes the classifier; other seeds show how much results vary."""
    return ModelKey("pretrained", len(job.train), job.config.seed) if job.names else None


def _write_classifier(
    job: FinetuneJob,
    folder: ResultFolder,
    results: Sequence[Result],
    sources: Mapping[str, str | None],
    notes: Sequence[str],
    options: Mapping[str, Any] | None,
) -> FinetuneReport:
    """Replace the folder of results by that of the classifier; returns its report."""
    [result] = [result for result in results if result.key == _classifier_key(job)]
    weights = folder.read_tensors()
    logits = weights.pop(TEST_LOGITS).numpy()
    model = new_model(job, result.key)
    model.load_state_dict(weights)
    classifier = Classifier(
        model=model,
        encoder=job.train.encoder,
        names=job.names,
        text=job.config.text,
        text_pair=job.config.text_pair,
    )
    test, counts = job.tests[TEST], Counter(job.train.read.labels)
    predictions = predictions_csv(job.names, test.labels, softmax(logits), test.read.joined())
    report = {
        **sources,
        **report_of(results, result),
        "class_counts": {name: counts[name] for name in job.names},  # training rows
        "notes": [*notes, *doubts(result.scores, points_of(results), job.config)],
    }
    files: dict[str, Any] = {"report": report, "predictions": predictions, "options": options}
    save_classifier(folder.out, classifier, job=job.digests, **files)
    return FinetuneReport(report, is_new=True)


def _stored_report(out: Path, job: FinetuneJob, overwrite: bool) -> FinetuneReport | None:
    """The report of a finished classifier. Raises InputError for one of another job."""
    if overwrite or not is_classifier(out):
        return None
    check_job(out, read_metadata(out)["job"], job.digests)
    return FinetuneReport(read_report(out))


def _notes(run: Path, job: FinetuneJob, *, is_shown: bool) -> list[str]:
    """What the user should know before the models are trained; also printed."""
    is_cut = job.train.rows.is_cut
    notes = [*label_notes(job.train.read), *rate_note(job.start.model, job.config)]
    if is_cut.mean() >= MANY_CUT:
        notes.append(
            f"{is_cut.sum():,} of {len(is_cut):,} training rows have more than "
            f"{job.start.max_seq_length} tokens and lose their {job.start.truncate}; see "
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
