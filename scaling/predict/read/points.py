"""Points from a table or from layouts: arrays for the formulas, in groups of one stack each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scaling.arrays import Column, Strings
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
    groups = []
    for (framework, name), rows in _rows_by_stack(named["framework"], named["cluster"]):
        rows = rows[predictable_rows(note[rows])]
        if not rows.size:
            continue
        cluster = cluster_named(name, clusters)
        gpu, is_own = gpu_named(cluster.gpu), framework in OWN_STACKS
        stack = stack_of(framework, gpu)
        of_group = {axis: values[rows] for axis, values in columns.items()}
        # other software (Megatron, FSDP) leaves experts whole where it deals them to ep ranks
        whole = (of_group["ep"] > 1) & (not is_own)
        of_group["etp"] = np.where(whole, 1.0, of_group["tp"])
        per_node = np.maximum(of_group["gpus_per_node"], gpu.link_domain or 0)
        of_group["gpus_per_node"] = np.where(np.isnan(per_node), cluster.gpus_per_node, per_node)
        f = features_of(of_group, gpu, stack)
        unrated = {
            word: f"precision={word} has no published peak on gpu={gpu.name}, "
            f"which has {', '.join(gpu.peaks)}"
            for word in {*of_group["precision"].tolist()} - gpu.peaks.keys()
        }
        why = why_unpredictable(name, cluster)
        note[rows] = [
            why or misfit or unrated.get(word)
            for misfit, word in zip(
                _misfits(f, is_own=is_own), of_group["precision"].tolist(), strict=True
            )
        ]
        fine = predictable_rows(note[rows])
        if not fine.any():
            continue
        # what is known of the software overrides what is known of the transport
        known = {**(LOSSY_TRANSPORT if cluster.lossy_transport else {}), **stack.defaults}
        groups.append(
            Group(
                key=f"{framework}|{name}",
                framework=framework,
                stack=stack,
                cluster_name=name,
                cluster=cluster,
                start=defaults_for(known),
                rows=rows[fine],
                features=f.take(np.flatnonzero(fine)),
            )
        )
    # on-off axes that came after the formulas
    for axis in (a for a, axis in AXES.items() if axis.kind is bool and axis.added_later):
        if asked := int(columns[axis].sum()):
            taken_as = _PREDICTED_AS.get(axis, "as without it")
            assumptions.append(f"{axis} is asked for in {asked} rows: predicted {taken_as}")
    streams = np.where(columns["num_encoder_layers"] > 0, 2.0, 1.0)  # shapes.py
    if pipelined := int(((streams > 1) & (columns["pp"] > 1)).sum()):
        assumptions.append(
            f"{pipelined} rows pipeline an encoder-decoder: all of its layers are taken as alike"
        )
    n = {name: columns[name].astype(np.float64) for name in ("micro_batch_size", *SIZES)}
    batch = n["micro_batch_size"] * n["gradient_accumulation_steps"] * n["dp"]
    choices = zip(*(columns[name].tolist() for name in SETTING_AXES), strict=True)
    return Points(
        groups=tuple(groups),
        note=note,
        assumptions=tuple(assumptions),
        model=named["model"],
        cluster=named["cluster"],
        framework=named["framework"],
        world_size=n["world_size"],
        seq_length=n["seq_length"],
        global_batch_size=batch,
        tokens_per_step=batch * n["seq_length"] * streams,
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


def _misfits(f: Features, *, is_own: bool) -> Strings:
    """Why a row's layout gives the formulas no meaning, None if it does not, (n,).

    `is_own`: of this project's engines, which deal whole layers to each chunk of a pipeline.
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
