"""The rule by which two rates are told apart, for tables (as DuckDB variables) and sentences.

Each rate has a margin, half the interval of its logarithm. Two rates a and b of one size are told
apart if |ln(a / b)| > sqrt(margin_a^2 + margin_b^2), the interval of a ratio with independent
errors. A margin is at least that of a floor, so that two rates with the same floor must differ by
more than the floor before one counts as faster.

    measured, published   half of the 95 % interval of ln(tokens/s)
    extended              half of its 80 % interval
    predicted             Z80 x the standard deviation of the layout's own error; the error that all
                          layouts of a size share cancels in their ratio
"""

import math
from statistics import NormalDist

Z80 = NormalDist().inv_cdf(0.9)  # predicted intervals are 80 % intervals
Z95 = NormalDist().inv_cdf(0.975)

# Floors are ratios. A smaller lead may vanish in the next run, however narrow the interval of one
# run is.
NOISE_FLOOR = 0.02
# For a rate without an interval, which may come from a single step: published sweeps of single
# steps repeat within this at best.
UNSTATED_FLOOR = 0.05
# For a prediction without an error of its own: the predictor's mean regret
# (docs/prediction.md).
PREDICTED_FLOOR = 0.04


def variables() -> dict[str, float | list[float]]:
    """What SQL reads; `t80` and `t95` are half intervals by Student, from 1 degree on."""
    from scipy.special import stdtrit  # takes a quarter of a second

    degrees = range(1, 101)  # more change nothing
    return {
        "noise_floor": NOISE_FLOOR,
        "unstated_floor": UNSTATED_FLOOR,
        "predicted_floor": PREDICTED_FLOOR,
        "z80": Z80,
        "z95": Z95,
        "repeat_weight": 4,  # degrees of freedom of other layouts, at most
        "t80": stdtrit(degrees, 0.9).tolist(),
        "t95": stdtrit(degrees, 0.975).tolist(),
    }


def interval_z(series: str) -> float:
    """Standard errors in half an interval of what ran: 80 % of an extended step, else 95 %."""
    return Z80 if series == "extended" else Z95


def margin_of(floor: float) -> float:
    """The margin of two rates that are told apart if one leads by more than `floor`, a ratio."""
    return math.log1p(floor) / math.sqrt(2)
