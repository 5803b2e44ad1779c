"""Where tokens go among experts: how unevenly, and over how many ranks experts can be dealt."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the table of axes lists the routings
    from scaling.layout.layout import Layout
    from scaling.layout.shapes import ModelShape

# The values of the axis `routing` -> tokens of the fullest expert over the mean. balanced: every
# expert gets as many, whatever the router scores; skewed: one gets so many times the mean. learned
# is what the router does; the number is what a prediction takes for it, from published steps with
# forced balance beside those without (docs/prediction.md).
ROUTINGS = {
    "balanced": 1.0, "learned": 3.0, "skewed:1.25": 1.25, "skewed:1.5": 1.5, "skewed:2": 2.0,
    "skewed:3": 3.0, "skewed:4": 4.0,
}  # fmt: skip


def expert_refusals(shape: "ModelShape", layout: "Layout") -> Iterator[str]:
    """Why experts cannot be dealt to the ranks of this layout: one sentence each.

    ep takes its ranks out of dp x cp of a stage: a replica of the experts has ep x tp ranks, so a
    model needs pp x tp x max(cp, ep) ranks at least.
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
