"""Parse the training log of Megatron-LM or Megatron-Bridge: arguments, iterations, memory."""

import re
from collections.abc import Mapping
from typing import Any

from scaling.foreign.logs import NUMBER, Step, only_value, outcome_and_step_time

_ARGUMENT = re.compile(r"(\w+) \.{2,} (.*)$", re.MULTILINE)
_ITERATION = re.compile(r"iteration\s+\d+/\s*\d+ \|.*")
_ELAPSED = re.compile(rf"elapsed time per iteration \((m?s)\): {NUMBER}")
_BATCH = re.compile(r"global batch size:\s+(\d+) \|")
_PEAK_MB = re.compile(rf"memory \(MB\) \|.*?max allocated: {NUMBER}")
_OF_BRIDGE = re.compile(r"Step Time : .*GPU utilization")

# Megatron's arguments that are counts -> our columns.
_COUNTS = {
    **{name: name for name in (
        "world_size", "micro_batch_size", "global_batch_size", "seq_length", "num_layers",
        "hidden_size", "ffn_hidden_size", "num_experts",
    )},
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "virtual_pipeline_model_parallel_size": "virtual_stages",
    "num_attention_heads": "num_heads",
    "kv_channels": "head_dim",
    "padded_vocab_size": "vocab_size",
}  # fmt: skip
_OF_LATENTS = {
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "key_value_rank",
    "qk_head_dim": "head_dim",
    "qk_pos_emb_head_dim": "rotary_head_dim",
    "v_head_dim": "value_head_dim",
}
_FLAGS = {
    "swiglu": "gated_mlp",
    "sequence_parallel": "sequence_parallel",
    "qk_layernorm": "query_key_norm",
}
# Arguments that change layers into what no column of ours states; their rows are not predicted.
_OTHER_LAYERS = ("hybrid_override_pattern", "experimental_attention_variant", "window_size")
_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_ATTENTION = {
    "AttnBackend.flash": "flash2",
    "AttnBackend.fused": "cudnn",
    "AttnBackend.unfused": "math",
}


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log.

    Raises:
        ValueError: the log has neither an iteration nor an out-of-memory error, or is of runs with
            different arguments.
    """
    values: dict[str, list[str]] = {}
    for name, value in _ARGUMENT.findall(text):
        values.setdefault(name, []).append(value.strip())
    arguments = _Arguments(values)
    steps = []
    for iteration in _ITERATION.finditer(text):
        if elapsed := _ELAPSED.search(iteration[0]):
            seconds = float(elapsed[2]) / (1000 if elapsed[1] == "ms" else 1)
            batch = _BATCH.search(iteration[0])
            steps.append(Step(iteration.start(), seconds, int(batch[1]) if batch else None))
    framework = "Megatron-Bridge" if _OF_BRIDGE.search(text) else "Megatron-LM"
    if arguments.is_true("deepspeed"):
        framework = "Megatron-DeepSpeed"
    line = 'line "iteration ... | elapsed time per iteration (ms): ..."'
    row = {"framework": framework, **_layout(arguments)}
    row |= outcome_and_step_time(text, steps, line)
    if row["outcome"] == "ok" and (peaks := _PEAK_MB.findall(text)):
        row["peak_memory_bytes"] = int(max(map(float, peaks)) * 2**20)
    return [row]


class _Arguments:
    """The dump of arguments by name; `None` is as good as absent."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        value = only_value(name, self._values.get(name, ()))
        return None if value in ("None", "") else value

    def count(self, name: str) -> int | None:
        value = self.get(name)
        return int(value) if value is not None and value.isdigit() else None

    def counts(self, names: Mapping[str, str]) -> dict[str, int]:
        """The counts among the arguments by our names."""
        found = {ours: self.count(theirs) for theirs, ours in names.items()}
        return {name: count for name, count in found.items() if count is not None}

    def is_true(self, name: str) -> bool:
        return self.get(name) == "True"


