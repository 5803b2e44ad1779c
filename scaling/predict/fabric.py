"""What the step model must know of a cluster: its GPU and the links within and between nodes."""

from collections.abc import Mapping
from dataclasses import dataclass

from scaling.errors import InputError, did_you_mean
from scaling.hardware import GPUS, Cluster, gpu_named

GBIT_PER_S = 1e9 / 8

# The CUDA context and the driver take memory before the first tensor: of an 80 GiB A100
# torch.cuda.get_device_properties reports 79.15 GiB, of a 40 GiB one 39.4, of a V100 31.7.
USABLE_OF_CAPACITY = 0.9895

# What a large GEMM can draw of the data-sheet peak before its own inefficiency: the share of the
# boost clock that the power limit leaves. A100 holds its clock; the 0.74 of the H100 was set with
# published training rows in sight and is carried over to its successors unchecked; AMD states about
# 708 of 1,307 TFLOP/s as what an MI300X achieves in bf16 ("max-achievable FLOPs"), before our
# gemm_efficiency. V100 and MI250X are estimates. Calibration and probes replace all of it.
SUSTAINED_OF_PEAK = {
    "v100-32gb": 0.90,
    "a100-40gb": 1.00,
    "a100-80gb": 1.00,
    "h100-80gb": 0.74,
    "h200-141gb": 0.74,
    "b200-180gb": 0.74,
    "gb200-186gb": 0.74,
    "mi250x-gcd": 0.85,
    "mi300x-192gb": 0.62,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """One cluster as the model sees it.

    `node_link_bytes_per_s` leaves a node in one direction over all its NICs.
    `bus_bytes_per_s` is a measured all-reduce bus bandwidth of whole nodes (nodes -> bytes/s);
    where there is one it replaces the data sheet of the NICs. `lossy_transport` says that messages
    between nodes go through a software layer (EFA's SRD) whose progress needs the host.
    """

    name: str
    gpu: str
    gpus_per_node: int
    node_link_bytes_per_s: float | None
    bus_bytes_per_s: Mapping[int, float] | None = None
    lossy_transport: bool = False
    usd_per_gpu_hour: float | None = None
    source: str


def _nics(
    name: str, gpu: str, per_node: int, nics: int, gbit: float, source: str, **more: object
) -> Fabric:
    return Fabric(
        name=name,
        gpu=gpu,
        gpus_per_node=per_node,
        node_link_bytes_per_s=nics * gbit * GBIT_PER_S,
        source=source,
        **more,  # type: ignore[arg-type]
    )


# All-reduce at 256 MB on 1 to 64 nodes of p5.48xlarge, as the Ultra-Scale Playbook published it.
_EFA_BUS = {1: 436e9, 2: 362e9, 4: 160e9, 8: 100e9, 16: 85e9, 32: 65e9, 64: 33e9}

# A name that is a GPU's own is the vendor's reference node around that GPU.
FABRICS: dict[str, Fabric] = {
    fabric.name: fabric
    for fabric in (
        _nics("a100-80gb-dgx", "a100-80gb", 8, 8, 200, "DGX A100 data sheet: 8 x HDR InfiniBand"),
        _nics("a100-40gb-dgx", "a100-40gb", 8, 8, 200, "DGX A100 data sheet: 8 x HDR InfiniBand"),
        _nics("h100-80gb-dgx", "h100-80gb", 8, 8, 400, "DGX H100 data sheet: 8 x NDR InfiniBand"),
        _nics(
            "h100-80gb-efa", "h100-80gb", 8, 32, 100, "AWS p5.48xlarge: 3,200 Gb/s EFA",
            bus_bytes_per_s=_EFA_BUS, lossy_transport=True,
        ),
        _nics("v100-32gb-dgx2h", "v100-32gb", 16, 8, 100, "DGX-2H data sheet: 8 x EDR InfiniBand"),
        _nics("v100-32gb", "v100-32gb", 8, 4, 100, "DGX-1V data sheet: 4 x EDR InfiniBand"),
        _nics("a100-40gb", "a100-40gb", 8, 8, 200, "DGX A100 data sheet: 8 x HDR InfiniBand"),
        _nics("a100-80gb", "a100-80gb", 8, 8, 200, "DGX A100 data sheet: 8 x HDR InfiniBand"),
        _nics("h100-80gb", "h100-80gb", 8, 8, 400, "DGX H100 data sheet: 8 x NDR InfiniBand"),
        _nics("h200-141gb", "h200-141gb", 8, 8, 400, "DGX H200 data sheet: 8 x NDR InfiniBand"),
        _nics("b200-180gb", "b200-180gb", 8, 8, 400, "DGX B200 data sheet: 8 x NDR InfiniBand"),
        _nics("gb200-186gb", "gb200-186gb", 72, 72, 400, "GB200 NVL72: one 400 Gb/s NIC a GPU"),
        _nics("mi250x-gcd", "mi250x-gcd", 8, 4, 200, "Frontier user guide: 4 x Slingshot a node"),
        _nics("mi300x-192gb", "mi300x-192gb", 8, 8, 400, "AMD MI300X platform: 8 x 400 Gb/s NICs"),
    )
}  # fmt: skip

# Published tables that name no cluster, by framework and GPUs per node.
UNNAMED_CLUSTER = "other"
CLUSTER_OF = {
    # arXiv 1909.08053, section 5: DGX-2H servers of 16 V100 SXM3 32 GB; the same README's rows on 8
    # GPUs a node are twice as fast: DGX A100, of which only the 40 GB one existed then
    ("Megatron-LM (2020)", 16): "v100-32gb-dgx2h",
    ("Megatron-LM (2020)", 8): "a100-40gb-dgx",
    # Megatron-LM README, table of model sizes: H100 GPUs, up to 6,144 of them
    ("Megatron-Core r0.8.0", 8): "h100-80gb-dgx",
}


def fabric_named(name: str, *, clusters: Mapping[str, Cluster] | None = None) -> Fabric:
    """The fabric of a cluster: of the study's own clusters first, then of the table above.

    Raises:
        InputError: nothing is known under this name; there is no default cluster.
    """
    if clusters and name in clusters:
        return _fabric_of(name, clusters[name])
    if name not in FABRICS:
        known = {*FABRICS, *(clusters or {})}
        raise InputError(f"unknown cluster {name!r}: {did_you_mean(name, known)}")
    return FABRICS[name]


def _fabric_of(name: str, cluster: Cluster) -> Fabric:
    gpu = gpu_named(cluster.gpu)
    link = cluster.node_link_bytes_per_s
    source = cluster.source
    reference = FABRICS.get(gpu.name)
    if link is None and reference is not None and reference.node_link_bytes_per_s is not None:
        link = reference.node_link_bytes_per_s * cluster.gpus_per_node / reference.gpus_per_node
        source += f"; its node link is not stated, taken from: {reference.source}"
    known = FABRICS.get(name)
    measured = known if known is not None and known.gpu == gpu.name else None
    return Fabric(
        name=name,
        gpu=gpu.name,
        gpus_per_node=cluster.gpus_per_node,
        node_link_bytes_per_s=link,
        bus_bytes_per_s=measured.bus_bytes_per_s if measured else None,
        lossy_transport=measured.lossy_transport if measured else False,
        usd_per_gpu_hour=cluster.usd_per_gpu_hour,
        source=source,
    )


def predictable(fabric: Fabric) -> str | None:
    """Why nothing can be predicted on this cluster, None if it can."""
    gpu = GPUS[fabric.gpu]
    if not gpu.peak_flop_per_s or gpu.memory_bytes is None:
        return f"cluster {fabric.name}: no peak rate or memory is published for gpu={fabric.gpu}"
    if fabric.node_link_bytes_per_s is None:
        return f"cluster {fabric.name}: node_link_bytes_per_s is not stated"
    return None
