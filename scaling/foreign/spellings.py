"""How other tools spell our columns and their words, models and GPUs; all in lower case."""

import re
from collections.abc import Collection, Mapping, Sequence

from scaling.cluster.hardware import GIB, GPUS
from scaling.record.row import Row, fields_of

# Our columns -> other spellings: Megatron's arguments, Hugging Face's configurations and headers of
# published tables, without the words in `_IGNORED`.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp", "tensor", "tensor_model", "model_parallel", "model_parallel_size"),
    "pp": ("pp", "pipeline", "pipeline_model", "pipeline_stages", "pipe"),
    "cp": ("cp", "context", "seq_parallel_size", "seq_parallel_degree", "ulysses"),
    "dp": ("dp", "data"),
    "ep": ("ep", "expert", "expert_model"),
    "etp": ("etp", "expert_tensor"),
    "virtual_stages": (
        "vp", "vpp", "virtual_pp", "virtual_pipeline", "virtual_pipeline_model", "model_chunks",
        "virtual_pipeline_stages", "interleaved_pipeline",
    ),
    "world_size": ("world", "gpus", "ngpus", "ngpu", "ranks", "devices", "chips", "accelerators"),
    "nodes": ("nodes", "nnodes", "hosts"),
    "gpus_per_node": ("gpus_per_node", "devices_per_node", "gpus_node"),
    "micro_batch_size": (
        "mbs", "micro_batch", "microbatch", "micro_batch_per_gpu", "train_micro_batch_per_gpu",
        "per_gpu_batch", "per_gpu_train_batch",
    ),
    "local_batch_size": ("lbs", "local_batch", "batch_per_dp", "batch_per_gpu"),
    "global_batch_size": ("gbs", "global_batch", "train_batch", "batch_global"),
    "batch_size": ("batch",),  # of all ranks, or of each
    "tokens_per_step": (
        "gbs_tokens", "global_batch_tokens", "tokens_per_global_batch", "tokens_per_batch",
        "batch_tokens", "global_batch_in_tokens",
    ),
    "gradient_accumulation_steps": (
        "ga", "gas", "grad_accum", "accum", "accum_steps", "grad_accum_steps", "batch_accum",
        "microbatches", "micro_batches",
    ),
    "seq_length": (
        "seq", "seq_len", "context_size", "max_seq_len", "context_len", "ctx", "ctx_len",
        "max_context_len", "tokens_per_seq", "max_target_len",
    ),
    "num_layers": ("layers", "layer", "hidden_layers"),
    "hidden_size": ("hidden", "hidden_dim", "d_model", "model_dim", "embd"),
    "num_heads": ("heads", "head", "attention_heads", "query_heads"),
    "num_kv_heads": ("kv_heads", "key_value_heads", "query_groups"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn_hidden_size": ("ffn_hidden", "intermediate", "ffn", "ffn_dim", "d_ff"),
    "vocab_size": ("vocab", "vocabulary", "padded_vocab"),
    "num_experts": ("experts", "moe_experts", "local_experts", "routed_experts"),
    "experts_per_token": (
        "experts_per_tok", "topk", "top_k", "router_topk", "moe_router_topk", "moe_topk",
    ),
    "expert_ffn_hidden_size": (
        "expert_ffn_hidden", "moe_ffn_hidden", "moe_intermediate", "expert_intermediate",
    ),
    "shared_experts": ("shared_experts",),
    "tied_embeddings": ("tie_embeddings", "tie_word_embeddings", "tied_word_embeddings"),
    "dense_layers": ("dense_layers", "first_k_dense_replace", "first_k_dense"),
    "precision": (
        "dtype", "data_type", "compute_dtype", "mixed_precision", "training_precision", "numerics",
    ),
    "activation_checkpointing": (
        "recompute", "recompute_granularity", "recompute_method", "recompute_modules", "remat",
        "act_recompute", "checkpointing", "grad_checkpointing", "act_checkpoint", "ac", "act_ckpt",
    ),
    "attention": ("attention_kernel", "attention_backend", "attn_implementation"),
    "zero_stage": ("zero", "zs", "zero_optimization_stage"),
    "compile": ("torch_compile",),
    "sequence_parallel": ("sequence_parallelism",),
    "framework": ("software", "library", "trainer"),
    "release": ("framework_version", "container", "container_tag"),
    "outcome": ("status", "state"),
    "gpu": ("gpu", "gpu_type", "gpu_model", "hardware", "accelerator", "system", "accelerator_name",
            "accelerator_type", "accelerator_model_name"),
    "model": ("model_name", "model_size", "benchmark"),
    "step_time_s": (
        "step_time", "time_per_step", "time_per_global_step", "elapsed_time_per_step", "per_step",
        "train_step_time", "train_step_timing", "step_duration", "time_per_batch",
    ),
    "peak_memory_bytes": (
        "memory", "memory_per_gpu", "max_memory", "max_memory_per_gpu", "max_gpu_memory",
        "memory_allocated", "max_memory_allocated",
    ),
    "tokens_per_s": ("tokens_per_s", "throughput_tokens_per_s", "total_tokens_per_s"),
    "tokens_per_s_per_gpu": (
        "tokens_per_s_per_gpu", "tokens_per_gpu_per_s", "tgs", "throughput_tokens_per_s_per_gpu",
        "throughput_per_gpu_tokens_per_s", "tps_per_gpu",
    ),
    "steps_per_s": ("steps_per_s", "step_per_s"),
    "fsdp": ("fsdp", "sharding_strategy", "sharding"),
    "samples_per_s": (
        "samples_per_s", "seq_per_s", "throughput_samples_per_s", "throughput_s_per_s",
    ),
}  # fmt: skip
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "steps_per_s")
MEASURED = ("step_time_s", "peak_memory_bytes", *RATES)
_OUR_COLUMNS = {*_COLUMNS, *fields_of(Row), "attention_kind", "source"}
_VAGUE = {"system", "hardware"}  # may be a machine's name beside an `Accelerator`
_COUNTING = {"num", "n", "no", "number", "count", "total"}  # `n_gpu` is a number, not a model
_IGNORED = (_COUNTING - {"count", "total"}) | {
    "size", "degree", "parallel", "parallelism", "of", "published", "avg", "average", "mean",
    "median", "used",
}  # fmt: skip
_SYNONYMS = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "tok": "tokens",
             "toks": "tokens", "token": "tokens", "t": "tokens", "device": "gpu", "chip": "gpu",
             "sample": "samples", "sequences": "samples", "sequence": "seq", "seqlen": "seq_len",
             "length": "len", "bs": "batch", "bsz": "batch", "gradient": "grad", "acc": "accum",
             "accumulation": "accum", "activation": "act", "recomputation": "recompute",
             "iteration": "step", "iter": "step", "it": "step", "iterations": "steps",
             "iters": "steps", "mem": "memory", "alloc": "allocated", "peak": "max",
             "msec": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
             "minutes": "min", "hours": "h", "processes": "ranks", "hpus": "ranks"}  # fmt: skip