def _layout(arguments: _Arguments) -> dict[str, Any]:
    """The columns that follow from the arguments."""
    row: dict[str, Any] = {**arguments.counts(_COUNTS)}
    row |= {ours: arguments.is_true(name) for name, ours in _FLAGS.items() if name in arguments}
    if "virtual_pipeline_model_parallel_size" in arguments:
        row.setdefault("virtual_stages", 1)
    if "num_heads" in row:
        grouped = arguments.is_true("group_query_attention")
        groups = arguments.count("num_query_groups") if grouped else row["num_heads"]
        row |= {} if groups is None else {"num_kv_heads": groups}
    if arguments.is_true("multi_latent_attention"):
        row |= arguments.counts(_OF_LATENTS)
    if row.get("num_experts"):
        row |= _experts(arguments, row)
    else:
        row.pop("etp", None)
    if other := [name for name in _OTHER_LAYERS if arguments.get(name)]:
        row["attention_kind"] = other[0]
    if "num_layers" in row:  # embeddings were always tied before that argument
        row["tied_embeddings"] = not arguments.is_true("untie_embeddings_and_output_weights")
    if arguments.is_true("optimizer_cpu_offload"):
        row["optimizer_offload"] = "cpu"
    choices = {
        "zero_stage": _zero_stage(arguments),
        "activation_checkpointing": _checkpointing(arguments, row),
        "precision": _precision(arguments),
        "attention": _attention(arguments),
    }
    return row | {name: value for name, value in choices.items() if value is not None}


def _experts(arguments: _Arguments, row: Mapping[str, Any]) -> dict[str, int]:
    """What a token takes of the experts; nothing if they are not alike after the first layers."""
    width = arguments.count("moe_ffn_hidden_size") or row.get("ffn_hidden_size")
    shared = arguments.count("moe_shared_expert_intermediate_size") or 0
    # 1: in every layer; [0, 0, 1, 1]: not in the first two
    layers = re.findall(r"\d+", arguments.get("moe_layer_freq") or "1")
    if not width or shared % width or layers != sorted(layers) or {*layers} - {"0", "1"}:
        return {}
    return {
        **arguments.counts({"moe_router_topk": "experts_per_token"}),
        "expert_ffn_hidden_size": width,
        "shared_experts": shared // width,
        "dense_layers": layers.count("0"),
    }


def _zero_stage(arguments: _Arguments) -> int | None:
    if arguments.is_true("use_torch_fsdp2"):
        return 3
    if arguments.is_true("use_megatron_fsdp") or arguments.is_true("use_custom_fsdp"):
        return _SHARDED.get(arguments.get("data_parallel_sharding_strategy") or "")
    if arguments.is_true("deepspeed"):
        stage = arguments.get("zero_stage")  # 1 or 1.0
        return int(stage[0]) if stage and stage[0].isdigit() else None
    if "use_distributed_optimizer" in arguments:
        return int(arguments.is_true("use_distributed_optimizer"))
    return None


def _checkpointing(arguments: _Arguments, row: Mapping[str, Any]) -> str | None:
    """None where it is not stated, or is of some layers only."""
    method = arguments.get("recompute_method") or arguments.get("activations_checkpoint_method")
    granularity = arguments.get("recompute_granularity")
    if granularity is None and (method or arguments.is_true("checkpoint_activations")):
        granularity = "full"  # as until 2022
    if granularity == "full" and method == "block":
        chunks = row.get("pp", 1) * row.get("virtual_stages", 1)
        layers = arguments.count("recompute_num_layers") or 0
        if layers * chunks < row.get("num_layers", 0):
            return None
    names = ("recompute_granularity", "activations_checkpoint_method", "checkpoint_activations")
    if granularity is None and any(name in arguments for name in names):
        return "none"
    return granularity


def _precision(arguments: _Arguments) -> str | None:
    """Of the layers; fp8 had two flags until 2023."""
    if arguments.get("fp4"):
        return "nvfp4"
    if arguments.get("fp8") or any(map(arguments.is_true, ("fp8_e4m3", "fp8_hybrid"))):
        return "mxfp8" if arguments.get("fp8_recipe") == "mxfp8" else "fp8"
    if "bf16" not in arguments and "fp16" not in arguments:
        return None
    if arguments.is_true("bf16"):
        return "bf16"
    return "fp16" if arguments.is_true("fp16") else "fp32"


def _attention(arguments: _Arguments) -> str | None:
    """The kernel; None where Transformer Engine or the log leaves it open."""
    if "attention_backend" in arguments:
        return _ATTENTION.get(arguments.get("attention_backend") or "")
    if arguments.is_true("use_flash_attn"):
        return "flash2"
    own_kernels = arguments.get("transformer_impl") in (None, "local")
    if own_kernels and "masked_softmax_fusion" in arguments:
        return "fused_softmax" if arguments.is_true("masked_softmax_fusion") else "math"
    return None
