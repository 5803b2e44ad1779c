"""The software and the device under a rank."""

import importlib.metadata
import socket
from pathlib import Path

import torch

from scaling.layout.kernels import ATTENTION, FUSED
from scaling.layout.layout import Layout
from scaling.record.rank_files import Stack
from scaling.train.kernels.kernels import version_of


def stack_of(device: torch.device, layout: Layout) -> Stack:
    """What this rank runs on; of the kernels' packages those that the layout calls."""
    on_gpu = device.type == "cuda"
    fused = [kernel for axis, kernel in FUSED.items() if getattr(layout, axis)]
    return Stack(
        host=socket.gethostname(),
        torch_version=torch.__version__,
        # a part of the fingerprint: what another engine is does not part these rows
        deepspeed_version=(
            importlib.metadata.version("deepspeed") if layout.engine == "deepspeed" else None
        ),
        flash_attn_version=version_of(ATTENTION[layout.attention]),
        liger_kernel_version=next(filter(None, map(version_of, fused)), None),
        gpu_name=torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        driver_version=_driver_version() if on_gpu else None,
        cuda_version=torch.version.cuda if on_gpu else None,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
    )


def _cpu_name() -> str | None:
    """The model name the kernel gives the first CPU; Arm kernels give none."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return None


def _driver_version() -> str | None:
    """NVIDIA's driver; None where NVML cannot say, as on a GPU of another vendor."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
