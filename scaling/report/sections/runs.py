"""A layout as a run to start: DeepSpeed's configuration, and a study of ours."""

import json
import math
import shlex
from typing import Any

from scaling.layout.axes import AXES
from scaling.layout.engines import TRAINERS
from scaling.report.tables import Record

_PRECISIONS = ("bf16", "fp16")


def runs(setting: Record, row: Record) -> dict[str, dict[str, str]]:
    """By trainer, the `command` and the `file` that it reads; only trainers that can express it."""
    told = {
        "This project": {
            "command": "scaling run one_layout  # reads config/studies/one_layout.yaml",
            "file": study_yaml(setting, row),
        }
    }
    if row["engine"] == "deepspeed" and row["cp"] in (1, None):
        per_node = min(row["world_size"], setting["gpus_per_node"] or row["world_size"])
        nodes = math.ceil(row["world_size"] / per_node)
        where = f"--num_nodes {nodes} --num_gpus {per_node}"
        told["DeepSpeed"] = {
            "command": f"deepspeed {where} train.py --deepspeed_config ds.json",
            "file": deepspeed_json(row),
        }
    told["Other programs"] = {
        "command": _other_programs(setting, row),
        "file": f"# prints a program's own command; --as is one of {', '.join(TRAINERS)}",
    }
    return told


def _other_programs(setting: Record, row: Record) -> str:
    """The command that prints how another program is told this layout."""
    axes = ",".join(
        f"{name}={str(row[name]).lower() if axis.kind is bool else row[name]}"
        for name, axis in AXES.items()
        if name != "engine" and row[name] is not None and row[name] != axis.default
    )
    words = ["scaling", "command", axes, "--as", TRAINERS[0], "--model", setting["model"]]
    words += ["--gpus", str(row["world_size"]), "--seq-length", str(setting["seq_length"])]
    return shlex.join([*words, "--global-batch-size", str(row["global_batch_size"])])


def study_yaml(setting: Record, row: Record) -> str:
    """A study file that measures this layout at this size."""
    kind = setting["study_kind"]
    batch = "global_batch_size" if kind == "strong" else "batch_size_per_gpu"
    axes: dict[str, Any] = {
        "model": setting["model"],
        "cluster": setting["cluster"],
        "world_size": row["world_size"],
        batch: setting["kept_batch_size"],
        "seq_length": setting["seq_length"],
    }
    axes |= {
        name: row[name]
        for name, axis in AXES.items()
        if row[name] is not None and (row[name] != axis.default or not axis.added_later)
    }
    lines = [f"  {name}: {_scalar(value)}" for name, value in axes.items()]
    return "\n".join([f"title: {_scalar('One layout')}", f"kind: {kind}", "axes:", *lines, ""])


def _scalar(value: Any) -> str:
    """A YAML scalar: JSON is YAML, and quotes whatever a name may hold."""
    return json.dumps(value, ensure_ascii=False)


def deepspeed_json(row: Record) -> str:
    """DeepSpeed's configuration. Pipelines and fused kernels are the training program's part."""
    zero: dict[str, Any] = {"stage": row["zero_stage"] or 0}
    shard = row["zero_shard_size"]
    if zero["stage"] == 3 and shard and shard != row["dp"]:
        zero["zero_hpz_partition_size"] = shard
    if row["optimizer_offload"] == "cpu":
        zero["offload_optimizer"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_batch_size": row["global_batch_size"],
        "train_micro_batch_size_per_gpu": row["micro_batch_size"],
        "gradient_accumulation_steps": row["gradient_accumulation_steps"],
        "zero_optimization": zero,
    }
    if row["precision"] in _PRECISIONS:
        config[row["precision"]] = {"enabled": True}
    if (row["tp"] or 1) > 1:
        config["tensor_parallel"] = {"autotp_size": row["tp"]}
    if (row["pp"] or 1) > 1:
        config["_comment"] = f"PipelineModule(layers, num_stages={row['pp']})"
    if row["activation_checkpointing"] not in (None, "none"):
        config["_checkpointing"] = f"{row['activation_checkpointing']}: set it in the model"
    return json.dumps(config, indent=1)
