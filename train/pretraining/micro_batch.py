"""`--micro-batch-size auto`: how many examples a forward and backward pass of a process may have.

    the process's 96 examples  ->  96 do not fit  ->  48 do not fit  ->  24 fit: 4 passes a step

A size is tried on a copy of the model with full-length examples for two optimizer steps, so that
the moments and the gradients of an earlier pass take their memory too. Meanwhile some memory is set
aside for batches read ahead and for the threads of the run. On CPU only a process limit is noticed
(`ulimit -v`): Linux overcommits memory and kills processes that use too much of it.
"""

import gc
from dataclasses import replace

import numpy as np
import torch

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import OutOfMemoryError
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, NO_PAIR, Examples
from clozeline.train.artifacts.run import RunConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.data.batch import Batch, LoadedBatch, collate
from clozeline.train.data.batch_reader import SLAB_ROWS, SLAB_TOKENS
from clozeline.train.data.unpadded import UnpaddedBatch, collate_unpadded
from clozeline.train.engine.compiler import missing_compiler
from clozeline.train.engine.distributed import World, parallelize
from clozeline.train.engine.malloc import return_large_blocks
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.out_of_memory import is_out_of_memory
from clozeline.train.pretraining.step import train_step

FIRST_ID = 5  # any token would do
SPARE_BYTES = 64 << 20
SLABS_AHEAD = 4  # of batches, at most: see `Loader`
BYTES_PER_TOKEN = 17  # ids and types in 8, the mask in 1


def find_micro_batch_size(config: RunConfig, world: World) -> int:
    """The largest size, halved from the process's share of the batch, that fits in every process.

    Raises OutOfMemoryError where not even one example does. Called on every process.
    """
    if world.device.type == "cpu":
        return_large_blocks()
    size = config.training.batch_size // world.size
    while size and not _fits(size, config, world):
        size = smaller(size)
    size = world.min(size)
    if not size:
        raise OutOfMemoryError(
            f"out of memory in a step with one example of {config.data.max_seq_length} tokens per "
            "forward pass; give --activation-checkpointing, shorter examples or a smaller model."
        )
    return size


def smaller(size: int) -> int:
    """The largest divisor that is at most half: 96 -> 48, 9 -> 3, 1 -> 0."""
    return max((n for n in range(1, size // 2 + 1) if size % n == 0), default=0)


def with_found_size(training: PretrainConfig, found: int, world: World) -> PretrainConfig:
    """The size that an earlier process found, or the next smaller one that divides the share."""
    share = training.batch_size // world.size
    size = next(n for n in range(min(found, share), 0, -1) if share % n == 0)
    return replace(training, micro_batch_size=size)


def _fits(size: int, config: RunConfig, world: World) -> bool:
    try:
        _try_steps(size, config, world)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False  # until here the error keeps the tensors alive
    else:
        fits = True
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    if _compiles(config, world):
        torch.compiler.reset()  # a second shape would be compiled as a dynamic one
    return fits


def _compiles(config: RunConfig, world: World) -> bool:
    wanted = config.training.compile
    is_wanted = world.device.type == "cuda" if wanted is None else wanted
    return is_wanted and missing_compiler(world.device) is None


def _try_steps(size: int, config: RunConfig, world: World) -> None:
    """Run two steps in this process alone."""
    training, alone = config.training, World(0, 1, world.device)
    length = config.data.max_seq_length
    slab = max(training.batch_size // world.size, min(SLAB_ROWS, SLAB_TOKENS // length))
    spare = SPARE_BYTES + SLABS_AHEAD * slab * length * BYTES_PER_TOKEN
    set_aside = torch.empty(spare, dtype=torch.uint8, device=world.device)
    model = BertForPretraining(config.model, seed=training.seed)
    if training.activation_checkpointing:
        model.encoder.checkpoint_activations()
    parallel = parallelize(
        model,
        alone,
        parallel="ddp",
        precision=training.precision,
        compile=_compiles(config, world),
    ).train()
    optimizer = build_optimizer(model, training)
    passes = 1 if size == training.batch_size // world.size else 2
    batch = longest_batch(size * passes, config.model, config.data, unpadded=training.unpadded)
    loaded = LoadedBatch(
        batch=batch.to(world.device),
        next_position=0,
        num_tokens=0,  # so the step does not leave the attention mask out
        num_predictions=1,
        num_pairs=1,
        digest=0,
    )
    for _ in range(2):
        train_step(
            parallel,
            optimizer,
            loaded,  # type: ignore[arg-type]
            world=alone,
            accumulation=passes,
            precision=training.precision,
            clip=training.clip,
        )
    del set_aside


def longest_batch(
    rows: int, model: BertConfig, data: DataConfig, *, unpadded: bool
) -> Batch | UnpaddedBatch:
    """A batch of rows as long as the data allows, with as many masked tokens."""
    length, masks = data.max_seq_length, min(data.predictions, data.max_seq_length - 2)
    ids = np.full(rows * length, min(FIRST_ID, model.vocab_size - 1), np.uint32)
    every_row = np.arange(rows)
    documents = every_row.astype(np.uint64)
    examples = Examples(
        input_ids=Ragged(ids, offsets_of([length] * rows)),
        masked_lm_positions=Ragged(
            np.tile(np.arange(1, masks + 1), rows).astype(np.uint16), offsets_of([masks] * rows)
        ),
        masked_lm_labels=Ragged(ids[: rows * masks], offsets_of([masks] * rows)),
        length_a=np.full(rows, length // 2 if data.has_pairs else length).astype(np.uint16),
        next_sentence_label=np.full(rows, B_FOLLOWS_A if data.has_pairs else NO_PAIR, np.int8),
        document_a=documents,
        document_b=documents,
    )
    if data.is_packed:
        whole = Ragged(np.full(rows, length, np.uint16), offsets_of([1] * rows))
        of_rows = Ragged(documents, whole.offsets)
        examples = replace(examples, piece_lengths=whole, piece_documents=of_rows)
    if unpadded:
        return collate_unpadded(examples, every_row, max_seq_length=length)
    return collate(
        examples, every_row, max_seq_length=length, max_predictions=data.predictions, pad_id=0
    )
