"""The published rows shipped with the project, and those nearest to a point."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# Written by scaling/published/build.py from rows.csv.
TABLE = Path(__file__).with_name("rows.parquet")

# Distances, in doublings of the model size. GPU counts matter less than model size.
_OTHER_PRECISION = 1.0
_PER_DOUBLING_OF_GPUS = 0.5

_COUNTS = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published measurement, with its distance to a point.

    Seconds, tokens/s and FLOP/s as published or derived (scaling/published/README.md). `distance`:
    doublings of the model's active parameters, plus half the doublings of the GPUs, plus 1 for
    another precision; 0 is the same.
    """

    model: str
    framework: str
    gpu: str  # the catalogue's name
    cluster: str
    precision: str
    world_size: int
    active_params: int
    layout: str  # "tp 4, pp 8, cp 1, dp 2, micro-batch 1", what the source states
    axes: Mapping[str, int]  # tp, pp, cp, ep, virtual_stages, micro_batch_size; 1 if not stated
    seq_length: int
    global_batch_size: int
    step_time_s: float
    tokens_per_s_per_gpu: float
    model_flop_per_s_per_gpu: float  # by this project's count, scaling/layout/shapes.py
    source: str
    release: str
    licence: str
    distance: float

    @property
    def sentence(self) -> str:
        """One sentence that can stand beside a measured or predicted number."""
        return (
            f"{self.model} on {self.world_size} {self.gpu} in {self.precision} ({self.layout}): "
            f"{self.step_time_s:.4g} s a step, {self.tokens_per_s_per_gpu:,.0f} tokens/s and "
            f"{self.model_flop_per_s_per_gpu / 1e12:.0f} TFLOP/s a GPU, published by "
            f"{self.source}, {self.release}"
        )


@cache
def published_table() -> pa.Table:
    """All published rows; README.md beside the file describes the columns."""
    return pq.read_table(TABLE)


def nearest_rows(
    *,
    gpu: str,
    active_params: float,
    precision: str,
    world_size: int,
    experts: bool,
    count: int = 1,
    farthest: float = 4.0,
) -> list[PublishedRow]:
    """The published rows nearest to a point, nearest first; empty if none is comparable.

    A row is comparable under three conditions. Its GPU differs at most in memory (an a100-40gb, not
    an a100-pcie-80gb, for an a100-80gb), its model has experts or not as this one, and it is not
    farther than `farthest`. It usually has another layout and software: a number to judge a
    measurement by, not a prediction.

    Args:
        gpu: a name of the catalogue, scaling/cluster/hardware.py.
        active_params: parameters used for one token, `ModelShape.active_params`.
        precision: of the layers' matrix products, as in the axis `precision`.
        world_size: GPUs.
        experts: whether the model has experts.
        count: how many rows at most.
        farthest: see `PublishedRow.distance`.
    """
    kind = gpu.rpartition("-")[0]
    nearest = []
    for row in published_table().to_pylist():
        if row["gpu"].rpartition("-")[0] != kind or bool(row["num_experts"]) != experts:
            continue
        distance = (
            abs(math.log2(row["active_params"] / active_params))
            + _PER_DOUBLING_OF_GPUS * abs(math.log2(row["world_size"] / world_size))
            + (0.0 if row["precision"] == precision else _OTHER_PRECISION)
        )
        if distance <= farthest:
            nearest.append(_published_row(row, distance))
    # of equally near rows the fastest first: the others are older releases of the same recipe
    nearest.sort(key=lambda row: (row.distance, -row.model_flop_per_s_per_gpu))
    return nearest[:count]


def _published_row(row: dict[str, Any], distance: float) -> PublishedRow:
    degrees = [f"{name} {row[name]}" for name in ("tp", "pp", "cp", "dp", "ep") if row[name]]
    if (row["virtual_stages"] or 1) > 1:
        degrees.append(f"{row['virtual_stages']} virtual stages")
    names = set(PublishedRow.__dataclass_fields__) - {"layout", "axes", "distance"}
    return PublishedRow(
        **{name: row[name] for name in names},
        layout=", ".join([*degrees, f"micro-batch {row['micro_batch_size']}"]),
        axes={name: row[name] or 1 for name in _COUNTS},
        distance=distance,
    )
