"""Facts about the machine, and limits that make NCCL or pinned memory fail late or strangely."""

import csv
import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scaling.check.lines import Line, not_here, pass_or_fail
from scaling.cluster.hardware import GIB
from scaling.cluster.node import near_cpus, nvidia_gpus
from scaling.probe.host_facts import GPU_FACTS, host_facts

_SECTION = "facts"
_LEAST_SHM = GIB  # NCCL's ranks of one node communicate through it
_LEAST_FILES = 4096  # a rank of a large world opens a socket to each of its peers
_MOST_FOREIGN = GIB // 4  # a driver or a display holds a little


def machine_facts(device: torch.device) -> dict[str, Any]:
    """The raw facts that a probe records, and the cores near each GPU."""
    return host_facts(device, first_on_host=True) | {
        "cpus": len(os.sched_getaffinity(0)),
        "numa_nodes": _numa_nodes(),
        "near_cpus": {gpu.bus_id: sorted(near_cpus(gpu.bus_id)) for gpu in nvidia_gpus()[0]},
    }


def fact_lines(
    facts: dict[str, Any], device: torch.device, foreign_bytes: int | None
) -> list[Line]:
    """Lines for the facts from `machine_facts`, and for the limits of this process.

    Other processes held `foreign_bytes` of the device before this one opened it.
    """
    listed = list(csv.reader((facts["gpus"] or "").splitlines()[1:], skipinitialspace=True))
    of_gpus = [dict(zip(GPU_FACTS, row, strict=True)) for row in listed]
    return [
        *_versions(facts),
        *_topology(facts),
        _clocks(of_gpus),
        _same("error correction (ECC)", [gpu["ecc.mode.current"] for gpu in of_gpus]),
        _memory_errors(of_gpus),
        *_limits(rdma=any(nic["kind"] == "rdma" for nic in facts["nics"])),
        _foreign(device, foreign_bytes),
    ]


def _versions(facts: dict[str, Any]) -> Iterator[Line]:
    for name in ("gpu_name", "driver_version", "cuda_version", "nccl_version", "torch_version"):
        fact = " ".join(str(facts[name] or "").split())
        yield _stated(name.replace("_", " "), fact, "this machine has none")
    cpus, nodes = facts["cpus"], facts["numa_nodes"]
    yield pass_or_fail(_SECTION, "cores", cpus, passes=cpus >= 1, said="that this process may use")
    if nodes is None:
        yield not_here(_SECTION, "NUMA nodes", "the kernel names none")
    else:
        yield pass_or_fail(_SECTION, "NUMA nodes", nodes, passes=True, said="of the host")


def _topology(facts: dict[str, Any]) -> Iterator[Line]:
    """The cores near each GPU, and the network devices."""
    near = facts["near_cpus"] if any(facts["near_cpus"].values()) else {}
    cores = ", ".join(f"{bus_id}: {_ranges(cpus)}" for bus_id, cpus in near.items())
    yield _stated("cores near each GPU", cores, "the kernel or NVML names none")
    nics = ", ".join(" ".join(filter(None, (nic["name"], nic["speed"]))) for nic in facts["nics"])
    yield _stated("network devices", nics, "the kernel names none")


def _stated(name: str, fact: str, why_not: str) -> Line:
    """A line for a fact that cannot be wrong; an empty one is not here."""
    if not fact:
        return not_here(_SECTION, name, why_not)
    return pass_or_fail(_SECTION, name, passes=True, said=fact)


def _clocks(of_gpus: Sequence[Mapping[str, str]]) -> Line:
    """The highest clock, which must be the same on all GPUs of a node, and the current clocks."""
    now = ", ".join(gpu["clocks.sm"] for gpu in of_gpus)
    return _same("highest clock in MHz", [gpu["clocks.max.sm"] for gpu in of_gpus], f"; now {now}")


def _same(name: str, values: Sequence[str], more: str = "") -> Line:
    """A line for a fact that must be the same on all GPUs of a node."""
    if not values:
        return not_here(_SECTION, name, "this machine has no GPU that nvidia-smi lists")
    distinct = sorted(set(values))
    sentence = f"{' and '.join(distinct)} of {len(values)} GPUs{more}"
    return pass_or_fail(_SECTION, name, passes=len(distinct) == 1, said=sentence)


def _memory_errors(of_gpus: Sequence[Mapping[str, str]]) -> Line:
    """Errors of all GPUs since the driver was loaded; a GPU with any needs a reset."""
    name = "uncorrected memory errors"
    counts = [gpu["ecc.errors.uncorrected.volatile.total"] for gpu in of_gpus]
    counted = [int(count) for count in counts if count.isdigit()]
    if not counted:
        return not_here(_SECTION, name, "no device here counts them")
    errors = sum(counted)
    return pass_or_fail(_SECTION, name, errors, passes=not errors, said="of all GPUs, at most 0")


def _limits(*, rdma: bool) -> Iterator[Line]:
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if memlock == resource.RLIM_INFINITY:
        yield pass_or_fail(_SECTION, "memory that may be pinned", passes=True, said="any")
    else:
        yield pass_or_fail(
            _SECTION, "memory that may be pinned", memlock / 2**20, "MiB", passes=not rdma,
            said="RDMA needs `ulimit -l unlimited`" if rdma else "no RDMA here needs more",
        )  # fmt: skip
    shm = shutil.disk_usage("/dev/shm").total
    yield pass_or_fail(
        _SECTION, "shared memory", shm / GIB, "GiB", passes=shm >= _LEAST_SHM,
        said=f"at least {_LEAST_SHM / GIB:.0f} GiB in /dev/shm, by which ranks of a node meet",
    )  # fmt: skip
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield pass_or_fail(
        _SECTION, "open files", files, passes=files >= _LEAST_FILES,
        said=f"at least {_LEAST_FILES}, a socket for every peer",
    )  # fmt: skip


def _foreign(device: torch.device, foreign_bytes: int | None) -> Line:
    name = "memory taken by others"
    if device.type == "cpu":
        return not_here(_SECTION, name, "this machine has no GPU")
    if foreign_bytes is None:
        return not_here(_SECTION, name, "NVML cannot say")
    free = foreign_bytes <= _MOST_FOREIGN
    return pass_or_fail(
        _SECTION, name, foreign_bytes / GIB, "GiB", passes=free,
        said=f"at most {_MOST_FOREIGN / GIB} GiB before this process opened the device",
    )  # fmt: skip


def _ranges(cpus: Sequence[int]) -> str:
    """`0-3,8` for 0, 1, 2, 3 and 8."""
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return ",".join(
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    )


def _numa_nodes() -> int | None:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None
