"""What GPUs can do at most, by name: `gpu_named("h100").bandwidth` is 3.35e12 bytes a second.

From the vendor's documents: data sheets of H200, H100 and A100 Tensor Core GPU, of L40S and of DGX
A100, H100 and H200 (nvidia.com), and the white paper "NVIDIA Ada GPU Architecture", appendix A
(RTX 4090). Where a sheet states operations "with sparsity", half of that is dense. An RTX 4090 adds
up bfloat16 products in float32 at half the rate of its float16 ones.
"""

from dataclasses import dataclass

from clozeline.pipeline.common.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and its links, one way."""

    name: str
    peak: float  # dense bfloat16 operations a second
    memory: float  # GB (1e9 bytes)
    bandwidth: float  # of its memory, bytes a second
    link: float  # to the others of its machine, bytes a second
    network: float  # its share of the machine's network, bytes a second


# In TF32, in which products of float32 are computed, the peak is half of bfloat16's. The first
# name contained in a device's name counts.
GPUS = (
    Gpu(name="H200 NVL", peak=835.5e12, memory=141, bandwidth=4.8e12, link=450e9, network=50e9),
    Gpu(name="H200", peak=989.5e12, memory=141, bandwidth=4.8e12, link=450e9, network=50e9),
    Gpu(name="H100 PCIe", peak=756.5e12, memory=80, bandwidth=2.0e12, link=64e9, network=50e9),
    Gpu(name="H100 NVL", peak=835.5e12, memory=94, bandwidth=3.9e12, link=300e9, network=50e9),
    Gpu(name="H100", peak=989.5e12, memory=80, bandwidth=3.35e12, link=450e9, network=50e9),
    Gpu(name="A100", peak=312e12, memory=80, bandwidth=2.039e12, link=300e9, network=25e9),
    Gpu(name="L40S", peak=362e12, memory=48, bandwidth=0.864e12, link=32e9, network=12.5e9),
    Gpu(name="RTX 4090", peak=165.2e12, memory=24, bandwidth=1.008e12, link=32e9, network=3e9),
)


def gpu_named(name: str) -> Gpu:
    """The GPU of a user's spelling, such as `rtx4090`. Raises InputError for unknown ones."""
    known = {_spelled(gpu.name): gpu for gpu in GPUS}
    if _spelled(name) not in known:
        raise InputError(f"unknown GPU {name!r}; known: {', '.join(known)}.")
    return known[_spelled(name)]


def _spelled(name: str) -> str:
    return "".join(name.lower().split()).replace("-", "")
