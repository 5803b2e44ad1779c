"""Parse torchtitan's training log: the device mesh, the batch, and lines of metrics."""

import re
from typing import Any

from scaling.foreign.logs import outcome_and_step_time

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MESH = re.compile(r"Building device mesh with parallelism: (.*)$", re.MULTILINE)
_BATCH = re.compile(r"local batch size (\d+), global batch size (\d+), .*?sequence length (\d+)")
# older releases print wps instead of tps; commas separate thousands
_STEP = re.compile(
    r"step:\s*(\d+)\s+loss:.*?memory:\s*([\d.]+)GiB\([\d.]+%\)\s+(?:tps|wps):\s*([\d,]+)"
)
_CHECKPOINTING = re.compile(r"Applied (full|selective) activation checkpointing")


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log. It has tokens/s of one GPU, from which the step time follows.

    Raises:
        ValueError: the log lacks the mesh, the batch or steps.
    """
    text = _COLOUR.sub("", text)
    mesh, batch = _MESH.search(text), _BATCH.search(text)
    if mesh is None:
        raise ValueError('it has no line "Building device mesh with parallelism: ..."')
    if batch is None:
        raise ValueError("it has no local and global batch size and sequence length")
    row = {"framework": "torchtitan", **_layout(dict(re.findall(r"(\w+)=(\d+)", mesh[1])))}
    row |= {"micro_batch_size": int(batch[1]), "global_batch_size": int(batch[2])}
    row |= {"seq_length": int(batch[3])}
    if row["pp"] > 1:  # then the local batch is split into micro-batches
        del row["micro_batch_size"]
    kind = _CHECKPOINTING.search(text)
    row["activation_checkpointing"] = kind[1] if kind else "none"
    row["compile"] = "with torch.compile" in text
    steps = _STEP.findall(text)
    rates = [float(rate.replace(",", "")) for _, _, rate in steps]
    tokens = row["global_batch_size"] * row["seq_length"] / row["world_size"]
    steps_s = [tokens / rate for rate in rates if rate > 0]
    if rates and not steps_s:
        raise ValueError("its tokens a second are 0")
    row |= outcome_and_step_time(text, steps_s, 'line "step: ... loss: ... memory: ... tps: ..."')
    if steps:
        row["peak_memory_bytes"] = int(max(float(gib) for _, gib, _ in steps) * 2**30)
    return [row]


def _layout(mesh: dict[str, str]) -> dict[str, Any]:
    """Degrees of the device mesh; FSDP2 shards over `dp_shard` ranks."""
    size = {name: int(mesh.get(name, "1")) for name in ("pp", "cp", "tp", "ep")}
    replicas, shard = int(mesh.get("dp_replicate", "1")), int(mesh.get("dp_shard", "1"))
    row: dict[str, Any] = {**size, "dp": replicas * shard, "zero_stage": 3 if shard > 1 else 0}
    if replicas > 1 and shard > 1:
        row["zero_shard_size"] = shard
    row["world_size"] = size["tp"] * size["pp"] * size["cp"] * row["dp"]
    return row
