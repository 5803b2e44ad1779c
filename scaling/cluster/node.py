"""The node of this process: its GPUs, the cores near them, its network, and its ranks.

`bind_rank` must run before torch is imported, which reads thread counts from the environment.
"""

import contextlib
import os
import re
import resource
import socket
import stat
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

NODE_NAME = "SLURMD_NODENAME"  # in a job: what Slurm calls the node of a process
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ANY_PORT = 9  # discard: connecting a datagram socket sends nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpu:
    """A GPU as NVML lists it: in the order of CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    `bus_id` is spelled as in /sys/bus/pci/devices.
    """

    uuid: str
    bus_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankId:
    """Which rank a process is. `master` is the address of rank 0's machine."""

    rank: int
    local_rank: int
    world_size: int
    master: str


def is_on_a_node(environment: Mapping[str, str]) -> bool:
    """Whether a process of a job runs on one of its nodes, not where its `salloc` was called."""
    return NODE_NAME in environment


def host_name(environment: Mapping[str, str]) -> str:
    """The name of this host; in a job Slurm's, as sbatch excludes no `hostname` with a domain."""
    return environment.get(NODE_NAME) or socket.gethostname()


def nvidia_gpus() -> tuple[list[NvidiaGpu], str | None]:
    """The NVIDIA GPUs of this node; where NVML fails, none and its reason."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            count = range(pynvml.nvmlDeviceGetCount())
            return [_nvidia_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in count], None
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return [], str(error)


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG slices; None if it is not set.

    Like CUDA, it ignores everything from the first invalid entry on, such as Slurm's `NoDevFiles`.
    """
    if _VISIBLE not in environment:
        return None
    entries = []
    for entry in environment[_VISIBLE].split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", entry.strip()):
            break
        entries.append(entry.strip())
    return entries


def as_indices(entries: Sequence[str], present: Sequence[NvidiaGpu]) -> list[str]:
    """The entries with UUIDs replaced by indices, for engines that read no UUIDs (MIG stays)."""
    indices = []
    for entry in entries:
        matches = [n for n, gpu in enumerate(present) if entry[:4] == "GPU-" and entry in gpu.uuid]
        indices.append(str(matches[0]) if len(matches) == 1 else entry)
    return indices


def near_cpus(bus_id: str, root: Path = Path("/")) -> frozenset[int]:
    """The logical CPUs on the NUMA node of a PCI device; empty if the kernel reports none."""
    device = root / "sys/bus/pci/devices" / bus_id
    try:
        if int((device / "numa_node").read_text()) < 0:
            return frozenset()
        return _parse_cpu_list((device / "local_cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()


def rank_threads(
    environment: Mapping[str, str], usable_cpus: int, node_cpus: int, local_ranks: int
) -> int:
    """Threads of a rank on a GPU: its share of the node's cores, at most those it may use.

    `SCALING_THREADS` overrides this. OMP_NUM_THREADS does not, because Snakemake sets it to all
    cores of the machine for every job.
    """
    if stated := environment.get("SCALING_THREADS"):
        return int(stated)
    return max(1, min(usable_cpus, node_cpus // local_ranks))


def interface_to(master: str) -> str | None:
    """The network interface through which this node reaches `master`; None if it is this node."""
    try:
        family, _, _, _, address = socket.getaddrinfo(master, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            local_address = probe.getsockname()[0]
    except OSError:
        return None
    if local_address.startswith("127.") or local_address == "::1":
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.split("%")[0] == local_address for address in addresses):
            return name
    return None


def compile_cache(disk: Path) -> Path:
    """A folder for compiled kernels that only this user can write to, since ranks run them.

    On this node's disk; in the home if somebody else has made that folder.
    """
    folder = disk / f"scaling-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.getuid()
            and not found.st_mode & 0o077
        ):
            return folder
    return Path.home() / ".cache" / "scaling"


def bind_rank(environment: MutableMapping[str, str], *, on_gpu: bool) -> None:
    """Bind this process to the cores near its GPU; set threads, device, interface and caches.

    Args:
        environment: the rank's environment, with RANK, LOCAL_RANK etc.; it is changed. If each rank
            sees one GPU only (`--gpus-per-task`), LOCAL_RANK becomes 0.
        on_gpu: whether the rank's device is an NVIDIA GPU. A rank on a CPU keeps its one thread.
    """
    raise_open_files_limit()
    local_ranks = int(environment["LOCAL_WORLD_SIZE"])
    if int(environment["WORLD_SIZE"]) > local_ranks and (
        interface := interface_to(environment["MASTER_ADDR"])
    ):
        # by default gloo uses the address of the host's name, which other nodes may not reach
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    cache = compile_cache(Path(tempfile.gettempdir()))
    environment.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    if not on_gpu:
        return
    node_cpus = int(environment.get("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)))
    present, _ = nvidia_gpus()
    visible = visible_devices(environment)
    if visible is not None:
        visible = as_indices(visible, present)
        environment[_VISIBLE] = ",".join(visible)
        if len(visible) == 1 and local_ranks > 1:
            environment["LOCAL_RANK"] = "0"
    gpu = _gpu_of_rank(environment, visible, present)
    if gpu is not None and (cpus := near_cpus(gpu.bus_id) & os.sched_getaffinity(0)):
        os.sched_setaffinity(0, cpus)
    threads = rank_threads(environment, len(os.sched_getaffinity(0)), node_cpus, local_ranks)
    environment["OMP_NUM_THREADS"] = str(threads)


def raise_open_files_limit() -> None:
    """Allow this process as many open files as it may have: rank 0 has a socket for every rank.

    Shells and Slurm start processes with a soft limit of 1,024, at which other ranks would see
    their connections reset.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def rank_id_of(environment: Mapping[str, str]) -> RankId:
    """The rank that RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR describe."""
    return RankId(
        rank=int(environment["RANK"]),
        local_rank=int(environment["LOCAL_RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        master=environment["MASTER_ADDR"],
    )


def _gpu_of_rank(
    environment: Mapping[str, str], visible: Sequence[str] | None, present: Sequence[NvidiaGpu]
) -> NvidiaGpu | None:
    """The GPU of this rank; None if its index is not known."""
    local_rank = int(environment["LOCAL_RANK"])
    entries = visible if visible is not None else [str(index) for index in range(len(present))]
    if local_rank >= len(entries) or not entries[local_rank].isdigit():
        return None
    index = int(entries[local_rank])
    return present[index] if index < len(present) else None


def _nvidia_gpu(pynvml: Any, handle: object) -> NvidiaGpu:
    """The GPU of a handle. The domain of NVML's bus id has eight digits, the kernel's four."""
    domain, rest = pynvml.nvmlDeviceGetPciInfo(handle).busId.lower().split(":", 1)
    bus_id = f"{int(domain, 16):04x}:{rest}"
    return NvidiaGpu(uuid=pynvml.nvmlDeviceGetUUID(handle), bus_id=bus_id)


def _parse_cpu_list(text: str) -> frozenset[int]:
    """Parse the kernel's `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
