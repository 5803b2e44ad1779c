"""How other tools spell this project's columns, their words, and GPUs, in small letters."""

import re
from collections.abc import Collection, Mapping, Sequence

from scaling.cluster.hardware import GPUS
from scaling.record.row import Row, fields_of

# Megatron's arguments, Hugging Face's configurations, and the heads of published tables, without
# the words that say nothing (`_FILLING`).
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp", "tensor", "tensor_model"),
    "pp": ("pp", "pipeline", "pipeline_model"),
    "cp": ("cp", "context"),
    "dp": ("dp", "data"),
    "ep": ("ep", "expert", "expert_model"),
    "etp": ("etp", "expert_tensor"),
    "virtual_stages": (
        "vp", "vpp", "virtual_pp", "virtual_pipeline", "virtual_pipeline_model",
        "virtual_pipeline_stages", "model_chunks",
    ),
    "world_size": ("world", "gpus", "gpu_count", "ranks", "devices", "chips", "accelerators"),
    "nodes": ("nodes", "nnodes", "hosts"),
    "gpus_per_node": ("gpus_per_node", "devices_per_node", "gpus_node"),
    "micro_batch_size": (
        "mbs", "micro_batch", "microbatch", "micro_batch_per_gpu", "train_micro_batch_per_gpu",
        "per_device_batch", "per_device_train_batch", "micro_bs", "micro_bsz",
    ),
    "local_batch_size": ("lbs", "local_batch", "local_bs"),
    "global_batch_size": (
        "gbs", "global_batch", "train_batch", "global_bs", "global_bsz", "batch_global",
        "gbs_sequences", "gbs_samples", "global_batch_sequences", "global_batch_samples",
    ),
    "tokens_per_step": (
        "gbs_tokens", "global_batch_tokens", "tokens_per_global_batch", "tokens_per_batch",
        "batch_tokens", "global_batch_in_tokens",
    ),
    "gradient_accumulation_steps": (
        "ga", "gas", "grad_accum", "grad_acc", "gradient_accumulation", "accumulation",
        "accumulation_steps", "grad_accum_steps", "batch_accum", "microbatches", "micro_batches",
    ),
    "seq_length": (
        "seq", "seq_len", "seqlen", "sequence_length", "sequence_len", "max_seq_len",
        "max_seq_length", "max_sequence_length", "context_length", "ctx", "ctx_len", "ctx_length",
        "max_context_length", "tokens_per_sequence",
    ),
    "num_layers": ("layers", "hidden_layers"),
    "hidden_size": ("hidden", "hidden_dim", "d_model", "model_dim"),
    "num_heads": ("heads", "attention_heads", "query_heads"),
    "num_kv_heads": ("kv_heads", "key_value_heads", "query_groups"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn_hidden_size": ("ffn_hidden", "intermediate", "ffn", "ffn_dim", "d_ff"),
    "vocab_size": ("vocab", "vocabulary", "padded_vocab"),
    "num_experts": ("experts", "moe_experts", "local_experts", "routed_experts"),
    "experts_per_token": ("experts_per_tok", "topk", "top_k", "router_topk", "moe_router_topk"),
    "expert_ffn_hidden_size": (
        "expert_ffn_hidden", "moe_ffn_hidden", "moe_intermediate", "expert_intermediate",
    ),
    "dense_layers": ("dense_layers", "first_k_dense_replace", "first_k_dense"),
    "precision": (
        "dtype", "data_type", "compute_dtype", "mixed_precision", "training_precision", "numerics",
    ),
    "activation_checkpointing": (
        "recompute", "recomputation", "recompute_granularity", "checkpointing", "remat",
        "activation_recompute", "activation_recomputation", "gradient_checkpointing", "ac",
        "act_ckpt", "activation_ckpt", "activation_checkpoint", "recompute_method",
    ),
    "attention": ("attention_kernel", "attention_backend", "attn_implementation"),
    "zero_stage": ("zero",),
    "sequence_parallel": ("sequence",),
    "framework": ("software", "library", "trainer"),
    "outcome": ("status",),
    "gpu": ("gpu_type", "gpu_model", "hardware", "accelerator", "system"),
    "model": ("model_name",),
    "step_time_s": (
        "step_time", "time_per_step", "time_per_global_step", "iteration_time", "iter_time",
        "time_per_iteration", "elapsed_time_per_iteration", "train_step_time",
        "train_step_timing", "step_duration", "per_step", "per_iteration", "per_iter", "per_it",
    ),
    "peak_memory_bytes": (
        "peak_memory", "memory", "max_memory", "mem", "peak_mem", "max_mem", "memory_per_gpu",
        "peak_memory_per_gpu", "peak_gpu_memory", "max_memory_allocated",
    ),
    "tokens_per_s": ("tokens_per_s", "throughput_tokens_per_s", "total_tokens_per_s"),
    "tokens_per_s_per_gpu": (
        "tokens_per_s_per_gpu", "tokens_per_gpu_per_s", "tgs", "throughput_tokens_per_s_per_gpu",
        "throughput_per_gpu_tokens_per_s", "tps_per_gpu",
    ),
    "steps_per_s": ("steps_per_s", "iterations_per_s", "iters_per_s", "iter_per_s", "it_per_s"),
    "fsdp": ("fsdp", "sharding_strategy", "sharding"),
    "samples_per_s": ("samples_per_s", "sequences_per_s", "throughput_samples_per_s"),
}  # fmt: skip
_OWN = {*_COLUMNS, *fields_of(Row)}
_OURS = {theirs: ours for ours, spellings in _COLUMNS.items() for theirs in spellings}
_FILLING = {"size", "degree", "parallel", "parallelism", "num", "n", "number", "of", "published",
            "avg", "average", "mean", "median", "used"}  # fmt: skip
