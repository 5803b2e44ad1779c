"""Matrix products of layers in 8 bits (arXiv 2209.05433): operands are cast as they are read.

Weights, activations and gradients are bf16 between products, as under `precision: bf16`; masters
stay fp32. An operand is scaled so that its largest element is near the largest of its format: e4m3
for activations and weights, e5m2 for gradients, whose range is wider. Sums are in fp32. Plain
torch: on a GPU the casts are kernels of their own until `compile` joins them.

`block` is MXFP8 (OCP Microscaling Formats 1.0, section 5.2): every 32 elements that are summed have
a power of two of their own, so all operands are e4m3. Its products need a Blackwell, where they
have not been run; a CPU multiplies what the blocks stand for.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scaling.layout.axes import Fp8Scaling
from scaling.train.failures import KernelUnavailable

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_FORMAT, _OF_GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
_SMALLEST = 1e-12  # of what a scale divides by: a tensor of zeros has a scale too
# the first of CUDA's with 8-bit matrix units, and with units that read scales of blocks
_CAPABILITY, _OF_BLOCKS = (8, 9), (10, 0)
_BLOCK = 32  # elements that share a scale
_LARGEST_EXPONENT = 8  # of e4m3
_SCALES = 127  # e8m0 holds 2^-127 to 2^127


def fp8_linear(scaling: Fp8Scaling) -> Linear:
    """A product [..., k] x [m, k] + [m] -> [..., m], by a scale of a `tensor`, `row` or `block`.

    A row is what one element of the result sums over. n, m and k must be multiples of 16, of 32
    where scales are of blocks.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = _Product.apply(rows, weight, scaling)  # type: ignore[no-untyped-call]
        out = out.view(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    return linear


def require_fp8(device: torch.device, scaling: Fp8Scaling) -> None:
    """Check that the device multiplies in 8 bits scaled so; a new torch's CPU does, slowly.

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
    least = _OF_BLOCKS if scaling == "block" else _CAPABILITY
    if capability < least:
        by_blocks = " with fp8_scaling=block" if scaling == "block" else ""
        raise KernelUnavailable(
            f"precision=fp8{by_blocks} needs a GPU of compute capability >= "
            f"{least[0]}.{least[1]}, not "
            f"{torch.cuda.get_device_name(device)} ({capability[0]}.{capability[1]})"
        )


class _Product(torch.autograd.Function):
    """[n, k] and weight [m, k] -> [n, m]; both are kept as they came, so ZeRO can free weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scaling: Fp8Scaling) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scaling = scaling
        return _times(x, weight, scaling)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, weight), (gradient,) = ctx.saved_tensors, gradients
        of_x = _times(gradient, weight.t(), ctx.scaling, _OF_GRADIENTS)
        of_weight = _times(gradient.t(), x.t(), ctx.scaling, _OF_GRADIENTS)
        return of_x, of_weight, None


def _times(a: Tensor, b: Tensor, scaling: Fp8Scaling, format_of_a: torch.dtype = _FORMAT) -> Tensor:
    """[n, k] and [m, k] -> [n, m], the sums over k in fp32."""
    if scaling == "block":
        return _times_in_blocks(a, b)
    kind = (
        functional.ScalingType.TensorWise if scaling == "tensor" else functional.ScalingType.RowWise
    )
    narrow_a, scale_a = _cast(a, format_of_a, scaling)
    narrow_b, scale_b = _cast(b, _FORMAT, scaling)
    product: Tensor = functional.scaled_mm(
        narrow_a, narrow_b.t(), scale_a, kind, scale_b.t(), kind, output_dtype=a.dtype
    )
    return product


def _cast(x: Tensor, format_: torch.dtype, scaling: Fp8Scaling) -> tuple[Tensor, Tensor]:
    """The tensor in 8 bits, row after row, and what its elements are to be multiplied by.

    A scale is a power of two, by which bf16 is divided without rounding and without a copy in fp32.
    """
    most = torch.linalg.vector_norm(
        x, torch.inf, None if scaling == "tensor" else 1, keepdim=scaling == "row"
    )
    ratio = most.float().clamp(min=_SMALLEST) / torch.finfo(format_).max
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
    """[n, k] -> e4m3 [n, k], and what every 32 of them are to be multiplied by, e8m0 [n, k / 32].

    A block's largest element gets the largest exponent of e4m3; what then lies beyond its largest
    number, 448, becomes that (section 6.3 of the specification).
    """
    blocks = x.float().unflatten(-1, (-1, _BLOCK))
    most = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(most).exponent - 1 - _LARGEST_EXPONENT  # frexp's mantissa is below 1
    scale = exponent.clamp(-_SCALES, _SCALES).float().exp2()
    largest = torch.finfo(_FORMAT).max
    narrow = (blocks / scale).clamp(-largest, largest).to(_FORMAT)
    scales = scale.squeeze(-1).to(torch.float8_e8m0fnu)
    return narrow.flatten(1).contiguous(), scales.contiguous()


def swizzle_scales(scales: Tensor) -> Tensor:
    """Scales [n, k / 32] in the order in which the matrix units read them, zeros beyond them.

    Tiles of 128 rows by 4 columns, one after another; in a tile row 32 i + j lies at 16 j + 4 i
    (cuBLAS, "1D block scaling factors layout").
    """
    rows, columns = scales.shape
    padded = functional.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = padded.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, 4))
    ordered: Tensor = tiles.permute(0, 3, 2, 1, 4).flatten()
    return ordered.view(torch.float8_e8m0fnu)
