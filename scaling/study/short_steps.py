"""Which layouts run short steps, and how many micro-batches these have. Standard library only."""

import random
from collections.abc import Sequence
from typing import Literal

from scaling.layout.layout import Layout

# full: steps as the study asks; short: fewer micro-batches, extended; both: one after the other,
# so that what the extension is wrong by is a number.
Accumulation = Literal["full", "short", "both"]

_WORTH_IT = 0.75  # of the full steps' micro-batches: short ones that are no fewer save nothing
_EVERY = 2  # measured steps asked for, to a round of short ones


def short_step_sizes(layout: Layout) -> tuple[int, ...]:
    """Micro-batches of the short steps of a round; none where nothing would be shorter.

    Three, so that a line can fail. From two on a step accumulates as the full one does. A pipeline
    takes 2, 4 and 6 times its stages: it is filled, runs steadily and is drained, as many
    micro-batches are in flight as ever, and DualPipeV has the 2 pp that it needs. A schedule that
    deals micro-batches in rounds of pp is only shortened where the full step has whole rounds too.
    """
    if layout.pp == 1:
        counts: tuple[int, ...] = (2, 5, 8)
    else:
        counts = (2 * layout.pp, 4 * layout.pp, 6 * layout.pp)
        whole = layout.gradient_accumulation_steps % layout.pp == 0
        if layout.pipeline_schedule in ("interleaved", "zero_bubble") and not whole:
            return ()
    return counts if layout.gradient_accumulation_steps > counts[-1] else ()


def short_step_rounds(steps: int) -> int:
    """Rounds of short steps where so many steps are asked for, half as many and at least three."""
    return max(3, -(-steps // _EVERY))


def shuffled_rounds(counts: Sequence[int], times: int, seed: int) -> list[int]:
    """These micro-batches so many times, each time in an order of its own.

    Steps that follow each other are alike. In one fixed order the last of a round would always
    stand before the first of the next, and a bootstrap of rounds would not see what they share;
    at random it is shared by every pair alike. All ranks draw the same order.
    """
    drawn = random.Random(seed)
    return [count for _ in range(times) for count in drawn.sample(counts, len(counts))]


def is_worth_shortening(layout: Layout, *, warmup: int, steps: int) -> bool:
    """Whether short steps save at least a quarter of what the full ones would run through."""
    full = total_micro_batches(layout, "full", warmup=warmup, steps=steps)
    short = total_micro_batches(layout, "short", warmup=warmup, steps=steps)
    return short <= _WORTH_IT * full


def total_micro_batches(
    layout: Layout, accumulation: Accumulation, *, warmup: int, steps: int
) -> int:
    """Micro-batches that a rank of this layout runs through: what a point costs besides its start.

    `warmup` steps come before the `steps` that are measured.
    """
    whole = layout.gradient_accumulation_steps
    counts = () if accumulation == "full" else short_step_sizes(layout)
    full = (warmup + steps) * whole if accumulation == "both" or not counts else 0
    if not counts:
        return full
    warm = 0 if full else warmup
    return full + warm * counts[0] + short_step_rounds(steps) * sum(counts)
