"""GPUs as their data sheets describe them, and clusters of them."""

import functools
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scaling.errors import InputError, did_you_mean

TERA = 1e12
GB_PER_S = 1e9
GBIT_PER_S = 1e9 / 8
GIB = 2**30

Vendor = Literal["nvidia", "amd", "cpu"]
Generation = Literal["volta", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The vendor's reference node of a GPU, used for a cluster that is given as a GPU's name.

    `link_bytes_per_s`: out of the node in one direction, all NICs together. A node extends as far
    as the GPUs' own links (NVLink, Infinity Fabric) reach.
    """

    gpus: int
    link_bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device, as the driver counts devices. None: the vendor publishes no figure.

    `peaks`: dense FLOP/s by precision, without sparsity. `memory_bytes` is the capacity and
    `hbm_bytes_per_s` its bandwidth.
    `link_bytes_per_s`: from one device to its peers in the node, one direction, all links together.
    `link_peers`: peers that each have an equal part of these links to themselves, in a mesh; None
    if a switch, or the host, lends any peer all of them.
    `link_domain`: GPUs that these links connect across hosts; None if they end at the host.
    `sustained_of_peak`: the share of the peak that a large GEMM can reach under the power limit,
    before its own inefficiency; `sustained_low` replaces it for some precisions.
    """

    name: str
    vendor: Vendor
    source: str
    generation: Generation | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    sustained_of_peak: float | None = None
    sustained_low: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    link_peers: int | None = None
    link_domain: int | None = None
    tdp_w: float | None = None
    node: Node | None = None

    @property
    def usual_precision(self) -> Literal["bf16", "fp16"]:
        """The precision that models are trained in: bf16, or fp16 on a GPU without it."""
        return "fp16" if "fp16" in self.peaks and "bf16" not in self.peaks else "bf16"

    def sustained(self, precision: str) -> float | None:
        """FLOP/s that a large GEMM can sustain at this precision; None if unknown."""
        peak = self.peaks.get(precision)
        if peak is None or self.sustained_of_peak is None:
            return None
        return peak * self.sustained_low.get(precision, self.sustained_of_peak)


class _Catalogue(UserDict[str, Gpu]):
    """The GPUs of gpus.yaml by name; read when first asked for, as most ranks ask for none."""

    def __init__(self) -> None: ...

    @functools.cached_property
    def data(self) -> dict[str, Gpu]:  # type: ignore[override]
        import yaml

        text = Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8")
        entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return {name: _gpu(name, entry) for name, entry in entries.items()}


def _gpu(name: str, entry: dict[str, Any]) -> Gpu:
    """A GPU in FLOP/s, bytes and bytes/s."""
    memory, hbm = entry.pop("memory_gib", None), entry.pop("hbm_tbyte_per_s", None)
    link, node = entry.pop("link_gbyte_per_s", None), entry.pop("node", None)
    if node is not None:
        count, nics, gbit, source = node
        node = Node(gpus=count, link_bytes_per_s=nics * gbit * GBIT_PER_S, source=source)
    return Gpu(
        name=name,
        peaks={name: rate * TERA for name, rate in entry.pop("tflop_per_s", {}).items()},
        memory_bytes=memory and memory * GIB,
        hbm_bytes_per_s=hbm and hbm * TERA,
        link_bytes_per_s=link and link * GB_PER_S,
        node=node,
        **entry,
    )


GPUS = _Catalogue()


def gpu_named(name: str) -> Gpu:
    """The GPU of that name; an unknown name is an InputError, never a default."""
    if name not in GPUS:
        raise InputError(f"unknown GPU {name!r}: {did_you_mean(name, GPUS)}")
    return GPUS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The `slurm:` block of a cluster; options left out are the site's defaults (docs/slurm.md)."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclusive: bool = False
    gres: str | None = None
    cpus_per_task: int | None = None
    mem_mb: int | None = None
    max_minutes: int | None = None  # of a job in the partition
    dependency: str | None = None
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster that jobs run on.

    `node_link_bytes_per_s`: out of a node in one direction, all NICs together. `bus_bytes_per_s`:
    measured all-reduce bus bandwidth by number of whole nodes; if given, it replaces the NICs' data
    sheet. `lossy_transport`: messages between nodes pass a software layer on the host (EFA's SRD).
    """

    gpu: str
    gpus_per_node: int
    nodes: int
    node_link_bytes_per_s: float | None = None
    bus_bytes_per_s: Mapping[float, float] | None = None
    lossy_transport: bool = False
    usd_per_gpu_hour: float | None = None
    slurm: Slurm = Slurm()
    source: str


def gpu_of_cluster(cluster: str, clusters: Mapping[str, Cluster]) -> str | None:
    """The GPU of a cluster; of an unknown cluster the GPU that its name starts with, if any."""
    if cluster in clusters:
        return clusters[cluster].gpu
    prefixes = [gpu for gpu in GPUS if f"{cluster}-".startswith(f"{gpu}-")]
    return max(prefixes, key=len, default=None)