_COUNTED = {"num", "n", "number", "count", "total"}  # of `n_gpu`, which is no kind of GPU
_ALIKE = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "tok": "tokens", "toks": "tokens",
          "token": "tokens", "device": "gpu", "sample": "samples"}  # fmt: skip
_LARGE = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6}
# What a number is multiplied by to be in the unit of the column's own name.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "step_time_s": {"s": 1.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
                    "millis": 1e-3, "us": 1e-6, "min": 60.0, "minutes": 60.0},
    "peak_memory_bytes": {"bytes": 1.0, "mb": 1e6, "mib": 2.0**20, "gb": 1e9, "gib": 2.0**30},
    **dict.fromkeys(("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_step"), _LARGE),
}  # fmt: skip

# How other tools put a format, a kernel, what is recomputed and how a run ended; the first fits.
_WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "precision": (
        ("mx-?fp8|fp8-mx", "mxfp8"), ("nv-?fp4|(?<![a-z])fp4", "nvfp4"),
        ("(?<![a-z])(fp8|float8)(?!\\d)", "fp8"), ("bf16|bfloat16", "bf16"),
        ("(?<![a-z])(fp16|float16|half|16-mixed)", "fp16"), ("fp32|float32|^32-true", "fp32"),
    ),
    "attention": (
        ("cudnn|transformer-engine", "cudnn"),
        *((f"^(flash|fa)[a-z-]*{version}(?!\\d)", f"flash{version}") for version in (1, 3, 4)),
        ("^(flash|fa)[a-z-]*2(?!\\d)|^flash-?att[a-z-]*$|^(torch-)?sdpa$|^flex", "flash2"),
        ("^(eager|naive|unfused|torch)$", "math"),
        ("fused-softmax|megatron-fused", "fused_softmax"),
    ),
    "activation_checkpointing": (
        ("^(no|off|false|disabled|without|0)$", "none"),
        ("select|core-?att|norm|act$|moe", "selective"),
        ("^(yes|on|true|enabled|all|1|block|uniform|layers?)$|full|every", "full"),
    ),
    "outcome": (
        ("(?<![a-z])oom(?![a-z])|out-?of-?memory", "oom"),
        ("^(success|succeeded|successful|completed?|pass|passed|done|finished|ran|true)$", "ok"),
        ("^(fail|failed|failure|crash|crashed|false)$", "error"), ("^timed-?out$", "timeout"),
    ),
}  # fmt: skip

# What stands around a GPU's name without making it another product.
_AROUND = re.compile(
    r"nvidia|amd|instinct|[dh]gx|sxm\d?|oam|tensor|core|gpus?|nvl72|hbm\w*|\d+gi?b|gb"
    r"|systems?|superpod|precision|bf16|(mx)?fp8|nvfp4"
)


