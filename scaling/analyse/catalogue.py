"""The inputs of all tables besides the rows: GPUs, prices, the table of axes and constants."""

import dataclasses
from collections.abc import Mapping
from statistics import NormalDist

import duckdb
import pyarrow as pa

from scaling.cluster.hardware import GPUS, Cluster
from scaling.layout.axes import AXES, axis_levels
from scaling.layout.shapes import ModelShape

# Sources of a value, in the order in which one speaks for a layout at a size.
SOURCES = ("measured", "extended", "published", "predicted")
# Standard errors in half an interval: rows state 80 % of extended steps and predictions, else 95 %.
Z80, Z95 = NormalDist().inv_cdf(0.9), NormalDist().inv_cdf(0.975)


def attach_catalogue(
    connection: duckdb.DuckDBPyConnection, clusters: Mapping[str, Cluster]
) -> None:
    """Create catalogue.gpus, catalogue.clusters (prices), catalogue.axes and catalogue.levels."""
    connection.execute("create schema catalogue")
    facts = ("name", "vendor", "memory_bytes", "tdp_w")
    gpus = [{fact: getattr(gpu, fact) for fact in facts} for gpu in GPUS.values()]
    prices = {name: cluster.usd_per_gpu_hour for name, cluster in clusters.items()}
    priced = pa.table(
        [pa.array(list(prices), pa.string()), pa.array(list(prices.values()), pa.float64())],
        ["name", "usd_per_gpu_hour"],
    )
    make_table(connection, "catalogue.gpus", pa.Table.from_pylist(gpus))
    make_table(connection, "catalogue.clusters", priced)
    axes = [
        {
            "axis_order": order,
            "name": axis.name,
            "axis": axis.text.title,
            "usual": None if axis.default is None else str(axis.default).lower(),
        }
        for order, axis in enumerate(AXES.values(), start=1)
    ]
    levels = [{"name": axis.name, **level} for axis in AXES.values() for level in axis_levels(axis)]
    make_table(connection, "catalogue.axes", pa.Table.from_pylist(axes))
    make_table(connection, "catalogue.levels", pa.Table.from_pylist(levels))


def set_variables(connection: duckdb.DuckDBPyConnection) -> None:
    """Set what SQL reads by `getvariable`; each cursor needs its own."""
    sizes = [field.name for field in dataclasses.fields(ModelShape)]
    variables = {
        "axes": list(AXES), "shape": sizes, "source_order": list(SOURCES), "z80": Z80, "z95": Z95,
    }  # fmt: skip
    for name, value in variables.items():
        connection.execute(f"set variable {name} = $1", [value])


def make_table(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    """Copy an Arrow table into the database."""
    connection.register("source", table)
    connection.execute(f"create table {name} as from source")
    connection.unregister("source")
