"""The kernels and software a point names: each is there, or a sentence says why it is not."""

import importlib
import importlib.metadata

import torch

from scaling.layout.axes import Attention, Precision
from scaling.layout.engines import engine_module
from scaling.layout.kernels import ATTENTION, FUSED, NO_BIAS_GRADIENT, Kernel
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.train.failures import KernelUnavailable
from scaling.train.kernels.attention import DTYPES, attend, named_if_unavailable
from scaling.train.kernels.compiled import require_compiler
from scaling.train.kernels.eight_bits import require_eight_bits


def require_kernels(shape: ModelShape, layout: Layout, device: torch.device) -> None:
    """Check every kernel the layout names, and its engine's software, before anything is built.

    Raises:
        KernelUnavailable: one of them is not there; it says what would bring it.
    """
    for sentence in engine_module(layout.engine, "refusals").missing_software(layout):
        raise KernelUnavailable(sentence)
    if layout.precision == "fp8":
        require_eight_bits(device, layout.fp8_scaling)
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
    with named_if_unavailable(name):
        query = torch.zeros(1, shape.num_heads, 16, shape.head_dim, dtype=dtype, device=device)
        key = torch.zeros(1, shape.num_kv_heads, 16, shape.head_dim, dtype=dtype, device=device)
        attend(query, key, key, name)


def require_attention(attention: Attention, precision: Precision, device: torch.device) -> None:
    """Check that the package of a kernel is here and computes in this precision.

    Raises:
        KernelUnavailable: it does not; the text says what would.
    """
    kernel = ATTENTION[attention]
    require_package(kernel, device)
    if precision not in kernel.precisions:
        able = " and ".join(sorted(kernel.precisions))
        raise KernelUnavailable(f"{kernel.setting} computes in {able}, not in {precision}")


def require_package(kernel: Kernel, device: torch.device) -> None:
    """Check that the kernel's package can be imported, and that there is a GPU for it.

    Raises:
        KernelUnavailable: it says what would bring it.
    """
    if kernel.obsolete is not None:
        gone = kernel.obsolete.format(torch=torch.__version__)
        raise KernelUnavailable(f"{kernel.setting} needs {gone}")
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
    capability = torch.cuda.get_device_capability(device)
    if capability[0] not in package.capabilities:
        name, (major, minor) = torch.cuda.get_device_name(device), capability
        raise KernelUnavailable(
            f"{needs}; {name} has compute capability {major}.{minor}, and it is built for "
            + " and ".join(f"{one}.x" for one in package.capabilities)
        )


def version_of(kernel: Kernel) -> str | None:
    """The installed version of this kernel's package, None where it needs or finds none."""
    if kernel.package is None:
        return None
    try:
        return importlib.metadata.version(kernel.package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
