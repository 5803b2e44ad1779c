"""Which layouts run short steps, and with how many micro-batches. Standard library only."""

import random
from collections.abc import Sequence
from typing import Literal

from scaling.layout.layout import Layout

# full: steps as the study states them; short: steps with fewer micro-batches, from which the full
# step is derived; both: full, then short, which shows the error of the derived step.
Accumulation = Literal["full", "short", "both"]

_WORTH_IT = 0.75  # short steps must run at most this share of the full steps' micro-batches
_STEPS_PER_ROUND = 2  # one round of short steps replaces this many full ones


def short_step_sizes(layout: Layout) -> tuple[int, ...]:
    """Micro-batches of each short step in a round; empty if they would not be shorter.

    There are three, so that the data can contradict a line, and at least two micro-batches, so that
    gradients accumulate as in the full step. A pipeline takes 2, 4 and 6 times its stages: it
    fills, runs steadily and drains with as many micro-batches in flight as in the full step.
    DualPipeV has the 2 pp that it needs. Schedules that run micro-batches in rounds of pp are
    shortened only if the full step has whole rounds too.
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
    """Rounds of short steps that replace `steps` full ones: half as many, at least three."""
    return max(3, -(-steps // _STEPS_PER_ROUND))


def shuffled_rounds(counts: Sequence[int], rounds: int, seed: int) -> list[int]:
    """The micro-batches of all short steps: `rounds` permutations of `counts`, one after another.

    Consecutive steps are correlated. In a fixed order the last step of a round would always precede
    the first of the next. That is a correlation that a bootstrap over rounds cannot see; a random
    order spreads it evenly over all pairs. All ranks draw the same order.
    """
    generator = random.Random(seed)
    return [count for _ in range(rounds) for count in generator.sample(counts, len(counts))]


def is_worth_shortening(layout: Layout, *, warmup: int, steps: int) -> bool:
    """Whether short steps save at least a quarter of the full steps' micro-batches."""
    full = total_micro_batches(layout, "full", warmup=warmup, steps=steps)
    short = total_micro_batches(layout, "short", warmup=warmup, steps=steps)
    return short <= _WORTH_IT * full


def total_micro_batches(
    layout: Layout, accumulation: Accumulation, *, warmup: int, steps: int
) -> int:
    """Micro-batches that each rank runs for a point with `warmup` and `steps` measured steps."""
    full = (warmup + steps) * layout.gradient_accumulation_steps
    counts = () if accumulation == "full" else short_step_sizes(layout)
    if not counts:
        return full
    short = short_step_rounds(steps) * sum(counts)
    return full + short if accumulation == "both" else warmup * counts[0] + short
