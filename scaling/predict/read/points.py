"""Points from a table or from layouts: arrays for the formulas, in groups of one stack each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scaling.arrays import Column, Flags, Strings
from scaling.cluster.hardware import Cluster, gpu_named
from scaling.layout.axes import AXES, SETTING_AXES, V_SCHEDULES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import cluster_named, site_clusters, why_unpredictable
from scaling.predict.read.features import SCHEDULES, Features, Group, Points, features_of
from scaling.predict.read.given import (
    SHAPE,
    SIZES,
    columns_of_table,
    predictable_rows,
)
from scaling.predict.read.parameters import LOSSY_TRANSPORT, defaults_for
from scaling.predict.read.software import with_software
from scaling.predict.read.stacks import OWN_STACKS, own_framework, stack_of

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb

# How rows are predicted that ask for an axis added after the formulas, if not as without it.
_PREDICTED_AS = {"compile": "with fused norms and nothing else of it"}


def points_of(
    table: "Table",
    *,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> Points:
    """Complete a table of points and derive what the formulas need.

    Args:
        table: in the project's names and units.
        models: shapes for rows that name a model without its shape columns.
        clusters: by name; those of config/clusters.yaml if left out.

    Raises:
        InputError: no row's cluster is known.
    """
    known = site_clusters() if clusters is None else clusters
    return _grouped(*columns_of_table(table, models=models, clusters=known), known)


def points_of_layouts(
    layouts: Sequence[Layout],
    shapes: Sequence[ModelShape],
    described: Mapping[str, Cluster],
    *,
    models: Sequence[str],
    clusters: Sequence[str],
    framework: str | None = None,
    gpus_per_node: Sequence[float] | None = None,
    point_id: Sequence[str] | None = None,
) -> Points:
    """Points of layouts, each with its model's shape and name and its cluster's name.

    `described` has clusters by name; the name of a GPU means its vendor's reference node.
    `framework` is the software of all layouts; by default each layout's engine. Without
    `gpus_per_node` each cluster's counts.

    Raises:
        InputError: a cluster is unknown.
    """
    n = len(layouts)
    kinds = {name: axis.kind for name, axis in AXES.items()} | dict.fromkeys(SIZES, int)
    columns: dict[str, Column] = {
        name: np.array(
            [getattr(one, name) for one in layouts], {bool: bool, int: float}.get(kind, object)
        )
        for name, kind in kinds.items()
    }
    unique = {id(shape): shape for shape in shapes}  # most points share a few shapes
    index_by_id = {key: index for index, key in enumerate(unique)}
    index = np.array([index_by_id[id(shape)] for shape in shapes], dtype=np.int64)
    for name in SHAPE:
        sizes = np.array([getattr(shape, name) for shape in unique.values()], dtype=np.float64)
        columns[name] = sizes[index]
    columns["gpus_per_node"] = np.array(gpus_per_node or [np.nan] * n, dtype=np.float64)
    words = {
        "model": models,
        "cluster": clusters,
        "framework": [framework or own_framework(each.engine) for each in layouts],
        **({} if point_id is None else {"point_id": point_id}),
    }
    named = {name: np.array(values, dtype=object) for name, values in words.items()}
    return _grouped(columns, named, np.full(n, None, dtype=object), [], described)


def _grouped(
    columns: dict[str, Column],
    named: dict[str, Strings],
    note: Strings,
    assumptions: list[str],
    clusters: Mapping[str, Cluster],
) -> Points:
    """Points grouped by software and cluster, with what both add to the columns."""
    is_own = np.isin(named["framework"].astype(str), [*OWN_STACKS])
    # other software (Megatron, FSDP) leaves experts whole where it deals them to ep ranks
    whole = (columns["ep"] > 1) & ~is_own
    f = features_of({**columns, "etp": np.where(whole, 1.0, columns["tp"])})
    misfits = _misfits(f, is_own)
    groups = []
    for (framework, name), rows in _rows_by_stack(named["framework"], named["cluster"]):
        rows = rows[predictable_rows(note[rows])]
        if not rows.size:
            continue
        cluster = cluster_named(name, clusters)
        why, gpu = why_unpredictable(name, cluster), gpu_named(cluster.gpu)
        words = columns["precision"][rows].tolist()
        unrated = {
            word: f"precision={word} has no published peak on gpu={gpu.name}, "
            f"which has {', '.join(gpu.peaks)}"
            for word in {*words} - gpu.peaks.keys()
        }
        note[rows] = [
            why or misfit or unrated.get(word)
            for misfit, word in zip(misfits[rows], words, strict=True)
        ]
        rows = rows[predictable_rows(note[rows])]
        if not rows.size:
            continue
        own_node = cluster.gpus_per_node
        per_node = f.gpus_per_node[rows]
        per_node = np.where(
            np.isnan(per_node), own_node, np.maximum(per_node, gpu.link_domain or 0)
        )
        stack = stack_of(framework, gpu)
        precision, attention = (
            columns[axis][rows].astype(object) for axis in ("precision", "attention")
        )
        groups.append(
            Group(
                key=f"{framework}|{name}",
                framework=framework,
                stack=stack,
                cluster_name=name,
                cluster=cluster,
                # what is known of the software overrides what is known of the transport
                start=defaults_for(
                    {**(LOSSY_TRANSPORT if cluster.lossy_transport else {}), **stack.defaults}
                ),
                rows=rows,
                features=with_software(
                    f.take(rows).but(gpus_per_node=per_node), precision, attention, gpu, stack
                ),
            )
        )
    # on-off axes that came after the formulas
    for axis in (a for a, axis in AXES.items() if axis.kind is bool and axis.added_later):
        if asked := int(columns[axis].sum()):
            taken_as = _PREDICTED_AS.get(axis, "as without it")
            assumptions.append(f"{axis} is asked for in {asked} rows: predicted {taken_as}")
    streams = np.where(f.num_encoder_layers > 0, 2.0, 1.0)  # shapes.py
    if pipelined := int(((streams > 1) & (f.pp > 1)).sum()):
        assumptions.append(
            f"{pipelined} rows pipeline an encoder-decoder: all of its layers are taken as alike"
        )
    batch = f.micro_batch_size * f.accumulation * f.dp
    choices = zip(*(columns[name].tolist() for name in SETTING_AXES), strict=True)
    return Points(
        groups=tuple(groups),
        note=note,
        assumptions=tuple(assumptions),
        model=named["model"],
        cluster=named["cluster"],
        framework=named["framework"],
        world_size=f.world_size,
        seq_length=f.seq_length,
        global_batch_size=batch,
        tokens_per_step=batch * f.seq_length * streams,
        setting=np.array(["|".join(map(str, row)) for row in choices], dtype=object),
        point_id=named.get("point_id"),
    )


def _rows_by_stack(
    framework: Strings, cluster: Strings
) -> list[tuple[tuple[str, str], npt.NDArray[np.int64]]]:
    """Row numbers by (framework, cluster), in the order they first appear."""
    rows_by_key: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(framework.tolist(), cluster.tolist(), strict=True)):
        rows_by_key.setdefault(key, []).append(row)
    return [(key, np.array(rows, dtype=np.int64)) for key, rows in rows_by_key.items()]


def _misfits(f: Features, is_own: Flags) -> Strings:
    """Why a row's layout gives the formulas no meaning, None if it does not, (n,).

    `is_own`: rows of this project's engines, which deal whole layers to each chunk of a pipeline.
    """
    is_v = np.isin(f.schedule, [SCHEDULES.index(name) for name in V_SCHEDULES])
    chunks = f.pp * np.where(is_v, 2.0, f.virtual)
    reasons = {
        "pp is larger than num_layers": f.pp > f.num_layers,
        "a pipeline of more model chunks than num_layers": (
            is_own & (f.pp > 1) & (chunks > f.num_layers)
        ),
        "zero_stage is above 3": f.zero_stage > 3,
        "ep is more than 1, and the model has no experts": (f.ep > 1) & (f.num_experts == 0),
        "ep does not divide num_experts": np.mod(f.num_experts, f.ep) != 0,
        "ep x etp does not divide dp x cp x tp": np.mod(f.dp * f.cp * f.tp, f.ep * f.etp) != 0,
        "zero_shard_size does not divide dp": np.mod(f.dp, f.shard) != 0,
        "zero_shard_size shards nothing at zero_stage 0": (
            (f.zero_stage == 0) & (f.shard > 1) & (f.shard != f.dp)
        ),
    }
    note = np.full(len(f), None, dtype=object)
    for reason, rows in reversed(reasons.items()):  # the first one counts
        note[rows] = reason
    return note