_MU = re.compile("[\u00b5\u03bc]")  # the micro sign, and the Greek letter
_LARGE = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6}
_LARGER = {"b": 1e9, "g": 1e9, "t": 1e12}
# Units of a header -> factor to the unit of our column.
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "step_time_s": _TIMES,
    "peak_memory_bytes": {"bytes": 1.0, "mb": 1e6, "mib": 2.0**20, "gb": 1e9, "gib": 2.0**30},
    **dict.fromkeys(("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_step"), _LARGE),
    **dict.fromkeys(("total_params", "active_params"), _LARGE | _LARGER),
}  # fmt: skip

_BY_SPELLING = {
    "_".join(_SYNONYMS.get(word, word) for word in theirs.split("_")): ours
    for ours, spellings in _COLUMNS.items()
    for theirs in spellings
}

# What our counts count; a header may say so: `Sequence length (tokens)`.
_COUNTED = {
    "seq_length": ("tokens",),
    **dict.fromkeys(("micro_batch_size", "local_batch_size", "global_batch_size"), ("samples",)),
}

# Column -> (regular expression, our word); the first that matches counts.
_WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "precision": (
        ("mx-?fp8|fp8-mx", "mxfp8"), ("nv-?fp4|(?<![a-z])fp4", "nvfp4"),
        ("(?<![a-z])(fp8|float8)(?!\\d)", "fp8"), ("bf16|bfloat16", "bf16"),
        ("(?<![a-z])(fp16|float16|half|16-mixed)", "fp16"), ("fp32|float32|^32-true", "fp32"),
    ),
    "attention": (
        ("cudnn|transformer-engine", "cudnn"),
        *((f"^(flash|fa)[a-z-]*{version}(?!\\d)", f"flash{version}") for version in (1, 3, 4)),
        ("^(flash|fa)[a-z-]*2(?!\\d)|^flash(-?att[a-z-]*)?$|^(torch-)?sdpa$|^flex", "flash2"),
        ("^(eager|naive|unfused|torch)$", "math"),
        ("fused-softmax|megatron-fused", "fused_softmax"),
        ("^fused$", "cudnn"),  # so Megatron calls Transformer Engine's kernels
    ),
    "activation_checkpointing": (
        ("^(no|off|false|disabled|without|0(-0)?)$", "none"),
        ("select|core-?att|norm|act$|moe|^mlp|mla-|shared-exp", "selective"),
        ("^(yes|on|true|enabled|all|1(-0)?|block|uniform|layers?)$|full|every-layer", "full"),
    ),
    "outcome": (
        ("oom-(or-)?(crash|error)", "oom_or_crash"),
        ("(?<!no-)(?<![a-z])oom(?![a-z])|out-?of-?(gpu-)?mem|insufficient-mem|not-?fit|nt?-t-fit",
         "oom"),
        ("^(success|succeeded|successful|completed?|pass|passed|done|finished|ran|true)$", "ok"),
        ("^time-?d?-?out|^(time|wall-?time)-limit", "timeout"), ("^(hung|stuck|deadlock)", "hang"),
        ("^(fail|crash|abort|kill|error|segfault|diverged|dnf$|did-not|false$)", "error"),
    ),
    "pipeline_schedule": (
        ("^interleaved-?1f1b$", "interleaved"), ("^zbv-?zero-?bubble$", "zbv"),
        ("^(interleaved-?)?zero-?bubble$", "zero_bubble"),
    ),
    "cp_style": (("^p2p$", "ring"), ("^(a2a|ulysses)$", "all_to_all")),
    "optimizer_offload": (
        ("^(no|off|false|0(-0)?)$", "none"), ("^(yes|on|true|1(-0)?)$", "cpu"),
    ),
}  # fmt: skip

