"""Tables of others as inputs of the predictor: what is derived, assumed, or cannot be predicted."""

from collections.abc import Mapping

import numpy as np

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError, did_you_mean
from scaling.foreign.arrays import Flags, Floats, Words
from scaling.foreign.columns import LARGEST, MOST, Columns
from scaling.foreign.layouts import BATCH_FACTORS, DEGREES, WORDS, completed, layout_of, misfits
from scaling.layout.shapes import ModelShape
from scaling.predict.read.clusters import names_of
from scaling.predict.read.inputs import OWN_FRAMEWORK, SHAPE, Inputs, usable_rows, without

# Published tables that name no cluster, by framework and GPUs per node.
UNNAMED_CLUSTER = "other"
CLUSTER_OF = {
    # arXiv 1909.08053, section 5: DGX-2H servers of 16 V100 SXM3 32 GB; the same README's rows on 8
    # GPUs a node are twice as fast: DGX A100, of which only the 40 GB one existed then
    ("Megatron-LM (2020)", 16): "v100-32gb-dgx2h",
    ("Megatron-LM (2020)", 8): "a100-40gb-dgx",
    # Megatron-LM README, table of model sizes: H100 GPUs, up to 6,144 of them
    ("Megatron-Core r0.8.0", 8): "h100-80gb-dgx",
}

_GPT2_VOCABULARY = 50304.0  # padded to a multiple of 128
_LAYERS_TO_WIDTH = 128.0  # hidden_size / num_layers of GPT-3 175B (12288 / 96)


def inputs_of(
    columns: Columns, *, models: Mapping[str, ModelShape] | None, clusters: Mapping[str, Cluster]
) -> Inputs:
    """Check a table and complete it.

    Raises:
        InputError: a cell holds what no layout can have, or a needed column is missing.
    """
    n = len(columns)
    if "cluster" not in columns and n:
        raise columns.missing("cluster", "the hardware is never guessed")
    note = np.full(n, None, dtype=object)
    model = columns.words("model", "unnamed")
    cluster = _clusters(columns, clusters, note)
    shape = _shapes(columns, model, models)
    layout = _layout(columns)
    _note_misfits(columns, shape, layout, note)
    words = {name: columns.words(name, default, WORDS[name]) for name, default in _CHOICES.items()}
    offload = columns.words("optimizer_offload", "none", WORDS["optimizer_offload"], plain=True)
    optimizer_precision = columns.words(
        "optimizer_precision", "fp32", WORDS["optimizer_precision"], plain=True
    )
    inputs = Inputs(
        model=model,
        cluster=cluster,
        framework=columns.words("framework", OWN_FRAMEWORK),
        shape=shape,
        **{name: layout[name] for name in ("world_size", *DEGREES)},
        micro_batch_size=layout["micro_batch_size"],
        gradient_accumulation_steps=layout["gradient_accumulation_steps"],
        seq_length=columns.counts("seq_length"),
        gpus_per_node=columns.counts("gpus_per_node"),
        zero_stage=columns.counts("zero_stage", low=0, default=0.0),
        zero_shard_size=columns.counts("zero_shard_size"),
        sequence_parallel=columns.flags("sequence_parallel", False),
        fused_norm=columns.flags("fused_norm", False),
        fused_mlp=columns.flags("fused_mlp", False),
        fused_cross_entropy=columns.flags("fused_cross_entropy", False),
        offload=offload == "cpu",
        short_states=optimizer_precision == "bf16",
        attention=words["attention"],
        checkpointing=words["activation_checkpointing"],
        precision=words["precision"],
        note=note,
        assumptions=(),
        point_id=columns.words("point_id", "") if "point_id" in columns else None,
    )
    columns.assumptions += _left_out(columns)
    return inputs


_CHOICES = {"attention": "flash2", "activation_checkpointing": "none", "precision": "bf16"}


def _clusters(columns: Columns, clusters: Mapping[str, Cluster], note: Words) -> Words:
    """The cluster column, as far as possible in names somebody describes.

    A cluster nobody here describes is its `gpu`, where the table says so (then in the vendor's
    reference node); a published table that names none is resolved by what its source says.

    Raises:
        InputError: a cluster is unknown.
    """
    cluster = columns.words("cluster", "")
    known = names_of(clusters)
    strange = np.flatnonzero([name not in known for name in cluster.tolist()])
    if not strange.size:
        return cluster
    gpu = columns.words("gpu", "")
    framework = columns.words("framework", OWN_FRAMEWORK)
    per_node = columns.counts("gpus_per_node")
    for row in strange:
        said = CLUSTER_OF.get((framework[row], per_node[row]))
        if gpu[row] in known:
            cluster[row] = gpu[row]
        elif cluster[row] != UNNAMED_CLUSTER:
            hint = did_you_mean(cluster[row][:60], known)
            raise columns.cell_error("cluster", int(row), f"unknown cluster: {hint}")
        elif said in known:
            cluster[row] = said
        else:
            note[row] = f"cluster={UNNAMED_CLUSTER} says no hardware, and its source is not known"
    return cluster


