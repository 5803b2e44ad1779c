"""The node that a process finds itself on: its GPUs, which cores are near them, its network.

`bind_rank` makes a rank at home there. It runs before torch is imported, which reads threads and
caches from the environment then.
"""

import os
import re
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ANY_PORT = 9  # discard: connecting a datagram socket sends nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpu:
    """An NVIDIA GPU as NVML lists it, which is CUDA's order too with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    `bus_id` is spelled as in /sys/bus/pci/devices.
    """

    uuid: str
    bus_id: str


def nvidia_gpus() -> tuple[list[NvidiaGpu], str | None]:
    """The NVIDIA GPUs that this process may see, and NVML's reason where it cannot say."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], str(error)
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [
            NvidiaGpu(uuid=_text(pynvml.nvmlDeviceGetUUID(handle)), bus_id=_bus_id(pynvml, handle))
            for handle in handles
        ], None
    except pynvml.NVMLError as error:
        return [], str(error)
    finally:
        pynvml.nvmlShutdown()


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES lists: numbers, UUIDs, slices (MIG); None where it is not set.

    CUDA ignores the list from its first entry on that is no device, such as Slurm's `NoDevFiles`.
    """
    if _VISIBLE not in environment:
        return None
    named = []
    for entry in environment[_VISIBLE].split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", entry.strip()):
            break
        named.append(entry.strip())
    return named


def as_indices(named: Sequence[str], present: Sequence[NvidiaGpu]) -> list[str]:
    """The same with numbers for UUIDs, which an engine may not read; a slice has no number."""
    numbers = []
    for entry in named:
        matching = [n for n, gpu in enumerate(present) if entry[:4] == "GPU-" and entry in gpu.uuid]
        numbers.append(str(matching[0]) if len(matching) == 1 else entry)
    return numbers


def near_cpus(bus_id: str, root: Path = Path("/")) -> frozenset[int]:
    """The logical CPUs on the NUMA node of a PCI device; empty where the kernel knows of none."""
    device = root / "sys/bus/pci/devices" / bus_id
    try:
        if int((device / "numa_node").read_text()) < 0:
            return frozenset()
        return _cpus((device / "local_cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()


def rank_threads(
    environment: Mapping[str, str], own_cpus: int, node_cpus: int, ranks_here: int
) -> int:
    """Threads of a rank on a GPU: its share of the node's cores, and no more than it may use.

    `SCALING_THREADS` says otherwise; OMP_NUM_THREADS does not, by which Snakemake tells each job
    all cores of the machine.
    """
    if stated := environment.get("SCALING_THREADS"):
        return int(stated)
    return max(1, min(own_cpus, node_cpus // ranks_here))


def interface_to(master: str) -> str | None:
    """The network interface by which this node reaches another; None where that is itself."""
    try:
        family, _, _, _, address = socket.getaddrinfo(master, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own = probe.getsockname()[0]
    except OSError:
        return None
    if own.startswith("127.") or own == "::1":
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.split("%")[0] == own for each in addresses):
            return name
    return None


def bind_rank(environment: MutableMapping[str, str], *, on_gpu: bool) -> None:
    """Bind this process to the cores near its GPU, and say in the environment what it needs.

    Where each rank sees one GPU only (`--gpus-per-task`), that is its device 0.

    Args:
        environment: of a rank that is seated (RANK, LOCAL_RANK and their like); it is changed.
        on_gpu: whether the rank's device is an NVIDIA GPU. A rank on a CPU keeps its one thread.
    """
    ranks_here = int(environment["LOCAL_WORLD_SIZE"])
    if int(environment["WORLD_SIZE"]) > ranks_here and (
        interface := interface_to(environment["MASTER_ADDR"])
    ):
        # else gloo takes the address of the host's name, which may be on no network of the others
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    if not on_gpu:
        return
    node_cpus = int(environment.get("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)))
    present, _ = nvidia_gpus()
    named = visible_devices(environment)
    if named is not None:
        named = as_indices(named, present)
        environment[_VISIBLE] = ",".join(named)
        if len(named) == 1 and ranks_here > 1:
            environment["LOCAL_RANK"] = "0"
    device = _device(environment, named, present)
    if device is not None:
        near = near_cpus(device.bus_id) & os.sched_getaffinity(0)
        if near:
            os.sched_setaffinity(0, near)
    count = rank_threads(environment, len(os.sched_getaffinity(0)), node_cpus, ranks_here)
    environment["OMP_NUM_THREADS"] = str(count)


def _device(
    environment: Mapping[str, str], named: Sequence[str] | None, present: Sequence[NvidiaGpu]
) -> NvidiaGpu | None:
    """The GPU of this rank; None where its number is not known."""
    local_rank = int(environment["LOCAL_RANK"])
    names = named if named is not None else [str(number) for number in range(len(present))]
    if local_rank >= len(names) or not names[local_rank].isdigit():
        return None
    number = int(names[local_rank])
    return present[number] if number < len(present) else None


def _bus_id(pynvml: object, handle: object) -> str:
    """NVML writes the domain with eight digits, the kernel with four."""
    bus_id = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)  # type: ignore[attr-defined]
    domain, rest = bus_id.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _text(text: str | bytes) -> str:
    """Older bindings of NVML give bytes."""
    return text.decode() if isinstance(text, bytes) else text


def _cpus(listed: str) -> frozenset[int]:
    """`0-3,8` of the kernel."""
    cores: set[int] = set()
    for part in listed.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return frozenset(cores)
