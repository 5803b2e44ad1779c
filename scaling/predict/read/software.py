"""Columns that software and GPU add to a layout: kernels, GEMM rates, bytes of a precision."""

from collections.abc import Mapping

import numpy as np

from scaling.arrays import Column, Flags, Floats, Strings
from scaling.cluster.hardware import Generation, Gpu
from scaling.layout.kernels import ATTENTION
from scaling.predict.read.features import Features
from scaling.predict.read.stacks import Stack

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


def with_software(
    f: Features, precision: Strings, attention: Strings, gpu: Gpu, stack: Stack
) -> Features:
    """The layouts with the kernels and rates that this software and GPU give them."""
    # LayerNorm (of models without a gated mlp) is one kernel in torch; Inductor makes one of any
    fused_norm = f.fused_norm | f.compile | (f.mlp_inputs < 2) | stack.fused_norms
    return f.but(
        **_attention(attention, gpu, stack),
        **_precision_costs(precision, f.compile, stack),
        **_rates(precision, gpu),
        fused_norm=fused_norm,
        element_bytes=np.where(precision == "fp32", 4.0, 2.0),
        bf16=(precision != "fp32") & (precision != "fp16"),
    )


def _attention(attention: Strings, gpu: Gpu, stack: Stack) -> dict[str, Column]:
    """The attention kernel whose costs apply, which software may choose itself."""
    kernel = costed_as(attention)
    if stack.newest_flash:
        kernel = np.where(np.isin(kernel, ["flash1", "flash2"]), "flash3", kernel)
    return {
        "math": (kernel == "math").astype(bool),
        "fused_softmax": (kernel == "fused_softmax").astype(bool),
        "flash1": (kernel == "flash1").astype(bool),
        "flash_gain": flash_gain(kernel, gpu),
    }


# Precisions of the layers' GEMMs only; attention and head then run in bf16.
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")

# Bytes this project's engines move per element (scaling/train/kernels/fp8.py), eager: 2 read for
# the scale, 2 read and 2 written to apply it, 2 read and 1 written to cast. Backward does the same
# again and transposes (2). Compiled: 2 read for the scale, 2 read and 1 written, both ways. Other
# software's casts change no published step by more than chance.
_OWN_CAST_BYTES, _OWN_CAST_BYTES_COMPILED = 9.0 + 9.0 + 2.0, 5.0 + 5.0


def _precision_costs(precision: Strings, compiled: Flags, stack: Stack) -> dict[str, Column]:
    """Bytes per element of casts and of saved inputs, (n,) each.

    Compiled nothing is kept that is cast: Inductor computes norms and products of gates again.
    """
    cast = np.isin(precision, LOW_PRECISIONS) & stack.casts_as_read
    moved = np.where(compiled, _OWN_CAST_BYTES_COMPILED, _OWN_CAST_BYTES)
    return {
        "cast_bytes": np.where(cast, moved, 0.0),
        "saved_bytes": np.where(cast & compiled, 0.0, 2.0),
    }


def _rates(precision: Strings, gpu: Gpu) -> dict[str, Column]:
    """FLOP/s of each row's precision, (n,) each: sustained outside and inside GEMMs, and stated."""
    by_name = {
        name: (
            gpu.sustained("bf16" if name in LOW_PRECISIONS else name),
            gpu.sustained(name),
            gpu.peaks.get(name),
        )
        for name in set(precision.tolist())
    }
    table = np.array([by_name[name] for name in precision.tolist()], dtype=np.float64).reshape(
        -1, 3
    )
    return {"peak": table[:, 0], "gemm_peak": table[:, 1], "stated_peak": table[:, 2]}