# Words that may accompany a GPU's name without making it another product.
_GPU_EXTRAS = re.compile(
    r"nvidia|amd|instinct|tesla|[dh]gx|sxm\d?|ac|oam|vf|tensor|core|gpus?|nvl72|hbm\w*|\d+gi?b|gb"
    r"|systems?|superpod|precision|bf16|(mx)?fp8|nvfp4"
)
_HOST_MEMORY = {"480gb", "120gb"}  # of Grace, in the driver's name of a GH200


def canonical_column(header: str) -> tuple[str, float]:
    """Our column for a header, and the factor that converts its numbers to our unit.

    `Step time (ms)` is step_time_s and 0.001. An unknown header stays as it is, in lower case.
    """
    text = re.sub(r"\b([km])(?=tok)", r"\1 ", _MU.sub("u", header.lower()))
    text = re.sub(
        "^(train|perf)/|^train_(?=samples_|tokens_|steps_)", "", text
    )  # as exports of wandb and tensorboard begin
    parts = re.findall("[a-z0-9]+", text.replace("/", " per ").replace("#", " n "))
    if "_".join(parts) in _OUR_COLUMNS:
        return "_".join(parts), 1.0
    words = [_SYNONYMS.get(word, word) for word in parts if word not in _IGNORED]
    kinds = {*words} - _COUNTING
    if len(kinds) == 1 and kinds < {"gpu", *_COLUMNS["world_size"]} and _COUNTING & {*parts}:
        return "world_size", 1.0
    raw = "_".join(_SYNONYMS.get(word, word) for word in parts)
    column = _BY_SPELLING.get(raw) or _BY_SPELLING.get("_".join(words))
    if column == "seq_length" and {"parallel", "parallelism"} & {*parts}:
        return header.lower(), 1.0  # an unusual name for one of the two
    if column is not None and column != "peak_memory_bytes":  # which needs a unit
        return column, 1.0
    outer, _, inner = header.partition("(")  # `Pipeline Parallel (PP)`
    if inner and canonical_column(outer)[0] == canonical_column(inner)[0] in _COLUMNS:
        return canonical_column(outer)
    for column, counted in _COUNTED.items():
        if _BY_SPELLING.get("_".join(word for word in words if word not in counted)) == column:
            return column, 1.0
    for column, units in _UNITS.items():
        for unit in {*words} & {*units}:
            without_unit = "_".join(word for word in words if word not in (unit, "in"))
            if _BY_SPELLING.get(without_unit) == column:
                return column, units[unit]
    separated = re.sub("(?<=[a-z])(?=[A-Z])", " ", header)  # GlobalBatchSize
    if separated != header and is_known((found := canonical_column(separated))[0]):
        return found
    return header.lower(), 1.0


def is_known(name: str) -> bool:
    """Whether a column of that name is read."""
    return name in _OUR_COLUMNS


def unit_factor(column: str, unit: str) -> float:
    """The factor from a unit that stands in a cell to the unit of our column.

    Raises:
        ValueError: the column has no such unit.
    """
    is_time = column.endswith("_s") and "_per_" not in column
    units = _UNITS.get(column, _TIMES if is_time else {})
    word = _MU.sub("u", unit.lower())
    if (factor := units.get(_SYNONYMS.get(word, word))) is None:
        raise ValueError(f"{unit} is no unit of {column}")
    return factor


