"""Layouts that exist only in memory as points, without a table in between."""

import dataclasses

import numpy as np

from scaling.hardware import Cluster
from scaling.layout import Layout
from scaling.predict.columns import Columns
from scaling.predict.features import Points, points_of
from scaling.shapes import ModelShape


def points_of_layouts(
    layouts: list[Layout],
    shape: ModelShape,
    *,
    model: str,
    cluster: str,
    clusters: dict[str, Cluster],
    framework: str,
) -> Points:
    """Points of one model on one cluster.

    Raises:
        InputError: the cluster or a precision of a layout is not known there.
    """
    import pyarrow as pa

    fixed = {**dataclasses.asdict(shape), "model": model, "cluster": cluster}
    fixed["framework"] = framework
    fields = [field.name for field in dataclasses.fields(Layout)]
    columns = {name: [getattr(layout, name) for layout in layouts] for name in fields}
    count = len(layouts)
    table = pa.table(
        {
            **columns,
            **{name: pa.array(np.repeat(value, count)) for name, value in fixed.items()},
        }
    )
    return points_of(Columns(table, f"cluster {cluster}"), clusters=clusters)
