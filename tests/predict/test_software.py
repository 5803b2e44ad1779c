"""Flash kernels beside FlashAttention-2 on an A100."""

import numpy as np

from scaling.cluster.hardware import gpu_named
from scaling.predict.read.software import flash_gain


def test_newer_flash_kernels_gain_on_newer_gpus_alone():
    kernels = np.array(["flash2", "flash3"], dtype=object)
    assert flash_gain(kernels, gpu_named("a100-80gb")).tolist() == [1.0, 1.0]
    older, newer = flash_gain(kernels, gpu_named("h100-80gb"))
    assert older < 1 < newer
