"""Layouts that DeepSpeed cannot run, one sentence each. Imports no torch: plans ask this."""

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
    if layout.precision == "fp16" and layout.zero_stage == 0:
        yield (
            "precision=fp16 at zero_stage=0: DeepSpeed divides gradients by a loss scale that it "
            "has not multiplied the loss by; zero_stage=1 does both, on one rank too"
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
    if partitions_activations(layout) and elements % layout.tp:
        over_cp = f" / cp={layout.cp}" if layout.cp > 1 else ""
        yield (
            f"pp={layout.pp} with tp={layout.tp}: stages send each other one part of the "
            f"activations per tp rank, and micro_batch_size={layout.micro_batch_size} x seq_length="
            f"{layout.seq_length}{over_cp} x hidden_size={shape.hidden_size} = {elements} elements "
            "have no equal parts (DeepSpeed)"
        )
    if shape.family == "t5" and layout.pp > 1:
        yield f"pp={layout.pp}: stages send one stream, and a t5 has two (DeepSpeed)"


def _lacks_experts(shape: ModelShape, layout: Layout) -> bool:
    """Whether a pipeline rank holds dense layers only while its optimizer takes a norm.

    The dense layers are the model's first ones. Under DualPipeV each rank has a second stage in the
    second half of the model.
    """
    takes_no_norm = layout.zero_stage == 0 and layout.model_precision == "fp32"
    if layout.ep == 1 or layout.pp == 1 or takes_no_norm:
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


def partitions_activations(layout: Layout) -> bool:
    """Whether pipeline stages send each other activations partitioned over the tp ranks.

    This needs equal activations on all tp ranks; under sequence_parallel they differ. DualPipeV
    always sends whole activations.
    """
    return layout.pp > 1 and not layout.sequence_parallel and layout.pipeline_schedule == "1f1b"


def clipping_refusals(layout: Layout, gradient_clipping: float) -> Iterator[str]:
    """Why gradients cannot be clipped in this layout: one sentence, none if they can.

    Without ZeRO, DeepSpeed uses one of three optimizers. With torch's own (fp32) it counts what the
    first stage holds and what is marked as sharded over tp. With expert parallelism it takes the
    mean of the ranks' norms. FP16_UnfusedOptimizer (bf16 without a pipeline) does not find that
    mark, counts what the first tp rank holds, and leaves experts out. BF16_Optimizer (bf16 in a
    pipeline) counts everything.
    """
    if not gradient_clipping or layout.zero_stage > 0:
        return
    left_out = None
    if layout.pp > 1 and layout.model_precision == "fp32":
        left_out = "later stages"
    elif layout.tp > 1 and layout.pp == 1 and layout.model_precision == "bf16":
        left_out = "the other tp ranks"
    elif layout.ep > 1 and layout.pp == 1:
        left_out = "experts"
    if left_out is not None:
        yield (
            f"gradient_clipping={gradient_clipping:g} at zero_stage=0 with precision="
            f"{layout.precision}: DeepSpeed clips by a norm that leaves out weights of {left_out}; "
            "zero_stage=1 counts everything"
        )


def missing_software(layout: Layout) -> Iterator[str]:
    """Nothing is missing: every version that can be installed runs what is not refused."""
    return iter(())


def windows(layout: Layout) -> tuple[float, ...]:
    """Elements of weights that it reduces at once, and that ZeRO-3 gathers ahead."""
    return (5e8, 1.05e9) if layout.zero_stage == 3 else (5e8,)
