"""The arithmetic of a training step, and how much of what the device could do it is (MFU).

Model FLOPs utilization (Chowdhery et al. 2022, PaLM, section 4.1 and appendix B): the operations
that the model *needs* for a step, divided by the time and by the peak of the device. A product of
[m, k] and [k, n] is 2 m k n operations, a backward pass is two such products for each of the
forward pass; what is not a matrix product is not counted (Kaplan et al. 2020, section 2.1).
"""

import torch

from model.config import BertConfig

# Dense bfloat16 operations a second; the vendor's data sheets state twice that, "with sparsity":
# nvidia.com, data sheets of the H200, H100 and A100 Tensor Core GPU. The first name that occurs in
# the device's own decides.
PEAKS = {
    "H200 NVL": 835.5e12,
    "H200": 989.5e12,
    "H100 PCIe": 756.5e12,
    "H100 NVL": 835.5e12,
    "H100": 989.5e12,
    "A100": 312e12,
}


def step_flops(config: BertConfig, *, batch_size: int, seq_len: float, predictions: float) -> float:
    """Operations of the forward and backward passes of one step, over all processes.

    `batch_size` rows of `seq_len` tokens with `predictions` places for masked words each. Padding
    counts as tokens do. Rows without padding: their mean length, and `predictions` of a row.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    # The attention's four matrices and the feed-forward layer's two or three, then Q K^T and A V.
    layer = 2 * (4 * hidden**2 + (2 + config.gated) * hidden * inner) + 4 * seq_len * hidden
    word = 2 * hidden * config.padded_vocab_size
    if config.mlm_transform:
        word += 2 * hidden**2
    pair = 2 * hidden * 2
    if config.pooler:
        pair += 2 * hidden**2
    row = config.num_hidden_layers * seq_len * layer + predictions * word + pair
    return 3 * batch_size * row


def peak_flops(device: torch.device) -> float | None:
    """Dense bfloat16 operations that the device can do in a second; None: not known."""
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def peak_of(name: str) -> float | None:
    """The peak of a device by its name, as in `NVIDIA H100 80GB HBM3`; None: not known."""
    return next((peak for known, peak in PEAKS.items() if known in name), None)


def mfu(flops: float, *, seconds: float, peak: float | None, devices: int = 1) -> float | None:
    """The share of the devices' peak, in [0, 1]; None where the `peak` of one is not known.

    `flops` in `seconds`, over all `devices`. The peak is that of bfloat16, so the share says little
    of a run in float32.
    """
    return None if peak is None else flops / (seconds * peak * devices)
