"""`clozeline pretrain`: a data set to a model, in one process or several, across restarts.

A process starts from a checkpoint (or from nothing) and ends at the last step, at a stop request
(SIGTERM, SIGINT: it saves a checkpoint first), or when it is killed. A checkpoint holds weights,
optimizer moments and the position in the data. Nothing else is needed to continue: the order of the
data and dropout are functions of the seed and the step.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.config_checks import check_keywords, counted, with_fields
from clozeline.pipeline.common.errors import InputError, out_of_memory_in_one_line
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.paths import AnyPath, GivenPath, path_of
from clozeline.pipeline.common.progress_bar import print_progress
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from clozeline.pipeline.examples.masks import OwnMasking
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.artifacts.run import RunConfig, check_run_folder, remove_run, write_run
from clozeline.train.config import COOL_DOWN, PretrainConfig
from clozeline.train.data.loader import Loader
from clozeline.train.data.phases import PhasedLoader, data_sets_of
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World, join_world
from clozeline.train.engine.precision import (
    deterministic_kernels,
    newest_flash_attention,
    resolve_precision,
    resolve_unpadded,
)
from clozeline.train.pretraining.initial_weights import ResumePoint
from clozeline.train.pretraining.recipes import Origin
from clozeline.train.pretraining.resume import (
    find_resume_point,
    set_damaged_aside,
)
from clozeline.train.pretraining.run_summary import run_summary
from clozeline.train.pretraining.start import Start, find_start, make_plan
from clozeline.train.pretraining.trainer import Outcome, Trainer
from clozeline.train.store.local_folder import MODEL, OPTIMIZER, local_folder


def pretrain(
    shards: GivenPath,
    *,
    out: GivenPath,
    model: BertConfig | str | None = None,
    training: PretrainConfig | None = None,
    dropout: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    from_: GivenPath | None = None,
    masking: OwnMasking | None = None,
    **fields: Any,
) -> Outcome:
    """Train a model on a data set, from the beginning or from the newest checkpoint of `out`.

        >>> numbers = {"max_steps": 4, "batch_size": 8, "save_every": 2}
        >>> pretrain("work/shards", out="work/run", model="bert-tiny", **numbers).step
        4

    `model` is a preset or a config. Options are fields of PretrainConfig: as keywords, where the
    recipe of the preset decides the others, or in `training`. `masking` is that of `Loader`. With
    `resume` the run continues with its own model and numbers.

    `from_` names another run, one of its checkpoints ("work/run@8000") or a Hugging Face folder,
    with whose weights and moments a new run starts. From a checkpoint, schedule="cool-down"
    continues that run and lowers its learning rate to 0. Raises InputError for what the user can
    fix, OutOfMemoryError where a step does not fit, DivergedError where the loss is not finite.
    """
    _check_call(fields, masking)
    training = with_fields(training, fields) if training else None
    with join_world() as world, ExitStack() as stack:

        def opened(given: GivenPath, step: int | None = None, *, writes: bool = False) -> Path:
            which: dict[str, Any] = {"weights": (MODEL, OPTIMIZER), "step": step}
            return stack.enter_context(local_folder(given, writes=writes, **which))

        folder = opened(out, writes=True)
        stack.enter_context(locked_run(folder, world))
        origin = Origin.parse(str(from_), opened) if from_ else None
        chosen: dict[str, Any] = {"dropout": dropout, "options": {} if training else fields}
        if isinstance(model, str):
            chosen["preset"] = model
        given = Start(out=folder, resume=resume, overwrite=overwrite, origin=origin, **chosen)
        start, shards = find_start(given, world), path_of(shards)
        model, training = _planned(shards, start, world, model, training)
        run: dict[str, Any] = {"training": training, "masking": masking}
        if given.cools_down and from_:  # a resumed run cools down further by what is recorded
            run["options"] = {"pretrain": {"from": str(from_), "schedule": COOL_DOWN}}
        return train_run(shards, start, world, model=model, **run)


def _planned(
    shards: AnyPath,
    start: Start,
    world: World,
    model: BertConfig | str | None,
    training: PretrainConfig | None,
) -> tuple[BertConfig, PretrainConfig]:
    """The model and the training config: each as it is given, else as the command chooses it."""
    if isinstance(model, BertConfig) and training:
        return model, training
    manifest = read_manifest(shards)
    plan = world.broadcast_from_main(lambda: make_plan(manifest, start, world))
    training = training or PretrainConfig(**{**start.options, **plan.values})
    return (model if isinstance(model, BertConfig) else plan.model), training


def _check_call(fields: dict[str, Any], masking: OwnMasking | None) -> None:
    """Raises InputError for keywords and a `masking` that are not those of `pretrain`."""
    if "preset" in fields:
        raise InputError("pretrain() has no option 'preset'; give it as model.")
    if not (masking is None or callable(masking)):
        raise InputError(
            f"masking is {masking!r:.80}; give a function that chooses tokens. Whole words are "
            "an option of build_shards()."
        )
    check_keywords(pretrain, fields, PretrainConfig)


@contextmanager
def locked_run(out: Path, world: World) -> Iterator[None]:
    """Hold the folder's lock in rank 0.

    Raises InputError where another process has it, and if the folder is neither empty nor a run.
    """
    with ExitStack() as stack:

        def lock() -> None:
            check_run_folder(out)
            stack.enter_context(locked_folder(out))

        world.broadcast_from_main(lock)
        yield


def train_run(
    shards: AnyPath,
    start: Start,
    world: World,
    *,
    model: BertConfig,
    training: PretrainConfig,
    note: str | None = None,
    options: Mapping[str, Any] | None = None,
    masking: OwnMasking | None = None,
) -> Outcome:
    """Train the run in `start.out`, whose lock rank 0 holds (`locked_run`); raises as `pretrain`.

    A `note` is printed before the first step; `options` of the command are recorded in run.json.
    """
    manifest = read_manifest(shards)
    _check_length(shards, manifest, model)
    precision, device = resolve_precision(training.precision, world.device), world.device
    unpadded = resolve_unpadded(training.unpadded, model, precision=precision, device=device)
    training = replace(training, precision=precision, unpadded=unpadded)
    _check_word_vectors(training, start)
    training.accumulation(world.size)  # raises InputError for batches that cannot be divided
    config = RunConfig.of(model, training, manifest, shards)
    point = world.broadcast_from_main(lambda: find_resume_point(start, config, shards))
    data = open_loader(shards, config, world, state=point.state.loader, masking=masking)
    if point.is_complete:
        return Outcome(point.state.step, is_new=False, is_complete=True, heldout=None)
    has_kernel = unpadded and precision == "bf16" and not training.deterministic
    with (
        deterministic_kernels(training.deterministic),
        newest_flash_attention(model, device, is_wanted=has_kernel) as attention,
    ):
        recorded = options or (start.existing.options if start.existing else {})
        config = replace(config, **point.origin, options=recorded)
        rows, length = training.rows_per_pass(world.size), config.data.max_seq_length
        step = f"a step with {counted(rows, 'example')} of {length} tokens per forward pass"
        with out_of_memory_in_one_line(step, "give a smaller --micro-batch-size"):
            trainer = Trainer(
                start.out,
                config,
                world,
                data=data,
                start=point,
                prepare=lambda: _write_folder(start, point, config, shards),
            )
            if world.is_main:
                kernel = f"note: FlashAttention {attention[-1]} is used." if attention else None
                lines = [note, kernel, *run_summary(trainer, config)]
                print_progress("\n".join(filter(None, lines)))
            return trainer.train()


def open_loader(
    shards: AnyPath,
    config: RunConfig,
    world: World,
    *,
    state: dict[str, Any],
    masking: OwnMasking | None = None,
) -> tuple[PhasedLoader, ShardSet | None]:
    """Open this process's loaders at a `PhasedLoader.state_dict`, and the validation shards.

    An empty `state` starts from the beginning. Raises InputError for bad or missing shards, if
    ranks read different data sets, and if the order of examples is not the checkpoint's.
    """
    training = config.training
    digests = [digest[:12] for digest in data_sets_of(config.phases)]
    _check_same_on_all_ranks(digests, world)
    folders = {phase.dataset_digest: path_of(phase.shards) for phase in config.phases}
    folders[config.dataset_digest] = shards
    sizes = {phase.dataset_digest: phase.batch_factor for phase in config.phases}
    loaders = {
        digest: Loader(
            folder,
            batch_size=training.batch_size * sizes[digest],
            rank=world.rank,
            world_size=world.size,
            seed=training.seed,
            masked_lm_prob=training.masked_lm_prob,
            length_bins=training.length_bins,
            unpadded=bool(training.unpadded),
            device=world.device,
            masking=masking,
        )
        for digest, folder in folders.items()
    }
    loader = PhasedLoader(loaders, config.dataset_digest)
    validation = None
    if loader.main.shards.manifest.num_examples("validation"):  # fail now, not at the evaluation
        validation = ShardSet(shards, "validation")
    if state:
        world.broadcast_from_main(lambda: loader.load_state_dict(state))  # only rank 0 reports
        loader.load_state_dict(state)
    if world.is_main:
        for warning in _data_warnings(loader):
            print(f"warning: {warning}", file=sys.stderr)
    return loader, validation


def _check_same_on_all_ranks(digests: list[str], world: World) -> None:
    on_main = world.broadcast_from_main(lambda: digests)
    if not world.any(digests != on_main):
        return
    here = "" if world.is_main else f", rank {world.rank} reads {', '.join(digests)}"
    raise InputError(
        f"ranks disagree about data sets: rank 0 reads {', '.join(on_main)}{here}. All ranks must "
        "read the same shards; copy them again where they differ."
    )


def _data_warnings(loader: PhasedLoader) -> Iterator[str]:
    main = loader.main.shards
    for one in loader.loaders:
        own = one.shards
        share, held_out = (x.manifest.config.validation for x in (own, main))
        if share < held_out:
            yield (
                f"{own.folder} was built with --validation {share:g} and {main.folder} with "
                f"{held_out:g}: of a common text, documents held out there are trained on here."
            )


def _write_folder(start: Start, point: ResumePoint, config: RunConfig, shards: AnyPath) -> None:
    """Called once the model is built, so that a failure before that leaves the old run alone."""
    set_damaged_aside(point)
    if start.existing is None:
        remove_run(start.out)
    write_run(start.out, config, load_tokenizer(shards / TOKENIZER))


def _check_length(shards: AnyPath, manifest: Manifest, model: BertConfig) -> None:
    longest = manifest.config.max_seq_length
    if longest > model.max_position_embeddings:
        raise InputError(
            f"{shards} has examples of {longest} tokens, but the model reads at most "
            f"{model.max_position_embeddings} (max_position_embeddings); use shorter examples, or "
            "a model with more positions."
        )


def _check_word_vectors(training: PretrainConfig, start: Start) -> None:
    """Raise InputError for word vectors where the model is not new."""
    is_new = start.existing is None or start.existing.training.word_vectors
    if training.word_vectors and (start.other or start.model_folder or not is_new):
        raise InputError(
            f"--word-vectors initializes a new model, and this one starts from "
            f"{start.origin or start.out}; give --no-word-vectors."
        )
