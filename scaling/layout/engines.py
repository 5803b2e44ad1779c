"""The engines that train, by name. Each is a room of `scaling/train/engines`.

A room holds

- `refusals.py`, without torch: `layout_refusals(shape, layout)` and
  `clipping_refusals(layout, gradient_clipping)`, one sentence for each thing this engine cannot do
  (what our model cannot do in any stands here), `missing_software(layout)`, asked where it runs;
- `engine.py`, with torch: `join(port)` after the ranks have met, and `build(plan, groups, beat)`,
  which gives a `Trainer` (scaling/train/engines/trainer.py);
- `rehearsal.py`, with torch: what it must be told where a rank runs without its device.

Rooms are loaded by name: a plan asks an engine what it refuses, and imports still point downwards.
"""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scaling.layout.kernels import NO_BIAS_GRADIENT

if TYPE_CHECKING:  # the table of axes lists the engines
    from scaling.layout.layout import Layout
    from scaling.layout.shapes import ModelShape

# The values of the axis `engine`.
ENGINES = {
    "deepspeed": "scaling.train.engines.deepspeed",
    "torch": "scaling.train.engines.torch",
}


def engine_module(engine: str, name: str) -> Any:
    """A module of an engine's room: `refusals`, `engine` or `rehearsal`."""
    return importlib.import_module(f"{ENGINES[engine]}.{name}")


# elements along each side of a product (cublasLt), more where a scale is of 32 of them
_EIGHT_BIT_TILE, _EIGHT_BIT_BLOCK = 16, 32
_GROUPED_TILE = 8  # elements of bf16 in 16 bytes
# What the model that all engines train has no code for; it is predicted only.
_UNTRAINED = {
    "key_value_rank": "latent attention",
    "window": "attention over a window",
    "attention_sinks": "attention with sinks",
    "linear_biases": "attention with biases and rotary positions",
}


def engine_refusals(
    shape: "ModelShape", layout: "Layout", gradient_clipping: float = 0.0
) -> Iterator[str]:
    """Why the layout's engine cannot run what arithmetic allows: one sentence each.

    Args:
        shape: the model.
        layout: that arithmetic allows.
        gradient_clipping: the norm above which gradients are scaled down; 0: never.
    """
    for name in [name for name in _UNTRAINED if getattr(shape, name)][:1]:
        yield (
            f"{name}={str(getattr(shape, name)).lower()}: no engine trains {_UNTRAINED[name]}; "
            "mode: predict does predict it"
        )
    yield from _model_refusals(shape, layout)
    refusals = engine_module(layout.engine, "refusals")
    yield from refusals.layout_refusals(shape, layout)
    yield from refusals.clipping_refusals(layout, gradient_clipping)


def _model_refusals(shape: "ModelShape", layout: "Layout") -> Iterator[str]:
    """What the model that all engines train cannot do by this layout: one sentence each."""
    if layout.fused_cross_entropy and layout.tp > 1:
        yield (
            "fused_cross_entropy joins the head with a softmax over the whole vocabulary, which "
            f"tp={layout.tp} ranks share"
        )
    if layout.fused_cross_entropy and shape.family == "t5":
        yield "fused_cross_entropy is wired to decoders only, not to a t5"
    if layout.compile and shape.num_experts:
        yield "compile needs sizes that stay, and those of experts change with every step's tokens"
    if shape.num_experts and layout.precision == "bf16":
        widths = shape.hidden_size, shape.expert_ffn_hidden_size // layout.tp
        names = "hidden_size", f"expert_ffn_hidden_size / tp={layout.tp}"
        for name, width in zip(names, widths, strict=True):
            if width % _GROUPED_TILE:
                yield (
                    f"{name} = {width} is no multiple of {_GROUPED_TILE}, which torch's grouped "
                    "products of experts need in bf16"
                )
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


def _eight_bit_refusals(shape: "ModelShape", layout: "Layout") -> Iterator[str]:
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
    tile = _EIGHT_BIT_BLOCK if layout.fp8_scaling == "block" else _EIGHT_BIT_TILE
    for name, size in sizes.items():
        if size % tile:
            yield f"{name} = {size}: products in fp8 need multiples of {tile}"
