"""What DeepSpeed cannot do, one sentence each. No torch: a plan asks before anything trains."""

from collections.abc import Iterator

from scaling.layout.layout import Layout
from scaling.layout.partition import layers_of_stages
from scaling.layout.shapes import ModelShape


def layout_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why DeepSpeed cannot run a layout that arithmetic allows: one sentence each."""
    if layout.fused_cross_entropy and layout.pp > 1:
        yield "fused_cross_entropy joins head and loss, which DeepSpeed's pipeline keeps apart"
    if layout.pipeline_schedule not in ("1f1b", "dualpipev"):
        yield (
            f"pipeline_schedule={layout.pipeline_schedule}: DeepSpeed has 1f1b and dualpipev only"
        )
    size = layout.zero_shard_size
    if size is not None and layout.zero_stage < 3:
        yield (
            f"zero_shard_size={size} at zero_stage={layout.zero_stage}: DeepSpeed keeps a second "
            "copy of ZeRO-3's parameters only"
        )
    elif size == 1 and layout.dp > 1:
        yield "zero_shard_size=1 keeps all parameters on every rank, as zero_stage=2 does"
    elif size is not None and layout.ep > 1:
        yield (
            f"ep={layout.ep} with zero_shard_size={size}: DeepSpeed would share the second copy of "
            "ZeRO-3's parameters among ranks that hold different experts"
        )
    if layout.pp > 1 and layout.zero_stage > 1:
        yield (
            f"zero_stage={layout.zero_stage} with pp={layout.pp}: "
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism (DeepSpeed)"
        )
    if _lacks_experts(shape, layout):
        yield (
            f"ep={layout.ep} with pp={layout.pp}: a stage has none of the layers with experts, and "
            "DeepSpeed takes the norm of their gradients on every stage or on none"
        )
    states = f"optimizer_precision={layout.optimizer_precision}"
    if layout.optimizer_precision != "fp32" and layout.zero_stage == 0:
        yield (
            f"{states} at zero_stage=0: DeepSpeed keeps 16-bit states in ZeRO's optimizers only; "
            "zero_stage=1 does on one rank too"
        )
    if layout.optimizer_precision != "fp32" and layout.optimizer_offload != "none":
        yield (
            f"{states} with optimizer_offload={layout.optimizer_offload} needs DeepSpeed's own "
            "Adam, which is compiled at run time"
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
    if shape.family == "t5" and layout.pipeline_schedule != "1f1b":
        yield (
            f"pipeline_schedule={layout.pipeline_schedule} turns one stream around at the last "
            "rank; a t5 sends two through its stages"
        )


def _lacks_experts(shape: ModelShape, layout: Layout) -> bool:
    """Whether a rank of a pipeline whose optimizer takes a norm has dense layers only.

    They are a model's first ones. Of DualPipeV's two stages of each rank the later ones are in the
    second half.
    """
    without_norm = layout.zero_stage == 0 and layout.model_precision == "fp32"
    if layout.ep == 1 or layout.pp == 1 or without_norm:
        return False
    if layout.pipeline_schedule == "dualpipev":
        return 2 * shape.dense_layers > shape.num_layers
    first, *_ = layers_of_stages(
        shape,
        pp=layout.pp,
        seq_length=layout.seq_length,
        activation_checkpointing=layout.activation_checkpointing,
    )
    return first <= shape.dense_layers


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


def clipping_refusals(layout: Layout, gradient_clipping: float) -> Iterator[str]:
    """Why gradients cannot be clipped in this layout: one sentence, none if they can.

    Of the optimizers that DeepSpeed takes without ZeRO, torch's own (fp32) counts what the first
    stage holds and what is marked as sharded over tp; FP16_UnfusedOptimizer (bf16 without a
    pipeline, fp16) looks for that mark where it is not, and counts what the first rank holds;
    BF16_Optimizer (bf16 in a pipeline) counts everything. Where experts are dealt to ranks, torch's
    takes the mean of these ranks' norms, and FP16_UnfusedOptimizer leaves experts out.
    """
    if not gradient_clipping or layout.zero_stage > 0:
        return
    missed = None
    if layout.pp > 1 and layout.model_precision != "bf16":
        missed = "later stages"
    elif layout.tp > 1 and layout.pp == 1 and layout.model_precision in ("bf16", "fp16"):
        missed = "the other tp ranks"
    elif layout.ep > 1 and layout.pp == 1:
        missed = "experts"
    if missed is not None:
        yield (
            f"gradient_clipping={gradient_clipping:g} at zero_stage=0 with precision="
            f"{layout.precision}: DeepSpeed clips by a norm that leaves out weights of {missed}; "
            "zero_stage=1 counts everything"
        )


def missing_software(layout: Layout) -> Iterator[str]:
    """Nothing: every version that can be installed runs what is not refused."""
    return iter(())
