"""The training engines by name, and what none of them or one of them cannot run.

Each engine is a package of `scaling/train/engines` with these modules:

- `refusals.py`, without torch: `layout_refusals(shape, layout)` and
  `clipping_refusals(layout, gradient_clipping)` yield a sentence for each thing this engine cannot
  do; `missing_software(layout)` is called on the machine that trains;
- `engine.py`, with torch: `join(port)`, called once the ranks have met, and
  `build(plan, groups, beat)`, which returns a `Trainer` (scaling/train/engines/trainer.py);
- `rehearsal.py`, with torch: replaces what the engine takes from its device.

They are imported by name, so that a plan can ask an engine for refusals although imports point
downwards.
"""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scaling.layout.kernels import ATTENTION, NO_BIAS_GRADIENT

if TYPE_CHECKING:  # these modules import this one
    from scaling.layout.layout import Layout
    from scaling.layout.shapes import ModelShape

# Our own values of the axis `engine`. The others are names of entries of trainers.yaml.
ENGINES = {
    "deepspeed": "scaling.train.engines.deepspeed",
    "torch": "scaling.train.engines.torch",
}


def engine_module(engine: str, name: str) -> Any:
    """A module of an engine: `refusals`, `engine` or `rehearsal`."""
    return importlib.import_module(f"{ENGINES[engine]}.{name}")


_EIGHT_BIT_TILE = 16  # of which every side of an 8-bit product is a multiple (cublasLt)
_GROUPED_TILE = 8  # elements of bf16 in 16 bytes
# Parts of a model that can be predicted, but that our training code does not have.
_UNTRAINED = {
    "key_value_rank": "latent attention",
    "window": "attention over a window",
    "attention_sinks": "attention with sinks",
    "linear_biases": "attention with biases and rotary positions",
    "query_key_value_biases": "attention with biases and rotary positions",
    "whole_query_key_norm": "a norm over all heads at once",
    "router_bias": "a router with a bias",
}


def engine_refusals(
    shape: "ModelShape",
    layout: "Layout",
    gradient_clipping: float = 0.0,
    *,
    predicted: bool = False,
) -> Iterator[str]:
    """Why the layout's engine cannot run it: one sentence per reason.

    Args:
        shape: the model.
        layout: one that `layout.refusals` allows.
        gradient_clipping: the norm above which gradients are scaled down; 0: never.
        predicted: without the parts of a model that no engine trains and predictions have.
    """
    if layout.engine not in ENGINES:
        yield from _trainer_refusals(shape, layout, gradient_clipping)
        return
    parts = {name for name in _UNTRAINED if getattr(shape, name) and not predicted}
    if layout.seq_length <= shape.window:  # which then cuts nothing off
        parts.discard("window")
    name = next((name for name in _UNTRAINED if name in parts), None)
    if name is not None:
        yield (
            f"{name}={str(getattr(shape, name)).lower()}: no engine trains {_UNTRAINED[name]}; "
            "a study with mode: predict predicts it"
        )
    yield from _model_refusals(shape, layout)
    refusals = engine_module(layout.engine, "refusals")
    yield from refusals.layout_refusals(shape, layout)
    yield from refusals.clipping_refusals(layout, gradient_clipping)


def programs() -> list[str]:
    """Everything that can train: our engines, then the entries of trainers.yaml with a command."""
    entries = importlib.import_module("scaling.trainers.entries").all_trainers()
    return [*ENGINES, *(name for name, entry in entries.items() if entry.command)]


def _trainer_refusals(
    shape: "ModelShape", layout: "Layout", gradient_clipping: float
) -> Iterator[str]:
    entries = importlib.import_module("scaling.trainers.entries")
    yield from entries.axis_refusals(layout.engine, shape, layout)
    if gradient_clipping:
        yield f"gradient_clipping={gradient_clipping:g}: config/trainers.yaml has no words for it"


def _model_refusals(shape: "ModelShape", layout: "Layout") -> Iterator[str]:
    """Why no engine can run this layout: limits of the model code that they share."""
    if not ATTENTION[layout.attention].runs:
        yield f"attention={layout.attention} is a label of published rows, which no engine runs"
    if layout.fused_cross_entropy and layout.tp > 1:
        yield (
            "fused_cross_entropy joins the head with a softmax over the whole vocabulary, which "
            f"tp={layout.tp} ranks share"
        )
    if layout.fused_cross_entropy and shape.family == "t5":
        yield "fused_cross_entropy is wired to decoders only, not to a t5"
    if layout.compile and shape.num_experts:
        yield "compile needs sizes that stay, and those of experts change with every step's tokens"
    if shape.num_experts and not shape.gated_mlp:
        yield (
            "gated_mlp=false: the experts that an engine trains have a gate; mode: predict does "
            "predict experts without one"
        )
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
    if not layout.compile:
        yield (
            "precision=fp8 without compile: each cast is a kernel of its own, so it is slower than "
            "bf16"
        )
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
