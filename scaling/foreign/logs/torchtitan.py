"""Parse torchtitan's training log: the device mesh, the batch, and lines of metrics."""

import re
from collections.abc import Iterator
from typing import Any

from scaling.foreign.logs import Step, only_value, outcome_and_step_time

_MESH = re.compile(r"Building device mesh with parallelism: (.*)$", re.MULTILINE)
_OLDER_MESH = re.compile(r"Building \d-D device mesh with \[(.*?)\], \[(.*?)\]")
_BATCH = re.compile(r"local batch size (\d+), global batch size (\d+), .*?sequence length (\d+)")
# older releases print wps instead of tps; commas separate thousands
_STEP = re.compile(
    r"step:\s*(\d+)\s+loss:.*?memory:\s*([\d.]+)GiB\([\d.]+%\)\s+(?:tps|wps):\s*([\d,]+)"
)
_CHECKPOINTING = re.compile(r"Applied (\w+) activation checkpointing")
_LOW_PRECISION = {
    "mxfp8": re.compile("Swapped to MXLinear|MX training active with recipe mxfp8"),
    "fp8": re.compile("Swapped to Float8Linear|Float8 training active"),
}


def parse_log(text: str) -> list[dict[str, Any]]:
    """The one row of a log. It has tokens/s of one GPU, from which the step time follows.

    Raises:
        ValueError: the log lacks the mesh, the batch or steps, or is of several layouts.
    """
    mesh = only_value("the device mesh", _meshes(text))
    if mesh is None:
        raise ValueError('it has no line "Building device mesh with parallelism: ..."')
    batch = only_value("the batch", map(", ".join, _BATCH.findall(text)))
    if batch is None:
        raise ValueError("it has no local and global batch size and sequence length")
    row = {"framework": "torchtitan", **_layout(dict(re.findall(r"(\w+)=(\d+)", mesh)))}
    names = ("micro_batch_size", "global_batch_size", "seq_length")
    row |= zip(names, map(int, batch.split(", ")), strict=True)
    if row["pp"] > 1:  # then the local batch is split into micro-batches
        del row["micro_batch_size"]
    kind = _CHECKPOINTING.search(text)
    if kind is None or kind[1] in ("full", "selective"):  # and not by a budget of memory
        row["activation_checkpointing"] = kind[1] if kind else "none"
    row["compile"] = "with torch.compile" in text
    if found := [name for name, said in _LOW_PRECISION.items() if said.search(text)]:
        row["precision"] = found[0]
    lines = list(_STEP.finditer(text))
    tokens = row["global_batch_size"] * row["seq_length"] / row["world_size"]
    rates = [(line.start(), float(line[3].replace(",", ""))) for line in lines]
    steps = [Step(at, tokens / rate) for at, rate in rates if rate > 0]
    if lines and not steps:
        raise ValueError("its tokens a second are 0")
    row |= outcome_and_step_time(text, steps, 'line "step: ... loss: ... memory: ... tps: ..."')
    if row["outcome"] == "ok":
        row["peak_memory_bytes"] = int(max(float(line[2]) for line in lines) * 2**30)
    return [row]


def _meshes(text: str) -> Iterator[str]:
    """Each statement of the device mesh: `dp_shard=8, tp=2`, or in older releases two lists."""
    for mesh in _MESH.findall(text):
        yield mesh.strip()
    for names, sizes in _OLDER_MESH.findall(text):
        pairs = zip(re.findall(r"\w+", names), re.findall(r"\d+", sizes), strict=False)
        yield ", ".join(f"{name}={size}" for name, size in pairs)


def _layout(mesh: dict[str, str]) -> dict[str, Any]:
    """Degrees of the device mesh; FSDP2 shards over `dp_shard` ranks, called `dp` at first."""

    def size(name: str, usual: int = 1) -> int:
        return int(mesh.get(name, usual))

    row: dict[str, Any] = {name: size(name) for name in ("pp", "cp", "tp", "ep")}
    shard = size("dp_shard", size("dp"))
    if "dp_shard_in_ep" in mesh:  # how older releases split it where there are experts
        shard = size("dp_shard_mod_ep") * size("dp_shard_in_ep")
        row["ep"] = size("dp_shard_in_ep") * row["cp"]
    replicas = size("dp_replicate")
    row |= {"dp": replicas * shard, "zero_stage": 3 if shard > 1 else 0}
    if replicas > 1 and shard > 1:
        row["zero_shard_size"] = shard
    row["world_size"] = row["tp"] * row["pp"] * row["cp"] * row["dp"]
    return row
