"""Peak memory of this project's engines: what is alive at which moment of a step.

The formulas follow a rank's bytes through a step: what lives all the time, what a layer keeps for
backward, and what the fullest moment of each phase adds. Every term stands for tensors that the
engine holds (`scaling memory` names them by file and line). `python benchmarks/counted_memory.py`
compares the two. The memory that a rehearsal cannot see is calibrated, as `buffers_bytes` and
`fragmentation`: kernels' workspaces, NCCL, blocks that a side stream still reads.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.predict.cost.own_layer import position_bias_bytes
from scaling.predict.cost.own_pipelines import Stage
from scaling.predict.read.features import Features

PHASES = ("build", "forward", "backward", "optimizer")
BUILD, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes held at one moment, by what they are; (n,), or one number for all layouts."""

    weights: Floats | float
    gradients: Floats | float
    optimizer: Floats | float
    activations: Floats | float = 0.0
    logits: Floats | float = 0.0
    buffers: Floats | float = 0.0

    def with_(self, **parts: Floats | float) -> "Held":
        """The same with these parts replaced."""
        return dataclasses.replace(self, **parts)

    def plus(self, activations: Floats | float, logits: Floats | float = 0.0) -> "Held":
        """The same with these bytes added."""
        return self.with_(activations=self.activations + activations, logits=self.logits + logits)

    @property
    def total(self) -> Floats:
        """Sum of all parts, (n,)."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits)
        # parts that are numbers are 0, and no moment has fewer than two arrays
        arrays = [part for part in (*parts, self.buffers) if isinstance(part, np.ndarray)]
        total: Floats = arrays[0] + arrays[1]
        for part in arrays[2:]:
            total += part
        return total


TERMS = tuple(Held.__dataclass_fields__)
Moment = tuple[int, Held]  # index into PHASES
# By name: one number for all layouts, or in a fit (n,), a value for each.
Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes allocated at the peak, float64 (n,): `terms` of the fullest stage add up to `total`.

    For other software `first_stage` is the total of the first rank, and `phase` is None because its
    phases are not counted.
    """

    total: Floats
    terms: dict[str, Floats]
    first_stage: Floats
    phase: Strings | None = None


def peak_of(moments: list[Moment], uncounted: Floats | float) -> Memory:
    """The fullest of the moments; `uncounted` bytes, which no rehearsal sees, are added to all."""
    total = moments[0][1].total
    fullest = np.zeros(len(total), dtype=np.int64)
    for index, (_, held) in enumerate(moments[1:], start=1):
        moment_total = held.total
        fullest[moment_total > total] = index
        np.maximum(total, moment_total, out=total)
    terms: dict[str, Floats] = {f"{name}_bytes": np.empty(len(total)) for name in TERMS}
    for index in np.flatnonzero(np.bincount(fullest)).tolist():
        rows, held = np.flatnonzero(fullest == index), moments[index][1]
        for name, values in zip(TERMS, terms.values(), strict=True):
            part = getattr(held, name)
            values[rows] = part[rows] if isinstance(part, np.ndarray) else part
    terms["buffers_bytes"] += uncounted
    phases = np.array([PHASES[phase] for phase, _ in moments], dtype=object)[fullest]
    return Memory(total + uncounted, terms, total + uncounted, phases)


def split_rows(
    mask: Flags,
    f: Features,
    p: Parameters,
    where_true: Callable[[Features, Parameters], Memory],
    where_false: Callable[[Features, Parameters], Memory],
) -> Memory:
    """Memory of the rows under `mask` by one function, of the others by another.

    Parameters with a value a row are split with the rows.
    """
    if mask.all():
        return where_true(f, p)
    if not mask.any():
        return where_false(f, p)
    rows = [np.flatnonzero(mask), np.flatnonzero(~mask)]
    parts = [
        where(f.take(index), {name: v[index] if np.ndim(v) else v for name, v in p.items()})
        for where, index in zip((where_true, where_false), rows, strict=True)
    ]
    order = np.argsort(np.concatenate(rows))

    def joined(values: list[Any]) -> Any:
        return np.concatenate(values)[order]

    return Memory(
        joined([part.total for part in parts]),
        {name: joined([part.terms[name] for part in parts]) for name in parts[0].terms},
        joined([part.first_stage for part in parts]),
        joined([np.full(len(p.total), None) if p.phase is None else p.phase for p in parts]),
    )


def model_moments(
    t: Stage, *, loss: Held, in_ffn: Held, in_attention: Held, earlier_layer: Held | None = None
) -> list[Moment]:
    """Moments from the loss back through the layers.

    The model itself keeps the same under both engines. The arguments are what an
    engine holds beside it: in the loss, in the backward of the last layer's feed-forward and of its
    attention, and in that of earlier layers where it differs.
    """
    f, layer, kept = t.sizes.f, t.sizes.layer, t.in_flight + t.final_norm
    in_layer = t.in_flight + layer.recomputed + f.element_bytes * t.sizes.hidden
    moments = [
        (FORWARD, loss.plus(kept, t.loss_forward)),
        (BACKWARD, in_ffn.plus(in_layer + layer.in_ffn)),
        (BACKWARD, in_attention.plus(in_layer + layer.in_attention)),
    ]
    if np.any(t.has_head):
        moments.append((BACKWARD, loss.plus(kept, t.loss_backward)))
    if earlier_layer is not None or (f.attentions > 1).any():
        # an earlier layer's backward begins when the last one's activations are gone
        activations = in_layer - layer.kept + layer.in_backward + position_bias_bytes(f)
        moments.append((BACKWARD, (earlier_layer or in_attention).plus(activations)))
    return moments
