"""What the software of a foreign row does by itself: by name, release, and what is unsaid."""

from collections.abc import Mapping, Sequence

import numpy as np

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import AXIS_WORDS
from scaling.layout.axes import DEFAULTS
from scaling.predict.read.clusters import cluster_named, names_of
from scaling.predict.read.inputs import UNNAMED, own_framework
from scaling.predict.read.precisions import LOW_PRECISIONS
from scaling.predict.read.stack_facts import Stack
from scaling.predict.read.stacks import stack_of, with_release

# What no row of this project is without, and what says that a row was measured.
_OURS = ("point_id", "engine", "stack_fingerprint")
_MEASURED = ("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s")


def frameworks_of(columns: Columns) -> Strings:
    """Each row's framework, with its release where that changes what is known of it, (n,).

    This project's own where none is named, by the engine; a row with a `source` is of others, and
    so is a measured one without the `point_id` or the engine that rows of this project have.
    """
    measured = any(name in columns for name in _MEASURED)
    elsewhere = "measured" if measured and not any(name in columns for name in _OURS) else ""
    stated, engine = columns.strings("framework", ""), columns.strings("engine", DEFAULTS["engine"])
    whose = [
        name or (UNNAMED if source else own_framework(by))
        for name, source, by in zip(
            stated, columns.strings("source", elsewhere), engine, strict=True
        )
    ]
    pairs = zip(whose, columns.strings("release", "").tolist(), strict=True)
    return np.array([with_release(*pair) for pair in pairs], dtype=object)


def unfused_software(columns: Columns, framework: Strings, cluster: Strings) -> Flags:
    """Rows of software that runs norms as chains of operators in a 16-bit row of theirs, (n,)."""
    name = "fused_norm"
    if name not in columns:
        return np.zeros(len(columns), dtype=bool)
    precision = columns.strings("precision", "bf16", AXIS_WORDS["precision"], silent=True)
    unfused = columns.is_given(name) & ~columns.flags(name, False, silent=True)
    unfused &= ~np.isin(precision, LOW_PRECISIONS)
    whose = list(zip(framework.tolist(), cluster.tolist(), strict=True))
    theirs = {whose[row] for row in np.flatnonzero(unfused)}
    return np.array([each in theirs for each in whose], dtype=bool)


def stacks_of(
    framework: Strings, cluster: Strings, unfused: Flags, clusters: Mapping[str, Cluster]
) -> list[Stack]:
    """What is known of every row's software; a cluster nobody describes is of no GPU."""
    known = names_of(clusters)
    whose = list(zip(framework.tolist(), cluster.tolist(), unfused.tolist(), strict=True))
    stack = {
        (name, where, chains): stack_of(
            name,
            gpu_named(cluster_named(where, clusters).gpu) if where in known else None,
            unfused=chains,
        )
        for name, where, chains in set(whose)
    }
    return [stack[each] for each in whose]


def recomputes(columns: Columns, stacks: Sequence[Stack]) -> Flags:
    """Rows that do not say what they recompute, of software that is told module by module, (n,)."""
    name = "activation_checkpointing"
    stated = columns.is_given(name) if name in columns else np.zeros(len(columns), dtype=bool)
    chosen: Flags = np.array([stack.recomputes_modules for stack in stacks], dtype=bool) & ~stated
    if chosen.any():
        columns.assumptions.append(
            f"{name} is not given in {int(chosen.sum())} rows of software that recomputes single "
            "modules: taken as what their memory asks for"
        )
    return chosen


def expert_slices(columns: Columns, tp: Floats) -> Floats:
    """Ranks that share one expert, (n,): all of a tp group without ep, else 1 (Megatron, FSDP)."""
    stated = columns.counts("etp")
    dealt = columns.counts("ep", low=0, default=1.0, silent=True) > 1
    return np.where(np.isnan(stated), np.where(dealt, 1.0, tp), stated)
