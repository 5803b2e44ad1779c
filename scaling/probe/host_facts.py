"""Facts about a host: devices, driver, libraries, NICs, and how the devices are connected."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from scaling.cluster.node import host_name

_TIMEOUT_S = 30.0
# nvidia-smi's names; with one that the driver does not know the whole query fails
GPU_FACTS = (
    "index", "uuid", "clocks.sm", "clocks.max.sm", "memory.used", "memory.total",
    "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "mig.mode.current",
)  # fmt: skip


def host_facts(device: torch.device, *, first_on_host: bool) -> dict[str, Any]:
    """Facts about the host and this rank's device; None for what it does not have.

    Only the first rank on a host reads the facts that its ranks share.
    """
    on_gpu = device.type == "cuda"
    facts: dict[str, Any] = {
        "host": host_name(os.environ),
        "device": device.index if on_gpu else None,
        "gpu_name": torch.cuda.get_device_name(device) if on_gpu else None,
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
    }
    if first_on_host:
        facts |= {
            "kernel": platform.release(),
            "torch_version": torch.__version__,
            "cuda_version": torch.version.cuda,
            "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
            "driver_version": _output_of(
                "nvidia-smi", "--query-gpu=driver_version", "--format=csv"
            ),
            "gpus": _output_of(
                "nvidia-smi", f"--query-gpu={','.join(GPU_FACTS)}", "--format=csv,nounits"
            ),
            "topology": _output_of("nvidia-smi", "topo", "-m"),
            "nics": network_devices(Path("/sys/class")),
        }
    return facts


def network_devices(classes: Path) -> list[dict[str, str]]:
    """Network devices except the loopback, with the speed the kernel reports, "" where it does not.

    RDMA devices are in /sys/class/infiniband (InfiniBand, RoCE, EFA), others in /sys/class/net.
    """
    devices = []
    for device in sorted((classes / "infiniband").glob("*")):
        rates = [_text(port / "rate") for port in sorted((device / "ports").glob("*"))]
        devices.append(
            {"name": device.name, "kind": "rdma", "speed": ", ".join(filter(None, rates))}
        )
    for device in sorted((classes / "net").glob("*")):
        if device.name != "lo":
            mbit = _text(device / "speed")
            speed = f"{mbit} Mb/sec" if mbit.isdigit() else ""  # a virtual device reports -1
            devices.append({"name": device.name, "kind": "net", "speed": speed})
    return devices


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a device that is down reports no speed
        return ""


def _output_of(*command: str) -> str | None:
    """A program's output; None if it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:  # a broken driver
        return None
    return result.stdout.strip() if result.returncode == 0 else None
