"""GPUs as their data sheets describe them, and clusters of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from scaling.cluster.site import Slurm
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


def _node(gpus: int, nics: int, gbit: float, source: str) -> Node:
    return Node(gpus=gpus, link_bytes_per_s=nics * gbit * GBIT_PER_S, source=source)


def _peaks(*, fp32: float, fp16: float, **fewer_bits: float) -> dict[str, float]:
    """Peaks in FLOP/s of dense rates in TFLOP/s; bf16 is as fast as fp16."""
    stated = {"fp32": fp32, "fp16": fp16, "bf16": fp16, **fewer_bits}
    return {name: rate * TERA for name, rate in stated.items()}


# `sustained_low`: low precisions draw more power per byte moved. Fitted to published training rows
# of H100 and GB200. Leaving out one model at a time moved the values by 0.02, nvfp4 by 0.08; single
# tables give 0.63 to 0.68 for H100 fp8 and 0.57 to 0.63 for GB200 fp8.
# Assumed for the other GPUs of both generations.
_LOW_OF_HOPPER = {"fp8": 0.66}
_LOW_OF_BLACKWELL = {"fp8": 0.61, "mxfp8": 0.61, "nvfp4": 0.48}
# Power limits a sustained rate, not the peak. B300 and GB300 allow 1.1 and 1.17 times the power of
# B200 and GB200, and state 1.5 times their nvfp4 peak. Dynamic power grows with the clock's first
# to third power, as voltage follows the clock, so their rates are taken as 1.07 and 1.12 times as
# high in every precision. We have no published row of either. The one row of a B200 agrees with the
# rule: it has 0.83 of a GB200's power, and 0.90 of its rate predicts the row to 1 %.
_LOW_OF_B300 = {"fp8": 0.65, "mxfp8": 0.65, "nvfp4": 0.48 * 9000 * 1.07 / 13500}
_LOW_OF_GB300 = {"fp8": 0.68, "mxfp8": 0.68, "nvfp4": 0.48 * 10000 * 1.12 / 15000}

# Sources of `sustained_of_peak`: the A100 holds its clock. Hopper's 0.79 was fitted to
# published training rows of the H100 and is unchecked for its other GPUs. Blackwell's 0.74 is a
# guess. AMD states about 708 of 1,307 TFLOP/s as what an MI300X achieves in bf16 ("max-achievable
# FLOPs"), before our gemm_efficiency; its 0.62 is used for CDNA 4 unchecked, and scaled by the rule
# above for the MI325X, which has the same peak at 1.33 times the power. V100 and MI250X are
# estimates, as are cards of 250 to 400 W, which reach less of the same peak than boards of 400 to
# 700 W, and the H20, which has 0.57 of an H100's power for 0.15 of its peak. A card's fp8 is to its
# bf16 as an H100's is. The MI300A is taken as an MI300X.
# Calibration and probes replace all of these.

# One direction of 16 lanes, as data sheets round it.
_PCIE_4, _PCIE_5 = 32 * GB_PER_S, 64 * GB_PER_S
_CARDS = _node(8, 8, 200, "NVIDIA enterprise reference architecture 2-8-5-200: 200 Gb/s a GPU")
_CARDS_BEFORE_HOPPER = _node(8, 2, 200, "assumed: no vendor names a node of these cards")

# Cards that others differ from in little. Nodes: GPUs, NICs, Gb/s of a NIC.
_A100 = Gpu(
    name="a100-80gb", vendor="nvidia", generation="ampere", peaks=_peaks(fp32=19.5, fp16=312),
    sustained_of_peak=1.00, memory_bytes=80 * GIB, hbm_bytes_per_s=2.039 * TERA,
    link_bytes_per_s=300 * GB_PER_S, tdp_w=400,
    node=_node(8, 8, 200, "DGX A100 data sheet: 8 x HDR InfiniBand"),
    source="NVIDIA A100 data sheet (SXM4, 2021)",
)  # fmt: skip
_A100_PCIE = replace(
    _A100, name="a100-pcie-80gb", sustained_of_peak=0.85, hbm_bytes_per_s=1.935 * TERA,
    link_bytes_per_s=_PCIE_4, tdp_w=300, node=_CARDS_BEFORE_HOPPER,
    source="NVIDIA A100 data sheet (PCIe, 2021); bridges of NVLink in pairs not counted",
)  # fmt: skip
_H100 = Gpu(
    name="h100-80gb", vendor="nvidia", generation="hopper",
    peaks=_peaks(fp32=67, fp16=989.4, fp8=1978.9), sustained_of_peak=0.79,
    sustained_low=_LOW_OF_HOPPER, memory_bytes=80 * GIB, hbm_bytes_per_s=3.35 * TERA,
    link_bytes_per_s=450 * GB_PER_S, tdp_w=700,
    node=_node(8, 8, 400, "DGX H100 data sheet: 8 x NDR InfiniBand"),
    source="NVIDIA H100 data sheet (SXM5, 2023), sparse rates halved",
)  # fmt: skip
_H100_NVL = replace(
    _H100, name="h100-nvl-94gb", peaks=_peaks(fp32=60, fp16=835.5, fp8=1670.5),
    sustained_of_peak=0.68, sustained_low={"fp8": 0.57}, memory_bytes=94 * GIB,
    hbm_bytes_per_s=3.9 * TERA, link_bytes_per_s=_PCIE_5, tdp_w=400, node=_CARDS,
    source="NVIDIA H100 data sheet (NVL, 2024), sparse rates halved; bridges of NVLink in pairs "
    "not counted",
)  # fmt: skip
_B200 = Gpu(
    name="b200-180gb", vendor="nvidia", generation="blackwell",
    peaks=_peaks(fp32=75, fp16=2250, fp8=4500, mxfp8=4500, nvfp4=9000), sustained_of_peak=0.74,
    sustained_low=_LOW_OF_BLACKWELL, memory_bytes=180 * GIB, hbm_bytes_per_s=7.7 * TERA,
    link_bytes_per_s=900 * GB_PER_S, tdp_w=1000,
    node=_node(8, 8, 400, "DGX B200 data sheet: 8 x NDR InfiniBand"),
    source="NVIDIA HGX B200 data sheet (2025), per GPU, sparse rates halved",
)  # fmt: skip
_GB200 = replace(
    _B200, name="gb200-186gb", memory_bytes=186 * GIB, hbm_bytes_per_s=8.0 * TERA, link_domain=72,
    peaks=_peaks(fp32=80, fp16=2500, fp8=5000, mxfp8=5000, nvfp4=10000), tdp_w=1200,
    node=_node(72, 72, 400, "GB200 NVL72: one 400 Gb/s NIC a GPU"),
    source="NVIDIA GB200 NVL72 data sheet (2025), per GPU, sparse rates halved",
)  # fmt: skip
_MI300X = Gpu(
    name="mi300x-192gb", vendor="amd", generation="cdna3",
    peaks=_peaks(fp32=163.4, fp16=1307.4, fp8=2614.9), sustained_of_peak=0.62,
    memory_bytes=192 * GIB, hbm_bytes_per_s=5.3 * TERA, link_bytes_per_s=448 * GB_PER_S,
    link_peers=7, tdp_w=750, node=_node(8, 8, 400, "AMD MI300X platform: 8 x 400 Gb/s NICs"),
    source="AMD Instinct MI300X data sheet (2023), dense rates; 7 links of 64 GB/s, one to each "
    "other GPU",
)  # fmt: skip
_MI350X = replace(
    _MI300X, name="mi350x-288gb", generation="cdna4",
    peaks=_peaks(fp32=144.2, fp16=2306.9, fp8=4613.7, mxfp8=4613.7), memory_bytes=288 * GIB,
    hbm_bytes_per_s=8.0 * TERA, link_bytes_per_s=537.6 * GB_PER_S, tdp_w=1000,
    node=_node(8, 8, 400, "AMD MI350 platform: 8 x 400 Gb/s NICs"),
    source="AMD Instinct MI350X data sheet (2025), dense rates; 7 links of 76.8 GB/s",
)  # fmt: skip

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="cpu", vendor="cpu",
            source="a rank on a CPU; no peak is published for a share of one",
        ),
        Gpu(
            name="v100-32gb", vendor="nvidia", generation="volta",
            peaks={"fp32": 15.7 * TERA, "fp16": 125 * TERA}, sustained_of_peak=0.90,
            memory_bytes=32 * GIB, hbm_bytes_per_s=0.9 * TERA, link_bytes_per_s=150 * GB_PER_S,
            tdp_w=300, node=_node(8, 4, 100, "DGX-1V data sheet: 4 x EDR InfiniBand"),
            source="NVIDIA V100 data sheet (SXM2, 2020)",
        ),
        replace(_A100, name="a100-40gb", memory_bytes=40 * GIB, hbm_bytes_per_s=1.555 * TERA),
        _A100,
        replace(
            _A100_PCIE, name="a100-pcie-40gb", sustained_of_peak=0.80, memory_bytes=40 * GIB,
            hbm_bytes_per_s=1.555 * TERA, tdp_w=250,
        ),
        _A100_PCIE,
        replace(
            _A100, name="a800-80gb", link_bytes_per_s=200 * GB_PER_S,
            node=_node(8, 8, 200, "as the DGX A100 data sheet"),
            source="NVIDIA A800 data sheet (SXM4, 2022): an A100 with 400 GB/s of NVLink",
        ),
        replace(
            _A100_PCIE, name="a40-48gb", peaks=_peaks(fp32=37.4, fp16=149.7),
            sustained_of_peak=0.75, memory_bytes=45 * GIB, hbm_bytes_per_s=0.696 * TERA,
            source="NVIDIA A40 data sheet (2022), sparse rates halved; bridges of NVLink in pairs "
            "not counted; of 48 GB its error correction takes a sixteenth",
        ),
        Gpu(
            name="l40s-48gb", vendor="nvidia", generation="ada",
            peaks=_peaks(fp32=91.6, fp16=362.05, fp8=733), sustained_of_peak=0.70,
            sustained_low={"fp8": 0.58}, memory_bytes=45 * GIB, hbm_bytes_per_s=0.864 * TERA,
            link_bytes_per_s=_PCIE_4, tdp_w=350, node=_CARDS,
            source="NVIDIA L40S data sheet (2023), sparse rates halved; no NVLink; of 48 GB its "
            "error correction takes a sixteenth",
        ),
        _H100,
        replace(
            _H100_NVL, name="h100-pcie-80gb", peaks=_peaks(fp32=51, fp16=756, fp8=1513),
            sustained_of_peak=0.65, sustained_low={"fp8": 0.54}, memory_bytes=80 * GIB,
            hbm_bytes_per_s=2.0 * TERA, tdp_w=350,
            source="NVIDIA H100 data sheet (PCIe, 2023), sparse rates halved; bridges of NVLink in "
            "pairs not counted",
        ),
        _H100_NVL,
        replace(
            _H100, name="h800-80gb", link_bytes_per_s=200 * GB_PER_S,
            node=_node(8, 8, 400, "arXiv 2505.09343: 8 x NDR InfiniBand"),
            source="NVIDIA H100 data sheet (SXM5, 2023), with the 400 GB/s of NVLink of an H800 "
            "(arXiv 2505.09343)",
        ),
        replace(
            _H100, name="h20-96gb", peaks=_peaks(fp32=44, fp16=148, fp8=296),
            sustained_of_peak=0.90, sustained_low={"fp8": 0.90}, memory_bytes=96 * GIB,
            hbm_bytes_per_s=4.0 * TERA, tdp_w=400,
            node=_node(8, 8, 400, "as the DGX H100 data sheet"),
            source="NVIDIA H20 data sheet (2023), dense rates",
        ),
        replace(
            _H100, name="h200-141gb", memory_bytes=141 * GIB, hbm_bytes_per_s=4.8 * TERA,
            node=_node(8, 8, 400, "DGX H200 data sheet: 8 x NDR InfiniBand"),
            source="NVIDIA H200 data sheet (SXM, 2024), sparse rates halved",
        ),
        replace(
            _H100, name="h200-nvl-141gb", peaks=_H100_NVL.peaks, memory_bytes=141 * GIB,
            hbm_bytes_per_s=4.8 * TERA, link_peers=3, tdp_w=600,
            node=_node(
                4, 4, 200, "NVIDIA enterprise reference architecture 2-8-5-200: 200 Gb/s a GPU; "
                "bridges of NVLink join four GPUs, which are a node here",
            ),
            source="NVIDIA H200 data sheet (NVL, 2024), sparse rates halved; bridges, no NVSwitch",
        ),
        replace(
            _H100, name="gh200-96gb", memory_bytes=96 * GIB, hbm_bytes_per_s=4.0 * TERA,
            link_peers=3, tdp_w=None,
            node=_node(4, 4, 200, "HPE Cray EX254n (Alps user guide): 4 x Slingshot a node"),
            source="NVIDIA GH200 data sheet (2023), sparse rates halved; its 450 to 1,000 W are of "
            "the whole superchip, so no power is stated for the GPU; no NVSwitch among four",
        ),
        _B200,
        _GB200,
        replace(
            _B200, name="b300-288gb", peaks={**_B200.peaks, "nvfp4": 13500 * TERA},
            sustained_of_peak=0.79, sustained_low=_LOW_OF_B300, memory_bytes=268 * GIB,
            hbm_bytes_per_s=8.0 * TERA, tdp_w=1100,
            node=_node(8, 8, 800, "DGX B300 data sheet: 8 x ConnectX-8, 800 Gb/s"),
            source="NVIDIA HGX B300 data sheet (2025), per GPU, sparse rates halved but of FP4, "
            "which states dense; 2.1 TB of memory over 8 GPUs sold as 288 GB each, of which the "
            "driver shows 268.6 GiB",
        ),
        replace(
            _GB200, name="gb300-288gb", peaks={**_GB200.peaks, "nvfp4": 15000 * TERA},
            sustained_of_peak=0.83, sustained_low=_LOW_OF_GB300, memory_bytes=277 * GIB, tdp_w=1400,
            node=_node(72, 72, 800, "GB300 NVL72: one ConnectX-8, 800 Gb/s, a GPU"),
            source="NVIDIA GB300 NVL72 data sheet (2025), per GPU, sparse rates halved but of FP4, "
            "which states dense; 20 TB of memory over 72 GPUs sold as 288 GB each",
        ),
        Gpu(
            name="mi250x-gcd", vendor="amd", generation="cdna2",
            peaks=_peaks(fp32=47.85, fp16=191.5), sustained_of_peak=0.85, memory_bytes=64 * GIB,
            hbm_bytes_per_s=1.6384 * TERA, link_bytes_per_s=200 * GB_PER_S, tdp_w=280,
            node=_node(8, 4, 200, "Frontier user guide: 4 x Slingshot a node"),
            source="AMD MI250X data sheet (2021), one of its two dies (the driver counts dies): "
            "half of 560 W and of 8 Infinity Fabric links of 50 GB/s a direction; rates of its "
            "matrix cores, fp32 too",
        ),
        _MI300X,
        replace(
            _MI300X, name="mi300a-128gb", peaks=_peaks(fp32=122.6, fp16=980.6, fp8=1961.2),
            memory_bytes=128 * GIB, link_bytes_per_s=384 * GB_PER_S, link_peers=3, tdp_w=550,
            node=_node(4, 4, 200, "HPE Cray EX255a: 4 x Slingshot a node"),
            source="AMD Instinct MI300A data sheet (2023), dense rates; 2 links of 64 GB/s to each "
            "of 3 others; its memory and power are also the host's",
        ),
        replace(
            _MI300X, name="mi325x-256gb", sustained_of_peak=0.72, memory_bytes=256 * GIB,
            hbm_bytes_per_s=6.0 * TERA, tdp_w=1000,
            node=_node(8, 8, 400, "AMD MI325X platform: 8 x 400 Gb/s NICs"),
            source="AMD Instinct MI325X data sheet (2024), dense rates",
        ),
        _MI350X,
        replace(
            _MI350X, name="mi355x-288gb", tdp_w=1400,
            peaks=_peaks(fp32=157.3, fp16=2516.6, fp8=5033.2, mxfp8=5033.2),
            source="AMD Instinct MI355X data sheet (2025), dense rates; 7 links of 76.8 GB/s",
        ),
    )
}  # fmt: skip


def gpu_named(name: str) -> Gpu:
    """The GPU of that name; an unknown name is an InputError, never a default."""
    if name not in GPUS:
        raise InputError(f"unknown GPU {name!r}: {did_you_mean(name, GPUS)}")
    return GPUS[name]


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
    slurm: Slurm = field(default_factory=Slurm)
    source: str


def gpu_of_cluster(cluster: str, clusters: Mapping[str, Cluster]) -> str | None:
    """The GPU of a cluster; of an unknown cluster the GPU that its name starts with, if any."""
    if cluster in clusters:
        return clusters[cluster].gpu
    prefixes = [gpu for gpu in GPUS if f"{cluster}-".startswith(f"{gpu}-")]
    return max(prefixes, key=len, default=None)
