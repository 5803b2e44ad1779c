"""Megatron-LM's and Megatron-Bridge's training log: arguments, iterations, memory."""

import re
import statistics
from typing import Any

_ARGUMENT = re.compile(r"^\s*(?:\d+:\s*)?(\w+) \.{2,} (.*)$", re.MULTILINE)
_ITERATION = re.compile(
    r"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+)"
)
_BATCH = re.compile(r"global batch size:\s+(\d+) \|")
_PEAK_MB = re.compile(r"memory \(MB\) \|.*?max allocated: ([\d.]+)")
OUT_OF_MEMORY = re.compile(r"(?:torch\.|torch\.cuda\.)OutOfMemoryError|CUDA out of memory")

# Arguments that are counts in both vocabularies.
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


def rows_of(text: str) -> list[dict[str, Any]]:
    """The one row of a log: the median of its logged iterations, the first of them left out.

    Raises:
        ValueError: no iteration is logged and none ran out of memory.
    """
    said = dict(_ARGUMENT.findall(text))
    row: dict[str, Any] = {"framework": "Megatron-LM", **_layout(said)}
    timed = [float(ms) / 1000 for _, ms in _ITERATION.findall(text)]
    peaks = [float(mb) for mb in _PEAK_MB.findall(text)]
    if timed:
        row |= {"outcome": "ok", "step_time_s": statistics.median(timed[1:] or timed)}
        if batches := _BATCH.findall(text):
            row["global_batch_size"] = int(batches[-1])  # after a ramp
    elif OUT_OF_MEMORY.search(text):
        row["outcome"] = "oom"
    else:
        raise ValueError('it has no line "iteration ... | elapsed time per iteration (ms): ..."')
    if peaks and timed:
        row["peak_memory_bytes"] = int(max(peaks) * 2**20)
    return [row]


def _layout(said: dict[str, str]) -> dict[str, Any]:
    """The row's columns that the arguments tell."""
    row: dict[str, Any] = {
        ours: int(said[theirs])
        for theirs, ours in _COUNTS.items()
        if said.get(theirs, "None").isdigit()
    }
    if not row.get("num_experts"):
        row = {name: value for name, value in row.items() if name not in _OF_EXPERTS}
    if said.get("group_query_attention") == "True" and said["num_query_groups"].isdigit():
        row["num_kv_heads"] = int(said["num_query_groups"])
    flags = {
        "swiglu": "gated_mlp",
        "sequence_parallel": "sequence_parallel",
    }
    row |= {ours: said[theirs] == "True" for theirs, ours in flags.items() if theirs in said}
    if "untie_embeddings_and_output_weights" in said:
        row["tied_embeddings"] = said["untie_embeddings_and_output_weights"] != "True"
    if "use_distributed_optimizer" in said:
        row["zero_stage"] = int(said["use_distributed_optimizer"] == "True")
    if "recompute_granularity" in said:
        row["activation_checkpointing"] = said["recompute_granularity"].replace("None", "none")
    if "bf16" in said:
        eight = said.get("fp8", "None") != "None"
        row["precision"] = _precision(said, eight)
    return row


def _precision(said: dict[str, str], eight: bool) -> str:
    if eight:
        return "mxfp8" if said.get("fp8_recipe") == "mxfp8" else "fp8"
    if said["bf16"] == "True":
        return "bf16"
    return "fp16" if said.get("fp16") == "True" else "fp32"
