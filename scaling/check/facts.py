"""Facts about the machine: its devices, its meter, and limits that make NCCL fail late."""

import csv
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.cluster.hardware import GIB
from scaling.cluster.node import near_cpus, nvidia_gpus
from scaling.probe.host_facts import GPU_FACTS, host_facts
from scaling.train.measure.power import NvmlMeter, Sample, power_use

_LEAST_SHM = GIB  # NCCL's ranks of one node communicate through it
_LEAST_FILES = 4096  # a rank of a large world opens a socket to each of its peers
_MOST_FOREIGN = GIB // 4  # a driver or a display holds a little
_ENERGY_S = 5.0  # a counter is updated some ten times a second
_SAMPLE_EVERY_S = 0.05
_BEFORE_S = 1.5  # since Hopper the power that a device reports is the mean of its last second
_ENERGY_TOLERANCE = 0.05  # ratio


def machine_facts(device: torch.device) -> dict[str, Any]:
    """The raw facts that a probe records, and the cores near each GPU."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    return host_facts(device, first_on_host=True) | {
        "cpus": len(os.sched_getaffinity(0)),
        "numa_nodes": nodes or None,
        "near_cpus": {gpu.bus_id: sorted(near_cpus(gpu.bus_id)) for gpu in nvidia_gpus()[0]},
    }


def fact_lines(
    facts: dict[str, Any], device: torch.device, foreign_bytes: int | None
) -> Iterator[Line]:
    """Lines for the facts from `machine_facts`, and for the limits of this process.

    Other processes held `foreign_bytes` of the device before this one opened it.
    """
    for name in ("gpu_name", "driver_version", "cuda_version", "nccl_version", "torch_version"):
        fact = " ".join(str(facts[name] or "").split())
        yield _stated(name.replace("_", " "), fact, "this machine has none")
    yield _stated("cores", facts["cpus"], "")
    yield _stated("NUMA nodes", facts["numa_nodes"], "the kernel names none")
    near = [f"{gpu}: {_ranges(cpus)}" for gpu, cpus in facts["near_cpus"].items() if cpus]
    yield _stated("cores near each GPU", ", ".join(near), "the kernel or NVML names none")
    nics = [" ".join(filter(None, (nic["name"], nic["speed"]))) for nic in facts["nics"]]
    yield _stated("network devices", ", ".join(nics), "the kernel names none")
    listed = (facts["gpus"] or "").splitlines()
    yield from _gpu_lines([*csv.reader(listed[1:], skipinitialspace=True)])
    yield from _limits(rdma=any(nic["kind"] == "rdma" for nic in facts["nics"]))
    name = "memory taken by others"
    if device.type == "cpu" or foreign_bytes is None:
        why = "NVML cannot say" if device.type == "cuda" else "this machine has no GPU"
        yield not_here(name, why)
        return
    yield pass_or_fail(
        name, foreign_bytes / GIB, "GiB", passes=foreign_bytes <= _MOST_FOREIGN,
        said=f"at most {_MOST_FOREIGN / GIB} GiB before this process opened the device",
    )  # fmt: skip


def _stated(name: str, fact: object, why_not: str) -> Line:
    """A line for a fact that cannot be wrong; an empty one is not here."""
    return pass_or_fail(name, passes=True, said=str(fact)) if fact else not_here(name, why_not)


def _gpu_lines(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    """Facts that must be the same on all GPUs of a node, and their memory errors.

    Errors are those since the driver was loaded. A GPU with any needs a reset.
    """
    gpus = [dict(zip(GPU_FACTS, row, strict=True)) for row in rows]
    clocks = ", ".join(gpu["clocks.sm"] for gpu in gpus)
    for name, column, more in (
        ("highest clock in MHz", "clocks.max.sm", f"; now {clocks}"),
        ("error correction (ECC)", "ecc.mode.current", ""),
    ):
        values = sorted({gpu[column] for gpu in gpus})
        said = f"{' and '.join(values)} of {len(gpus)} GPUs{more}"
        alike = pass_or_fail(name, passes=len(values) == 1, said=said)
        yield alike if values else not_here(name, "this machine has no GPU that nvidia-smi lists")
    counts = [gpu["ecc.errors.uncorrected.volatile.total"] for gpu in gpus]
    counted = [int(count) for count in counts if count.isdigit()]
    name, errors = "uncorrected memory errors", sum(counted)
    line = pass_or_fail(name, errors, passes=not errors, said="of all GPUs, at most 0")
    yield line if counted else not_here(name, "no device here counts them")


def _limits(*, rdma: bool) -> Iterator[Line]:
    name, memlock = "memory that may be pinned", resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if memlock == resource.RLIM_INFINITY:
        yield pass_or_fail(name, passes=True, said="any")
    else:
        said = "RDMA needs `ulimit -l unlimited`" if rdma else "no RDMA here needs more"
        yield pass_or_fail(name, memlock / 2**20, "MiB", passes=not rdma, said=said)
    shm = shutil.disk_usage("/dev/shm").total
    said = f"at least {_LEAST_SHM / GIB:.0f} GiB in /dev/shm, by which ranks of a node meet"
    yield pass_or_fail("shared memory", shm / GIB, "GiB", passes=shm >= _LEAST_SHM, said=said)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    said = f"at least {_LEAST_FILES}, a socket for every peer"
    yield pass_or_fail("open files", files, passes=files >= _LEAST_FILES, said=said)


def _ranges(cpus: Sequence[int]) -> str:
    """`0-3,8` for 0, 1, 2, 3 and 8."""
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    spans = zip(starts, ends, strict=True)
    return ",".join(f"{start}-{end}" if end > start else str(start) for start, end in spans)


def energy_line(
    meter: NvmlMeter | None,
    busy: Callable[[], object],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Line:
    """Compare the energy counter with power integrated over five seconds of work."""
    name = "energy counter against power over time"
    if meter is None:
        return not_here(name, "no device here has a meter that NVML knows")

    def work(seconds: float) -> None:
        until = clock() + seconds
        while clock() < until:
            busy()

    work(_BEFORE_S)
    samples: list[tuple[float, Sample]] = []
    before, began = meter.energy_j(), clock()
    while clock() - began < _ENERGY_S:
        samples.append((clock(), meter.sample()))
        work(_SAMPLE_EVERY_S)
    after, seconds = meter.energy_j(), clock() - began
    by_power = power_use(samples, counted_j=None, seconds=seconds)["energy_j"]
    if before is None or after is None or not by_power:
        return not_here(name, "the device has no counter, or does not say its power")
    apart = abs((after - before) / by_power - 1)
    return pass_or_fail(
        name, apart, passes=apart <= _ENERGY_TOLERANCE,
        said=f"apart, at most {_ENERGY_TOLERANCE:g}: {after - before:.4g} and {by_power:.4g} J",
    )  # fmt: skip
