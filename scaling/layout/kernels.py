"""The table of kernels: each attention kernel and each fused one, as plain facts.

An entry says what a kernel needs and what the prediction takes it for. Its call is registered by
the same name, for attention in `CALLS` of scaling/train/kernels/attention.py, else as a function of
scaling/train/kernels/fused.py that `scaling check` compares with plain code. Training, probes and
the check then ask for it, run it and name it where it is missing.
"""

from dataclasses import dataclass
from typing import Literal

NO_BIAS_GRADIENT = (
    "attention={attention} gives no gradient to the position bias that a t5 adds to its scores; "
    "it trains with attention=math"
)

# Kernels of which the prediction has costs (scaling/predict/cost/compute.py).
AttentionCost = Literal["math", "fused_softmax", "flash1", "flash2", "flash3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Where a kernel comes from, if not from torch. `needed` is for people."""

    name: str  # as it is installed
    module: str  # as it is imported
    needed: str
    version: str = ""  # how every version starts that is called rightly
    capabilities: tuple[int, ...] = ()  # first numbers of the GPUs' it is built for; (): any


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a kernel needs. All but those of torch need a GPU."""

    called: str  # what a study writes for it: "attention=flash3"
    package: Package | None = None
    backend: str | None = None  # the name of torch's SDPBackend
    precisions: tuple[str, ...] = ("fp32", "fp16", "bf16")
    gone: str | None = None  # why it cannot run anywhere any more, with {torch} for the version
    cost: AttentionCost | None = None
    rehearsed: bool = False  # runs on tensors without numbers


_SHORT = ("fp16", "bf16")

# flash2 is torch's own FLASH_ATTENTION, which on CUDA is built from FlashAttention-2: no package to
# install, and the version is torch's. On a CPU it is torch's tiled kernel of the same algorithm.
ATTENTION: dict[str, Kernel] = {
    "math": Kernel(called="attention=math", cost="math", rehearsed=True),
    "fused_softmax": Kernel(
        called="attention=fused_softmax",
        package=Package(
            name="apex",
            module="apex.transformer.functional.fused_softmax",
            needed="apex built with --cuda_ext",
        ),
        precisions=_SHORT,
        cost="fused_softmax",
    ),
    "flash1": Kernel(
        called="attention=flash1",
        gone="flash-attn 1.0.9, which is built against torch < 2.1, not against torch {torch}",
        cost="flash1",
    ),
    "flash2": Kernel(
        called="attention=flash2", backend="FLASH_ATTENTION", cost="flash2", rehearsed=True
    ),
    "flash3": Kernel(
        called="attention=flash3",
        package=Package(
            name="flash-attn-3",
            module="flash_attn_interface",
            needed="flash-attn-3 >= 3.0 (Hopper)",
            capabilities=(9,),
        ),
        precisions=_SHORT,
        cost="flash3",
    ),
    "flash4": Kernel(
        called="attention=flash4",
        package=Package(
            name="flash-attn-4",
            module="flash_attn.cute",
            needed="flash-attn-4 >= 4.0 (Hopper, Blackwell)",
            capabilities=(9, 10, 11),
        ),
        precisions=_SHORT,
        cost="flash3",
    ),
    "cudnn": Kernel(called="attention=cudnn", backend="CUDNN_ATTENTION", cost="flash3"),
}


def _liger(axis: str, module: str) -> Kernel:
    package = Package(
        name="liger-kernel",
        module=f"liger_kernel.ops.{module}",
        needed="liger-kernel == 0.8.5 (with triton, on a GPU)",
        version="0.8.5",
    )
    return Kernel(called=axis, package=package)


# By the axis that turns it on.
FUSED: dict[str, Kernel] = {
    "fused_norm": _liger("fused_norm", "rms_norm"),
    "fused_rope": _liger("fused_rope", "rope"),
    "fused_mlp": _liger("fused_mlp", "swiglu"),
    "fused_cross_entropy": _liger("fused_cross_entropy", "fused_linear_cross_entropy"),
}
