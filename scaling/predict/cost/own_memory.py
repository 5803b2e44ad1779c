"""Peak memory of this project's engines: what is alive at which moment of a step.

What the model keeps is the same under both engines. Each engine says what it holds beside it while
these moments last (`Alive`), and adds the moments that it alone has.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scaling.foreign.arrays import Flags
from scaling.predict.cost import own_deepspeed, own_torch
from scaling.predict.cost.chunks import (
    ONE_F_ONE_B,
    Chunks,
    deepspeeds_chunks,
    torchs_chunks,
    whole_model,
)
from scaling.predict.cost.own_parts import (
    BACKWARD,
    FORWARD,
    Alive,
    Memory,
    Moment,
    by_rows,
    fullest_of,
    position_tables,
)
from scaling.predict.cost.own_stage import Stage, of_rank, stage_of, step_of
from scaling.predict.read.features import Features, Group
from scaling.predict.read.inputs import own_framework


@dataclass(frozen=True, slots=True)
class Engine:
    """What differs: what is held beside activations, how chunks are dealt, which gradients stay."""

    alive: Callable[[Stage], Alive]
    chunks: Callable[[Group, Features], Iterable[Chunks]]
    gradients_stay: Callable[[Features, bool], Flags | None]


# By the framework that the engine is to the prediction.
ENGINES = {
    own_framework("deepspeed"): Engine(own_deepspeed.alive, deepspeeds_chunks, lambda *_: None),
    own_framework("torch"): Engine(own_torch.alive, torchs_chunks, own_torch.reduces),
}


def own_memory_of(group: Group, f: Features, p: Mapping[str, float]) -> Memory:
    """The fullest moment of the fullest stage."""
    engine = ENGINES[group.stack.name]

    def of_ranks(f: Features, *, piped: bool) -> Memory:
        stay = engine.gradients_stay(f, piped)
        step = step_of(group, f, piped=piped, gradients_stay=stay)
        stages = []
        for chunks in engine.chunks(group, f) if piped else [whole_model(f)]:
            if chunks.dense is not None:
                own = of_rank(f, chunks)
                step = step_of(group, own, piped=piped, gradients_stay=stay)
            stages.append(stage_of(step, chunks))
        moments = [_moments(stage, engine.alive(stage)) for stage in stages]
        return fullest_of(moments, p["buffers_bytes"])

    piped, whole = (functools.partial(of_ranks, piped=piped) for piped in (True, False))

    def in_stages(f: Features) -> Memory:
        return by_rows(f.schedule == ONE_F_ONE_B, f, piped, piped)

    return by_rows(f.pp > 1, f, in_stages, whole)


def _moments(t: Stage, alive: Alive) -> list[Moment]:
    """From the last layer's forward on: the loss, and the layers from the last to the first."""
    layer, kept = t.step.layer, t.passing + t.final
    in_layer = t.passing + layer.again + t.step.f.element_bytes * t.step.own
    # an earlier layer begins when the last one's activations are gone
    earlier = in_layer - layer.kept + layer.above + position_tables(t.step.f)
    return [
        *alive.more,
        (FORWARD, alive.forward.plus(kept, t.loss.forward)),
        (BACKWARD, alive.loss.plus(kept, t.loss.backward)),
        (BACKWARD, alive.in_head.plus(kept, t.loss.of_logits)),
        (BACKWARD, alive.after_loss.plus(kept, t.loss.after)),
        (BACKWARD, alive.in_ffn.plus(in_layer + layer.in_ffn)),
        (BACKWARD, alive.in_attention.plus(in_layer + layer.in_attention)),
        (BACKWARD, alive.earlier.plus(earlier)),
    ]
