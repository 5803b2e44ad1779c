"""Matrix products of layers in 8 bits (arXiv 2209.05433): operands are cast as they are read.

Weights, activations and gradients are bf16 between products, as under `precision: bf16`; masters
stay fp32. An operand is scaled so that its largest element is near the largest of its format: e4m3
for activations and weights, e5m2 for gradients, whose range is wider. Sums are in fp32. Plain
torch: on a GPU the casts are kernels of their own until `compile` joins them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from scaling.layout.axes import Fp8Scaling
from scaling.train.failures import KernelUnavailable

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

_FORMAT, _OF_GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
_SMALLEST = 1e-12  # of what a scale divides by: a tensor of zeros has a scale too
_CAPABILITY = (8, 9)  # the first of CUDA's with 8-bit matrix units


def linear_of(scaling: Fp8Scaling) -> Linear:
    """A product [..., k] x [m, k] + [m] -> [..., m], with a scale for each `tensor` or `row`.

    A row is what one element of the result sums over. n, m and k must be multiples of 16.
    """

    def linear(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out: torch.Tensor = _Product.apply(rows, weight, scaling)  # type: ignore[no-untyped-call]
        out = out.view(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    return linear


def require_eight_bits(device: torch.device) -> None:
    """Check that the device multiplies in 8 bits; a CPU does, slowly, where torch is new enough.

    Raises:
        KernelUnavailable: it says what would.
    """
    if device.type == "cpu":
        if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"):
            raise KernelUnavailable(
                f"precision=fp8 on a CPU needs a newer torch (2.13 can) than {torch.__version__}"
            )
        return
    if torch.version.hip is not None:
        raise KernelUnavailable("precision=fp8 is written for CUDA's formats, not for ROCm's")
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY:
        raise KernelUnavailable(
            "precision=fp8 needs a GPU of compute capability >= 8.9, not "
            f"{torch.cuda.get_device_name(device)} ({capability[0]}.{capability[1]})"
        )


class _Product(torch.autograd.Function):
    """[n, k] and weight [m, k] -> [n, m]; both are kept as they came, so ZeRO can free weights."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, scaling: Fp8Scaling
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scaling = scaling
        return _times(x, weight, scaling)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (x, weight), (gradient,) = ctx.saved_tensors, gradients
        of_x = _times(gradient, weight.t(), ctx.scaling, _OF_GRADIENTS)
        of_weight = _times(gradient.t(), x.t(), ctx.scaling, _OF_GRADIENTS)
        return of_x, of_weight, None


def _times(
    a: torch.Tensor, b: torch.Tensor, scaling: Fp8Scaling, format_of_a: torch.dtype = _FORMAT
) -> torch.Tensor:
    """[n, k] and [m, k] -> [n, m], the sums over k in fp32."""
    kind = (
        functional.ScalingType.TensorWise if scaling == "tensor" else functional.ScalingType.RowWise
    )
    narrow_a, scale_a = _cast(a, format_of_a, scaling)
    narrow_b, scale_b = _cast(b, _FORMAT, scaling)
    product: torch.Tensor = functional.scaled_mm(
        narrow_a, narrow_b.t(), scale_a, kind, scale_b.t(), kind, output_dtype=a.dtype
    )
    return product


def _cast(
    x: torch.Tensor, format_: torch.dtype, scaling: Fp8Scaling
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in 8 bits, row after row, and what its elements are to be multiplied by.

    A scale is a power of two, by which bf16 is divided without rounding and without a copy in fp32.
    """
    most = torch.linalg.vector_norm(
        x, torch.inf, None if scaling == "tensor" else 1, keepdim=scaling == "row"
    )
    ratio = most.float().clamp(min=_SMALLEST) / torch.finfo(format_).max
    scale = ratio.log2().ceil().exp2()
    return (x * scale.reciprocal().to(x.dtype)).to(format_).contiguous(), scale
