"""The clusters of a foreign table, in names that somebody describes."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import Cluster
from scaling.errors import did_you_mean, shortened
from scaling.foreign.arrays import Strings
from scaling.foreign.columns import Columns
from scaling.foreign.spellings import find_gpu
from scaling.predict.read.clusters import names_of
from scaling.predict.read.foreign_stacks import frameworks_of
from scaling.predict.read.inputs import usable_rows

# Columns that name the hardware, the first that is there.
NAMES = ("cluster", "gpu", "gpu_name")
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


def clusters_of(columns: Columns, clusters: Mapping[str, Cluster], note: Strings) -> Strings:
    """The cluster column, as far as possible in names somebody describes.

    A cluster nobody here describes is its `gpu`, where the table says so, or the GPU that its name
    means (then in the vendor's reference node); a published table that names none is resolved by
    what its source says. Rows of unknown clusters get no prediction.

    Raises:
        InputError: no row's cluster is known.
    """
    stated = next((name for name in NAMES if name in columns), None)
    if stated is None and len(columns):
        raise columns.missing_column("cluster", "the hardware is never guessed")
    cluster = columns.strings(stated or "cluster", "")
    known = names_of(clusters)
    strange = np.flatnonzero([name not in known for name in cluster.tolist()])
    if not strange.size:
        return cluster
    gpu, gpu_name = columns.strings("gpu", ""), columns.strings("gpu_name", "")
    framework = frameworks_of(columns)
    per_node = columns.counts("gpus_per_node")
    for row in strange:
        name = cluster[row]
        candidates = (
            gpu[row],
            CLUSTER_OF.get((framework[row], per_node[row])) if name == UNNAMED_CLUSTER else None,
            find_gpu(name),
            find_gpu(gpu[row]),
            find_gpu(gpu_name[row]),
        )
        meant = next((each for each in candidates if each in known), None)
        if meant is not None:
            cluster[row] = meant
            if name != UNNAMED_CLUSTER:
                columns.assume_meaning(str(stated), name, meant)
        elif name == UNNAMED_CLUSTER:
            note[row] = f"cluster={UNNAMED_CLUSTER} says no hardware, and its source is not known"
        else:
            note[row] = f"cluster={shortened(name)} is unknown"
    if not usable_rows(note).any() and (cluster != UNNAMED_CLUSTER).all():
        hint = did_you_mean(cluster[0][:60], known)
        raise columns.cell_error(str(stated), 0, f"unknown cluster: {hint}")
    return cluster
