"""Tokens per second of a whole training step, compared with `transformers` on the same batch.

    python tests/benchmarks/training_speed.py [PRESET ...] [--rounds N]
    python tests/benchmarks/training_speed.py --device cuda [PRESET ...] [--rounds N] [--dry-run]

A step is forward, backward, clipping and the optimizer. On CPU `transformers` means its
`BertForPreTraining` with its defaults: float32, logits at all positions, torch's AdamW. Each side
is a process of its own, and the two take turns; medians are printed. The second row gives
`transformers` what makes our step fast, as far as it supports that.

On CUDA both sides are compiled, in bfloat16, with a fused AdamW. Our side reads its batches with
the loader, and the fraction of time spent waiting for them is printed; MFU is that of real tokens.
`nano by its recipe` has the recipe's optimizer and sample of words. `transformers` is measured with
logits at all positions, and with those of masked positions alone, as ours are: a BERT whose head
reads these states, a ModernBERT with `sparse_prediction`; its rows are padded, not packed. It has
no pre-norm and no head without a transform: `nano` is compared with a BERT of the same sizes, and
with logits at all positions on fewer examples. Ids are drawn from the whole vocabulary. Beside each
row is what `clozeline estimate` predicts for this GPU. A row that fails, for lack of memory or of
`transformers`, is printed with the reason, and the next one follows. A dry run has tiny models on
the CPU in their place, uncompiled.
"""

import argparse
import gc
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from clozeline.model.config import BertConfig, preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.counts import disable_malloc_trim
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.data.loader import Loader
from clozeline.train.engine.distributed import World, device_name, join_world
from clozeline.train.engine.flops import GPUS, gpu_named, mfu, peak_flops
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.engine.precision import autocast
from clozeline.train.estimate.estimate import UTILIZATION, Estimate
from clozeline.train.monitoring.running_metrics import StepTimer
from clozeline.train.pretraining.recipes import recipe_of
from clozeline.train.pretraining.step import WordSampler, flops_of_step, train_step
from tests.support.small_data import write_data_set
from tests.support.small_runs import tokenizer_of, training_config

VOCABULARY = 30_522  # of the presets
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CPU_CASES = {"bert-mini": (128, 32), "bert-base": (128, 8)}  # tokens, examples


@dataclass(frozen=True)
class Case:
    """A row of the table on CUDA."""

    preset: str
    tokens: int
    examples: int
    unpadded: bool = False
    packed: bool = False
    by_recipe: bool = False


CUDA_CASES = {
    "bert-base": Case("bert-base", 128, 512),
    "bert-base unpadded": Case("bert-base", 512, 128, unpadded=True),
    "bert-large": Case("bert-large", 512, 64),
    "modern-base packed": Case("modern-base", 1024, 64, unpadded=True, packed=True),
    "modern-medium packed": Case("modern-medium", 128, 1024, True, True, by_recipe=True),
    "nano": Case("nano", 64, 4096),
    "nano by its recipe": Case("nano", 64, 4096, by_recipe=True),
}
DRY_CASES = {
    "bert-tiny": Case("bert-tiny", 32, 8, by_recipe=True),
    "modern-nano packed": Case("modern-nano", 32, 8, unpadded=True, packed=True),
}
MODERN_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                "num_attention_heads", "max_position_embeddings")  # fmt: skip
THEIR_LOGITS = 2**31  # at most; 17 GB in bfloat16 and float32 with their gradients
Step = Callable[[], Any]


def our_step(config: BertConfig, batch: LoadedBatch) -> Step:
    """A step of `clozeline pretrain` that logs nothing."""
    model = BertForPretraining(config).train()
    optimizer = build_optimizer(model, training_config())
    return lambda: one_step(model, optimizer, batch)


def one_step(model: Any, optimizer: Any, batch: LoadedBatch, **options: Any) -> None:
    device = batch.batch.input_ids.device
    train_step(
        model,
        optimizer,
        batch,
        world=World(0, 1, device),
        accumulation=1,
        precision="bf16",
        clip=1.0,
        count_hits=False,
        **options,
    )


