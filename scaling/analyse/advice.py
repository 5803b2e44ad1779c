"""Advice with as few changes of layout as the noise of the measurements allows."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """One layout to use from one GPU count to another, both included."""

    layout: str
    from_world_size: int
    to_world_size: int


def fewest_switches(good: Mapping[int, Mapping[str, float]]) -> list[Stretch]:
    """Stretches of GPU counts, each with a layout that is good at all sizes of the stretch.

    Greedy, which is optimal for covering a line by intervals: keep the layouts that were good at
    every size so far, start anew when none is left.

    Args:
        good: per world_size (GPUs), the layouts within the noise of the best and their throughput
            as a share of the best. A size where nothing ran is left out or empty.

    Returns:
        The stretches by size. Of several layouts good all through a stretch, the one with the
        highest product of shares is named; of equal ones the first by name.
    """
    stretches: list[Stretch] = []
    kept: dict[str, float] = {}
    for size in sorted(good):
        here = good[size]
        if not here:
            continue
        both = {name: share * here[name] for name, share in kept.items() if name in here}
        start = stretches[-1].from_world_size if both else size
        if both:
            stretches.pop()
        kept = both or dict(here)
        named = min(kept, key=lambda name: (-kept[name], name))
        stretches.append(Stretch(named, start, size))
    return stretches
