"""How fast attention kernels are on each generation of GPUs, and which kernel a row runs."""

from collections.abc import Mapping

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.cluster.hardware import Generation, Gpu
from scaling.layout.kernels import ATTENTION
from scaling.predict.read.stack_facts import Stack

# Efficiency of flash kernels relative to FlashAttention-2 on an A100: (versions 1 and 2; versions 3
# and 4 and cuDNN). On Hopper FlashAttention-2 reaches 35 % of peak, against 50 % on A100, and
# version 3 about twice that (arXiv 2407.08608). Generations not listed are taken as an A100.
_FLASH_GAIN: Mapping[Generation | None, tuple[float, float]] = {
    "hopper": (0.7, 1.4),
    "blackwell": (0.5, 1.3),
}


def flash_gain(attention: Strings, gpu: Gpu) -> Floats:
    """Efficiency of a flash kernel relative to FlashAttention-2 on an A100, (n,)."""
    older_gain, newer_gain = _FLASH_GAIN.get(gpu.generation, (1.0, 1.0))
    return np.where(attention == "flash3", newer_gain, older_gain)


def costed_as(attention: Strings) -> Strings:
    """The kernel whose costs stand for each of ATTENTION's, (n,)."""
    costs = attention.astype(object)
    for name, kernel in ATTENTION.items():
        costs[attention == name] = kernel.cost
    return costs


def attention_kernels(
    attention: Strings, heads: Floats, gpu: Gpu, stack: Stack
) -> dict[str, Flags | Floats]:
    """The attention kernel whose costs apply to each row, (n,) each, by Features' names.

    Args:
        attention: kernels by the names of ATTENTION, (n,).
        heads: attention heads of a micro-batch on one GPU, (n,).
        gpu: the GPU.
        stack: the software, which may choose the kernel itself.
    """
    kernel = costed_as(attention)
    if stack.newest_flash:
        kernel = np.where(np.isin(kernel, ["flash1", "flash2"]), "flash3", kernel)
    math, fused = kernel == "math", kernel == "fused_softmax"
    if stack.softmax_rule:
        can_fuse = heads % 4 == 0
        math, fused = (math | fused) & ~can_fuse, (math | fused) & can_fuse
    return {
        "math": math.astype(bool),
        "fused_softmax": fused.astype(bool),
        "flash1": (kernel == "flash1").astype(bool),
        "flash_gain": flash_gain(kernel, gpu),
    }
