"""Check that the kernels and software a point names are installed and run on this device."""

import importlib
import importlib.metadata

import torch

from scaling.layout.axes import Attention, Precision
from scaling.layout.engines import engine_module
from scaling.layout.kernels import ATTENTION, FUSED, NO_BIAS_GRADIENT, Kernel
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.attention import (
    DTYPES,
    attend,
    kernel_named_if_missing,
    select_flash,
)
from scaling.train.kernels.compiled import require_compiler
from scaling.train.kernels.fp8 import require_fp8


def require_kernels(shape: ModelShape, layout: Layout, device: torch.device) -> None:
    """Check every kernel the layout names, and its engine's software, before anything is built.

    Raises:
        KernelUnavailable: one is missing; the text says what is needed.
    """
    for sentence in engine_module(layout.engine, "refusals").missing_software(layout):
        raise KernelUnavailable(sentence)
    if layout.precision == "fp8":
        require_fp8(device)
    dtype = _required_dtype(layout.model_precision, device)
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
    require_attention(name, layout.model_precision, device)
    if shape.family == "t5":
        raise KernelUnavailable(NO_BIAS_GRADIENT.format(attention=name))
    with kernel_named_if_missing(name):
        # with gradients: some kernels have a forward for sizes that their backward lacks
        query, key = (
            torch.zeros(1, n, 16, shape.head_dim, dtype=dtype, device=device, requires_grad=True)
            for n in (shape.num_heads, shape.num_kv_heads)
        )
        attend(query, key, key, name)


def require_attention(attention: Attention, precision: Precision, device: torch.device) -> None:
    """Check that an attention kernel is installed and computes in this precision, and select it.

    Raises:
        KernelUnavailable: it is not, or does not; the text says what is needed.
    """
    kernel = ATTENTION[attention]
    if not kernel.runs:
        raise KernelUnavailable(f"{kernel.setting} is a label of published rows, not a kernel here")
    require_package(kernel, device)
    if precision not in kernel.precisions:
        supported = " and ".join(sorted(kernel.precisions))
        raise KernelUnavailable(f"{kernel.setting} computes in {supported}, not in {precision}")
    select_flash(kernel)


def require_package(kernel: Kernel, device: torch.device) -> None:
    """Check that a kernel's package can be imported and supports this device.

    Raises:
        KernelUnavailable: it cannot or does not; the text says what is needed.
    """
    package = kernel.package
    if package is None:
        return
    needs = f"{kernel.setting} needs {package.requirement}"
    installed = version_of(kernel)
    if installed is None:
        raise KernelUnavailable(f"{needs}; {package.name} is not installed")
    if device.type == "cpu":
        raise KernelUnavailable(f"{needs}; this rank runs on a CPU")
    if not installed.startswith(package.version):
        raise KernelUnavailable(f"{needs}; {package.name} is {installed} here")
    try:
        importlib.import_module(package.module)
    except ImportError as error:
        raise KernelUnavailable(
            f"{needs}; {package.name} {installed} cannot be imported: {error}"
        ) from error
    if not package.capabilities:
        return
    major, minor = torch.cuda.get_device_capability(device)
    if major not in package.capabilities:
        name = torch.cuda.get_device_name(device)
        raise KernelUnavailable(
            f"{needs}; {name} has compute capability {major}.{minor}, and it is built for "
            + " and ".join(f"{capability}.x" for capability in package.capabilities)
        )


def version_of(kernel: Kernel) -> str | None:
    """The installed version of this kernel's package; None without a package or if missing."""
    if kernel.package is None:
        return None
    try:
        return importlib.metadata.version(kernel.package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
