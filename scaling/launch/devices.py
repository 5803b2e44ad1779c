"""Whether this host shows the GPUs that a point needs."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaling.cluster import node
from scaling.cluster.hardware import gpu_named
from scaling.cluster.node import Gpu
from scaling.launch.start import slurm
from scaling.launch.start.starter import Task
from scaling.launch.start.torchrun import nodes_of

_OTHER_VENDORS = Path("/dev/kfd")  # AMD's driver


def missing_devices(point: Task, environment: Mapping[str, str]) -> str | None:
    """What is missing of the point's GPUs on this host; None where nothing is.

    Where ranks run on other hosts only (from a login node), nothing can be said here. A card that
    has fallen off its bus is missing too: one of eight is enough for the point to fail.
    """
    if point.gpu == "cpu" or gpu_named(point.gpu).vendor != "nvidia":
        return None
    in_slurm = slurm.job_id(environment) is not None
    if in_slurm and slurm.node_name(environment) is None:
        return None
    if not in_slurm and len(nodes_of(environment)) > 1:
        return None
    gpus, reason = node.gpus()
    if not gpus and _OTHER_VENDORS.exists():
        return None
    needed = min(point.world_size, point.gpus_per_node)
    shown = shown_devices(gpus, node.visible(environment))
    if shown >= needed:
        return None
    host = slurm.node_name(environment) or socket.gethostname()
    text = f"{host} shows {shown} of the {needed} GPUs that the point needs on a node"
    return f"{text} ({reason})" if reason else text


def shown_devices(gpus: Sequence[Gpu], named: Sequence[str] | None) -> int:
    """How many devices ranks on this host can have.

    Each rank may be told one of its own by Slurm, so a list of some counts for all; an empty one
    for none. A slice of a GPU (MIG) is a device.
    """
    if named is None:
        return len(gpus)
    slices = sum(entry.startswith("MIG-") for entry in named)
    return slices if slices or not named else len(gpus)
