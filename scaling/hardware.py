"""What a study runs on: GPUs as their data sheets state them, and clusters made of them."""

from dataclasses import dataclass, field
from typing import Literal

from scaling.axes import Precision
from scaling.errors import InputError, did_you_mean
from scaling.site import Slurm

TERA = 1e12
GB_PER_S = 1e9
GIB = 2**30

Vendor = Literal["nvidia", "amd", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device as the driver counts devices. Null: the vendor publishes no figure.

    Peaks are dense rates in FLOP/s (no sparsity) by precision, fp32 without tensor cores;
    `memory_bytes` is the capacity, `hbm_bytes_per_s` its bandwidth, `link_bytes_per_s` what one
    device sends to its peers in the node, one direction, all links together.
    """

    name: str
    vendor: Vendor
    peak_flop_per_s: dict[Precision, float]
    memory_bytes: int | None
    hbm_bytes_per_s: float | None
    link_bytes_per_s: float | None
    tdp_w: float | None
    source: str

    def peak(self, precision: Precision) -> float | None:
        """FLOP/s at this precision, None if no figure is published for it."""
        return self.peak_flop_per_s.get(precision)


def _data_sheet(
    name: str,
    *,
    fp32: float,
    fp16: float,
    bf16: float | None,
    fp8: float | None,
    gib: int,
    hbm_tb_per_s: float,
    link_gb_per_s: float,
    tdp_w: float,
    source: str,
) -> Gpu:
    rates: dict[Precision, float | None] = {"fp32": fp32, "fp16": fp16, "bf16": bf16, "fp8": fp8}
    return Gpu(
        name=name,
        vendor="amd" if name.startswith("mi") else "nvidia",
        peak_flop_per_s={k: rate * TERA for k, rate in rates.items() if rate is not None},
        memory_bytes=gib * GIB,
        hbm_bytes_per_s=hbm_tb_per_s * TERA,
        link_bytes_per_s=link_gb_per_s * GB_PER_S,
        tdp_w=tdp_w,
        source=source,
    )


# TFLOP/s dense, GiB, TB/s, GB/s per direction, W.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="cpu",
            vendor="cpu",
            peak_flop_per_s={},
            memory_bytes=None,
            hbm_bytes_per_s=None,
            link_bytes_per_s=None,
            tdp_w=None,
            source="a rank on a CPU; no peak is published for a share of one",
        ),
        _data_sheet(
            "v100-32gb", fp32=15.7, fp16=125, bf16=None, fp8=None, gib=32, hbm_tb_per_s=0.9,
            link_gb_per_s=150, tdp_w=300, source="NVIDIA V100 data sheet (SXM2, 2020)",
        ),
        _data_sheet(
            "a100-40gb", fp32=19.5, fp16=312, bf16=312, fp8=None, gib=40, hbm_tb_per_s=1.555,
            link_gb_per_s=300, tdp_w=400, source="NVIDIA A100 data sheet (SXM4, 2021)",
        ),
        _data_sheet(
            "a100-80gb", fp32=19.5, fp16=312, bf16=312, fp8=None, gib=80, hbm_tb_per_s=2.039,
            link_gb_per_s=300, tdp_w=400, source="NVIDIA A100 data sheet (SXM4, 2021)",
        ),
        _data_sheet(
            "h100-80gb", fp32=67, fp16=989.4, bf16=989.4, fp8=1978.9, gib=80, hbm_tb_per_s=3.35,
            link_gb_per_s=450, tdp_w=700,
            source="NVIDIA H100 data sheet (SXM5, 2023), sparse rates halved",
        ),
        _data_sheet(
            "h200-141gb", fp32=67, fp16=989.4, bf16=989.4, fp8=1978.9, gib=141, hbm_tb_per_s=4.8,
            link_gb_per_s=450, tdp_w=700,
            source="NVIDIA H200 data sheet (SXM, 2024), sparse rates halved",
        ),
        _data_sheet(
            "b200-180gb", fp32=75, fp16=2250, bf16=2250, fp8=4500, gib=180, hbm_tb_per_s=7.7,
            link_gb_per_s=900, tdp_w=1000,
            source="NVIDIA HGX B200 data sheet (2025), per GPU, sparse rates halved",
        ),
        _data_sheet(
            "gb200-186gb", fp32=80, fp16=2500, bf16=2500, fp8=5000, gib=186, hbm_tb_per_s=8.0,
            link_gb_per_s=900, tdp_w=1200,
            source="NVIDIA GB200 NVL72 data sheet (2025), per GPU, sparse rates halved",
        ),
        _data_sheet(
            "mi250x-gcd", fp32=23.95, fp16=191.5, bf16=191.5, fp8=None, gib=64,
            hbm_tb_per_s=1.6384, link_gb_per_s=200, tdp_w=280,
            source="AMD MI250X data sheet (2021), one of its two dies (the driver counts dies): "
            "half of 560 W and of 8 Infinity Fabric links of 50 GB/s a direction",
        ),
        _data_sheet(
            "mi300x-192gb", fp32=163.4, fp16=1307.4, bf16=1307.4, fp8=2614.9, gib=192,
            hbm_tb_per_s=5.3, link_gb_per_s=448, tdp_w=750,
            source="AMD Instinct MI300X data sheet (2023), dense rates",
        ),
    )
}  # fmt: skip


def gpu_named(name: str) -> Gpu:
    """The catalogue's GPU; an unknown one is an error, never a default."""
    if name not in GPUS:
        raise InputError(f"unknown GPU {name!r}: {did_you_mean(name, GPUS)}")
    return GPUS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the jobs run. `node_link_bytes_per_s` leaves a node in one direction, all NICs."""

    gpu: str
    gpus_per_node: int
    nodes: int
    node_link_bytes_per_s: float | None = None
    usd_per_gpu_hour: float | None = None
    slurm: Slurm = field(default_factory=Slurm)
    source: str
