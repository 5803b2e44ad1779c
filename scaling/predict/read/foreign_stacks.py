"""The software of foreign rows: its name and release, and what it does unless a row states it."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from scaling.cluster.hardware import Cluster, gpu_named
from scaling.foreign.arrays import Flags, Strings
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import AXIS_WORDS
from scaling.foreign.spellings import RATES, canonical_word
from scaling.layout.axes import DEFAULTS
from scaling.predict.read.clusters import cluster_named, cluster_names
from scaling.predict.read.inputs import UNNAMED_FRAMEWORK, own_framework
from scaling.predict.read.stack_facts import Stack
from scaling.predict.read.stacks import stack_of

# Columns that only rows of this project have, and columns of measured rows.
_OURS = ("point_id", "engine", "stack_fingerprint")
_MEASURED = ("outcome", "step_time_s", "peak_memory_bytes", *RATES)


def frameworks_of(columns: Columns) -> Strings:
    """Each row's framework, (n,).

    Rows that name no framework are this project's own, under their engine, unless they state a
    `source` or are measured without any column of this project: then it is unnamed.
    """
    measured = any(name in columns for name in _MEASURED)
    default_source = "measured" if measured and not any(name in columns for name in _OURS) else ""
    rows = zip(
        columns.strings("framework", "").tolist(),
        columns.strings("engine", DEFAULTS["engine"], AXIS_WORDS["engine"], silent=True).tolist(),
        columns.strings("source", default_source).tolist(),
        strict=True,
    )
    names = [
        stated or (UNNAMED_FRAMEWORK if source else own_framework(engine))
        for stated, engine, source in rows
    ]
    if unnamed := names.count(UNNAMED_FRAMEWORK):
        columns.assume(
            f"framework is not given in {unnamed} rows: taken as software usual for their GPUs"
        )
    return np.array(names, dtype=object)


def stacks_of_rows(
    framework: Strings, cluster: Strings, clusters: Mapping[str, Cluster]
) -> list[Stack]:
    """The stack of each row; rows of unknown clusters are looked up without a GPU."""
    described = cluster_names(clusters)
    gpus = {
        name: gpu_named(cluster_named(name, clusters).gpu) if name in described else None
        for name in set(cluster.tolist())
    }
    return [stack_of(name, gpus[where]) for name, where in zip(framework, cluster, strict=True)]


def recomputes(columns: Columns, stacks: Sequence[Stack]) -> Flags:
    """Mask, (n,): rows whose software recomputes single modules, and that do not say how much."""
    name = "activation_checkpointing"
    words = AXIS_WORDS[name]
    given = columns.is_given(name, words) if name in columns else False
    stated = np.broadcast_to(given, (len(columns),))
    named = np.array([_names_modules(cell) for cell in columns.strings(name, "").tolist()], bool)
    per_module = np.array([stack.recomputes_modules for stack in stacks], dtype=bool)
    for rows, what in ((~stated, "is not given"), (named, "names modules")):
        if told := int((rows & per_module).sum()):
            columns.assume(
                f"{name} {what} in {told} rows of software that recomputes single modules: taken "
                "as what their memory asks for"
            )
    if others := int((~stated & ~per_module).sum()):
        columns.assume(f"{name} is not given in {others} rows: taken as none")
    return np.asarray(per_module & (~stated | named))


def _names_modules(cell: str) -> bool:
    """Whether a cell of activation_checkpointing names parts of a layer, other than attention."""
    name = "activation_checkpointing"
    is_part = canonical_word(name, cell, AXIS_WORDS[name]) == "selective"
    return is_part and not re.search("select|att", cell.lower())
