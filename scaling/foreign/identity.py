"""Which model, and which hardware, a row of others is about."""

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
    """Each row's GPU, None if it is not known; a row that names no cluster is on one of its GPU."""
    gpus: list[str | None] = []
    for row, stated in enumerate(cells):
        words = stated.get("gpu") or stated.get("gpu_name") or ""
        meant = words if words in GPUS else find_gpu(words)
        if "cluster" in stated:
            meant = meant or gpu_of_cluster(stated["cluster"], clusters)
        elif meant is not None:
            stated["cluster"] = meant
            columns.assume_meaning("gpu", words, meant)
        elif words:
            hint = did_you_mean(words[:60], GPUS)
            columns.skip_row(row, f"{columns.place(row)}: gpu={shortened(words)}: {hint}")
        gpus.append(meant)
    return gpus


def identify_models(
    columns: Columns, cells: list[dict[str, Any]], models: Mapping[str, ModelShape]
) -> list[dict[str, Any]]:
    """Name and shape of the catalogue's model that each row is about; empty where that is open."""
    stated_by = ("model", *SHAPE, "head_dim", *PART_SIZES)
    keys = [tuple(stated.get(name) for name in stated_by) for stated in cells]
    meant = {
        key: _model_of(columns, stated, models)
        for key, stated in dict(zip(keys, cells, strict=True)).items()
    }
    return [meant[key] for key in keys]


def _model_of(
    columns: Columns, stated: Mapping[str, Any], models: Mapping[str, ModelShape]
) -> dict[str, Any]:
    sizes = {name: stated.get(name) for name in (*SHAPE, "head_dim")}
    parts = {name: stated.get(name) for name in PART_SIZES}
    if parts["num_experts"] in (0, 1):  # all layers of a dense model may be called dense
        parts |= dict.fromkeys(PART_SIZES[: PART_SIZES.index("query_rank")], 0)
    alike = {
        name: shape
        for name, shape in models.items()
        if all(size in (None, getattr(shape, key)) for key, size in (sizes | parts).items())
    }
    whole = all(stated.get(name) is not None for name in SHAPE)
    if whole:  # what it does not say of experts, latents and windows is that there are none
        alike = {
            name: shape
            for name, shape in alike.items()
            if all((parts[part] or 0) == getattr(shape, part) for part in PART_SIZES)
            and not shape.num_encoder_layers
        }
    meant = find_model(str(stated.get("model") or ""), alike)
    if meant is None and whole and len(alike) == 1:
        meant = next(iter(alike))
    if meant is None:
        return {}
    if meant != stated["model"]:
        columns.assume_meaning("model", stated["model"], meant)
    shape = alike[meant]
    return {"model": meant, **{name: getattr(shape, name) for name in (*SHAPE, *PART_SIZES)}}


def rename_by_depth(columns: Columns, records: list[dict[str, Any]]) -> None:
    """Models of one name and several depths are several models, which nothing may compare."""
    depths: dict[str, set[int | None]] = {}
    for record in records:
        depths.setdefault(record["model"], set()).add(record["num_layers"])
    for record in records:
        name, layers = record["model"], record["num_layers"]
        if len(depths[name]) > 1 and layers is not None:
            record["model"] = f"{name}-{layers}-layers"
            columns.assume(f"model: {name} of {layers} layers is {record['model']}")
