"""The kernels and software a point names: each is there, or a sentence says why it is not."""

import torch

from scaling.layout.axes import Precision
from scaling.layout.engines import engine_module
from scaling.layout.kernels import FUSED, NO_BIAS_GRADIENT
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.attention import DTYPES, attend, named_if_unavailable, require_attention
from scaling.train.kernels.compiled import require_compiler
from scaling.train.kernels.eight_bits import require_eight_bits
from scaling.train.kernels.packages import require_package


def require_kernels(shape: ModelShape, layout: Layout, device: torch.device) -> None:
    """Check every kernel the layout names, and its engine's software, before anything is built.

    Raises:
        KernelUnavailable: one of them is not there; it says what would bring it.
    """
    for sentence in engine_module(layout.engine, "refusals").missing_software(layout):
        raise KernelUnavailable(sentence)
    if layout.precision == "fp8":
        require_eight_bits(device, layout.fp8_scaling)
    dtype = _required_dtype(layout.flow_precision, device)
    _require_attention(shape, layout, dtype, device)
    for axis, kernel in FUSED.items():
        if getattr(layout, axis):
            require_package(kernel, device)
    if layout.compile:
        require_compiler(device)


def _required_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "fp16" and device.type == "cpu":
        raise KernelUnavailable("precision=fp16 needs a CUDA device: the engine has none on a CPU")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise KernelUnavailable(
            "precision=bf16 needs a GPU of compute capability >= 8.0, not "
            + torch.cuda.get_device_name(device)
        )
    return DTYPES[precision]


def _require_attention(
    shape: ModelShape, layout: Layout, dtype: torch.dtype, device: torch.device
) -> None:
    name = layout.attention
    if name == "math":
        return
    require_attention(name, layout.flow_precision, device)
    if shape.family == "t5":
        raise KernelUnavailable(NO_BIAS_GRADIENT.format(attention=name))
    with named_if_unavailable(name):
        query = torch.zeros(1, shape.num_heads, 16, shape.head_dim, dtype=dtype, device=device)
        key = torch.zeros(1, shape.num_kv_heads, 16, shape.head_dim, dtype=dtype, device=device)
        attend(query, key, key, name)
