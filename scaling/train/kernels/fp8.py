"""Matrix products of layers in 8 bits (arXiv 2209.05433): operands are cast for each product.

Between products weights, activations and gradients are bf16, as under `precision: bf16`; master
weights stay fp32. An operand is scaled so that its largest element is near the largest number of
its format: e4m3 for activations and weights, e5m2 with its wider range for gradients. Sums are in
fp32. This is plain torch, whose casts `compile` fuses; without it they are kernels of their own, so
engines refuse that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scaling.layout.axes import Fp8Scaling
from scaling.train.failures import KernelUnavailable

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_FORMAT, _GRADIENT_FORMAT = torch.float8_e4m3fn, torch.float8_e5m2
_LEAST_MAXIMUM = 1e-12  # so that a tensor of zeros has a scale too
_CAPABILITY = (8, 9)  # the first compute capability with 8-bit matrix units


def fp8_linear(scaling: Fp8Scaling) -> Linear:
    """A linear layer's product in 8 bits: x [..., k], weight [m, k], bias [m] -> [..., m].

    One scale per `tensor` or per `row` (the k elements of a sum). All sizes are multiples of 16.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = _Product.apply(rows, weight, scaling)  # type: ignore[no-untyped-call]
        out = out.view(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    return linear


def require_fp8(device: torch.device) -> None:
    """Check that the device has 8-bit products; CPUs of a new torch do, slowly.

    Raises:
        KernelUnavailable: it does not; the text says what is needed.
    """
    if device.type == "cpu":
        if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"):
            raise KernelUnavailable(
                f"precision=fp8 on a CPU needs a newer torch (2.13 can) than {torch.__version__}"
            )
        return
    if torch.version.hip is not None:
        raise KernelUnavailable("precision=fp8 is written for CUDA's formats, not for ROCm's")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < _CAPABILITY:
        raise KernelUnavailable(
            "precision=fp8 needs a GPU of compute capability >= 8.9, not "
            f"{torch.cuda.get_device_name(device)} ({major}.{minor})"
        )


class _Product(torch.autograd.Function):
    """x [n, k] and weight [m, k] -> [n, m]. Both are saved uncast, so ZeRO can free weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scaling: Fp8Scaling) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scaling = scaling
        return _times(x, weight, scaling, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, weight), (gradient,) = ctx.saved_tensors, gradients
        x_grad = _times(gradient, weight.t(), ctx.scaling, _GRADIENT_FORMAT)
        weight_grad = _times(gradient.t(), x.t(), ctx.scaling, _GRADIENT_FORMAT)
        return x_grad, weight_grad, None


def _times(
    a: Tensor,
    b: Tensor,
    scaling: Fp8Scaling,
    format_of_a: torch.dtype = _FORMAT,
    *,
    fast: bool = False,
) -> Tensor:
    """A [n, k] and b [m, k] -> [n, m], summed over k in fp32.

    Fast sums keep fewer bits between the units' own steps: enough for activations, as in
    TransformerEngine, not for gradients.
    """
    narrow_a, scale_a = _cast(a, format_of_a, scaling)
    narrow_b, scale_b = _cast(b, _FORMAT, scaling)
    # not functional.scaled_mm, at which torch 2.11 would break a compiled layer into pieces
    product: Tensor = torch._scaled_mm(
        narrow_a,
        narrow_b.t(),
        scale_a,
        scale_b.t(),
        out_dtype=a.dtype,
        use_fast_accum=fast and a.device.type == "cuda",
    )
    return product


def _cast(x: Tensor, format_: torch.dtype, scaling: Fp8Scaling) -> tuple[Tensor, Tensor]:
    """The contiguous tensor in 8 bits and its scale, which multiplies it back.

    Scales are powers of two: they divide bf16 without rounding and without a copy in fp32.
    """
    maximum = torch.linalg.vector_norm(
        x, torch.inf, None if scaling == "tensor" else 1, keepdim=scaling == "row"
    )
    ratio = maximum.float().clamp(min=_LEAST_MAXIMUM) / torch.finfo(format_).max
    scale = ratio.log2().ceil().exp2()
    return (x * scale.reciprocal().to(x.dtype)).to(format_).contiguous(), scale
