"""Start values of parameters from microbenchmarks, better than those of data sheets."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.foreign.arrays import Flags, Floats
from scaling.foreign.columns import Columns
from scaling.layout.axes import Precision
from scaling.predict.read.attention import flash_gain
from scaling.predict.read.clusters import cluster_named, site_clusters, why_unpredictable
from scaling.predict.read.parameters import PARAMETERS
from scaling.record.probe_row import ProbeKind

# Bus factors of nccl-tests over (n - 1) / n: bytes a ring moves per byte of message and rank.
_RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
_LARGE_BYTES = 64 * 2**20  # messages from this size on measure bandwidth
_SMALL_BYTES = 64 * 2**10  # messages up to this size measure latency


def probed_parameters(
    columns: Columns, clusters: Mapping[str, Cluster] | None = None
) -> dict[str, dict[str, float]]:
    """Parameters from probes, by cluster name, clipped to their bounds.

    A probe is a row as `scaling probe` leaves them, of which are read: `cluster`,
    `kind` and `seconds`; of a gemm `precision`, `m`, `n` and `k`; of attention
    `precision`, `attention` and `flop_per_s`; of a collective `ranks`, `nodes`, `groups` (that ran
    at once) and `message_bytes` (the whole tensor of a rank); of send_recv `nodes` and
    `message_bytes`. What no probe tells is left out, and so is a probe without `seconds`.

    Raises:
        InputError: a cell is missing its meaning, or a cluster is unknown.
    """
    for name in ("cluster", "kind", "seconds"):
        if name not in columns and len(columns):
            raise columns.missing_column(name, "this is no table of probes")
    known = site_clusters() if clusters is None else clusters
    kind = columns.strings("kind", "", get_args(ProbeKind))
    cluster = columns.strings("cluster", "")
    precision = columns.strings("precision", "bf16", get_args(Precision))
    attention = columns.strings("attention", "")
    names = ("seconds", "m", "n", "k", "message_bytes", "flop_per_s")
    values = {name: columns.numbers(name, high=1e18) for name in names}
    values |= {name: columns.counts(name) for name in ("ranks", "nodes")}
    values["groups"] = columns.counts("groups", default=1.0, silent=True)
    found: dict[str, dict[str, float]] = {}
    for name in sorted(set(cluster.tolist())):
        where = cluster_named(name, known)
        if why_unpredictable(name, where) is not None:
            continue
        here = (cluster == name) & (values["seconds"] > 0)
        shaped = (values["m"] > 0) & (values["n"] > 0) & (values["k"] > 0)
        told: dict[str, float] = {}
        for one in sorted(set(precision[here & shaped & (kind == "gemm")].tolist())):
            rows = here & shaped & (kind == "gemm") & (precision == one)
            told |= _gemms({n: v[rows] for n, v in values.items()}, where, one)
        flash = here & (kind == "attention") & (attention == "flash2")
        told |= _flash(values, precision, flash, where)
        told |= _collectives(values, kind, here, where)
        told |= _messages(values, here & (kind == "send_recv"), where)
        bounds = {q: (PARAMETERS[q].low, PARAMETERS[q].high) for q in told}
        found[name] = {q: float(np.clip(value, *bounds[q])) for q, value in told.items()}
    return found


def _gemms(v: Mapping[str, Floats], cluster: Cluster, precision: Any) -> dict[str, float]:
    """Efficiency of large GEMMs and the size at half of it, by least squares on logs."""
    gpu = gpu_named(cluster.gpu)
    sustained = gpu.sustained(precision)
    if sustained is None:
        return {}
    half_size = PARAMETERS["gemm_half_size"]
    halves = np.geomspace(half_size.low, half_size.high, 60)[:, None]
    flops = 2 * (v["m"] + halves) * (v["n"] + halves) * (v["k"] + halves)
    off = np.log(flops / sustained / v["seconds"])
    best = int(np.argmin(off.var(axis=1)))
    efficiency = float(np.exp(off[best].mean()))
    return {"gemm_efficiency": efficiency, "gemm_half_size": float(halves[best, 0])}


def _flash(
    v: Mapping[str, Floats], precision: Any, rows: Flags, cluster: Cluster
) -> dict[str, float]:
    """Efficiency of FlashAttention-2 on the largest shapes, as compute.py applies it."""
    gpu = gpu_named(cluster.gpu)
    sustained = np.array([gpu.sustained(one) or np.nan for one in precision.tolist()])
    gain = flash_gain(np.array(["flash2"]), gpu)[0]
    share = v["flop_per_s"] / (sustained * gain)
    known = rows & np.isfinite(share)
    if not known.any():
        return {}
    # small shapes are bound by their launch, which the model counts elsewhere
    return {"flash2_efficiency": float(np.quantile(share[known], 0.9))}


def _collectives(
    v: Mapping[str, Floats], kind: Any, here: Flags, cluster: Cluster
) -> dict[str, float]:
    """Latency from small messages, bus bandwidth from large ones, inside a node and across.

    Across nodes only probes in which every GPU of a node took part count, in one group or in
    several at once: together they use all NICs.
    """
    ring = np.array([_RING.get(name, np.nan) for name in kind.tolist()])
    bus = ring * (v["ranks"] - 1) / v["ranks"] * v["message_bytes"] / v["seconds"]
    collective = here & np.isfinite(bus)
    small, large = v["message_bytes"] <= _SMALL_BYTES, v["message_bytes"] >= _LARGE_BYTES
    link = gpu_named(cluster.gpu).link_bytes_per_s
    assert link is not None
    assert cluster.node_link_bytes_per_s is not None
    per_node = v["ranks"] / v["nodes"]
    sharing = np.where(v["groups"] > 1, cluster.gpus_per_node / per_node, 1.0)
    whole = sharing * per_node >= cluster.gpus_per_node
    wanted: dict[str, tuple[Flags, Callable[[Flags], float]]] = {
        "tp_latency_s": (small & (v["nodes"] <= 1), lambda r: float(np.median(v["seconds"][r]))),
        "link_efficiency": (large & (v["nodes"] <= 1), lambda r: float(np.median(bus[r])) / link),
        "network_efficiency": (
            large & (v["nodes"] > 1) & whole,
            lambda r: float(np.median((bus * sharing)[r])) / (cluster.node_link_bytes_per_s or 1.0),
        ),
    }
    rows = {name: collective & which for name, (which, _) in wanted.items()}
    return {n: value(rows[n]) for n, (_, value) in wanted.items() if rows[n].any()}


def _messages(v: Mapping[str, Floats], rows: Flags, cluster: Cluster) -> dict[str, float]:
    """Point-to-point: latency from small messages, share of a GPU's link from large ones."""
    told = {}
    assert cluster.node_link_bytes_per_s is not None
    shares = {
        "": cluster.node_link_bytes_per_s / cluster.gpus_per_node,
        "_inside": gpu_named(cluster.gpu).link_bytes_per_s or 1.0,
    }
    for where, share in shares.items():
        there = rows & ((v["nodes"] > 1) == (where == ""))
        small = there & (v["message_bytes"] <= _SMALL_BYTES)
        large = there & (v["message_bytes"] >= _LARGE_BYTES)
        if small.any():
            told[f"p2p_latency{where}_s"] = float(np.median(v["seconds"][small]))
        if large.any():
            rate = v["message_bytes"][large] / v["seconds"][large]
            told[f"p2p_efficiency{where}"] = float(np.median(rate)) / share
    return told
