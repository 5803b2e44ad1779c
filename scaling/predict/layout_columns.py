"""The layout part of a table: degrees, batch arithmetic, and what cannot be predicted."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scaling.predict.columns import Columns, Flags, Floats, Words
from scaling.predict.fabric import CLUSTER_OF, UNNAMED_CLUSTER

# Rows without a framework column are this project's own.
OWN_FRAMEWORK = "scaling"


def named_clusters(columns: Columns) -> Words:
    """The cluster column, with published tables that name none resolved by what they do say."""
    cluster = columns.words("cluster", "")
    unnamed = np.flatnonzero(cluster == UNNAMED_CLUSTER)
    if unnamed.size:
        framework = columns.words("framework", OWN_FRAMEWORK)
        per_node = columns.numbers("gpus_per_node")
        for row in unnamed:
            cluster[row] = CLUSTER_OF.get((framework[row], per_node[row]), UNNAMED_CLUSTER)
    return cluster


def layout_arrays(columns: Columns, per_node: Floats) -> dict[str, Any]:
    """Every layout column as an array (n,); dp, world_size and the batch follow from each other."""
    tp, pp, cp = (columns.numbers(axis, 1.0, low=1, plain=True) for axis in ("tp", "pp", "cp"))
    replica = tp * pp * cp
    stated_world = columns.numbers("world_size", low=1)
    dp = columns.numbers("dp", low=1)
    dp = np.where(np.isnan(dp), np.where(np.isnan(stated_world), 1.0, stated_world / replica), dp)
    world = np.where(np.isnan(stated_world), replica * dp, stated_world)
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
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "world_size": world,
        "gpus_per_node": columns.numbers("gpus_per_node", per_node, low=1, plain=True),
        "zero_stage": columns.numbers("zero_stage", 0.0),
        "micro_batch_size": micro,
        "accumulation": steps,
        "seq_length": columns.numbers("seq_length", low=1),
        "sequence_parallel": columns.flags("sequence_parallel", False),
        "fused_norm": columns.flags("fused_norm", False),
    }


def unsaid(note: Words) -> Flags:
    """Rows nothing speaks against, bool (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)


def note_misfits(arrays: Mapping[str, Any], note: Words) -> None:
    """Say why a row cannot be predicted; only what leaves the formulas without meaning."""
    product = arrays["tp"] * arrays["pp"] * arrays["cp"] * arrays["dp"]
    shape = (
        "num_layers",
        "hidden_size",
        "num_heads",
        "ffn_hidden_size",
        "vocab_size",
        "seq_length",
    )
    reasons = {
        "world_size is not tp x pp x cp x dp": arrays["world_size"] != product,
        "pp is larger than num_layers": arrays["pp"] > arrays["num_layers"],
        "zero_stage is above 3": arrays["zero_stage"] > 3,
    }
    reasons |= {f"{name} is not given": np.isnan(arrays[name]) for name in shape}
    for reason, rows in reasons.items():
        note[rows & unsaid(note)] = reason
