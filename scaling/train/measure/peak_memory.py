"""Memory of a rank: its peak, what other processes hold, and what no allocator counts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from scaling.cluster.hardware import GIB
from scaling.train.failures import is_out_of_memory, without_wrapping
from scaling.train.measure.power import meter_of

_WORTH_NAMING = GIB // 4  # a driver or a display holds a little of an idle GPU


def peak_memory(device: torch.device) -> dict[str, Any]:
    """The row's columns of the peak so far, building the model included: it must fit too.

    On CUDA what the allocator handed out. On a CPU the largest resident set of the process, the
    interpreter and torch included. It is read from VmHWM, because getrusage's figure survives an
    exec and would show the parent's memory where that is larger.
    """
    if device.type == "cuda":
        return {
            "peak_memory_bytes": torch.cuda.max_memory_allocated(device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
            "memory_meter": "cuda_allocator",
        }
    peak = _largest_resident_set()
    return {"peak_memory_bytes": peak, "peak_reserved_bytes": None, "memory_meter": "process_rss"}


def allocator_trouble(device: torch.device) -> dict[str, int]:
    """How often the allocator asked the driver again and ran out; empty on a CPU."""
    if device.type != "cuda":
        return {}
    counts = torch.cuda.memory_stats(device)
    return {name: counts[name] for name in ("num_alloc_retries", "num_ooms")}


def foreign_memory(local_rank: int) -> int | None:
    """Bytes of a GPU that other processes hold; None where NVML cannot say.

    Call it before this process opens the device. NVML makes no context there, while mem_get_info
    would make one and count it.
    """
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        return None  # take_device raises the error
    meter = meter_of(torch.device("cuda", local_rank))
    return None if meter is None else meter.memory_used()


def library_memory(device: torch.device, foreign_bytes: int | None) -> int | None:
    """Bytes outside torch's allocator and other processes: NCCL, the CUDA context, libraries.

    None on a CPU, and where it is unknown what other processes held.
    """
    if device.type != "cuda" or foreign_bytes is None:
        return None
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device) - foreign_bytes)


@contextlib.contextmanager
def note_foreign_memory(foreign_bytes: int | None) -> Iterator[None]:
    """Add to an out-of-memory error what others held: an empty card might hold the point."""
    try:
        yield
    except BaseException as error:
        cause = without_wrapping(error)
        if is_out_of_memory(cause) and foreign_bytes is not None and foreign_bytes > _WORTH_NAMING:
            cause.add_note(
                f"({foreign_bytes / GIB:.1f} GiB of the GPU were taken by other processes before "
                "this rank began)"
            )
        raise


def _largest_resident_set() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.removesuffix("kB")) * 1024  # the kernel's kB are 1024 bytes
    raise RuntimeError("/proc/self/status names no VmHWM, so peak memory cannot be read")
