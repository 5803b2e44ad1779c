"""Matrix products of layers in 8 bits (arXiv 2209.05433): operands are cast for each product.

Between products weights, activations and gradients are bf16, as under `precision: bf16`; master
weights stay fp32. An operand is scaled so that its largest element is near the largest number of
its format: e4m3 for activations and weights, e5m2 with its wider range for gradients. Sums are in
fp32. This is plain torch: on a GPU the casts are kernels of their own unless `compile` fuses them.

`block` is MXFP8 (OCP Microscaling Formats 1.0, section 5.2): every 32 elements along the summed
dimension share a power-of-two scale, and all operands are e4m3. Its products need a Blackwell GPU,
where they have not been run. A CPU multiplies the dequantized blocks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scaling.layout.axes import Fp8Scaling
from scaling.train.failures import KernelUnavailable

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_FORMAT, _GRADIENT_FORMAT = torch.float8_e4m3fn, torch.float8_e5m2
_LEAST_MAXIMUM = 1e-12  # so that a tensor of zeros has a scale too
# the first compute capabilities with 8-bit matrix units, and with units that read block scales
_CAPABILITY, _BLOCK_CAPABILITY = (8, 9), (10, 0)
_BLOCK = 32  # elements that share a scale
_LARGEST_EXPONENT = 8  # of e4m3
_SCALE_EXPONENT = 127  # e8m0 holds 2^-127 to 2^127


def fp8_linear(scaling: Fp8Scaling) -> Linear:
    """A linear layer's product in 8 bits: x [..., k], weight [m, k], bias [m] -> [..., m].

    One scale per `tensor`, per `row` (the k elements of a sum) or per `block` of 32 elements. All
    sizes must be multiples of 16, with `block` of 32.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = _Product.apply(rows, weight, scaling)  # type: ignore[no-untyped-call]
        out = out.view(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    return linear


def require_fp8(device: torch.device, scaling: Fp8Scaling) -> None:
    """Check that the device has 8-bit products with this scaling; CPUs of a new torch do, slowly.

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
    capability = torch.cuda.get_device_capability(device)
    least = _BLOCK_CAPABILITY if scaling == "block" else _CAPABILITY
    if capability < least:
        by_blocks = " with fp8_scaling=block" if scaling == "block" else ""
        raise KernelUnavailable(
            f"precision=fp8{by_blocks} needs a GPU of compute capability >= "
            f"{least[0]}.{least[1]}, not "
            f"{torch.cuda.get_device_name(device)} ({capability[0]}.{capability[1]})"
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
    if scaling == "block":
        return _times_in_blocks(a, b)
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


def _times_in_blocks(a: Tensor, b: Tensor) -> Tensor:
    (narrow_a, scale_a), (narrow_b, scale_b) = to_mxfp8(a), to_mxfp8(b)
    if a.device.type == "cpu":
        wide_a, wide_b = (
            (narrow.float().unflatten(-1, (-1, _BLOCK)) * scale.float().unsqueeze(-1)).flatten(1)
            for narrow, scale in ((narrow_a, scale_a), (narrow_b, scale_b))
        )
        wide: Tensor = wide_a @ wide_b.t()
        return wide.to(a.dtype)
    kind, order = functional.ScalingType.BlockWise1x32, functional.SwizzleType.SWIZZLE_32_4_4
    product: Tensor = functional.scaled_mm(
        narrow_a, narrow_b.t(), swizzle_scales(scale_a), kind, swizzle_scales(scale_b), kind,
        swizzle_a=order, swizzle_b=order, output_dtype=a.dtype,
    )  # fmt: skip
    return product


def to_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize [n, k] to e4m3 [n, k] with scales e8m0 [n, k / 32] that multiply it back.

    A block's largest element gets the largest exponent of e4m3, and numbers beyond e4m3's largest,
    448, are clamped to it (section 6.3 of the specification).
    """
    blocks = x.float().unflatten(-1, (-1, _BLOCK))
    maximum = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(maximum).exponent - 1 - _LARGEST_EXPONENT  # frexp's mantissa is below 1
    scale = exponent.clamp(-_SCALE_EXPONENT, _SCALE_EXPONENT).float().exp2()
    largest = torch.finfo(_FORMAT).max
    narrow = (blocks / scale).clamp(-largest, largest).to(_FORMAT)
    scales = scale.squeeze(-1).to(torch.float8_e8m0fnu)
    return narrow.flatten(1).contiguous(), scales.contiguous()


def swizzle_scales(scales: Tensor) -> Tensor:
    """Scales [n, k / 32] in the order in which the matrix units read them, padded with zeros.

    Tiles of 128 rows by 4 columns follow one another. Within a tile, row 32 i + j begins at
    16 j + 4 i (cuBLAS, "1D block scaling factors layout").
    """
    rows, columns = scales.shape
    padded = functional.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = padded.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, 4))
    ordered: Tensor = tiles.permute(0, 3, 2, 1, 4).flatten()
    return ordered.view(torch.float8_e8m0fnu)
