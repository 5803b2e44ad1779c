"""Identify the model and the GPU of each row of a foreign table."""

from collections.abc import Mapping
from typing import Any

from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import did_you_mean, shortened
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import gpu_of_cluster
from scaling.foreign.spellings import find_gpu, find_model
from scaling.layout.optional_parts import PART_SIZES
from scaling.layout.shapes import ModelShape

SHAPE = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "gated_mlp",
    "vocab_size", "tied_embeddings",
)  # fmt: skip


def identify_gpus(
    columns: Columns, cells: list[dict[str, Any]], clusters: Mapping[str, Cluster]
) -> list[str | None]:
    """Each row's GPU, None if unknown. Sets `cluster` to the GPU in rows of `cells` without one."""
    gpus: list[str | None] = []
    for row, stated in enumerate(cells):
        text = stated.get("gpu") or stated.get("gpu_name") or ""
        gpu = find_gpu(text)
        if "cluster" in stated:
            gpu = gpu or gpu_of_cluster(stated["cluster"], clusters)
        elif gpu is not None:
            stated["cluster"] = gpu
            columns.assume_meaning("gpu", text, gpu)
        elif text:
            hint = did_you_mean(text[:60], GPUS)
            columns.skip_row(row, f"{columns.place(row)}: gpu={shortened(text)}: {hint}")
        gpus.append(gpu)
    return gpus


def identify_models(
    columns: Columns, cells: list[dict[str, Any]], models: Mapping[str, ModelShape]
) -> list[dict[str, Any]]:
    """Name and shape of each row's model in the catalogue, by column; empty if not identified."""
    identifying = ("model", *SHAPE, "head_dim", *PART_SIZES)
    keys = [tuple(stated.get(name) for name in identifying) for stated in cells]
    identified = {
        key: _identify_model(columns, stated, models)
        for key, stated in dict(zip(keys, cells, strict=True)).items()
    }
    return [identified[key] for key in keys]


def _identify_model(
    columns: Columns, stated: Mapping[str, Any], models: Mapping[str, ModelShape]
) -> dict[str, Any]:
    sizes = {name: stated.get(name) for name in (*SHAPE, "head_dim")}
    parts = {name: stated.get(name) for name in PART_SIZES}
    if parts["num_experts"] in (0, 1):  # dense models may state dense_layers too
        parts |= dict.fromkeys(PART_SIZES[: PART_SIZES.index("query_rank")], 0)
    candidates = {
        name: shape
        for name, shape in models.items()
        if all(size in (None, getattr(shape, key)) for key, size in (sizes | parts).items())
    }
    is_full_shape = all(stated.get(name) is not None for name in SHAPE)
    if is_full_shape:  # then parts that it does not state are absent
        candidates = {
            name: shape
            for name, shape in candidates.items()
            if all((parts[part] or 0) == getattr(shape, part) for part in PART_SIZES)
            and not shape.num_encoder_layers
        }
    name = find_model(str(stated.get("model") or ""), candidates)
    if name is None and is_full_shape and len(candidates) == 1:
        name = next(iter(candidates))
    if name is None:
        return {}
    if name != stated["model"]:
        columns.assume_meaning("model", stated["model"], name)
    shape = candidates[name]
    return {"model": name, **{key: getattr(shape, key) for key in (*SHAPE, *PART_SIZES)}}


def rename_by_depth(columns: Columns, records: list[dict[str, Any]]) -> None:
    """Tell models apart that share a name but not num_layers, so that nothing compares them."""
    depths: dict[str, set[int | None]] = {}
    for record in records:
        depths.setdefault(record["model"], set()).add(record["num_layers"])
    for record in records:
        name, layers = record["model"], record["num_layers"]
        if len(depths[name]) > 1 and layers is not None:
            record["model"] = f"{name}-{layers}-layers"
            columns.assume(f"model: {name} of {layers} layers is {record['model']}")
