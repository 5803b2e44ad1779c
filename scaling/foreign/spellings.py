"""How other tools spell this project's columns, their words, and GPUs, in small letters."""

import re
from collections.abc import Collection, Mapping, Sequence

from scaling.cluster.hardware import GPUS

# Megatron's arguments, Hugging Face's configurations, and the heads of published tables.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp_size", "tensor_parallel_size", "tensor_model_parallel_size"),
    "pp": ("pp_size", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "cp": ("cp_size", "context_parallel_size"),
    "dp": ("dp_size", "data_parallel_size"),
    "ep": ("ep_size", "expert_parallel_size", "expert_model_parallel_size"),
    "virtual_stages": ("vp", "vpp", "virtual_pipeline_model_parallel_size"),
    "world_size": ("gpus", "num_gpus", "n_gpus"),
    "micro_batch_size": ("mbs",),
    "global_batch_size": ("gbs",),
    "gradient_accumulation_steps": ("ga", "grad_accum"),
    "seq_length": ("seq_len", "sequence_length"),
    "num_layers": ("n_layers", "num_hidden_layers"),
    "hidden_size": ("hidden_dim", "d_model"),
    "num_heads": ("n_heads", "num_attention_heads"),
    "num_kv_heads": ("n_kv_heads", "num_key_value_heads", "num_query_groups"),
    "ffn_hidden_size": ("intermediate_size",),
    "precision": ("dtype",),
    "activation_checkpointing": ("recompute_granularity",),
}
_OURS = {theirs: ours for ours, spellings in _COLUMNS.items() for theirs in spellings}

# PyTorch, Lightning and NeMo name a format with what is mixed in; Megatron an 8-bit recipe.
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "precision": {
        "bfloat16": "bf16", "bf16-mixed": "bf16", "bf16-true": "bf16",
        "float16": "fp16", "fp16-mixed": "fp16", "16-mixed": "fp16", "half": "fp16",
        "float32": "fp32", "32-true": "fp32",
        "float8": "fp8", "fp8-mixed": "fp8", "fp8-hybrid": "fp8", "fp8-e4m3": "fp8",
        "fp8-cs": "fp8", "fp8-ds": "fp8", "fp8-sc": "fp8", "fp8-blockwise": "fp8",
        "fp8-subchannel": "fp8",
        "fp8-mx": "mxfp8", "mxfp8-mixed": "mxfp8",
        "fp4": "nvfp4", "nvfp4-mixed": "nvfp4",
    },
    "attention": {
        "flash-attention-2": "flash2", "flash-attention-3": "flash3", "flash-attention": "flash2",
        "fa2": "flash2", "fa3": "flash3",
    },
    "activation_checkpointing": {"no": "none", "off": "none", "false": "none"},
    "outcome": {"success": "ok", "completed": "ok", "out-of-memory": "oom"},
}  # fmt: skip

# What stands around a GPU's name without making it another product.
_AROUND = re.compile(
    r"nvidia|amd|instinct|[dh]gx|sxm\d?|oam|tensor|core|gpu|nvl72|hbm\w+|\d+gi?b|gb"
)


def column_names(stated: Sequence[str]) -> list[str]:
    """A header in this project's names, as far as they are known and not in it already."""
    names: list[str] = []
    for name in stated:
        small = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
        meant = _OURS.get(small, name.lower())
        names.append(name if meant in stated or meant in names else meant)
    return names


def respelled(column: str, word: str, known: Collection[str]) -> str:
    """The word of `known` that a cell means, whatever its case; the cell itself if none."""
    small = word.lower()
    meant = SPELLINGS.get(column, {}).get(re.sub(r"[\W_]+", "-", small), small)
    return meant if word not in known and meant in known else word


def gpu_meant(text: str) -> str | None:
    """The catalogue's name of a GPU, however it is written; None if several could be meant.

    Words that no GPU's name has, such as a site's, leave it unknown, so that no slip of the pen
    becomes another cluster.
    """
    words = set(re.findall(r"[a-z0-9]+", text.lower()))
    products = {word for word in words if not _AROUND.fullmatch(word)}
    fitting = [
        name
        for name in GPUS
        if products == {word for word in name.split("-") if not re.fullmatch(r"\d+gb", word)}
    ]
    exact = [name for name in fitting if set(name.split("-")) <= words]
    meant = exact or fitting
    return meant[0] if len(meant) == 1 else None
