"""The summary printed before the first step: model, device, data, duration and output files.

model      4 layers of 256: 11,171,074 parameters
device     cpu, fp32, 1 process of 2 threads
data       work/shards: 12,345 examples of up to 128 tokens, 66 held out
training   steps 1 to 1,000 of 32 examples: 2.6 epochs; adamw, peak learning rate 0.001, linear
end        after step 1,000; the time is printed when the speed is known
files      work/run/metrics.jsonl; curves: tensorboard --logdir work/run/tensorboard
"""

import torch

from clozeline.model.config import BertConfig
from clozeline.model.heads import count_parameters
from clozeline.pipeline.common.units import time_in_words
from clozeline.train.artifacts.run import TENSORBOARD, RunConfig
from clozeline.train.engine.distributed import World
from clozeline.train.monitoring.metrics import METRICS, at_time
from clozeline.train.pretraining.trainer import Trainer


def run_summary(trainer: Trainer, config: RunConfig) -> list[str]:
    """The lines of the summary, for a trainer that has not started."""
    examples, held_out = (trainer.manifest.num_examples(name) for name in ("train", "validation"))
    lines = {
        "model": _model(config.model),
        "device": _device(config, trainer.world),
        "data": f"{trainer.shards}: {examples:,} examples of up to {config.data.max_seq_length} "
        f"tokens, {held_out:,} held out",
        "training": _training(config, examples, trainer.step),
        "end": _end(config, trainer.control.elapsed),
        "files": f"{trainer.out / METRICS}; curves: tensorboard --logdir "
        f"{trainer.out / TENSORBOARD}",
    }
    return [f"{name:<10} {line}" for name, line in lines.items()]


def _model(model: BertConfig) -> str:
    layers = f"{model.num_hidden_layers} layer{'s' * (model.num_hidden_layers > 1)}"
    return f"{layers} of {model.hidden_size}: {count_parameters(model):,} parameters"


def _device(config: RunConfig, world: World) -> str:
    device = world.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    processes = f"{world.size} process{'es' * (world.size > 1)}"
    if device.type == "cpu":
        threads = torch.get_num_threads()
        processes += f" of {threads} thread{'s' * (threads > 1)}"
    return f"{name}, {config.training.precision}, {processes}"


def _training(config: RunConfig, examples: int, step: int) -> str:
    training = config.training
    rate = f"{training.optimizer}, peak learning rate {training.learning_rate:g}"
    batches = f"{training.batch_size} examples"
    if training.budget:
        return f"from step {step + 1:,} with {batches} a step; {rate}, {training.schedule}"
    epochs = training.max_steps * training.batch_size / max(examples, 1)
    ramp = " (fewer at first)" if training.batch_ramp else ""
    steps = f"steps {step + 1:,} to {training.max_steps:,} of {batches}{ramp}"
    return f"{steps}: {epochs:.1f} epochs; {rate}, {training.schedule}"


def _end(config: RunConfig, elapsed: float) -> str:
    budget = config.training.budget
    if budget is None:
        last = f"{config.training.max_steps:,}"
        return f"after step {last}; the time is printed when the speed is known"
    left = max(budget - elapsed, 0.0)
    return f"{at_time(left)}, {time_in_words(left)} from now"