def canonical_columns(headers: Sequence[str]) -> list[tuple[str, float]]:
    """`canonical_column` of each header, unless another header already is that column.

    Of several spellings of a column our own goes first, and a vague one last.
    """
    columns = [(header, 1.0) for header in headers]
    taken: set[str] = set()
    vagueness = [(name.lower() not in _OUR_COLUMNS, name.lower() in _VAGUE) for name in headers]
    for index in sorted(range(len(headers)), key=vagueness.__getitem__):
        found = canonical_column(headers[index])
        if found[0] not in taken:
            columns[index] = found
        taken.add(columns[index][0])
    return columns


def canonical_word(column: str, text: str, known: Collection[str]) -> str:
    """The word of `known` that a cell stands for, whatever its case; the cell itself if none."""
    lower = text.lower()
    if text in known or lower in known:
        return text if text in known else lower
    plain = re.sub(r"[\W_]+", "-", lower).strip("-")
    if (ours := plain.replace("-", "_")) in known:
        return ours
    matches = (word for pattern, word in _WORDS.get(column, ()) if re.search(pattern, plain))
    word = next(matches, text)
    return word if word in known else text


def failure_of(text: str) -> str | None:
    """The outcome that a cell states where a measurement would stand; None if it states none."""
    failures = {"oom", "error", "timeout", "hang", "oom_or_crash"}
    return word if (word := canonical_word("outcome", text, failures)) in failures else None


def find_model(text: str, known: Collection[str]) -> str | None:
    """The name of `known` that a model's name stands for; None if there is none or several.

    All numbers and words of each name must occur in the other, so that sizes and derived models are
    not mixed up: `meta-llama/Llama-3.1-8B` is llama3_8b, `Qwen3 30B` the only Qwen3 of that size.
    """
    if text in known:
        return text
    words = _model_words(text)
    if len(words) == 1 and re.fullmatch(r"\d+[bt]", "".join(words)):  # only a size
        same_size = [name for name in known if words <= _model_words(name)]
        return same_size[0] if len(same_size) == 1 else None
    candidates = [name for name in known if (ours := _model_words(name)) <= words | _OPTIONAL
                  and words <= ours | _MAKERS and ours & words]  # fmt: skip
    matches = [name for name in candidates if _model_words(name) <= words] or candidates
    return matches[0] if len(matches) == 1 else None


# Words about a model's maker, purpose or size that a table may add to the name or leave out of it.
_MAKERS = {"meta", "ai", "openai", "nvidia", "qwen", "deepseek", "moonshotai", "hf", "instruct",
           "base", "moe", "671b", "1t", "v0", "17b"}  # fmt: skip
_OPTIONAL = {"a3b", "a22b", "32k", "gpt"}


def _model_words(name: str) -> set[str]:
    """The words and numbers of a model's name: `llama3.1-70B` is llama, 3 (no minor), 70b."""
    plain = re.sub(r"\((\W|\d|v|bf16|fp8|seq\w*|k|nodes?|w/o|mtp)*\)", " ", name.lower())
    plain = re.sub(r"\b\d+[- ]?nodes?\b|(?<=17b)[-x ]*\d+e\b", " ", plain)
    plain = re.sub(r"\bllama3(?=[1-3][-_ ])", "llama3.", plain)  # llama31_8b
    plain = re.sub(r"(?<=\d) (?=[bt]\b)", "", re.sub(r"gpt-?3(?=\D)", "gpt", plain))
    plain = re.sub(r"(?<=\d)\.\d+(?!\d*b)", "", plain)
    return set(re.findall(r"\d+x\d+b|a?\d+[bkt](?![a-z])|v?\d+|[a-z]+?(?=v?\d|[^a-z]|$)", plain))


def find_gpu(text: str) -> str | None:
    """The catalogue's name of a GPU, however it is written; None if it is unknown or ambiguous.

    A word that no GPU's name has, such as a site's name, makes it unknown, so that a typo does not
    become another cluster.
    """
    plain = re.sub(r"\b\d+\s*[x×*]\s*(?=[a-z])", " ", text.lower())
    plain = re.sub(r"(?<![a-z\d])(\d+) ?g(i?b)?\b", r"\1gb", plain)
    words = set(re.findall(r"[a-z0-9]+", plain))
    product = {word for word in words if not _GPU_EXTRAS.fullmatch(word)}
    memory = {int(word[:-2]) for word in words - _HOST_MEMORY if re.fullmatch(r"\d+gb", word)}
    candidates = [
        name
        for name, gpu in GPUS.items()
        if product == {word for word in name.split("-") if not re.fullmatch(r"\d+gb", word)}
        # sold or reported with so much memory: 180, 186 and 192 GB are a B200's
        and all(gpu.memory_bytes and abs(gb * GIB / gpu.memory_bytes - 1) < 0.15 for gb in memory)
    ]
    return candidates[0] if len(candidates) == 1 else None
