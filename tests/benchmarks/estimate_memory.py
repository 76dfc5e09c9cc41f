"""The peak memory that an estimate predicts, beside that of the same step on this CPU.

    python tests/benchmarks/estimate_memory.py [PRESET ...]

Measured in a new process: its peak during three steps, less its size before the model is built.
"""

import ctypes
import sys

import torch

from clozeline.model.config import BertConfig, preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.malloc import return_large_blocks
from clozeline.pipeline.config import DataConfig
from clozeline.train.config import PretrainConfig
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import build_optimizer
from clozeline.train.pretraining.fake_step import PARTS, step_cost
from clozeline.train.pretraining.micro_batch import longest_batch
from clozeline.train.pretraining.step import train_step
from tests.benchmarks.measuring import memory_above_now
from tests.support.small_jobs import python
from tests.support.training_configs import training_config

PRESETS = ("nano", "bert-mini", "bert-small", "modern-mini")
ROWS = 64
DATA = DataConfig(max_seq_length=64)
CPU = torch.device("cpu")


def main() -> None:
    print(
        f"{'preset':14}" + "".join(f"{part:>13}" for part in PARTS) + "  predicted  measured  ratio"
    )
    for name in sys.argv[1:] or PRESETS:
        cost = predicted(name)
        measured = measured_peak(name)
        parts = "".join(f"{cost.parts[part] / 1e6:>13.0f}" for part in PARTS)
        print(
            f"{name:14}{parts}{cost.peak / 1e6:>11.0f}{measured / 1e6:>10.0f}"
            f"{cost.peak / measured:>7.2f}",
            flush=True,
        )


def _config(name: str) -> tuple[BertConfig, PretrainConfig]:
    return preset(name, vocab_size=8192), training_config(batch_size=ROWS)


def predicted(name: str):
    """The cost of a step of one pass on CPU."""
    model, training = _config(name)
    return step_cost(model, training, DATA, rows=ROWS, passes=1, device=CPU)


def measured_peak(name: str) -> int:
    """Bytes, in a process of its own."""
    return int(python(__file__, "--measure", name))


def measure(name: str) -> int:
    """Run three steps here; the peak above this process's size before."""
    return_large_blocks()
    _steps(preset("bert-tiny", vocab_size=64), training_config(batch_size=ROWS))  # loads libraries
    ctypes.CDLL(None).malloc_trim(0)
    return memory_above_now(lambda: _steps(*_config(name)))


def _steps(config: BertConfig, training: PretrainConfig) -> None:
    model = BertForPretraining(config, seed=0).train()
    optimizer = build_optimizer(model, training)
    loaded = longest_batch(ROWS, config, DATA, unpadded=False)
    world = World(0, 1, CPU)
    for _ in range(3):
        train_step(
            model, optimizer, loaded, world=world, accumulation=1, precision="fp32", clip=1.0
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2]))
    else:
        main()
