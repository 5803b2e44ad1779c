"""The layout of one training step over GPUs: degrees of parallelism and batch arithmetic."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.layout.axes import (
    AXES,
    REPLICA_AXES,
    V_SCHEDULES,
    LayoutAxes,
    Precision,
)
from scaling.layout.shapes import ModelShape


@dataclass(frozen=True, kw_only=True)
class Layout(LayoutAxes):
    """How `world_size` ranks share a model and a batch.

    Sizes count ranks; batch sizes count sequences, never tokens. From the innermost, the order of
    ranks is tp, cp, dp, pp: ranks of one tp group sit on neighbouring GPUs.
    """

    dp: int = 1
    gradient_accumulation_steps: int = 1
    seq_length: int

    @property
    def world_size(self) -> int:
        """Ranks, one per GPU."""
        return self.dp * replica_size(vars(self))

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.dp

    @property
    def model_chunks(self) -> int:
        """Chunks into which the pipeline cuts the model's layers; 1 without a pipeline."""
        if self.pp == 1:
            return 1
        return self.pp * (2 if self.pipeline_schedule in V_SCHEDULES else self.virtual_stages)

    @property
    def model_precision(self) -> Precision:
        """Precision of weights and of activations between matmuls; with 8-bit matmuls bf16."""
        return "bf16" if self.precision == "fp8" else self.precision

    @property
    def label(self) -> str:
        """The layout without its number of GPUs, short enough for a chart; see `layout_label`."""
        return layout_label(vars(self))

    @property
    def file_name(self) -> str:
        """The layout with its number of GPUs, as names of files hold it; nothing parses it."""
        return f"g{self.world_size}-{self.label.replace(' ', '-')}"


def layout_label(choices: Mapping[str, Any]) -> str:
    """The label of a layout, given as axis name -> value: `tp2 pp2 zero1 mbs4 flash2 bf16`.

    It leaves out degrees of 1, most defaults, and nulls (not known). For people; nothing parses it.
    """
    return " ".join(
        axis.text.label.format(choices[name])
        for name, axis in AXES.items()
        if choices[name] is not None
        and (axis.text.show_default == "always" or choices[name] != axis.default)
    )


def idle_choices(axes: Mapping[str, Any], dp: int) -> dict[str, Any]:
    """The choices that change nothing, as their plain values; two such layouts are one.

    Without tensor parallelism sequence_parallel shards nothing; a ZeRO shard group of all replicas
    is plain ZeRO.
    """
    idle: dict[str, Any] = {}
    if axes.get("tp") == 1 and axes.get("sequence_parallel"):
        idle["sequence_parallel"] = False
    if axes.get("zero_shard_size") == dp:
        idle["zero_shard_size"] = None
    return idle


def replica_size(axes: Mapping[str, Any]) -> int:
    """Ranks of one replica of the model: the product of the axes that multiply ranks."""
    return math.prod(axes[name] for name in REPLICA_AXES)


def refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why this layout cannot run this model on any engine: one sentence per reason."""
    for name in ("num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size"):
        if getattr(shape, name) % layout.tp:
            yield f"{name}={getattr(shape, name)} is not divisible by tp={layout.tp}"
    if layout.sequence_parallel and layout.tp == 1:
        yield "sequence_parallel shards inside the tp group and needs tp > 1"
    if layout.sequence_parallel and layout.seq_length % (layout.tp * layout.cp):
        yield (
            f"sequence_parallel needs seq_length={layout.seq_length} divisible by tp={layout.tp}"
            + (f" x cp={layout.cp}" if layout.cp > 1 else "")
        )
    if shape.family == "gpt" and layout.seq_length > shape.max_positions:
        yield (
            f"seq_length={layout.seq_length} is more than the max_positions="
            f"{shape.max_positions} that the model has learned vectors for"
        )
    layers = shape.num_layers + shape.num_encoder_layers
    if layout.pp > layers:
        encoder = (
            f" + num_encoder_layers={shape.num_encoder_layers}" if layers > shape.num_layers else ""
        )
        yield f"pp={layout.pp} stages cannot share num_layers={shape.num_layers}{encoder} layers"
    heads = shape.num_kv_heads // layout.tp
    if layout.cp_style == "ring" and layout.cp == 1:
        yield "cp_style=ring passes keys and values around a cp group and needs cp > 1"
    if layout.cp_style == "all_to_all" and layout.cp > 1 and heads % layout.cp:
        few = "a rank would have no head to attend over"
        uneven = "ranks would attend over unequal numbers of heads"
        yield (
            f"num_kv_heads={shape.num_kv_heads} over tp={layout.tp} is not divisible by "
            f"cp={layout.cp}: {few if heads < layout.cp else uneven}"
        )
    if layout.cp_style == "ring" and layout.seq_length % (2 * layout.cp):
        yield (
            f"cp_style=ring gives each rank two runs of a sequence, and seq_length="
            f"{layout.seq_length} is not divisible by 2 x cp={layout.cp}"
        )
    elif layout.cp > 1 and layout.seq_length % layout.cp:
        yield f"seq_length={layout.seq_length} is not divisible by cp={layout.cp}"
    yield from _sharding_refusals(layout)
    yield from _schedule_refusals(shape, layout)
    yield from _kernel_refusals(shape, layout)
    yield from _expert_refusals(shape, layout)


def _sharding_refusals(layout: Layout) -> Iterator[str]:
    size = layout.zero_shard_size
    if size is not None and layout.zero_stage == 0:
        yield f"zero_shard_size={size} shards nothing at zero_stage=0"
    elif size is not None and layout.dp % size:
        yield f"dp={layout.dp} is not divisible by zero_shard_size={size}"
    if layout.optimizer_offload != "none" and layout.zero_stage == 0:
        yield (
            f"optimizer_offload={layout.optimizer_offload} moves the states that ZeRO shards "
            "and needs zero_stage of at least 1"
        )
    if layout.optimizer_precision == "bf16" and layout.model_precision != "bf16":
        yield (
            f"optimizer_precision=bf16 keeps master weights as the weights are and needs "
            f"precision=bf16, not {layout.precision}"
        )


def _schedule_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    schedule, rounds = layout.pipeline_schedule, layout.gradient_accumulation_steps
    if layout.virtual_stages > 1 and schedule not in ("interleaved", "zero_bubble"):
        yield (
            f"virtual_stages={layout.virtual_stages} with pipeline_schedule={schedule}: only "
            "interleaved and zero_bubble deal a rank as many chunks of the model as asked"
        )
    if schedule == "1f1b":
        return
    if layout.pp == 1:
        yield f"pipeline_schedule={schedule} needs pp > 1"
        return
    if schedule == "interleaved" and layout.virtual_stages == 1:
        yield "pipeline_schedule=interleaved with virtual_stages=1 is 1f1b"
    chunks = layout.model_chunks
    if chunks > shape.num_layers:
        yield (
            f"pipeline_schedule={schedule} cuts the model into {chunks // layout.pp} x pp="
            f"{chunks} stages, which cannot share num_layers={shape.num_layers} layers"
        )
    if schedule == "dualpipev" and rounds < chunks:
        yield (
            f"pipeline_schedule={schedule} needs at least 2 x pp={chunks} "
            f"micro-batches, not gradient_accumulation_steps={rounds}"
        )
    if schedule in ("interleaved", "zero_bubble") and rounds % max(1, rounds // layout.pp):
        yield (
            f"pipeline_schedule={schedule} runs micro-batches in rounds of at least pp="
            f"{layout.pp}, into which gradient_accumulation_steps={rounds} cannot be divided evenly"
        )


def _kernel_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    if layout.fused_rope and shape.family != "llama":
        yield f"fused_rope rotates queries and keys; a {shape.family} has no rotary positions"
    if layout.fp8_scaling != "tensor" and layout.precision != "fp8":
        yield (
            f"fp8_scaling={layout.fp8_scaling} is of products in 8 bits, and precision="
            f"{layout.precision} has none"
        )
    if layout.fused_mlp and not shape.gated_mlp:
        yield "fused_mlp joins a gate with its product, and this feed-forward has no gate"


def _expert_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why experts cannot be split over the ranks of this layout: one sentence per reason.

    ep divides the dp x cp ranks of a stage. A replica of the experts takes ep x tp ranks, so a
    model needs at least pp x tp x max(cp, ep) ranks.
    """
    if not shape.num_experts:
        if layout.ep > 1:
            yield f"ep={layout.ep} deals experts to ranks, and this model has none"
        if layout.routing != "balanced":
            yield f"routing={layout.routing} is among experts, and this model has none"
        return
    if shape.num_experts % layout.ep:
        yield f"num_experts={shape.num_experts} is not divisible by ep={layout.ep}"
    if layout.dp * layout.cp % layout.ep:
        over_cp = f" x cp={layout.cp}" if layout.cp > 1 else ""
        yield f"dp={layout.dp}{over_cp} is not divisible by ep={layout.ep}"
    if shape.expert_ffn_hidden_size % layout.tp:
        yield (
            f"expert_ffn_hidden_size={shape.expert_ffn_hidden_size} is not divisible by "
            f"tp={layout.tp}"
        )
