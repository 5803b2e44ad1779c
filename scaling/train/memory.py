"""The most memory a rank has held, and the meter it was read from."""

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Bytes. `reserved` is what the caching allocator took from the driver; a CPU has none."""

    allocated: int
    reserved: int | None
    meter: str


def peak_memory(device: torch.device) -> PeakMemory:
    """The peak so far.

    On CUDA what the allocator handed out, building the model included: a layout that does not fit
    while it is built does not fit. On a CPU the largest resident set of the process, with the
    interpreter and torch in it; read from VmHWM because getrusage's figure survives an exec and
    would show the parent's memory where that is larger.
    """
    if device.type == "cuda":
        return PeakMemory(
            allocated=torch.cuda.max_memory_allocated(device),
            reserved=torch.cuda.max_memory_reserved(device),
            meter="cuda_allocator",
        )
    return PeakMemory(allocated=_largest_resident_set(), reserved=None, meter="process_rss")


def _largest_resident_set() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.removesuffix("kB")) * 1024  # the kernel's kB are 1024 bytes
    raise RuntimeError("/proc/self/status names no VmHWM, so peak memory cannot be read")