def canonical_column(head: str) -> tuple[str, float]:
    """The column of this project that a head means, and what its numbers are to be multiplied by.

    `Step time (ms)` is step_time_s in thousandths; a head that nobody knows is itself.
    """
    small = re.sub(r"\b([km])(?=tok)", r"\1 ", head.lower())
    parts = re.findall("[a-z0-9]+", small.replace("/", " per ").replace("#", " n "))
    if "_".join(parts) in _COLUMNS:
        return "_".join(parts), 1.0
    words = [_ALIKE.get(word, word) for word in parts if word not in _FILLING]
    meant = _OURS.get("_".join(words))
    if {*words} - _COUNTED == {"gpu"} and _COUNTED & {*parts}:
        return "world_size", 1.0
    if meant is not None and meant != "peak_memory_bytes":  # which needs a unit
        return meant, 1.0
    outer, _, inner = head.partition("(")
    if (
        inner and canonical_column(outer)[0] == canonical_column(inner)[0] in _COLUMNS
    ):  # `Pipeline Parallel (PP)`
        return canonical_column(outer)
    for column, units in _UNITS.items():
        for word in {*words} & {*units}:
            rest = "_".join(other for other in words if other not in (word, "in"))
            if _OURS.get(rest) == column:
                return column, units[word]
    return head.lower(), 1.0


def canonical_columns(stated: Sequence[str]) -> list[tuple[str, float]]:
    """A header in this project's names, as far as they are known and not in it already."""
    names: list[tuple[str, float]] = []
    taken = set(stated)
    for name in stated:
        meant, factor = canonical_column(name) if name.lower() not in _OWN else (name.lower(), 1.0)
        meant, factor = (name, 1.0) if meant in taken else (meant, factor)
        taken.add(meant)
        names.append((meant, factor))
    return names


def canonical_word(column: str, word: str, known: Collection[str]) -> str:
    """The word of `known` that a cell means, whatever its case; the cell itself if none."""
    small = word.lower()
    if word in known or small in known:
        return word if word in known else small
    plain = re.sub(r"[\W_]+", "-", small).strip("-")
    fitting = (meant for pattern, meant in _WORDS.get(column, ()) if re.search(pattern, plain))
    meant = next(fitting, word)
    return meant if meant in known else word


def find_model(text: str, known: Collection[str]) -> str | None:
    """The name of `known` that means a model however it is written; None if several could.

    Every number and name of one must stand in the other, so that no size and no derived model is
    taken for another: `meta-llama/Llama-3.1-8B` is llama3_8b, `Qwen3 30B` the one with so many.
    """
    if text in known:
        return text
    theirs = _model_words(text)  # a bare size may be that of one model only
    if len(theirs) == 1 and re.fullmatch(r"\d+[bt]", "".join(theirs)):
        sized = [name for name in known if theirs <= _model_words(name)]
        return sized[0] if len(sized) == 1 else None
    fitting = [name for name in known if (ours := _model_words(name)) <= theirs | _LEFT_OUT
               and theirs <= ours | _MAKERS and ours & theirs]  # fmt: skip
    whole = [name for name in fitting if _model_words(name) <= theirs]
    meant = whole or fitting
    return meant[0] if len(meant) == 1 else None


# Words that say who made a model or for what, and what a name may leave out or add of its size.
_MAKERS = {"meta", "ai", "openai", "nvidia", "qwen", "deepseek", "moonshotai", "hf", "instruct",
           "base", "moe", "671b", "1t"}  # fmt: skip
_LEFT_OUT = {"a3b", "a22b", "32k", "gpt"}


def _model_words(name: str) -> set[str]:
    """`llama3.1-70B` as llama, 3, 70b: versions without what stands behind their point."""
    plain = re.sub(r"\(.*?\)|\b\d+[- ]?nodes?\b", " ", name.lower())
    plain = re.sub(r"(?<=\d) (?=[bt]\b)", "", re.sub(r"gpt-?3(?=\D)", "gpt", plain))
    plain = re.sub(r"(?<=\d)\.\d+(?!\d*b)", "", plain)
    return set(re.findall(r"\d+x\d+b|a?\d+[bkt](?![a-z])|v?\d+|[a-z]+?(?=v?\d|[^a-z]|$)", plain))


def find_gpu(text: str) -> str | None:
    """The catalogue's name of a GPU, however it is written; None if several could be meant.

    Words that no GPU's name has, such as a site's, leave it unknown, so that no slip of the pen
    becomes another cluster.
    """
    words = set(re.findall(r"[a-z0-9]+", re.sub(r"\b\d+\s*x\s*(?=[a-z])", " ", text.lower())))
    products = {word for word in words if not _AROUND.fullmatch(word)}
    fitting = [
        name
        for name in GPUS
        if products == {word for word in name.split("-") if not re.fullmatch(r"\d+gb", word)}
    ]
    exact = [name for name in fitting if set(name.split("-")) <= words]
    meant = exact or fitting
    return meant[0] if len(meant) == 1 else None
