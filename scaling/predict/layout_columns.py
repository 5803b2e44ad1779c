"""The layout part of a table: degrees, batch arithmetic, and what cannot be predicted."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from scaling.axes import OptimizerOffload, PipelineSchedule
from scaling.hardware import Cluster
from scaling.predict.columns import Columns, Flags, Floats, Words
from scaling.predict.fabric import CLUSTER_OF, FABRICS, UNNAMED_CLUSTER

# Rows without a framework column are this project's own.
OWN_FRAMEWORK = "scaling"


def named_clusters(columns: Columns, clusters: Mapping[str, Cluster] | None) -> Words:
    """The cluster column, as far as possible in names somebody describes.

    A cluster nobody here describes is its `gpu`, where the table says so (then in the vendor's
    reference node); a published table that names none is resolved by what its source says.
    """
    cluster = columns.words("cluster", "")
    known = {*FABRICS, *(clusters or {})}
    strange = np.flatnonzero([name not in known for name in cluster.tolist()])
    if strange.size:
        gpu = columns.words("gpu", "")
        framework = columns.words("framework", OWN_FRAMEWORK)
        per_node = columns.numbers("gpus_per_node")
        for row in strange:
            if gpu[row] in FABRICS:
                cluster[row] = gpu[row]
            elif cluster[row] == UNNAMED_CLUSTER:
                where = CLUSTER_OF.get((framework[row], per_node[row]))
                cluster[row] = where or UNNAMED_CLUSTER
    return cluster


def _degrees(columns: Columns) -> dict[str, Floats]:
    """tp, pp, cp, dp and world_size; one that is missing follows from the others, else it is 1."""
    world = columns.numbers("world_size", low=1)
    found = {axis: columns.numbers(axis, low=1) for axis in ("tp", "pp", "cp", "dp")}
    found["cp"] = np.where(
        np.isnan(found["cp"]) & np.isnan(found["tp"] * found["pp"] * found["dp"]), 1.0, found["cp"]
    )
    for axis in ("dp", "cp", "pp", "tp"):
        others = np.prod([size for name, size in found.items() if name != axis], axis=0)
        follows = np.isnan(found[axis]) & ~np.isnan(others) & ~np.isnan(world)
        found[axis] = np.where(follows, world / others, found[axis])
    for axis in ("tp", "pp", "cp"):
        found[axis] = np.where(np.isnan(found[axis]), 1.0, found[axis])
    replica = found["tp"] * found["pp"] * found["cp"]
    over = np.where(np.isnan(world), 1.0, world / replica)
    found["dp"] = np.where(np.isnan(found["dp"]), over, found["dp"])
    found["world_size"] = np.where(np.isnan(world), replica * found["dp"], world)
    return found


def layout_arrays(columns: Columns, per_node: Floats) -> dict[str, Any]:
    """Every layout column as an array (n,); dp, world_size and the batch follow from each other."""
    degrees = _degrees(columns)
    dp = degrees["dp"]
    micro = columns.numbers("micro_batch_size", low=1)
    batch = columns.numbers("global_batch_size", low=1)
    steps = columns.numbers("gradient_accumulation_steps", low=1)
    micro = np.where(np.isnan(micro) & ~np.isnan(steps), batch / (dp * steps), micro)
    if np.isnan(micro).any():
        columns.assumptions.append(
            f"micro_batch_size is not given in {int(np.isnan(micro).sum())} rows: taken as 1"
        )
    micro = np.where(np.isnan(micro), 1.0, micro)
    steps = np.where(np.isnan(steps), batch / (dp * micro), steps)
    steps = np.maximum(np.where(np.isnan(steps), 1.0, steps), 1.0)
    return {
        **degrees,
        "gpus_per_node": columns.numbers("gpus_per_node", per_node, low=1, plain=True),
        "zero_stage": columns.numbers("zero_stage", 0.0),
        "shard": columns.numbers("zero_shard_size", dp, low=1, plain=True),
        "micro_batch_size": micro,
        "accumulation": steps,
        "seq_length": columns.numbers("seq_length", low=1),
        "sequence_parallel": columns.flags("sequence_parallel", False),
        "fused_norm": columns.flags("fused_norm", False),
        "offload": columns.words(
            "optimizer_offload", "none", get_args(OptimizerOffload), plain=True
        )
        == "cpu",
    }


def say_what_is_not_modelled(columns: Columns) -> None:
    """A sentence for every choice that a prediction leaves out of account."""
    chosen = {
        "pipeline_schedule": columns.words(
            "pipeline_schedule", "1f1b", get_args(PipelineSchedule), plain=True
        )
        != "1f1b",
    }
    for name in ("fused_rope", "fused_mlp", "fused_cross_entropy", "compile"):
        chosen[name] = columns.flags(name, False, plain=True)
    for name, rows in chosen.items():
        if rows.any():
            columns.assumptions.append(
                f"{name} is asked for in {int(rows.sum())} rows: predicted as without it"
            )


def unsaid(note: Words) -> Flags:
    """Rows nothing speaks against, bool (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)


def note_misfits(arrays: Mapping[str, Any], note: Words) -> None:
    """Say why a row cannot be predicted; only what leaves the formulas without meaning."""
    product = arrays["tp"] * arrays["pp"] * arrays["cp"] * arrays["dp"]
    broken = [np.mod(arrays[axis], 1) != 0 for axis in ("tp", "pp", "cp", "dp")]
    shape = (
        "num_layers",
        "hidden_size",
        "num_heads",
        "ffn_hidden_size",
        "vocab_size",
        "seq_length",
    )
    reasons = {
        "world_size is not tp x pp x cp x dp": (arrays["world_size"] != product)
        | np.any(broken, axis=0),
        "pp is larger than num_layers": arrays["pp"] > arrays["num_layers"],
        "zero_stage is above 3": arrays["zero_stage"] > 3,
        "zero_shard_size does not divide dp": (np.mod(arrays["dp"], arrays["shard"]) != 0)
        | (np.mod(arrays["shard"], 1) != 0),
        "zero_shard_size shards nothing at zero_stage 0": (arrays["zero_stage"] == 0)
        & (arrays["shard"] > 1)
        & (arrays["shard"] != arrays["dp"]),
    }
    reasons |= {f"{name} is not given": np.isnan(arrays[name]) for name in shape}
    for reason, rows in reasons.items():
        note[rows & unsaid(note)] = reason


def say_of_pipelines(columns: Columns, rows: Flags) -> None:
    """What is assumed of an encoder-decoder in a pipeline, where there is one."""
    if rows.any():
        columns.assumptions.append(
            f"{int(rows.sum())} rows pipeline an encoder-decoder: its encoder's layers first, "
            "every stage sent both streams"
        )
