"""Parse the training log of Megatron-LM or Megatron-Bridge: arguments, iterations, memory."""

import re
from typing import Any

from scaling.foreign.logs import outcome_and_step_time

_ARGUMENT = re.compile(r"^\s*(?:\d+:\s*)?(\w+) \.{2,} (.*)$", re.MULTILINE)
_ITERATION = re.compile(
    r"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+)"
)
_BATCH = re.compile(r"global batch size:\s+(\d+) \|")
_PEAK_MB = re.compile(r"memory \(MB\) \|.*?max allocated: ([\d.]+)")

# Megatron's arguments that are counts -> our columns.
_COUNTS = {
    "world_size": "world_size",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "virtual_pipeline_model_parallel_size": "virtual_stages",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "seq_length": "seq_length",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_heads",
    "kv_channels": "head_dim",
    "padded_vocab_size": "vocab_size",
    "num_experts": "num_experts",
    "moe_router_topk": "experts_per_token",
    "moe_ffn_hidden_size": "expert_ffn_hidden_size",
}
_OF_EXPERTS = ("experts_per_token", "expert_ffn_hidden_size")


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log.

    Raises:
        ValueError: the log has neither an iteration nor an out-of-memory error.
    """
    arguments = dict(_ARGUMENT.findall(text))
    steps_s = [float(ms) / 1000 for _, ms in _ITERATION.findall(text)]
    line = 'line "iteration ... | elapsed time per iteration (ms): ..."'
    row = {"framework": "Megatron-LM", **_layout(arguments)}
    row |= outcome_and_step_time(text, steps_s, line)
    if steps_s and (batches := _BATCH.findall(text)):
        row["global_batch_size"] = int(batches[-1])  # after a ramp
    if steps_s and (peaks := _PEAK_MB.findall(text)):
        row["peak_memory_bytes"] = int(max(map(float, peaks)) * 2**20)
    return [row]


def _layout(arguments: dict[str, str]) -> dict[str, Any]:
    """The columns that follow from the arguments."""
    row: dict[str, Any] = {
        ours: int(arguments[theirs])
        for theirs, ours in _COUNTS.items()
        if arguments.get(theirs, "None").isdigit()
    }
    if not row.get("num_experts"):
        row = {name: value for name, value in row.items() if name not in _OF_EXPERTS}
    if arguments.get("group_query_attention") == "True" and arguments["num_query_groups"].isdigit():
        row["num_kv_heads"] = int(arguments["num_query_groups"])
    flags = {"swiglu": "gated_mlp", "sequence_parallel": "sequence_parallel"}
    row |= {flags[name]: arguments[name] == "True" for name in flags.keys() & arguments.keys()}
    if "untie_embeddings_and_output_weights" in arguments:
        row["tied_embeddings"] = arguments["untie_embeddings_and_output_weights"] != "True"
    if "use_distributed_optimizer" in arguments:
        row["zero_stage"] = int(arguments["use_distributed_optimizer"] == "True")
    if "recompute_granularity" in arguments:
        row["activation_checkpointing"] = arguments["recompute_granularity"].replace("None", "none")
    if "bf16" in arguments:
        row["precision"] = _precision(arguments)
    return row


def _precision(arguments: dict[str, str]) -> str:
    if arguments.get("fp8", "None") != "None":
        return "mxfp8" if arguments.get("fp8_recipe") == "mxfp8" else "fp8"
    if arguments["bf16"] == "True":
        return "bf16"
    return "fp16" if arguments.get("fp16") == "True" else "fp32"
