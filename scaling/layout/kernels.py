"""The attention kernels and fused kernels: what each needs, and how its cost is predicted.

The function that calls a kernel has the same name: for attention in `CALLS` of
scaling/train/kernels/attention.py, for fused kernels in scaling/train/kernels/fused.py, where
`scaling check` compares it with unfused code. Training, probes and the check read this table.
"""

from dataclasses import dataclass
from typing import Literal

NO_BIAS_GRADIENT = (
    "attention={attention} gives no gradient to the position bias that a t5 adds to its scores; "
    "it trains with attention=math"
)

# Kernels whose costs the prediction knows (scaling/predict/cost/compute.py).
AttentionCost = Literal["math", "fused_softmax", "flash1", "flash2", "flash3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The package that provides a kernel which torch does not have."""

    name: str  # as installed
    module: str  # as imported
    requirement: str  # for people
    version: str = ""  # prefix of the versions whose interface we call
    capabilities: tuple[int, ...] = ()  # major compute capabilities it is built for; (): any


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Requirements of a kernel. Kernels from packages need a GPU."""

    setting: str  # what selects it in a study: "attention=flash3"
    package: Package | None = None
    backend: str | None = None  # name in torch's SDPBackend
    implementation: str | None = None  # of FLASH_ATTENTION, where torch can switch it
    precisions: tuple[str, ...] = ("fp32", "fp16", "bf16")
    runs: bool = True  # False: only a label of published rows
    cost: AttentionCost | None = None
    rehearsed: bool = False  # runs on tensors without data


_HALF = ("fp16", "bf16")

# flash2 is torch's own FLASH_ATTENTION: on CUDA it is built from FlashAttention-2, on a CPU it is a
# tiled kernel of the same algorithm.
ATTENTION: dict[str, Kernel] = {
    "math": Kernel(setting="attention=math", cost="math", rehearsed=True),
    "fused_softmax": Kernel(setting="attention=fused_softmax", cost="fused_softmax", runs=False),
    "flash1": Kernel(setting="attention=flash1", cost="flash1", runs=False),
    "flash2": Kernel(
        setting="attention=flash2", backend="FLASH_ATTENTION", cost="flash2", rehearsed=True
    ),
    "flash3": Kernel(
        setting="attention=flash3",
        package=Package(
            name="flash-attn-3",
            module="flash_attn_interface",
            requirement="flash-attn-3 >= 3.0 (Hopper)",
            capabilities=(9,),
        ),
        backend="FLASH_ATTENTION",
        implementation="FA3",
        precisions=_HALF,
        cost="flash3",
    ),
    "flash4": Kernel(
        setting="attention=flash4",
        package=Package(
            name="flash-attn-4",
            module="flash_attn.cute",
            requirement="flash-attn-4 >= 4.0 (Hopper, Blackwell)",
            capabilities=(9, 10, 11),
        ),
        backend="FLASH_ATTENTION",
        implementation="FA4",
        precisions=_HALF,
        cost="flash3",
    ),
    "cudnn": Kernel(setting="attention=cudnn", backend="CUDNN_ATTENTION", cost="flash3"),
}


def _liger(axis: str, module: str) -> Kernel:
    package = Package(
        name="liger-kernel",
        module=f"liger_kernel.ops.{module}",
        requirement="liger-kernel == 0.8.5 (with triton, on a GPU)",
        version="0.8.5",
    )
    return Kernel(setting=axis, package=package)


# By the axis that turns the kernel on.
FUSED: dict[str, Kernel] = {
    "fused_norm": _liger("fused_norm", "rms_norm"),
    "fused_rope": _liger("fused_rope", "rope"),
    "fused_mlp": _liger("fused_mlp", "swiglu"),
    "fused_cross_entropy": _liger("fused_cross_entropy", "fused_linear_cross_entropy"),
}
