"""What the model itself cannot do, whichever engine trains it. No torch."""

from collections.abc import Iterator

from scaling.layout.kernels import NO_BIAS_GRADIENT
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape

_EIGHT_BIT_TILE = 16  # elements along each side of a product (cublasLt)


def model_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why scaling/train/model cannot train this shape by this layout: one sentence each."""
    if layout.fused_cross_entropy and layout.tp > 1:
        yield (
            "fused_cross_entropy joins the head with a softmax over the whole vocabulary, which "
            f"tp={layout.tp} ranks share"
        )
    if layout.fused_cross_entropy and shape.family == "t5":
        yield "fused_cross_entropy is wired to decoders only, not to a t5"
    if layout.compile and shape.num_experts:
        yield "compile needs sizes that stay, and those of experts change with every step's tokens"
    if layout.precision == "fp8":
        yield from _eight_bit_refusals(shape, layout)
    if layout.cp_style == "ring" and layout.attention != "flash2":
        yield (
            "cp_style=ring merges what runs of keys give by torch's flash kernel (attention=flash2)"
            f", not by attention={layout.attention}"
        )
    if layout.cp_style == "ring" and layout.compile:
        yield "cp_style=ring with compile: torch's loop around the ring is written for eager code"
    inside = [name for name in ("fused_norm", "fused_rope", "fused_mlp") if getattr(layout, name)]
    if layout.compile and inside:
        yield f"compile writes a layer's fused kernels itself and takes none from {inside[0]}"
    if shape.family == "gpt" and layout.fused_norm:
        yield "fused_norm is a kernel of RMSNorm; a gpt's LayerNorm is always torch's fused one"
    if shape.family == "t5" and layout.attention != "math":
        yield NO_BIAS_GRADIENT.format(attention=layout.attention)
    if shape.family == "t5" and shape.tied_embeddings:
        yield "a t5 is trained as mT5 is, with a head of its own: tied_embeddings must be false"


def _eight_bit_refusals(shape: ModelShape, layout: Layout) -> Iterator[str]:
    if shape.num_experts:
        yield "precision=fp8 with experts: their grouped products run in bf16 here"
        return
    sizes = {
        "micro_batch_size x seq_length / cp": layout.micro_batch_size
        * (layout.seq_length // layout.cp),
        "hidden_size": shape.hidden_size,
        "num_heads x head_dim / tp": shape.num_heads * shape.head_dim // layout.tp,
        "num_kv_heads x head_dim / tp": shape.num_kv_heads * shape.head_dim // layout.tp,
        "ffn_hidden_size / tp": shape.ffn_hidden_size // layout.tp,
    }
    for name, size in sizes.items():
        if size % _EIGHT_BIT_TILE:
            yield f"{name} = {size}: products in fp8 need multiples of {_EIGHT_BIT_TILE}"
