"""Packages that kernels come in: whether they are here and can be called."""

import importlib
import importlib.metadata

import torch

from scaling.layout.kernels import Kernel
from scaling.train.failures import KernelUnavailable


def require_package(kernel: Kernel, device: torch.device) -> None:
    """Check that the kernel's package can be imported, and that there is a GPU for it.

    Raises:
        KernelUnavailable: it says what would bring it.
    """
    if kernel.gone is not None:
        gone = kernel.gone.format(torch=torch.__version__)
        raise KernelUnavailable(f"{kernel.called} needs {gone}")
    package = kernel.package
    if package is None:
        return
    needs = f"{kernel.called} needs {package.needed}"
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
