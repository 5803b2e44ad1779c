"""When two rates are told apart: the one rule, for tables (as variables of DuckDB) and sentences.

A rate carries a margin, half the interval of its logarithm, and two rates a and b of one size are
told apart where |ln(a / b)| > sqrt(margin_a^2 + margin_b^2), the interval of a ratio whose errors
are independent. A margin is at least what a floor asks for, so that two rates with the same floor
differ by more than it before one is called faster.

    measured, published   half of the 95 % interval of ln(tokens/s)
    predicted             Z80 x the standard deviation of the error that is this layout's own; what
                          all layouts of a size have in common cancels in their ratio
"""

import math
from statistics import NormalDist

Z80 = NormalDist().inv_cdf(0.9)  # a predicted interval holds 8 times in 10
Z95 = NormalDist().inv_cdf(0.975)

# Ratios: smaller leads come and go between runs, whatever the interval of one run says.
NOISE_FLOOR = 0.02
# Of a rate without an interval, which may be that of a single step: published sweeps of single
# steps repeat within that at best.
UNSTATED_FLOOR = 0.05
# Of a prediction that does not say its own error: the predictor's mean regret
# (docs/prediction_accuracy.md).
PREDICTED_FLOOR = 0.04

VARIABLES = {
    "noise_floor": NOISE_FLOOR,
    "unstated_floor": UNSTATED_FLOOR,
    "predicted_floor": PREDICTED_FLOOR,
    "z80": Z80,
    "z95": Z95,
}


def margin_of(floor: float) -> float:
    """The margin of each of two rates that are told apart from a lead of `floor`, a ratio, on."""
    return math.log1p(floor) / math.sqrt(2)


def told_apart(faster: float, slower: float, margins: tuple[float, float]) -> bool:
    """Whether the lead of one rate over another exceeds the interval of their ratio."""
    return math.log(faster / slower) > math.hypot(*margins)