def _layout(columns: Columns) -> dict[str, Floats]:
    """Degrees and batch; what neither is stated nor follows is 1."""
    known = layout_of(columns)
    others = known["tp"] * known["pp"] * known["dp"]
    known["cp"] = np.where(np.isnan(known["cp"]) & np.isnan(others), 1.0, known["cp"])
    known = completed(known)
    for name in ("tp", "pp", "cp"):
        known[name] = np.where(np.isnan(known[name]), 1.0, known[name])
    known = completed(known)
    known["dp"] = np.where(np.isnan(known["dp"]), 1.0, known["dp"])
    known = completed(known)
    for name in BATCH_FACTORS[:2]:
        missing = np.isnan(known[name])
        if missing.any() and name == "micro_batch_size":
            columns.assumptions.append(f"{name} is not given in {missing.sum()} rows: taken as 1")
        known[name] = np.where(missing, 1.0, known[name])
        known = completed(known)
    return known


def _note_misfits(
    columns: Columns, shape: Mapping[str, Floats], layout: Mapping[str, Floats], note: Words
) -> None:
    """Say why a row cannot be predicted; only what leaves the formulas without meaning."""
    reasons = {reason: rows for reason, (_, rows) in misfits(layout).items()}
    experts = columns.counts("num_experts", low=0)
    ranks = columns.counts("ep")
    reasons["mixtures of experts are not modelled"] = (experts > 1) | (ranks > 1)
    kind = columns.words("attention_kind", "")
    plain = np.isin(kind, ["", "mha", "mqa", "gqa"])
    reasons["attention_kind is none that is modelled (mha, gqa, mqa)"] = ~plain
    needed = {n: shape[n] for n in ("num_layers", "hidden_size", "num_heads", "vocab_size")}
    needed |= {"ffn_hidden_size": shape["ffn_hidden_size"]}
    needed |= {"seq_length": columns.counts("seq_length")}
    reasons |= {f"{name} is not given": np.isnan(values) for name, values in needed.items()}
    for reason, rows in reasons.items():
        note[rows & usable_rows(note)] = reason


def _left_out(columns: Columns) -> list[str]:
    """A sentence for every choice that a prediction leaves out of account."""
    name = "pipeline_schedule"
    chosen: dict[str, Flags] = {
        name: columns.words(name, "1f1b", WORDS[name], plain=True) != "1f1b"
    }
    for name in ("fused_rope", "fused_mlp", "fused_cross_entropy", "compile"):
        chosen[name] = columns.flags(name, False, plain=True)
    chosen["virtual_stages"] = columns.counts("virtual_stages") > 1
    return without(chosen)


def _shapes(
    columns: Columns, model: Words, models: Mapping[str, ModelShape] | None
) -> dict[str, Floats]:
    """The shape of every row's model, NaN where a cell is empty.

    Shape columns win. Without them the model's name is looked up in `models`; without that
    `total_params` implies a GPT shape of 128 hidden elements a layer, which is said.

    Raises:
        InputError: the table has neither, or a model is unknown.
    """
    known = "num_layers" in columns and "hidden_size" in columns
    if not known and models is not None and len(columns) and "model" in columns:
        return _from_catalogue(columns, model, models)
    if not known and "total_params" not in columns and len(columns):
        raise InputError(
            f"{columns.source}: columns num_layers and hidden_size are missing: give the model's "
            "shape, or total_params, or a model of config/models.yaml"
        )
    return _from_columns(columns, known)


def _from_catalogue(
    columns: Columns, model: Words, models: Mapping[str, ModelShape]
) -> dict[str, Floats]:
    for row, name in enumerate(model.tolist()):
        if name not in models:
            hint = did_you_mean(name[:60], models)
            raise columns.cell_error(
                "model", row, f"has no shape columns and is not in config/models.yaml: {hint}"
            )
    shapes = [models[name] for name in model.tolist()]
    return {
        name: np.array([float(getattr(shape, name)) for shape in shapes], dtype=np.float64)
        for name in SHAPE
    }


def _from_columns(columns: Columns, known: bool) -> dict[str, Floats]:
    hidden = columns.counts("hidden_size")
    layers = columns.counts("num_layers")
    if not known:
        # 12 L h^2 parameters with h = 128 L
        params = columns.numbers("total_params", low=1, high=LARGEST)
        implied = np.maximum(np.round(np.cbrt(params / (12 * _LAYERS_TO_WIDTH**2))), 1)
        layers = np.where(np.isnan(layers), implied, layers)
        hidden = np.where(np.isnan(hidden), _LAYERS_TO_WIDTH * layers, hidden)
        columns.assumptions.append(
            "num_layers and hidden_size are not given: total_params taken as a GPT of 128 hidden "
            "elements a layer"
        )

    def size(name: str, default: Floats | float, *, plain: bool = False) -> Floats:
        return columns.numbers(name, default, low=1, high=MOST, whole=True, plain=plain)

    heads = size("num_heads", np.maximum(np.round(hidden / 128), 1))
    gated = columns.flags("gated_mlp", np.isin(columns.words("family", ""), ["llama", "t5"]))
    tied = columns.flags("tied_embeddings", False)
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": size("num_kv_heads", heads, plain=True),
        "head_dim": size("head_dim", hidden / heads, plain=True),
        "ffn_hidden_size": size("ffn_hidden_size", np.where(gated, 8 / 3, 4.0) * hidden),
        "vocab_size": size("vocab_size", _GPT2_VOCABULARY),
        "num_encoder_layers": columns.counts("num_encoder_layers", low=0, default=0.0, plain=True),
        "gated_mlp": gated.astype(np.float64),
        "tied_embeddings": tied.astype(np.float64),
    }
