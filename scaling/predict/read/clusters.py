"""Look up clusters by name, and say what is missing to predict on one."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from scaling.cluster.hardware import GPUS, Cluster, gpu_named
from scaling.errors import InputError, did_you_mean, shortened
from scaling.layout.shapes import ModelShape
from scaling.study.inputs import local_or_shipped
from scaling.study.load import load_clusters, load_models
from scaling.study.paths import CONFIG

# Share of a GPU's memory left by the driver and the CUDA context before the first tensor:
# torch.cuda.get_device_properties reports 79.15 GiB of an 80 GiB A100, 39.4 of 40, and 31.7 of a
# V100's 32.
USABLE_OF_CAPACITY = 0.9895

# Size of a cluster of reference nodes: the most ranks that a study may name.
_MOST_GPUS = 10_000_000


_T = TypeVar("_T")


def config_file(name: str) -> Path:
    """config/<name> of the current folder, else the shipped one."""
    return local_or_shipped(CONFIG / name)


def site_clusters() -> dict[str, Cluster]:
    """The clusters of config/clusters.yaml, none if there is no such file."""
    return _entries("clusters.yaml", load_clusters)


def site_models() -> dict[str, ModelShape]:
    """The models of config/models.yaml, none if there is no such file."""
    return _entries("models.yaml", load_models)


def _entries(name: str, load: Callable[[Path], dict[str, _T]]) -> dict[str, _T]:
    path = config_file(name)
    return _loaded(load, path.resolve(), path.stat().st_mtime_ns) if path.is_file() else {}


@cache
def _loaded(load: Callable[[Path], dict[str, _T]], path: Path, changed_ns: int) -> dict[str, _T]:
    return load(path)


def cluster_names(clusters: Mapping[str, Cluster]) -> set[str]:
    """Every name of a cluster: those described, and GPUs with a reference node."""
    return {*clusters, *(name for name, gpu in GPUS.items() if gpu.node is not None)}


def cluster_named(name: str, clusters: Mapping[str, Cluster]) -> Cluster:
    """The cluster of that name; the name of a GPU means its vendor's reference node.

    A cluster that does not state its node link gets its share of the reference node's.

    Raises:
        InputError: no cluster has this name; there is no default cluster.
    """
    if name in clusters:
        return _completed(clusters[name])
    if name not in cluster_names(clusters):
        hint = did_you_mean(name[:60], cluster_names(clusters))
        raise InputError(f"unknown cluster {shortened(name)!r}: {hint}")
    node = GPUS[name].node
    assert node is not None
    return Cluster(
        gpu=name,
        gpus_per_node=node.gpus,
        nodes=_MOST_GPUS // node.gpus,
        node_link_bytes_per_s=node.link_bytes_per_s,
        source=node.source,
    )


def _completed(cluster: Cluster) -> Cluster:
    """The cluster with a node link, and with GPUs that links join over hosts (NVL72) as a node."""
    gpu, link = gpu_named(cluster.gpu), cluster.node_link_bytes_per_s
    if link is None and gpu.node is not None:
        link = gpu.node.link_bytes_per_s * cluster.gpus_per_node / gpu.node.gpus
        source = f"{cluster.source}; its node link is not stated, taken from: {gpu.node.source}"
        cluster = dataclasses.replace(cluster, node_link_bytes_per_s=link, source=source)
    if link is None or gpu.link_domain is None or gpu.link_domain <= cluster.gpus_per_node:
        return cluster
    hosts, bus = gpu.link_domain / cluster.gpus_per_node, cluster.bus_bytes_per_s
    return dataclasses.replace(
        cluster,
        gpus_per_node=gpu.link_domain,
        node_link_bytes_per_s=link * hosts,
        bus_bytes_per_s=bus and {count / hosts: rate for count, rate in bus.items()},
    )


def why_unpredictable(name: str, cluster: Cluster) -> str | None:
    """Why nothing can be predicted on this cluster, None if it can."""
    gpu = gpu_named(cluster.gpu)
    if not gpu.peaks or gpu.memory_bytes is None or gpu.sustained_of_peak is None:
        return f"cluster {name}: no peak rate or memory is published for gpu={gpu.name}"
    if gpu.hbm_bytes_per_s is None or gpu.link_bytes_per_s is None:
        return f"cluster {name}: no memory or link bandwidth is published for gpu={gpu.name}"
    if cluster.node_link_bytes_per_s is None:
        return f"cluster {name}: node_link_gbit_per_s is not stated"
    return None
