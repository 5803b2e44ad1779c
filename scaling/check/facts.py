"""What the machine is, and the limits under which NCCL and pinned memory fail late or oddly."""

import csv
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from scaling.check.lines import Line, held_to, not_here
from scaling.cluster.hardware import GIB
from scaling.probe.facts import GPU_FACTS, facts_of

_SECTION = "facts"
_LEAST_SHM = GIB  # NCCL's ranks of one node meet in it
_LEAST_FILES = 4096  # a rank of a large world opens a socket to each of its peers
_MOST_FOREIGN = GIB // 4  # a driver or a display keep a little


def machine(device: torch.device) -> dict[str, Any]:
    """The raw facts, as a probe keeps them."""
    return facts_of(device, first_on_host=True) | {"cpus": _cpus(), "numa_nodes": _numa_nodes()}


def fact_lines(
    facts: dict[str, Any], device: torch.device, foreign_bytes: int | None
) -> list[Line]:
    """Versions and limits, one line each.

    Args:
        facts: what `machine` gave.
        device: that is checked.
        foreign_bytes: what other processes held of it before this one opened it.
    """
    return [
        *_versions(facts),
        _memory_errors(facts["gpus"]),
        *_limits(rdma=any(nic["kind"] == "rdma" for nic in facts["nics"])),
        _foreign(device, foreign_bytes),
    ]


def _versions(facts: dict[str, Any]) -> Iterator[Line]:
    for name in ("gpu_name", "driver_version", "cuda_version", "nccl_version", "torch_version"):
        what = name.replace("_", " ")
        if facts[name] is None:
            yield not_here(_SECTION, what, "this machine has none")
        else:
            said = " ".join(str(facts[name]).split())
            yield Line(section=_SECTION, name=what, state="pass", said=said)
    cpus, nodes = facts["cpus"], facts["numa_nodes"]
    yield held_to(_SECTION, "cores", cpus, None, passes=cpus >= 1, said="that this process may use")
    if nodes is None:
        yield not_here(_SECTION, "NUMA nodes", "the kernel names none")
    else:
        yield held_to(_SECTION, "NUMA nodes", nodes, None, passes=True, said="of the host")


def _memory_errors(gpus: str | None) -> Line:
    """Of all GPUs since the driver was loaded; one that has any is to be reset or replaced."""
    name = "uncorrected memory errors"
    rows = [] if gpus is None else list(csv.reader(gpus.splitlines(), skipinitialspace=True))[1:]
    column = GPU_FACTS.index("ecc.errors.uncorrected.volatile.total")
    counted = [int(row[column]) for row in rows if row[column].isdigit()]
    if not counted:
        return not_here(_SECTION, name, "no device here counts them")
    errors = sum(counted)
    return held_to(_SECTION, name, errors, None, passes=not errors, said="of all GPUs, at most 0")


def _limits(*, rdma: bool) -> Iterator[Line]:
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = memlock == resource.RLIM_INFINITY
    if unlimited:
        yield Line(section=_SECTION, name="memory that may be pinned", state="pass", said="any")
    else:
        yield held_to(
            _SECTION, "memory that may be pinned", memlock / 2**20, "MiB", passes=not rdma,
            said="RDMA needs `ulimit -l unlimited`" if rdma else "no RDMA here needs more",
        )  # fmt: skip
    shm = shutil.disk_usage("/dev/shm").total
    yield held_to(
        _SECTION, "shared memory", shm / GIB, "GiB", passes=shm >= _LEAST_SHM,
        said=f"at least {_LEAST_SHM / GIB:.0f} GiB in /dev/shm, by which ranks of a node meet",
    )  # fmt: skip
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield held_to(
        _SECTION, "open files", files, None, passes=files >= _LEAST_FILES,
        said=f"at least {_LEAST_FILES}, a socket for every peer",
    )  # fmt: skip


def _foreign(device: torch.device, foreign_bytes: int | None) -> Line:
    name = "memory taken by others"
    if device.type == "cpu":
        return not_here(_SECTION, name, "this machine has no GPU")
    if foreign_bytes is None:
        return not_here(_SECTION, name, "NVML cannot say")
    free = foreign_bytes <= _MOST_FOREIGN
    return held_to(
        _SECTION, name, foreign_bytes / GIB, "GiB", passes=free,
        said=f"at most {_MOST_FOREIGN / GIB} GiB before this process opened the device",
    )  # fmt: skip


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _numa_nodes() -> int | None:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None
