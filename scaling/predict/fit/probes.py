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
    a rank). Rates without a probe are left out, and so is a probe without `seconds`.

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
    is_flash = (kind == "attention") & (attention == "flash2")
    by_cluster = {}
    for name in sorted(set(cluster_name.tolist())):
        cluster = cluster_named(name, known)
        if why_unpredictable(name, cluster) is not None:
            continue
        here, gpu = (cluster_name == name) & (probes["seconds"] > 0), gpu_named(cluster.gpu)
        # FLOP/s that a large GEMM sustains
        sustained = np.array([gpu.sustained(one) or np.nan for one in precision.tolist()])
        found = _of_gemms(probes, sustained, here & (kind == "gemm"))
        flash = probes["flop_per_s"] / (sustained * flash_gain("flash2", gpu))
        host = probes["copy_bytes_per_s"] / host_bytes_per_s(probes["gpus_per_node"])
        rates = {
            **_of_traffic(probes, kind, cluster),
            "flash2_efficiency": np.where(is_flash, flash, np.nan),
            # while all ranks of a node update
            "host_update": np.where(kind == "host_update", host, np.nan),
        }
        for parameter, values in rates.items():
            # small shapes of attention are bound by their launch, which the model counts elsewhere
            quantile = 0.9 if parameter == "flash2_efficiency" else 0.5
            if (usable := values[here & np.isfinite(values)]).size:
                found[parameter] = float(np.quantile(usable, quantile))
        by_cluster[name] = {
            parameter: float(np.clip(value, PARAMETERS[parameter].low, PARAMETERS[parameter].high))
            for parameter, value in found.items()
        }
    return by_cluster


def _of_gemms(probes: Mapping[str, Floats], sustained: Floats, rows: Flags) -> dict[str, float]:
    """Efficiency of large GEMMs and the size at half of it, by least squares on logs."""
    rows = rows & np.isfinite(sustained) & (probes["m"] * probes["n"] * probes["k"] > 0)
    if not rows.any():
        return {}
    bounds = PARAMETERS["gemm_half_size"]
    half_sizes = np.geomspace(bounds.low, bounds.high, 60)[:, None]
    m, n, k = (probes[name][rows] + half_sizes for name in ("m", "n", "k"))
    log_efficiency = np.log(2 * m * n * k / sustained[rows] / probes["seconds"][rows])
    best = int(np.argmin(log_efficiency.var(axis=1)))
    return {
        "gemm_efficiency": float(np.exp(log_efficiency[best].mean())),
        "gemm_half_size": float(half_sizes[best, 0]),
    }


def _of_traffic(probes: Mapping[str, Floats], kind: Strings, cluster: Cluster) -> dict[str, Floats]:
    """Shares of the bandwidth that large messages reach inside a node and across, (n,).

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
    bus = np.where(sent >= _LARGE_BYTES, bus, np.nan)
    return {
        "link_efficiency": np.where(nodes <= 1, bus / link(gpu, ranks), np.nan),
        "network_efficiency": np.where(across, bus * groups_of_node / nics, np.nan),
    }
