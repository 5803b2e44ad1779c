"""A rank's device and software, and whether the device is the one the study names."""

import importlib.metadata
import os
import re
from pathlib import Path

import torch

from scaling.cluster.hardware import GPUS, Gpu, gpu_named
from scaling.cluster.node import host_name, visible_devices
from scaling.layout.kernels import ATTENTION, FUSED
from scaling.layout.layout import Layout
from scaling.record.rank_files import Stack
from scaling.train.kernels.availability import version_of

# A driver keeps a little of a GPU's memory and counts in GiB, while data sheets may count in GB.
_LEAST_SHARE, _LARGEST_SHARE = 0.9, 1.05
# Boards of one chip differ in speed, and a MIG slice has fewer multiprocessors. The catalogue names
# cards by these words, server boards not.
_KINDS = ("pcie", "nvl", "mig")


def take_device(gpu: str, local_rank: int) -> torch.device:
    """The GPU of this rank, which is the catalogue's `gpu`; the CPU where that is `cpu`.

    Raises:
        RuntimeError: the study names a GPU and this rank has none or another.
    """
    if gpu == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        raise RuntimeError(
            f"the study says gpu {gpu!r}, and for local rank {local_rank} there is none: this "
            f"process sees {torch.cuda.device_count()} CUDA devices"
        )
    torch.cuda.set_device(local_rank)
    multiply_in_full_precision()
    if not all(entry.isdigit() for entry in visible_devices(os.environ) or []):
        del os.environ[
            "CUDA_VISIBLE_DEVICES"
        ]  # CUDA has read it, and an engine may accept only numbers
    device = torch.device("cuda", local_rank)
    properties = torch.cuda.get_device_properties(device)
    reason = gpu_mismatch(gpu_named(gpu), properties.name, properties.total_memory)
    if reason is not None:
        raise RuntimeError(reason)
    return device


def multiply_in_full_precision() -> None:
    """Multiply fp32 as fp32, also in NVIDIA's containers, whose environment turns TF32 on.

    An fp32 row or probe in TF32 would be compared with the peak of fp32.
    """
    torch.set_float32_matmul_precision("highest")


def gpu_mismatch(expected: Gpu, name: str, memory_bytes: int) -> str | None:
    """Why a device is not the catalogue's, in a sentence; None if it is.

    A rate over another GPU's peak would be a meaningless MFU. This compares the chip's name, the
    kind of board, and the memory.

    Args:
        expected: the catalogue's GPU.
        name: the device's, as the driver spells it, `NVIDIA A100-SXM4-80GB`.
        memory_bytes: the device's, as the driver counts it.
    """
    if _is_of(expected, name, memory_bytes):
        return None
    known = catalogued_gpu(name, memory_bytes)
    right = f"write gpu: {known} in" if known else "the catalogue has no such GPU to name in"
    return (
        f"the study says gpu {expected.name!r} and this rank has {name} with "
        f"{memory_bytes / 2**30:.0f} GiB: {right} its cluster's entry of config/clusters.yaml"
    )


def catalogued_gpu(name: str, memory_bytes: int) -> str | None:
    """The catalogue's name of a device, given as to `gpu_mismatch`; None if it has none."""
    return next((gpu.name for gpu in GPUS.values() if _is_of(gpu, name, memory_bytes)), None)


def _is_of(gpu: Gpu, name: str, memory_bytes: int) -> bool:
    """Whether a device is the catalogue's `gpu`."""
    if gpu.memory_bytes is None:
        return False
    chip = gpu.name.split("-")[0]
    same_chip = re.search(rf"(?<![a-z0-9]){chip}(?![a-z0-9])", name, re.IGNORECASE)
    same_kind = all((kind in name.lower()) == (kind in gpu.name) for kind in _KINDS)
    share = memory_bytes / gpu.memory_bytes
    return bool(same_chip) and same_kind and _LEAST_SHARE <= share <= _LARGEST_SHARE


def software_stack(device: torch.device, layout: Layout) -> Stack:
    """The device, host and software of this rank, with the kernel packages that the layout uses."""
    on_gpu = device.type == "cuda"
    fused = [kernel for axis, kernel in FUSED.items() if getattr(layout, axis)]
    packages = {
        kernel.package.name: version
        for kernel in (*ATTENTION.values(), *FUSED.values())
        if kernel.package is not None and (version := version_of(kernel)) is not None
    }
    return Stack(
        gpu_name=torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        driver_version=_driver_version() if on_gpu else None,
        cuda_version=torch.version.cuda if on_gpu else None,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        host=host_name(os.environ),
        torch_version=torch.__version__,
        # part of the fingerprint, so that only this engine's rows depend on it
        deepspeed_version=(
            importlib.metadata.version("deepspeed") if layout.engine == "deepspeed" else None
        ),
        flash_attn_version=version_of(ATTENTION[layout.attention]),
        liger_kernel_version=next(filter(None, map(version_of, fused)), None),
        kernel_packages=packages,
    )


def _cpu_name() -> str | None:
    """The first CPU's model name in /proc/cpuinfo; Arm kernels give none.

    Several threads are another device than the usual one: their rows are not averaged.
    """
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines)
    cpu = next((value.strip() for name, _, value in pairs if name.strip() == "model name"), None)
    threads = torch.get_num_threads()
    return cpu if threads == 1 else f"{cpu or 'CPU'}, {threads} threads of it a rank"


def _driver_version() -> str | None:
    """The version of NVIDIA's driver; None without NVML, as on another vendor's GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
