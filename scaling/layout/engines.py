"""The engines that train, by name. Each is a room of `scaling/train/engines`.

A room holds

- `refusals.py`, without torch: `layout_refusals(shape, layout)` and
  `clipping_refusals(layout, gradient_clipping)`, one sentence for each thing the engine cannot do;
- `engine.py`, with torch: `join(port)` after the ranks have met, and `build(plan, groups, beat)`,
  which gives a `Trainer` (scaling/train/engines/trainer.py);
- `rehearsal.py`, with torch: what it must be told where a rank runs without its device.

Rooms are loaded by name: a plan asks an engine what it refuses, and imports still point downwards.
"""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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


# What the model that all engines train has no code for; it is predicted only.
_UNTRAINED = {
    "key_value_rank": "latent attention",
    "window": "attention over a window",
    "attention_sinks": "attention with sinks",
    "linear_biases": "attention with biases and rotary positions",
}


def untrained_parts(shape: "ModelShape") -> Iterator[str]:
    """One sentence for all parts of the model that nothing here trains, none if there is none."""
    parts = [name for name in _UNTRAINED if getattr(shape, name)]
    if parts:
        name = parts[0]
        yield (
            f"{name}={str(getattr(shape, name)).lower()}: no engine trains {_UNTRAINED[name]}; "
            "mode: predict does predict it"
        )


def engine_refusals(shape: "ModelShape", layout: "Layout") -> Iterator[str]:
    """Why the layout's engine cannot run what arithmetic allows: one sentence each."""
    yield from untrained_parts(shape)
    yield from engine_module(layout.engine, "refusals").layout_refusals(shape, layout)


def clipping_refusals(layout: "Layout", gradient_clipping: float) -> Iterator[str]:
    """Why the layout's engine cannot clip gradients by this norm: one sentence, none if it can."""
    yield from engine_module(layout.engine, "refusals").clipping_refusals(layout, gradient_clipping)
