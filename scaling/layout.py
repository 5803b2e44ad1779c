"""How one training step is laid out over GPUs: degrees of parallelism and batch arithmetic."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from scaling.shapes import ActivationCheckpointing, ModelShape

ZeroStage = Literal[0, 1, 2, 3]
Attention = Literal["math", "fused_softmax", "flash1", "flash2", "flash3", "flash4", "cudnn"]
Precision = Literal["fp32", "bf16", "fp16", "fp8"]


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
    sequence_parallel: bool = False
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    seq_length: int
    activation_checkpointing: ActivationCheckpointing = "none"
    attention: Attention = "flash2"
    fused_norm: bool = False
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
        parts = [
            f"{axis}{size}" for axis in ("tp", "pp", "cp") if (size := getattr(self, axis)) > 1
        ]
        if self.sequence_parallel:
            parts.append("sp")
        parts += [f"zero{self.zero_stage}", f"mbs{self.micro_batch_size}"]
        if self.activation_checkpointing != "none":
            parts.append(f"ckpt-{self.activation_checkpointing}")
        parts.append(self.attention)
        if self.fused_norm:
            parts.append("fused-norm")
        parts.append(self.precision)
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
    if layout.pp > shape.num_layers:
        yield f"pp={layout.pp} stages cannot share num_layers={shape.num_layers} layers"
    if layout.cp > 1 and shape.num_kv_heads // layout.tp % layout.cp:
        yield (
            f"num_kv_heads={shape.num_kv_heads} over tp={layout.tp} is not divisible by "
            f"cp={layout.cp}: a rank would have no head to attend over"
        )
    if layout.cp > 1 and layout.seq_length % layout.cp:
        yield f"seq_length={layout.seq_length} is not divisible by cp={layout.cp}"


def engine_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why the training engine cannot run a layout that arithmetic allows: one sentence each."""
    if layout.pp > 1 and layout.zero_stage > 1:
        yield (
            f"zero_stage={layout.zero_stage} with pp={layout.pp}: "
            "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism (DeepSpeed)"
        )
    if shape.family == "gpt" and layout.fused_norm:
        yield "fused_norm is a kernel of RMSNorm; a gpt's LayerNorm is always torch's fused one"
    if shape.family == "t5":
        yield f"family={shape.family} can be predicted but not yet measured"
