"""How one training step is laid out over GPUs: degrees of parallelism and batch arithmetic."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scaling.shapes import ActivationCheckpointing, ModelShape

ZeroStage = Literal[0, 1, 2, 3]
Attention = Literal["math", "fused_softmax", "flash1", "flash2", "flash3", "flash4", "cudnn"]
Precision = Literal["fp32", "bf16", "fp16", "fp8"]
OptimizerOffload = Literal["none", "cpu"]
PipelineSchedule = Literal["1f1b", "dualpipev"]

# Axes that came after the first studies were measured. A point's file and its id name one only
# where it is not at its default: what was measured before the axis existed is not measured again.
_LATER = {"named": "where chosen"}

NO_BIAS_GRADIENT = (
    "attention={attention} gives no gradient to the position bias that a t5 adds to its scores; "
    "it trains with attention=math"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A placement of the model over `world_size` ranks, and the batch they share.

    Sizes count ranks; batch sizes count sequences, never tokens. tp is innermost, then cp, dp and
    pp outermost: ranks of one tp group sit on neighbouring GPUs.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    zero_stage: ZeroStage = 0
    zero_shard_size: int | None = field(default=None, metadata=_LATER)  # null: all dp ranks
    optimizer_offload: OptimizerOffload = field(default="none", metadata=_LATER)
    pipeline_schedule: PipelineSchedule = field(default="1f1b", metadata=_LATER)
    sequence_parallel: bool = False
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    seq_length: int
    activation_checkpointing: ActivationCheckpointing = "none"
    attention: Attention = "flash2"
    fused_norm: bool = False
    fused_rope: bool = field(default=False, metadata=_LATER)
    fused_mlp: bool = field(default=False, metadata=_LATER)
    fused_cross_entropy: bool = field(default=False, metadata=_LATER)
    compile: bool = field(default=False, metadata=_LATER)
    precision: Precision = "bf16"

    @property
    def world_size(self) -> int:
        """Ranks, one per GPU."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.dp

    @property
    def label(self) -> str:
        """What stays the same when GPUs are added, short enough for a chart: `tp2 pp2 zero1 mbs4`.

        Degrees of 1 and the plain choices are left out. For people; nothing parses it.
        """
        return label_of({name: getattr(self, name) for name in AXES})

    def facts(self) -> dict[str, Any]:
        """The fields by name, later axes only where they are not at their default."""
        return {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if not each.metadata or getattr(self, each.name) != each.default
        }


# Kernels and the compiler: on or off.
FLAGS = ("fused_norm", "fused_rope", "fused_mlp", "fused_cross_entropy", "compile")

# What a study may choose, and what an axis means where nobody does; the rest follows from these.
AXES: dict[str, Any] = {
    each.name: each.default
    for each in dataclasses.fields(Layout)
    if each.name not in ("dp", "gradient_accumulation_steps", "seq_length")
}


def label_of(choices: Mapping[str, Any]) -> str:
    """A layout in words from its axes by name; one that is null (not known) is left out."""
    parts = [f"{axis}{size}" for axis in ("tp", "pp", "cp") if (size := choices[axis] or 1) > 1]
    if choices["pipeline_schedule"] not in (None, "1f1b"):
        parts.append(choices["pipeline_schedule"])
    if choices["sequence_parallel"]:
        parts.append("sp")
    for word, name in (("zero", "zero_stage"), ("shard", "zero_shard_size")):
        if choices[name] is not None:
            parts.append(f"{word}{choices[name]}")
    if choices["optimizer_offload"] not in (None, "none"):
        parts.append(f"offload-{choices['optimizer_offload']}")
    if choices["micro_batch_size"] is not None:
        parts.append(f"mbs{choices['micro_batch_size']}")
    if choices["activation_checkpointing"] not in (None, "none"):
        parts.append(f"ckpt-{choices['activation_checkpointing']}")
    if choices["attention"] is not None:
        parts.append(choices["attention"])
    parts += [flag.replace("_", "-") for flag in FLAGS if choices[flag]]
    if choices["precision"] is not None:
        parts.append(choices["precision"])
    return " ".join(parts)


def refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why this layout cannot run this shape: one sentence each, none if it can."""
    if shape.num_heads % layout.tp:
        yield f"num_heads={shape.num_heads} is not divisible by tp={layout.tp}"
    if shape.num_kv_heads % layout.tp:
        yield f"num_kv_heads={shape.num_kv_heads} is not divisible by tp={layout.tp}"
    if shape.ffn_hidden_size % layout.tp:
        yield f"ffn_hidden_size={shape.ffn_hidden_size} is not divisible by tp={layout.tp}"
    if shape.vocab_size % layout.tp:
        yield f"vocab_size={shape.vocab_size} is not divisible by tp={layout.tp}"
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
    if layout.cp > 1 and heads % layout.cp:
        few = "a rank would have no head to attend over"
        uneven = "ranks would attend over unequal numbers of heads"
        yield (
            f"num_kv_heads={shape.num_kv_heads} over tp={layout.tp} is not divisible by "
            f"cp={layout.cp}: {few if heads < layout.cp else uneven}"
        )
    if layout.cp > 1 and layout.seq_length % layout.cp:
        yield f"seq_length={layout.seq_length} is not divisible by cp={layout.cp}"
    yield from _sharding_refusals(layout)
    yield from _schedule_refusals(shape, layout)
    yield from _kernel_refusals(shape, layout)


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


def _schedule_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    if layout.pipeline_schedule == "1f1b":
        return
    if layout.pp == 1:
        yield f"pipeline_schedule={layout.pipeline_schedule} needs pp > 1"
        return
    if 2 * layout.pp > shape.num_layers:
        yield (
            f"pipeline_schedule={layout.pipeline_schedule} cuts the model into 2 x pp="
            f"{2 * layout.pp} stages, which cannot share num_layers={shape.num_layers} layers"
        )
    if layout.gradient_accumulation_steps < 2 * layout.pp:
        yield (
            f"pipeline_schedule={layout.pipeline_schedule} needs at least 2 x pp={2 * layout.pp} "
            f"micro-batches, not gradient_accumulation_steps={layout.gradient_accumulation_steps}"
        )


def _kernel_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    if layout.fused_rope and shape.family != "llama":
        yield f"fused_rope rotates queries and keys; a {shape.family} has no rotary positions"
    if layout.fused_mlp and not shape.gated_mlp:
        yield "fused_mlp joins a gate with its product, and this feed-forward has no gate"


def _fusion_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    if layout.fused_cross_entropy and layout.tp > 1:
        yield (
            "fused_cross_entropy joins the head with a softmax over the whole vocabulary, which "
            f"tp={layout.tp} ranks share"
        )
    if layout.fused_cross_entropy and layout.pp > 1:
        yield "fused_cross_entropy joins head and loss, which DeepSpeed's pipeline keeps apart"
    if layout.fused_cross_entropy and shape.family == "t5":
        yield "fused_cross_entropy is wired to decoders only, not to a t5"
    inside = [name for name in ("fused_norm", "fused_rope", "fused_mlp") if getattr(layout, name)]
    if layout.compile and inside:
        yield f"compile writes a layer's fused kernels itself and takes none from {inside[0]}"


def clipping_refusals(layout: Layout, gradient_clipping: float) -> Iterator[str]:
    """Why gradients cannot be clipped in this layout: one sentence, none if they can.

    Of the optimizers that DeepSpeed takes without ZeRO, torch's own (fp32) counts what the first
    stage holds and what is marked as sharded over tp; FP16_UnfusedOptimizer (bf16 without a
    pipeline, fp16) looks for that mark where it is not, and counts what the first rank holds;
    BF16_Optimizer (bf16 in a pipeline) counts everything.
    """
    if not gradient_clipping or layout.zero_stage > 0:
        return
    missed = None
    if layout.pp > 1 and layout.precision != "bf16":
        missed = "later stages"
    elif layout.tp > 1 and layout.pp == 1 and layout.precision in ("bf16", "fp16"):
        missed = "the other tp ranks"
    if missed is not None:
        yield (
            f"gradient_clipping={gradient_clipping:g} at zero_stage=0 with precision="
            f"{layout.precision}: DeepSpeed clips by a norm that leaves out weights of {missed}; "
            "zero_stage=1 counts everything"
        )


def cuts_messages(shape: ModelShape, layout: Layout) -> bool:
    """Whether stages hand each other activations cut over the tp ranks.

    That is right only where these ranks hold the same ones: under sequence_parallel it would train
    on wrong data, and a t5 sends each rank's own heads of the position tables along. DualPipeV
    sends them whole.
    """
    return (
        layout.pp > 1
        and not layout.sequence_parallel
        and shape.family != "t5"
        and layout.pipeline_schedule == "1f1b"
    )


def engine_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why the training engine cannot run a layout that arithmetic allows: one sentence each."""
    yield from _fusion_refusals(shape, layout)
    size = layout.zero_shard_size
    if size is not None and layout.zero_stage < 3:
        yield (
            f"zero_shard_size={size} at zero_stage={layout.zero_stage}: DeepSpeed keeps a second "
            "copy of ZeRO-3's parameters only"
        )
    elif size == 1 and layout.dp > 1:
        yield "zero_shard_size=1 keeps all parameters on every rank, as zero_stage=2 does"
    if layout.pp > 1 and layout.zero_stage > 1:
        yield (
            f"zero_stage={layout.zero_stage} with pp={layout.pp}: "
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism (DeepSpeed)"
        )
    elements = layout.micro_batch_size * (layout.seq_length // layout.cp) * shape.hidden_size
    if cuts_messages(shape, layout) and elements % layout.tp:
        over_cp = f" / cp={layout.cp}" if layout.cp > 1 else ""
        yield (
            f"pp={layout.pp} with tp={layout.tp}: stages send each other one part of the "
            f"activations per tp rank, and micro_batch_size={layout.micro_batch_size} x seq_length="
            f"{layout.seq_length}{over_cp} x hidden_size={shape.hidden_size} = {elements} elements "
            "have no equal parts (DeepSpeed)"
        )
    if shape.family == "gpt" and layout.fused_norm:
        yield "fused_norm is a kernel of RMSNorm; a gpt's LayerNorm is always torch's fused one"
    if shape.family == "t5" and layout.attention != "math":
        yield NO_BIAS_GRADIENT.format(attention=layout.attention)
    if shape.family == "t5" and layout.pipeline_schedule != "1f1b":
        yield (
            f"pipeline_schedule={layout.pipeline_schedule} turns one stream around at the last "
            "rank; a t5 sends two through its stages"
        )
    if shape.family == "t5" and shape.tied_embeddings:
        yield "a t5 is trained as mT5 is, with a head of its own: tied_embeddings must be false"
