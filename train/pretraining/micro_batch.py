"""`--micro-batch-size auto`: how many examples a forward and backward pass of a process may have.

    the process's 96 examples  ->  96 do not fit  ->  48 do not fit  ->  24 fit: 4 passes a step

A size is tried on a copy of the model with full-length examples for two optimizer steps, so that
the moments and the gradients of an earlier pass take their memory too. Meanwhile some memory is set
aside for batches read ahead and for the threads of the run. On CPU a trial only notices a limit of
the process (`ulimit -v`): Linux overcommits memory and kills processes that use too much of it.
Sizes whose activations alone exceed the free memory are therefore not tried at all.
"""

import gc
from dataclasses import replace

import numpy as np
import torch

from clozeline.pipeline.common.errors import InputError, OutOfMemoryError, is_out_of_memory
from clozeline.pipeline.common.malloc import return_large_blocks
from clozeline.pipeline.common.units import counted, size_in_words
from clozeline.train.artifacts.run import RunConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.data.batch_reader import SLAB_ROWS, SLAB_TOKENS
from clozeline.train.data.longest_batch import longest_batch
from clozeline.train.engine.compiler import resolve_compile
from clozeline.train.engine.distributed import World, parallelize, processes_here
from clozeline.train.engine.host_memory import free_memory
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import products_dtype
from clozeline.train.pretraining.initial_weights import initial_model
from clozeline.train.pretraining.step import train_step
from clozeline.train.pretraining.word_sampler import WordSampler

SPARE_BYTES = 64 << 20
SLABS_AHEAD = 4  # of batches, at most: see `Loader`
BYTES_PER_TOKEN = 17  # ids and types in 8, the mask in 1


def find_micro_batch_size(config: RunConfig, world: World) -> int:
    """The largest size, halved from the process's share of the batch, that fits in every process.

    Raises OutOfMemoryError where not even one example does. Called on every process.
    """
    if world.device.type == "cpu":
        return_large_blocks()
    size, dtype = config.training.batch_size // world.size, products_dtype(world)
    while size and not _fits(size, config, world, dtype):
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
    """The size that was found, or the next smaller one that divides the share of each batch."""
    shares = [size // world.size for size in training.batch_sizes]  # of a ramp, and the whole
    sizes = range(min(found, shares[-1]), 0, -1)
    size = next(n for n in sizes if all(share % min(n, share) == 0 for share in shares))
    return replace(training, micro_batch_size=size)


def check_memory(config: RunConfig, world: World) -> None:
    """Raises InputError where a step on the CPU would certainly be killed for its memory."""
    rows = config.training.rows_per_pass(world.size)
    needed, free = activation_bytes(rows, config), _share_of_memory(world)
    if free is not None and needed > free:
        raise InputError(
            f"a step with {counted(rows, 'example')} of {config.data.max_seq_length} tokens per "
            f"forward pass needs at least {size_in_words(needed)} of memory, and "
            f"{size_in_words(free)} are free{' for each process' * (world.size > 1)}; "
            f"{less_memory(config)}."
        )


def less_memory(config: RunConfig) -> str:
    """What to do about a step that does not fit. A size that `auto` found is kept by `auto`."""
    found, saves = config.found_micro_batch_size, config.training.activation_checkpointing
    remedy = "give a smaller --micro-batch-size" + ", or auto" * (found is None)
    return remedy + ", or --activation-checkpointing" * (not saves)


def activation_bytes(rows: int, config: RunConfig) -> int:
    """A lower bound of what a pass keeps for its backward pass: a third to a half of it.

    For each layer the inputs of its matrix products (five of the hidden size, two of the inner
    one) and the sums in float32 before its norms; for each masked token its logits.
    """
    model, training, data = config.model, config.training, config.largest_data
    number = 2 if training.precision == "bf16" else 4  # bytes
    layer = 8 * model.hidden_size
    if not training.activation_checkpointing:
        layer += number * (5 * model.hidden_size + 2 * model.intermediate_size)
    tokens = rows * data.max_seq_length * (0.5 if training.unpadded else 1.0)  # rows may be short
    logits = rows * min(data.predictions, data.max_seq_length) * model.padded_vocab_size * number
    return int(tokens * layer * model.num_hidden_layers + logits / 2)


def _share_of_memory(world: World) -> int | None:
    """Bytes of free memory for each process of this machine; None: unknown, or on a GPU."""
    free = free_memory() if world.device.type == "cpu" else None
    return None if free is None else free // processes_here()


def _fits(size: int, config: RunConfig, world: World, dtype: torch.dtype) -> bool:
    free = _share_of_memory(world)
    if free is not None and activation_bytes(size, config) > free:
        return False
    try:
        _try_steps(size, config, world, dtype)
        fits = True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False  # until here the error keeps the tensors alive
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    if resolve_compile(config.training.compile, world, warn=False):
        torch.compiler.reset()  # a second shape would be compiled as a dynamic one
    return fits


def _try_steps(size: int, config: RunConfig, world: World, dtype: torch.dtype) -> None:
    """Run two steps in this process alone, with Muon's products in the `dtype` of all of them."""
    training, alone = config.training, World(0, 1, world.device)
    length = config.data.max_seq_length
    slab = max(training.batch_size // world.size, min(SLAB_ROWS, SLAB_TOKENS // length))
    spare = SPARE_BYTES + SLABS_AHEAD * slab * length * BYTES_PER_TOKEN
    set_aside = torch.empty(spare, dtype=torch.uint8, device=world.device)
    model = initial_model(config.model, training)
    parallel = parallelize(
        model,
        alone,
        parallel="ddp",
        precision=training.precision,
        compile=resolve_compile(training.compile, world, warn=False),
    ).train()
    optimizer = build_optimizer(model, training, dtype=dtype)
    passes = 1 if size == training.batch_size // world.size else 2
    loaded = longest_batch(size * passes, config.largest_data, unpadded=training.unpadded).to(
        world.device
    )
    sampler = WordSampler(
        np.ones(config.model.vocab_size), training.sampled_words, seed=0, device=world.device
    )
    for step in (1, 2):
        train_step(
            parallel,
            optimizer,
            loaded,
            world=alone,
            accumulation=passes,
            precision=training.precision,
            clip=training.clip,
            sample=sampler.at(step),
        )
    del set_aside
