"""Operations of a training step, what GPUs can do at most, and model FLOPs utilization (MFU).

MFU (Chowdhery et al. 2022, PaLM, section 4.1 and appendix B) is the operations that the model
*needs* for a step, divided by the time and by the peak of the device. A product of [m, k] and
[k, n] is 2 m k n operations, and a backward pass has two such products for each of the forward
pass; only matrix products are counted (Kaplan et al. 2020, section 2.1).

Peaks are from the vendor's documents: data sheets of H200, H100 and A100 Tensor Core GPU and L40S
(nvidia.com), and the white paper "NVIDIA Ada GPU Architecture", appendix A (RTX 4090). Where a
sheet states operations "with sparsity", half of that is dense. An RTX 4090 adds up bfloat16
products in float32 at half the rate of its float16 ones.
"""

from dataclasses import dataclass

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU."""

    name: str
    peak: float  # dense bfloat16 operations a second
    memory: float  # GB (1e9 bytes)
    bandwidth: float  # of its memory, bytes a second


# In TF32, in which products of float32 are computed, the peak is half of bfloat16's. The first
# name contained in a device's name counts.
GPUS = (
    Gpu(name="H200 NVL", peak=835.5e12, memory=141, bandwidth=4.8e12),
    Gpu(name="H200", peak=989.5e12, memory=141, bandwidth=4.8e12),
    Gpu(name="H100 PCIe", peak=756.5e12, memory=80, bandwidth=2.0e12),
    Gpu(name="H100 NVL", peak=835.5e12, memory=94, bandwidth=3.9e12),
    Gpu(name="H100", peak=989.5e12, memory=80, bandwidth=3.35e12),
    Gpu(name="A100", peak=312e12, memory=80, bandwidth=2.039e12),
    Gpu(name="L40S", peak=362e12, memory=48, bandwidth=0.864e12),
    Gpu(name="RTX 4090", peak=165.2e12, memory=24, bandwidth=1.008e12),
)


def gpu_named(name: str) -> Gpu:
    """The GPU of a user's spelling, such as `rtx4090`. Raises InputError for unknown ones."""
    known = {_spelled(gpu.name): gpu for gpu in GPUS}
    if _spelled(name) not in known:
        raise InputError(f"unknown GPU {name!r}; known: {', '.join(known)}.")
    return known[_spelled(name)]


def _spelled(name: str) -> str:
    return "".join(name.lower().split()).replace("-", "")


def step_flops(
    config: BertConfig,
    *,
    batch_size: int,
    seq_len: float,
    predictions: float,
    keys: float | None = None,
    words: int = 0,
) -> float:
    """Operations of the forward and backward passes of one step on these rows.

    `batch_size` rows of `seq_len` tokens, each with `predictions` slots for masked tokens. Padding
    counts like tokens. For unpadded rows pass the mean length and the mean number of predictions.
    A token attends to `keys` tokens in global layers, by default to its row. The output layer has
    logits of so many `words`; 0 and more than there are stand for the vocabulary.
    """
    keys = seq_len if keys is None else keys
    hidden, inner = config.hidden_size, config.intermediate_size
    before = 2 * 3 * hidden**2  # to queries, keys and values; Q K^T and A V are below
    after = 2 * (hidden**2 + (2 + config.gated) * hidden * inner)  # output and feed-forward
    *attention, last = (
        4 * hidden * (keys if config.is_global(layer) else min(keys, config.local_attention + 1))
        for layer in range(config.num_hidden_layers)
    )
    layers = config.num_hidden_layers * before + (config.num_hidden_layers - 1) * after
    # All but queries, keys and values of the last layer is for the predicted tokens, and [CLS].
    vocabulary = config.padded_vocab_size
    prediction = last + after + 2 * hidden * min(words or vocabulary, vocabulary)
    if config.mlm_transform:
        prediction += 2 * hidden**2
    pair = last + after + 2 * hidden * 2
    if config.pooler:
        pair += 2 * hidden**2
    row = seq_len * (layers + sum(attention)) + predictions * prediction + pair
    return 3 * batch_size * row


def peak_flops(name: str, precision: str) -> float | None:
    """Peak dense operations per second of a device by its name, such as `NVIDIA H100 80GB HBM3`.

    None: unknown. `precision`: "bf16", or "fp32" for TF32.
    """
    peak = next((gpu.peak for gpu in GPUS if gpu.name in name), None)
    return peak if peak is None or precision == "bf16" else peak / 2


def mfu(flops: float, *, seconds: float, peak: float | None, devices: int = 1) -> float | None:
    """The fraction of the devices' peak, in [0, 1]; None where the `peak` of one is unknown.

    `flops` operations in `seconds` on all `devices`.
    """
    return None if peak is None else flops / (seconds * peak * devices)
