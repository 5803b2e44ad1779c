"""The name of a layout for people: what it has beyond the plainest one, never what it lacks."""

from collections.abc import Mapping
from typing import Any

from scaling.layout.axes import AXES, REPLICA_AXES, LayoutAxes

PLAINEST = "plain data parallelism"
_FUSED = {"fused_norm": "norm", "fused_rope": "rope", "fused_mlp": "MLP",
          "fused_cross_entropy": "cross-entropy"}  # fmt: skip


def layout_name(choices: Mapping[str, Any], gpus_per_node: int | None = None) -> str:
    """The choices that are not the plainest: `tp 2, ZeRO-3 in node, micro-batch 2`.

    Args:
        choices: values by axis; null and a missing axis are not said.
        gpus_per_node: a shard of this size is said to lie in the node.
    """
    words = {name: _words(name, choices, gpus_per_node) for name in AXES}
    parts = [said for said in words.values() if said]
    if not any(words[name] for name in (*REPLICA_AXES, "zero_stage")):
        parts.insert(0, PLAINEST)
    return ", ".join(parts)


def name_of(layout: LayoutAxes, gpus_per_node: int | None = None) -> str:
    """The name of a layout that is no row."""
    return layout_name({name: getattr(layout, name) for name in AXES}, gpus_per_node)


def _words(name: str, choices: Mapping[str, Any], gpus_per_node: int | None) -> str:
    """A choice in words; empty if it is the plainest, has no effect, or another one says it."""
    value, axis = choices.get(name), AXES[name]
    plain = value is None or value in (axis.default, False, "none")
    if name == "zero_stage":
        return _zero(value, choices.get("zero_shard_size"), gpus_per_node) if value else ""
    if axis.setting or plain or name == "zero_shard_size":
        return ""
    if choices.get(axis.text.needs_degree or "") == 1:
        return ""
    if name in _FUSED:
        fused = [kernel for kernel in _FUSED if choices.get(kernel)]
        if name != fused[0]:
            return ""
        return (
            "fused kernels"
            if len(fused) == len(_FUSED)
            else "fused " + " + ".join(_FUSED[kernel] for kernel in fused)
        )
    return axis.text.name.format(value)


def _zero(stage: int, shard: int | None, gpus_per_node: int | None) -> str:
    if shard is None:
        return f"ZeRO-{stage}"
    return f"ZeRO-{stage} in node" if shard == gpus_per_node else f"ZeRO-{stage} over {shard}"


def exact(choices: Mapping[str, Any]) -> str:
    """Every axis that is stated, with its value: `tp=1 pp=1 zero_stage=3 ...`.

    An axis that older points do not have is left out where it is at its default.
    """
    return " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, axis in AXES.items()
        if (value := choices.get(name)) is not None
        if value != axis.default or not axis.added_later
    )
