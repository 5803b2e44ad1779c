"""Resolve the clusters of a foreign table to names that are described."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import Cluster
from scaling.errors import did_you_mean, shortened
from scaling.foreign.arrays import Strings
from scaling.foreign.columns import Columns
from scaling.foreign.spellings import find_gpu
from scaling.predict.read.clusters import cluster_names
from scaling.predict.read.foreign_stacks import frameworks_of
from scaling.predict.read.inputs import predictable_rows

# Columns that name the hardware; the first present one counts.
_COLUMNS = ("cluster", "gpu", "gpu_name")
# Published tables write this for an unnamed cluster, resolved here by framework and GPUs per node.
UNNAMED_CLUSTER = "other"
_CLUSTER_OF_SOURCE = {
    # arXiv 1909.08053, section 5: DGX-2H servers of 16 V100 SXM3 32 GB. The same README's rows with
    # 8 GPUs per node are twice as fast: DGX A100, then sold with 40 GB only.
    ("Megatron-LM (2020)", 16): "v100-32gb-dgx2h",
    ("Megatron-LM (2020)", 8): "a100-40gb-dgx",
    # Megatron-LM README, table of model sizes: up to 6,144 H100 GPUs
    ("Megatron-Core r0.8.0", 8): "h100-80gb-dgx",
}


def clusters_of(columns: Columns, clusters: Mapping[str, Cluster], note: Strings) -> Strings:
    """The cluster column, (n,), with described names as far as possible.

    A cluster that is not described is taken as the vendor's reference node of the row's `gpu`, or
    of the GPU its name means. An unnamed one is resolved by the row's source. Rows of clusters that
    stay unknown are noted and get no prediction.

    Raises:
        InputError: no row's cluster is known.
    """
    column = next((name for name in _COLUMNS if name in columns), None)
    if column is None and len(columns):
        raise columns.missing_column(
            "cluster", "the hardware is never guessed; name it in a column cluster, gpu or system"
        )
    cluster = columns.strings(column or "cluster", "")
    described = cluster_names(clusters)
    by_lower_case = {name.lower(): name for name in described}
    unknown = np.flatnonzero([name not in described for name in cluster.tolist()])
    if not unknown.size:
        return cluster
    gpu, gpu_name = columns.strings("gpu", ""), columns.strings("gpu_name", "")
    framework = frameworks_of(columns)
    per_node = columns.counts("gpus_per_node")
    for row in unknown:
        name = cluster[row]
        is_unnamed = name == UNNAMED_CLUSTER
        candidates = (
            by_lower_case.get(name.lower()),
            gpu[row],
            _CLUSTER_OF_SOURCE.get((framework[row], per_node[row])) if is_unnamed else None,
            find_gpu(name),
            find_gpu(gpu[row]),
            find_gpu(gpu_name[row]),
        )
        meant = next((each for each in candidates if each in described), None)
        if meant is not None:
            cluster[row] = meant
            if not is_unnamed:
                columns.assume_meaning(str(column), name or gpu[row] or gpu_name[row], meant)
        elif is_unnamed:
            note[row] = f"cluster={UNNAMED_CLUSTER} names no hardware, and its source is not known"
        else:
            note[row] = f"cluster={shortened(name)} is unknown" if name else "cluster is not given"
    if not predictable_rows(note).any() and (cluster != UNNAMED_CLUSTER).all():
        hint = did_you_mean(cluster[0][:60], described)
        raise columns.cell_error(str(column), 0, f"unknown cluster: {hint}")
    return cluster
