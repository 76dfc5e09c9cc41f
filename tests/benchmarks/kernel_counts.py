"""Kernels of a compiled forward and backward pass, and what each of our choices changes in them.

    python tests/benchmarks/kernel_counts.py [CASE ...] [--targets 80,90,100]

Inductor's Triton source needs no GPU: the graph is traced on the CPU, where the model is that of a
GPU while it is compiled, but for attention, and Triton's scheduling takes CPU tensors, too. With
`--targets`, Triton and its ptxas compile each kernel for those GPU generations: they take all of
them, but nothing runs. Two layers of hidden size 128 (`bert`) or 320 (`modern`), 8 rows of 64
tokens.

    kernels      fused ones, in Triton
    calls        of libraries: products of matrices, and attention
    operations   of the graph, before they are fused
    MB           what all of these read and write
"""

import argparse
import copy
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import compile_fx, metrics
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from clozeline.model.config import BertConfig, preset
from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.config import DataConfig
from clozeline.train.engine.precision import autocast
from clozeline.train.estimate.step_cost import longest_batch
from clozeline.train.pretraining.step import forward_losses

CPU, ROWS = torch.device("cpu"), 8
DATA = DataConfig(max_seq_length=64)
SIZES = {"vocab_size": 8192, "num_hidden_layers": 2, "attention_probs_dropout_prob": 0.0}
BERT, MODERN = preset("bert-tiny", **SIZES), preset("modern-nano", **SIZES)


@dataclass(frozen=True)
class Case:
    config: BertConfig
    precision: str = "bf16"
    is_unpadded: bool = False
    is_checkpointed: bool = False
    data: DataConfig = DATA

    def model(self) -> BertForPretraining:
        model = BertForPretraining(self.config).train()
        if self.is_checkpointed:
            model.encoder.checkpoint_activations()
        return model


#: All positions: as many slots for masked tokens as a row has tokens between [CLS] and [SEP].
EVERYWHERE = replace(DATA, max_predictions_per_seq=62, masked_lm_prob=0.97)
CASES = {
    "bert": Case(BERT),
    "bert, float32": Case(BERT, precision="fp32"),
    "bert, logits of all positions": Case(BERT, data=EVERYWHERE),
    "bert, unpadded": Case(BERT, is_unpadded=True),
    "modern": Case(MODERN),
    "modern, GELU": Case(replace(MODERN, hidden_act="gelu", gated=False)),
    "modern, checkpointed": Case(MODERN, is_checkpointed=True),
    "modern, unpadded": Case(MODERN, is_unpadded=True),
}
KERNEL = re.compile(r"^(triton_\w+) = async_compile\.triton\('\w+', '''\n(.*?)^'''", re.M | re.S)


def stand_in_for_the_driver() -> None:
    """Give Triton something to ask instead of a GPU's driver: what to compile for."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class NoDriver(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None:
            """Without the launcher, which a driver builds."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_active_torch_device(self) -> torch.device:
            return CPU

        def get_benchmarker(self) -> Any:
            raise NotImplementedError("nothing runs")

        def map_python_to_cpp_type(self, name: str) -> str:
            return name

    triton.runtime.driver.set_active(NoDriver())


@dataclass
class Counts:
    """What the compiled graphs of a case, forward and backward, have; their kernels by name."""

    kernels: int = 0
    calls: int = 0
    operations: int = 0
    moved: int = 0
    sources: dict[str, str] = field(default_factory=dict)


def count(case: Case) -> Counts:
    """Trace, fuse and write the kernels of both passes; the passes themselves run in eager mode."""
    counts = Counts()
    batch = longest_batch(ROWS, case.data, unpadded=case.is_unpadded).batch
    torch._dynamo.reset()
    metrics.reset()

    def write(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        eager = copy.deepcopy(graph)
        _write_kernels(graph, inputs, counts, is_backward=options.get("is_backward", False))
        return make_boxed_func(eager.forward)

    compiled = torch.compile(
        case.model(),
        fullgraph=True,
        backend=lambda graph, inputs: compile_fx.compile_fx(graph, inputs, inner_compile=write),
    )
    with (
        torch._inductor.config.patch(cpu_backend="triton", fx_graph_cache=False),
        autocast(case.precision, CPU),
    ):
        losses, _ = forward_losses(compiled, batch, is_full=False, count_hits=True)
        losses.sum().backward()
    counts.operations = metrics.ir_nodes_pre_fusion
    return counts


def _write_kernels(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], counts: Counts, *, is_backward: bool
) -> None:
    """What `compile_fx_inner` does before it loads what it wrote, which would need the GPU."""
    compile_fx.view_to_reshape(graph)
    with torch.no_grad():
        fake = compile_fx.fake_tensor_prop(graph, inputs)
    fake.allow_non_fake_inputs = True  # the CPU's generator, which checkpointing saves
    compile_fx._recursive_record_original_output_strides(graph)
    with V.set_fake_mode(fake):
        compile_fx._recursive_post_grad_passes(graph)
        lowering = GraphLowering(graph, example_inputs=inputs, is_backward=is_backward)
        with (
            V.set_debug_handler(DebugContext()),
            V.set_graph_handler(lowering),
            V.set_extern_kernel_nodes([]),
        ):
            lowering.run(*inputs)
            source = lowering.codegen()[0].value
            counts.moved += lowering.count_bytes()[0]
    counts.sources.update(KERNEL.findall(source))
    main = source.partition("def call(")[2]
    counts.kernels += len(re.findall(r"^ *triton_\w+\.run\(", main, re.M))
    counts.calls += len(re.findall(r"(?:extern_kernels|torch\.ops\.\w+)\.\w+[\w.]*\(", main))


def compile_kernels(sources: dict[str, str], targets: Sequence[int]) -> int:
    """Bytes of machine code of the kernels for all targets (80: sm_80). Raises if one fails."""
    total = 0
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # "Generated kernels will not be executable!"
        for name, source in sources.items():
            path = Path(folder, f"{name[:60]}_{len(source)}.py")
            path.write_text(source)
            spec = spec_from_file_location(path.stem, path)
            assert spec
            assert spec.loader
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            total += sum(_machine_code(getattr(module, name), target) for target in targets)
    return total


def _machine_code(kernel: Any, target: int) -> int:
    """Compile a kernel of Inductor's in the first of its configurations."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    config, function, meta = kernel.configs[0], kernel.fn, kernel.triton_meta
    constants = {**meta["constants"], **config.kwargs}
    source = ASTSource(
        fn=function,
        signature={n: "constexpr" if n in constants else t for n, t in meta["signature"].items()},
        constexprs={(function.arg_names.index(n),): value for n, value in constants.items()},
        attrs=meta["configs"][0],
    )
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    done = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    return len(done.asm["cubin"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
    parser.add_argument("--targets", default="")
    given = parser.parse_args()
    targets = [int(target) for target in given.targets.split(",") if target]
    if find_spec("triton") is None:
        print("Triton is not installed; it comes with torch's CUDA build.")
        return
    stand_in_for_the_driver()
    print(f"{'case':32}{'kernels':>8}{'calls':>7}{'operations':>12}{'MB':>8}")
    for name in given.cases:
        found = count(CASES[name])
        line = f"{name:32}{found.kernels:>8}{found.calls:>7}{found.operations:>12}"
        line += f"{found.moved / 1e6:>8.1f}"
        if targets:
            size = compile_kernels(found.sources, targets)
            line += f"  {len(found.sources)} sources for {targets}: {size:,} bytes"
        print(line, flush=True)
    print(f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
