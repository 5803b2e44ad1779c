"""How fast flash kernels of each version are on each generation of GPUs."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import Generation, Gpu
from scaling.foreign.arrays import Floats, Strings

# Efficiency of flash kernels relative to FlashAttention-2 on an A100: of versions 1 and 2, and of
# 3, 4 and cuDNN's. On Hopper FlashAttention-2 reaches 35 % of peak where it has 50 % on A100,
# version 3 about twice that (arXiv 2407.08608). To other generations nothing is carried over.
_FLASH_GAIN: Mapping[Generation | None, tuple[float, float]] = {
    "hopper": (0.7, 1.4),
    "blackwell": (0.5, 1.3),
}


def flash_gain(attention: Strings, gpu: Gpu) -> Floats:
    """Efficiency of a flash kernel relative to FlashAttention-2 on an A100, (n,)."""
    older_gain, newer_gain = _FLASH_GAIN.get(gpu.generation, (1.0, 1.0))
    return np.where(attention == "flash3", newer_gain, older_gain)
