"""The published rows shipped with the project, and those nearest to a point.

`rows.csv` has what people edit; README.md beside it describes the columns. The rest is derived
here: the catalogue's GPU of a cluster, the parameters and FLOPs of a model, rates.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from scaling.cluster.hardware import GPUS
from scaling.layout.optional_parts import PART_SIZES, parts_of_kind
from scaling.layout.shapes import ModelShape, model_flops_per_token

TABLE = Path(__file__).with_name("rows.csv")
_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")

# Distances, in doublings of the model size. GPU counts matter less than model size.
_OTHER_PRECISION = 1.0
_PER_DOUBLING_OF_GPUS = 0.5
_FARTHEST = 4.0
# Columns of a row that stand beside a point.
_FACTS = (
    "model", "framework", "gpu", "cluster", "precision", "world_size", "active_params",
    "seq_length", "global_batch_size", "step_time_s", "tokens_per_s_per_gpu",
    "model_flop_per_s_per_gpu", "source", "release", "licence",
)  # fmt: skip


@cache
def published_table() -> pa.Table:
    """All published rows, with the derived columns."""
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    table = pyarrow.csv.read_csv(TABLE, convert_options=options)
    derived = [_derived(row) for row in table.to_pylist()]
    for name in derived[0]:
        table = table.append_column(name, pa.array([each[name] for each in derived]))
    return table


def _derived(row: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = parts_of_kind(row["attention_kind"] or "", row["num_layers"])
    if (row["num_experts"] or 0) > 1:
        parts |= {name: row[name] for name in PART_SIZES if (row.get(name) or 0) > 0}
    shape = ModelShape(
        **{name: row[name] for name in _SIZES},
        head_dim=row["head_dim"] or row["hidden_size"] // row["num_heads"],
        gated_mlp=row["gated_mlp"] is not False,
        tied_embeddings=row["tied_embeddings"] is True,
        **parts,
    )
    flops = model_flops_per_token(shape, row["seq_length"])
    tokens_per_s = row["global_batch_size"] * row["seq_length"] / row["step_time_s"]
    rate = tokens_per_s / row["world_size"]
    return {
        "gpu": max((name for name in GPUS if row["cluster"].startswith(name)), key=len),
        "total_params": shape.total_params,
        "active_params": shape.active_params,
        "model_flops_per_token": flops,
        "tokens_per_s_per_gpu": rate,
        "model_flop_per_s_per_gpu": rate * flops,
    }


def nearest_rows(
    *,
    gpu: str,
    active_params: float,
    precision: str,
    world_size: int,
    experts: bool,
    farthest: float = _FARTHEST,
) -> list[dict[str, Any]]:
    """The published rows near a point, nearest first; empty if none is comparable.

    A comparable row's GPU differs at most in memory, its model has experts or not as this one, and
    its distance is at most `farthest`: the doublings of the active parameters, plus half of those
    of the GPUs, plus 1 for another precision. It usually has another layout and software. Beside
    its facts a row has `layout` in words, its `distance` and a `sentence`.

    Args:
        gpu: a name of the catalogue, scaling/cluster/gpus.yaml.
        active_params: parameters used for one token, `ModelShape.active_params`.
        precision: of the layers' matrix products, as in the axis `precision`.
        world_size: GPUs.
        experts: whether the model has experts.
        farthest: in doublings.
    """
    kind = gpu.rpartition("-")[0]
    near = []
    for row in published_table().to_pylist():
        distance = (
            abs(math.log2(row["active_params"] / active_params))
            + _PER_DOUBLING_OF_GPUS * abs(math.log2(row["world_size"] / world_size))
            + _OTHER_PRECISION * (row["precision"] != precision)
        )
        comparable = row["gpu"].rpartition("-")[0] == kind and bool(row["num_experts"]) == experts
        if comparable and distance <= farthest:
            near.append(_near(row, distance))
    # the fastest of equally near rows first: the others are older releases of the same recipe
    near.sort(key=lambda row: (row["distance"], -row["model_flop_per_s_per_gpu"]))
    return near


def _near(row: dict[str, Any], distance: float) -> dict[str, Any]:
    degrees = [f"{name} {row[name]}" for name in ("tp", "pp", "cp", "dp", "ep") if row[name]]
    if (row["virtual_stages"] or 1) > 1:
        degrees.append(f"{row['virtual_stages']} virtual stages")
    layout = ", ".join([*degrees, f"micro-batch {row['micro_batch_size']}"])
    sentence = (
        f"{row['model']} on {row['world_size']} {row['gpu']} in {row['precision']} ({layout}): "
        f"{row['step_time_s']:.4g} s a step, {row['tokens_per_s_per_gpu']:,.0f} tokens/s and "
        f"{row['model_flop_per_s_per_gpu'] / 1e12:.0f} TFLOP/s a GPU, published by "
        f"{row['source']}, {row['release']}"
    )
    facts = {name: row[name] for name in _FACTS}
    return {**facts, "layout": layout, "distance": distance, "sentence": sentence}
