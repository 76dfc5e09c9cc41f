"""The summary printed before the first step: model, device, data, duration and output files.

model      4 layers of 256: 11,171,074 parameters
device     cpu, fp32, 2 processes of 2 threads
data       work/shards: 12,345 examples of up to 128 tokens, 66 held out
training   steps 1 to 1,000 of 32 examples: 2.6 epochs; adamw, peak learning rate 0.001, linear
phase      steps 1 to 500: work/64, 128 examples of up to 64 tokens
phase      steps 501 to 1,000: work/shards, 32 examples of up to 256 tokens
export     opens in transformers as a plain BERT
files      work/run/metrics.jsonl; curves: tensorboard --logdir work/run/tensorboard
"""

import re
from collections.abc import Sequence

import torch

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining, count_parameters
from clozeline.model.huggingface.config import model_type_of
from clozeline.pipeline.common.config_checks import time_in_words
from clozeline.train.artifacts.run import TENSORBOARD, RunConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.data.phases import DataPhase
from clozeline.train.engine.distributed import World, device_name, is_sharded
from clozeline.train.engine.schedule import first_step_from
from clozeline.train.monitoring.metrics import METRICS
from clozeline.train.pretraining.trainer import Trainer


def run_summary(trainer: Trainer, config: RunConfig) -> list[str]:
    """The lines of the summary, for a trainer that has not started."""
    examples, held_out = (trainer.manifest.num_examples(name) for name in ("train", "validation"))
    lines = {
        "model": _model(config.model),
        "device": _device(config, trainer.world),
        "data": f"{trainer.shards.folder}: {examples:,} examples of up to "
        f"{config.data.max_seq_length} tokens, {held_out:,} held out",
        "training": _training(config, examples, trainer),
        "export": _export(config.model),
        "files": f"{trainer.out / METRICS}; curves: tensorboard --logdir "
        f"{trainer.out / TENSORBOARD}",
    }
    *rows, export, files = (f"{name:<10} {line}" for name, line in lines.items())
    return [*rows, *phase_lines(config.phases, config.training), export, files]


def _export(model: BertConfig) -> str:
    """What `clozeline export` will write for this model."""
    try:
        family = {"bert": "BERT", "modernbert": "ModernBERT"}[model_type_of(model)]
    except ValueError:
        return "opens in transformers with its own code (trust_remote_code=True)"
    return f"opens in transformers as a plain {family}"


def _model(model: BertConfig) -> str:
    layers = f"{model.num_hidden_layers} layer{'s' * (model.num_hidden_layers > 1)}"
    return f"{layers} of {model.hidden_size}: {count_parameters(model):,} parameters"


def _device(config: RunConfig, world: World) -> str:
    device = world.device
    processes = f"{world.size} process{'es' * (world.size > 1)}"
    if device.type == "cpu":
        threads = torch.get_num_threads()
        processes += f" of {threads} thread{'s' * (threads > 1)}"
    kernels = ", deterministic kernels" * config.training.deterministic
    if device.type == "cuda" and is_sharded(world, config.training.parallel):
        memory = torch.cuda.get_device_properties(device).total_memory
        if replica_fits(count_parameters(config.model), memory):
            processes += ", sharded (a replica would fit: --parallel ddp sends less)"
    return f"{device_name(device)}, {config.training.precision}, {processes}{kernels}"


def replica_fits(parameters: int, memory: int) -> bool:
    """Whether a whole model in training takes up to a third of a GPU's bytes.

    Its float32 weights, gradients and two moments; activations need the rest.
    """
    return 3 * 16 * parameters <= memory


def _training(config: RunConfig, examples: int, trainer: Trainer) -> str:
    training, step = config.training, trainer.step
    rate = f"{training.optimizer}, peak learning rate {training.learning_rate:g}"
    batches = f"{training.batch_size} examples"
    if training.budget:
        left = time_in_words(training.budget - trainer.control.elapsed)
        steps = f"from step {step + 1:,} for {left}"
        return f"{steps}, {batches} a step; {rate}, {training.schedule}"
    # Earlier steps may have read other shards, or had another batch size.
    read = trainer.loader.main.next_position + (training.max_steps - step) * training.batch_size
    epochs = f": {read / max(examples, 1):.1f} epochs"
    epochs *= not training.phase  # those read several data sets
    steps = f"steps {step + 1:,} to {training.max_steps:,} of {batches}"
    return f"{steps}{epochs}; {rate}, {training.schedule}"


def phase_lines(phases: Sequence[DataPhase], training: PretrainConfig) -> list[str]:
    """A line for each phase; none for a run that only reads SHARDS, with their own masks."""
    rate = training.masked_lm_prob
    if len(phases) == 1 and rate is None:
        return []
    masks = "masked as stored" if rate is None else f"{100 * rate:g} % masked"
    lines = []
    for phase, stop in zip(phases, [*(one.start for one in phases[1:]), 1.0], strict=True):
        when = _when(phase.start, stop, training)
        lines.append(
            f"{'phase':<10} {when}: {phase.shards}, {training.batch_size * phase.batch_factor} "
            f"examples of up to {phase.max_seq_length} tokens, {masks}"
        )
    return lines


def layer_lines(config: BertConfig) -> list[str]:
    """The table of weights: name, how often, shape and parameters; equal layers are one line.

    The vocabulary is rounded up, as in memory; the last line counts without that.
    """
    with torch.device("meta"):
        model = BertForPretraining(config)
    rows: dict[str, tuple[int, torch.Size]] = {}
    for name, weight in model.named_parameters():
        name = re.sub(r"\.layers\.\d+\.", ".layers.*.", name)
        rows[name] = rows.get(name, (0, weight.shape))[0] + 1, weight.shape
    lines = [
        f"  {name:<48} {f'{times} x' * (times > 1):>4} {' x '.join(map(str, shape)):>14} "
        f"{times * shape.numel():>13,}"
        for name, (times, shape) in rows.items()
    ]
    return ["weights:", *lines, f"  {'parameters':<68} {count_parameters(model):>13,}"]


def _when(start: float, stop: float, training: PretrainConfig) -> str:
    """ "steps 1 to 500" from 0.0 to 0.5 of 1,000 steps; "0.0 s to 15 min" of a time budget."""
    if training.budget:
        begin, end = (time_in_words(x * training.budget) for x in (start, stop))
        return f"{begin} to {end}"
    first, after = (first_step_from(training, x) for x in (start, stop))
    return f"steps {first:,} to {after - 1:,}" if first < after else "no step"