def their_step(
    config: BertConfig,
    batch: LoadedBatch,
    precision: str = "fp32",
    is_sparse: bool = False,
    **adamw: bool,
) -> Step:
    """The same model and batch in `transformers`."""
    device = batch.batch.input_ids.device
    model = their_model(config, is_sparse=is_sparse).train().to(device)
    if device.type == "cuda":
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, **adamw)
    inputs = their_inputs(batch.batch)
    if config.positions == "rotary":  # a ModernBERT
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}

    def step() -> None:
        with autocast(precision, device):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def their_model(config: BertConfig, *, is_sparse: bool) -> torch.nn.Module:
    """A model of these sizes, with logits at all positions or at the masked ones alone."""
    import transformers

    is_modern = config.positions == "rotary"
    kind = transformers.ModernBertConfig if is_modern else transformers.BertConfig
    known = kind().to_dict().keys() & config.to_dict().keys()
    shape = {name: value for name, value in config.to_dict().items() if name in known}
    if is_modern:
        shape = {name: shape[name] for name in MODERN_SIZES}
        none = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")}
        sparse = kind(**shape, **none, sparse_prediction=is_sparse, pad_token_id=0)
        return transformers.ModernBertForMaskedLM(sparse)
    model = transformers.BertForPreTraining(kind(**shape))
    return SparseBert(model) if is_sparse else model


class SparseBert(torch.nn.Module):
    """A BertForPreTraining of `transformers` whose masked-LM head reads masked states alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, labels: torch.Tensor, next_sentence_label: torch.Tensor, **inputs: torch.Tensor
    ) -> Any:
        hidden, pooled = self.model.bert(**inputs)[:2]
        is_masked = labels >= 0
        words, pairs = self.model.cls(hidden[is_masked], pooled)
        losses = (words, labels[is_masked]), (pairs, next_sentence_label)
        mlm, nsp = (torch.nn.functional.cross_entropy(x.float(), y) for x, y in losses)
        return SimpleNamespace(loss=mlm + nsp)


def their_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    rows, slots = batch.masked_lm_weights.nonzero(as_tuple=True)
    labels = torch.full_like(batch.input_ids, -100)
    labels[rows, batch.masked_lm_positions[rows, slots]] = batch.masked_lm_labels[rows, slots]
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "attention_mask": (batch.attention_mask != 0).long(),
        "labels": labels,
        "next_sentence_label": batch.next_sentence_labels.masked_fill(
            batch.next_sentence_labels < 0, -100
        ),
    }


def side(name: str, config: BertConfig, batch: LoadedBatch) -> Step:
    """The step of one row of the table, for its process."""
    if name == "transformers":
        return their_step(config, batch)
    if name == "transformers, bf16, fused AdamW, memory kept":
        disable_malloc_trim()
        return their_step(config, batch, "bf16", fused=True)
    disable_malloc_trim()
    return our_step(config, batch)


ROWS = ("clozeline", "transformers, bf16, fused AdamW, memory kept")


def serve(connection: Connection, name: str, preset_name: str, batch: LoadedBatch) -> None:
    """Run a step for every message, and send back its seconds."""
    step = side(name, preset(preset_name), batch)
    while connection.recv():
        start = time.perf_counter()
        step()
        connection.send(time.perf_counter() - start)


def compare(
    names: tuple[str, str], preset_name: str, batch: LoadedBatch, rounds: int
) -> list[float]:
    """Median seconds per step of two sides that take turns; two rounds warm up."""
    context = get_context("spawn")
    ends, seconds = [], [[], []]
    for name in names:
        ours, theirs = context.Pipe()
        arguments = (theirs, name, preset_name, batch)
        context.Process(target=serve, args=arguments, daemon=True).start()
        theirs.close()  # the process has it now, so its end is seen here
        ends.append(ours)
    for _ in range(rounds + 2):
        for end, found in zip(ends, seconds, strict=True):
            end.send(True)
            found.append(end.recv())
    for end in ends:
        end.send(False)
    return [statistics.median(found[2:]) for found in seconds]


def data_set(folder: Path, tokens: int, examples: int, *, packed: bool = False) -> Path:
    """Random ids of a vocabulary of BERT's size: with a small one, embeddings fit in a cache."""
    words = (f"w{number}" for number in range(len(SPECIAL_TOKENS), VOCABULARY))
    config = DataConfig(max_seq_length=tokens, pairs="packed" if packed else "segments")
    return write_data_set(folder, train=(examples,), config=config, tokenizer=tokenizer_of(*words))


