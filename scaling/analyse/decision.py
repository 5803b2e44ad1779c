"""Which layout to use at each size: the one decision of page, recommend, status and sweeps."""

import numpy as np

from scaling.analyse.posterior import Integers, shares_of_best
from scaling.arrays import Flags, Floats

GIVE_UP = 0.02  # expected loss that a layout may have to save a change of layout
LEAST_FIT = 0.95  # chance to fit, below which a layout is not advised


def decide(losses: Floats, give_up: float = GIVE_UP) -> list[int | None]:
    """The layout to use at each size: fewest changes, then the least expected loss.

    At a size those may be used whose expected loss is below `give_up`, or the best of them all.
    Dynamic programming over the sizes: the best path to a layout comes from the same layout, or
    changes from the best path to the size before.

    Args:
        losses: expected loss, a ratio, (sizes, layouts); NaN where a layout did not run, or is
            likely not to fit.
        give_up: a ratio.

    Returns:
        The index of a layout for each size; None at a size where none can be used.
    """
    sizes = np.flatnonzero(np.isfinite(losses).any(axis=1))
    chosen: list[int | None] = [None] * len(losses)
    cost = np.zeros(losses.shape[1])
    came_from = []
    for size in sizes:
        least = np.nanmin(losses[size])
        allowed = losses[size] <= max(least, give_up)  # False for NaN
        changed = cost.min() + 1.0  # a change outweighs all losses
        came_from.append(np.where(cost <= changed, np.arange(len(cost)), int(cost.argmin())))
        cost = np.minimum(cost, changed) + np.where(allowed, losses[size], np.inf)
    layout = int(cost.argmin())
    for size, came in zip(sizes[::-1], reversed(came_from), strict=True):
        chosen[size] = layout
        layout = int(came[layout])
    return chosen


def advise(rates: Floats, layout: Integers, size: Integers, may: Flags) -> dict[int, int]:
    """The cell to use at each size, by the number of the size.

    Args:
        rates: draws of ln tokens/s, (cells, draws).
        layout: numbers from 0, (cells,).
        size: numbers from 0, (cells,).
        may: cells that ran, or likely fit, (cells,).
    """
    losses = np.full((int(size.max(initial=-1)) + 1, int(layout.max(initial=-1)) + 1), np.nan)
    cells = np.full(losses.shape, -1)
    place = size[may], layout[may]
    losses[place] = 1 - shares_of_best(rates, size, may)[may].mean(axis=1)
    cells[place] = np.flatnonzero(may)
    chosen = enumerate(decide(losses)) if losses.size else ()
    return {number: int(cells[number, one]) for number, one in chosen if one is not None}
