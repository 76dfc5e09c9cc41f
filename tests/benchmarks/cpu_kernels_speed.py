"""Time and memory of torch's operations on CPU, divided by ours (`model/cpu_kernels.py`).

    python tests/benchmarks/cpu_kernels_speed.py [--rounds N]

Forward and backward pass in the shapes of `bert-mini`: 32 rows of 128 tokens, 4 heads of 64, 20
masked tokens per row, 30,528 columns of logits. Ours and torch's alternate; the least processor
time of each counts, over all threads; one thread and all threads; freed memory is kept, as in
`pretrain`. Memory is the peak of a separate process (Linux) for 2,560 masked tokens. Last comes an
update of the matrices of `nano` by Muon, which torch's computes in bfloat16 on every machine.
"""

import argparse
from collections.abc import Callable
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clozeline.model.config import preset
from clozeline.model.cpu_kernels import cross_entropies, dropout, scaled_dot_product_attention
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.counts import disable_malloc_trim
from clozeline.train.engine.distributed import World
from clozeline.train.engine.optim import MuonWithAdamW, is_hidden_matrix
from clozeline.train.engine.precision import products_dtype
from tests.benchmarks.measuring import memory_above_now, timed

ROWS, TOKENS, HEADS, HEAD_SIZE, MASKED, COLUMNS = 32, 128, 4, 64, 20, 30_528
MASK = torch.arange(TOKENS) < torch.linspace(TOKENS // 2, TOKENS, ROWS)[:, None, None, None]
Function = Callable[..., Tensor]


def torch_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The usual operation, in float32."""
    return F.cross_entropy(logits.float(), labels, reduction="none")


def labels_of(rows: int) -> Tensor:
    return torch.arange(rows) % COLUMNS


def qkv() -> list[Tensor]:
    return [torch.randn(ROWS, HEADS, TOKENS, HEAD_SIZE) for _ in range(3)]


ATTENTION = scaled_dot_product_attention, F.scaled_dot_product_attention
#: name, ours, torch's, inputs that need a gradient, further arguments
CASES: list[tuple[str, Function, Function, Callable[[], list[Tensor]], tuple[object, ...]]] = [
    ("dropout", dropout, F.dropout, lambda: [torch.randn(ROWS, TOKENS, 256)], (0.1,)),
    *((f"attention, dropout {p}", *ATTENTION, qkv, (MASK, p)) for p in (0.0, 0.1)),
    (
        "cross-entropies",
        cross_entropies,
        torch_cross_entropies,
        lambda: [torch.randn(ROWS * MASKED, COLUMNS)],
        (labels_of(ROWS * MASKED),),
    ),
]


def seconds(function: Function, inputs: list[Tensor], arguments: tuple[object, ...]) -> float:
    """One forward and backward pass."""

    def both_passes() -> None:
        outputs = function(*inputs, *arguments)
        outputs.backward(torch.ones_like(outputs))
        for tensor in inputs:
            tensor.grad = None

    return timed(both_passes)[1]


def compare(case: int, dtype: torch.dtype, rounds: int) -> tuple[float, float]:
    """The fastest seconds of ours and of torch's; the first round is for warming up."""
    _, ours, torchs, make, arguments = CASES[case]
    inputs = [tensor.to(dtype).requires_grad_() for tensor in make()]
    found = [
        (seconds(ours, inputs, arguments), seconds(torchs, inputs, arguments))
        for _ in range(rounds + 1)
    ]
    first, second = zip(*found[1:], strict=True)
    return min(first), min(second)


def muon_seconds(rounds: int) -> tuple[float, float]:
    """The fastest update of our Muon and of torch's; the first round is for warming up."""
    model = BertForPretraining(preset("nano"))
    matrices = [p for name, p in model.named_parameters() if is_hidden_matrix(name, p)]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    adamw = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # it may not be empty
    groups = [{"params": matrices, "lr": 1e-3, "weight_decay": 0.1}]
    ours = MuonWithAdamW(groups, adamw, dtype=products_dtype(World(0, 1, torch.device("cpu"))))
    torchs = torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.1)
    found: dict[torch.optim.Optimizer, list[float]] = {ours: [], torchs: []}
    for _ in range(rounds + 1):
        for optimizer, times in found.items():
            times.append(timed(optimizer.step)[1])
    return min(found[ours][1:]), min(found[torchs][1:])


def peak_memory(function: Function, dtype: torch.dtype) -> float:
    """MB that the cross-entropies of 2,560 masked tokens take in addition to their logits."""
    logits = torch.randn(2560, COLUMNS, dtype=dtype, requires_grad=True)
    labels = labels_of(2560)
    return memory_above_now(lambda: seconds(function, [logits], (labels,))) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    disable_malloc_trim()
    dtypes = (torch.float32, torch.bfloat16)
    threads = sorted({1, torch.get_num_threads()})
    print("CPU milliseconds of ours and of torch's operation, and their ratio")
    for case, (name, *_) in enumerate(CASES):
        for dtype in dtypes:
            for number in threads:
                torch.set_num_threads(number)
                ours, torchs = (1e3 * value for value in compare(case, dtype, rounds))
                kind = f"{str(dtype).removeprefix('torch.')}, {number} thread(s)"
                print(f"{name:24}{kind:24}{ours:8.2f}{torchs:8.2f}{torchs / ours:7.2f} x")
    for dtype in dtypes:
        with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            ours = pool.apply(peak_memory, (cross_entropies, dtype))
            torchs = pool.apply(peak_memory, (torch_cross_entropies, dtype))
        kind = f"{str(dtype).removeprefix('torch.')}, MB"
        print(f"{'cross-entropies':24}{kind:24}{ours:8.0f}{torchs:8.0f}{torchs / ours:7.2f} x")
    ours, torchs = (1e3 * value for value in muon_seconds(rounds))
    print(f"{'Muon of nano':48}{ours:8.2f}{torchs:8.2f}{torchs / ours:7.2f} x")
    print(f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