def on_cpu(names: Sequence[str], rounds: int) -> None:
    threads = torch.get_num_threads()
    for name in names:
        tokens, examples = CPU_CASES[name]
        with tempfile.TemporaryDirectory() as scratch:
            folder = data_set(Path(scratch), tokens, 8 * examples)
            batch = next(iter(Loader(folder, batch_size=examples, seed=0)))
        print(f"{name}, {examples} x {tokens} tokens, {threads} threads: real tokens per second")
        for row in ROWS:
            try:
                ours, theirs = compare((row, "transformers"), name, batch, rounds)
            except EOFError:  # a process ended early, after printing its error
                print(f"  {row:46}  failed", flush=True)
                continue
            speed, rival = batch.num_tokens / ours, batch.num_tokens / theirs
            line = f"  {row:46}{speed:8.0f}  transformers{rival:6.0f}{speed / rival:7.2f} x"
            print(line, flush=True)


def on_cuda(names: Sequence[str], rounds: int, *, is_dry: bool) -> None:
    with join_world() as world:  # its kernels are those of a training
        device = torch.device("cpu") if is_dry else world.device
    print(f"{device_name(device)}: real tokens per second, bf16, torch.compile\n")
    theirs = ("transformers", "ratio", "with sparse logits", "ratio")
    columns = ("clozeline", "MFU of tokens", "waiting", "memory", *theirs, "predicted")
    print(f"| model | examples x tokens | {' | '.join(columns)} |")
    print("|---|---|" + "---:|" * len(columns))
    cases = DRY_CASES if is_dry else {name: CUDA_CASES[name] for name in names or CUDA_CASES}
    for name, case in cases.items():
        tokens, examples = case.tokens, case.examples
        with tempfile.TemporaryDirectory() as scratch:
            rows = 8 * examples if is_dry else min(100_000, 2**24 // tokens)
            folder = data_set(Path(scratch), tokens, rows, packed=case.packed)
            row = cuda_row(case, folder, device, rounds)
            row += f" | {predicted(case.preset, folder, examples, device)}"
            print(f"| `{name}` | {examples} x {tokens} | {row} |", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def predicted(name: str, folder: Path, examples: int, device: torch.device) -> str:
    """Tokens (and padding) per second at best and as guessed, and memory, as estimated."""
    known = [gpu for gpu in GPUS if gpu.name in device_name(device)] or [gpu_named("h100")]
    training = training_config(batch_size=examples, micro_batch_size=examples, precision="bf16")
    found = Estimate(
        gpu=known[0],
        gpus=1,
        model=preset(name),
        training=training,
        data=read_manifest(folder).config,
    )
    speeds = (found.slots / found.seconds(utilization=x) for x in (1.0, UTILIZATION))
    best, guessed = (f"{speed:,.0f}" for speed in speeds)
    memory = found.memory(found.rows) / 1e9
    return f"{known[0].name}: {best} at best, {guessed} guessed, {memory:.1f} GB"


def cuda_row(case: Case, folder: Path, device: torch.device, rounds: int) -> str:
    """The numbers of both sides, or why one has none."""
    ours = attempt(lambda: our_speed(case, folder, device, rounds))
    row = f"{ours} | | |" if isinstance(ours, str) else ours[1]
    loader = Loader(folder, batch_size=case.examples, seed=0, device=device)
    fixed = next(iter(loader))
    for is_sparse in (False, True):
        theirs = attempt(lambda x=is_sparse: their_speed(case, fixed, rounds, is_sparse=x))
        is_whole = not isinstance(ours, str) and not isinstance(theirs, str)
        ratio = f"{ours[0] / theirs[0]:.2f}" if is_whole else ""
        row += f" | {theirs if isinstance(theirs, str) else theirs[1]} | {ratio}"
    return row


def attempt(measure: Callable[[], tuple[float, str]]) -> tuple[float, str] | str:
    """What `measure` returns, or the first line of what it raises."""
    torch.compiler.reset()  # or else what is compiled for one model allows for shapes of the next
    try:
        return measure()
    except Exception as error:  # any: the other rows are worth having
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def our_speed(case: Case, folder: Path, device: torch.device, rounds: int) -> tuple[float, str]:
    """Real tokens per second of `rounds` turns of ten steps, and the text of the row."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    batch = {"batch_size": case.examples, "seed": 0, "device": device}
    batches = iter(Loader(folder, unpadded=case.unpadded, **batch))
    recipe = recipe_of(case.preset) if case.by_recipe else {}
    names = ("optimizer", "sampled_words")
    training = training_config(**{name: recipe[name].value for name in names if name in recipe})
    counts = read_manifest(folder).token_counts
    sampler = WordSampler(counts, training.sampled_words, seed=0, device=device)
    config = replace(preset(case.preset), **STILL) if case.unpadded else preset(case.preset)
    model = BertForPretraining(config).train().to(device)
    if device.type == "cuda":
        model.compile()
    optimizer = build_optimizer(model, training)
    watch, useful = StepTimer(), 0.0

    def step() -> None:
        nonlocal useful
        with watch.waiting():
            loaded = next(batches)
        watch.tokens += loaded.num_tokens
        real = loaded.num_tokens / loaded.batch.input_ids.numel()
        useful += real * flops_of_step(config, loaded, sampler.size)
        one_step(model, optimizer, loaded, sample=sampler.at(1))

    waited = spent = read = 0.0
    for turn in range(rounds + 1):
        watch.lap()
        useful *= turn > 1  # the first turn compiles
        timed(step)
        turn_spent, turn_waited, turn_tokens = watch.lap()
        if turn:
            spent, waited, read = spent + turn_spent, waited + turn_waited, read + turn_tokens
    share = mfu(useful, seconds=spent, peak=peak_flops(device_name(device), "bf16"))
    shown = "not known" if share is None else f"{share:.1%}"
    memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0
    speed = read / spent
    return speed, f"{speed:,.0f} | {shown} | {waited / spent:.2%} | {memory:.1f} GB"


def their_speed(
    case: Case, fixed: LoadedBatch, rounds: int, *, is_sparse: bool
) -> tuple[float, str]:
    """The same for `transformers`, on as many of the examples as its logits have room for."""
    config, (rows, length) = preset(case.preset), fixed.batch.input_ids.shape
    fitting = rows if is_sparse else THEIR_LOGITS // (length * config.padded_vocab_size)
    part = fixed.batch.slice(0, min(rows, fitting))
    step = their_step(config, replace(fixed, batch=part), "bf16", is_sparse, fused=True)
    seconds = statistics.median([timed(step) for _ in range(rounds + 1)][1:])
    note = "" if fitting >= rows else f" ({fitting} x {length})"
    speed = part.num_tokens / seconds
    return speed, f"{speed:,.0f}{note}"


def timed(step: Step, steps: int = 10) -> float:
    """Seconds per step over several steps, with the GPU's work."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else int
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", metavar="PRESET")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    known = CUDA_CASES if arguments.device == "cuda" else CPU_CASES
    if unknown := sorted(set(arguments.presets) - set(known)):
        parser.error(f"no sizes for {', '.join(unknown)}; known: {', '.join(known)}")
    torch.manual_seed(0)
    if arguments.device == "cuda":
        rounds = 1 if arguments.dry_run else arguments.rounds
        on_cuda(arguments.presets, rounds, is_dry=arguments.dry_run)
    else:
        on_cpu(arguments.presets or list(CPU_CASES), arguments.rounds)
    print(f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
