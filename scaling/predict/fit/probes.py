"""Start values of parameters from microbenchmarks, better than those of data sheets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.cluster.hardware import Cluster, gpu_named
from scaling.errors import InputError
from scaling.predict.cost.compute import host_bytes_per_s
from scaling.predict.cost.links import link
from scaling.predict.read.clusters import cluster_named, site_clusters, why_unpredictable
from scaling.predict.read.features import flash_gain
from scaling.predict.read.given import Cells
from scaling.predict.read.parameters import PARAMETERS

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb

# Bus factors of nccl-tests over (n - 1) / n: bytes a ring moves per byte of message and rank.
_RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
_LARGE_BYTES = 64 * 2**20  # messages from this size on measure bandwidth


def probed_parameters(
    table: "Table", clusters: Mapping[str, Cluster] | None = None
) -> dict[str, dict[str, float]]:
    """Parameters from probes, by cluster name, clipped to their bounds.

    A probe is a row as `scaling probe` leaves them, of which are read: `cluster`, `kind` and
    `seconds`; of a gemm `precision`, `m`, `n` and `k`; of attention `precision`, `attention` and
    `flop_per_s`; of an update on the host `gpus_per_node` and `copy_bytes_per_s`; of a collective
    `ranks`, `stride`, `nodes`, `groups` (that ran at once) and `message_bytes` (the whole tensor of
    a rank). Rates without a probe are left out, and so is a
    probe without `seconds`.

    Raises:
        InputError: a column is missing, or a cluster is unknown.
    """
    cells = Cells(table)
    for name in ("cluster", "kind", "seconds"):
        if name not in cells:
            raise InputError(
                f"{table.source}: column {name} is missing: this is no table of probes"
            )
    known = site_clusters() if clusters is None else clusters
    kind, cluster_name = cells.words("kind"), cells.words("cluster")
    precision, attention = cells.words("precision", "bf16"), cells.words("attention")
    names = (
        "seconds", "m", "n", "k", "message_bytes", "flop_per_s", "copy_bytes_per_s", "ranks",
        "nodes", "gpus_per_node",
    )  # fmt: skip
    probes = {name: cells.numbers(name) for name in names}
    probes |= {name: cells.numbers(name, 1.0) for name in ("groups", "stride")}
    is_gemm = (kind == "gemm") & (probes["m"] > 0) & (probes["n"] > 0) & (probes["k"] > 0)
    by_cluster = {}
    for name in sorted(set(cluster_name.tolist())):
        cluster = cluster_named(name, known)
        if why_unpredictable(name, cluster) is not None:
            continue
        here = (cluster_name == name) & (probes["seconds"] > 0)
        gemms = {column: values[here & is_gemm] for column, values in probes.items()}
        flash = here & (kind == "attention") & (attention == "flash2")
        found = {
            **_of_gemms(gemms, precision[here & is_gemm], cluster),
            **_of_flash(probes["flop_per_s"][flash], precision[flash], cluster),
            **_of_traffic(probes, kind, here, cluster),
            **_of_host(probes, here & (kind == "host_update")),
        }
        by_cluster[name] = {
            parameter: float(np.clip(value, PARAMETERS[parameter].low, PARAMETERS[parameter].high))
            for parameter, value in found.items()
        }
    return by_cluster


def _of_gemms(
    gemms: Mapping[str, Floats], precision: Strings, cluster: Cluster
) -> dict[str, float]:
    """Efficiency of large GEMMs and the size at half of it, by least squares on logs."""
    sustained = _sustained(precision, cluster)
    if not np.isfinite(sustained).any():
        return {}
    bounds = PARAMETERS["gemm_half_size"]
    half_sizes = np.geomspace(bounds.low, bounds.high, 60)[:, None]
    m, n, k = (gemms[name] + half_sizes for name in ("m", "n", "k"))
    log_efficiency = np.log(2 * m * n * k / sustained / gemms["seconds"])
    best = int(np.argmin(np.nanvar(log_efficiency, axis=1)))
    return {
        "gemm_efficiency": float(np.exp(np.nanmean(log_efficiency[best]))),
        "gemm_half_size": float(half_sizes[best, 0]),
    }


def _of_flash(flop_per_s: Floats, precision: Strings, cluster: Cluster) -> dict[str, float]:
    """Efficiency of FlashAttention-2 on the largest shapes, as compute.py applies it."""
    gain = flash_gain("flash2", gpu_named(cluster.gpu))
    efficiency = flop_per_s / (_sustained(precision, cluster) * gain)
    efficiency = efficiency[np.isfinite(efficiency)]
    if not efficiency.size:
        return {}
    # small shapes are bound by their launch, which the model counts elsewhere
    return {"flash2_efficiency": float(np.quantile(efficiency, 0.9))}


def _of_host(probes: Mapping[str, Floats], here: Flags) -> dict[str, float]:
    """Rate of Adam on the host, while all ranks of a node update, over the usual one."""
    if not here.any():
        return {}
    usual = host_bytes_per_s(probes["gpus_per_node"][here])
    return {"host_update": float(np.median(probes["copy_bytes_per_s"][here] / usual))}


def _sustained(precision: Strings, cluster: Cluster) -> Floats:
    """FLOP/s that a large GEMM sustains at each precision, (n,), NaN where unknown."""
    gpu = gpu_named(cluster.gpu)
    return np.array([gpu.sustained(one) or np.nan for one in precision.tolist()], np.float64)


def _of_traffic(
    probes: Mapping[str, Floats], kind: Strings, here: Flags, cluster: Cluster
) -> dict[str, float]:
    """Bandwidth from large messages, inside a node and across.

    Across nodes only probes count in which every GPU of a node took part, in one group or in
    several at once: together they use all NICs.
    """
    ranks, seconds, sent = probes["ranks"], probes["seconds"], probes["message_bytes"]
    gpu, nics, nodes = gpu_named(cluster.gpu), cluster.node_link_bytes_per_s, probes["nodes"]
    assert nics is not None
    if gpu.link_domain is not None:  # hosts that GPU links join are one node
        span = (ranks - 1) * probes["stride"] + 1
        nodes = np.minimum(ranks, np.ceil(span / cluster.gpus_per_node))
    ranks_of_node = ranks / nodes
    groups_of_node = np.where(probes["groups"] > 1, cluster.gpus_per_node / ranks_of_node, 1.0)
    across = (nodes > 1) & (groups_of_node * ranks_of_node >= cluster.gpus_per_node)
    ring_factor = np.array([_RING.get(name, np.nan) for name in kind.tolist()])
    bus = ring_factor * (ranks - 1) / ranks * sent / seconds
    large = here & np.isfinite(bus) & (sent >= _LARGE_BYTES)
    measured = {
        "link_efficiency": (bus / link(gpu, ranks))[large & (nodes <= 1)],
        "network_efficiency": (bus * groups_of_node / nics)[large & across],
    }
    return {name: float(np.median(values)) for name, values in measured.items() if values.size}
