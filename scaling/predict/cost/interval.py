"""How wrong a predicted step time may be, in four parts that layouts and sizes share or not.

ln(measured / predicted) is the sum of four independent normal errors (PARTS in
read/calibration.py). A step time has all of them; a ratio of two layouts at one size lacks what is
common and what the size shares; a ratio of two sizes of one layout lacks what is common and the
layout's own.
"""

import math
from collections.abc import Mapping

import numpy as np

from scaling.arrays import Floats
from scaling.predict.cost.step import Step
from scaling.predict.read.calibration import PARTS, StackCalibration
from scaling.predict.read.features import Features, Group

# 80 % of normal errors lie within this many standard deviations.
Z_80 = 1.2816
# Repeats of one layout differ by this much, so no prediction claims less.
_LEAST_REST = 0.012

# Standard deviations of PARTS where data sheets predict, by whether the software has an entry in
# read/stacks.py: learned from whole tables by `python -m benchmarks.evaluate FOLDER --errors`,
# rounded up, before the centre of unknown software was learned from the same tables.
DATA_SHEETS = {
    True: {"common": 0.06, "layout": 0.06, "size": 0.03, "rest": 0.06},
    False: {"common": 0.12, "layout": 0.03, "size": 0.04, "rest": 0.09},
}
# The part of experts: routing, permutation and grouped GEMMs differ between releases of one stack.
_EXPERTS = {"common": 0.11, "layout": 0.12, "size": 0.0, "rest": 0.0}
# A calibration, before its rows tell how well it fits them.
CALIBRATED = {"common": 0.02, "layout": 0.04, "size": 0.016, "rest": 0.04}
# The error of a size, per doubling of the largest calibrated one; it grows as a random walk does.
_PER_DOUBLING = 0.025
_PRIOR_ROWS = 10
# Factor of layout and rest over a lossy transport, which stalls steps by chance.
_LOSSY = 1.4


def errors_of(
    group: Group,
    f: Features,
    stack: StackCalibration | None,
    *,
    novelty: Floats,
    halved: Floats,
    roughness: Floats,
) -> dict[str, Floats]:
    """Standard deviations of PARTS, by the parameters of `stack` or by data sheets, (n,) each.

    `novelty` is 0 at a calibrated layout, 1 far from all, where data sheets' errors come on top.
    `halved` is ln(step time by the whole fit / predicted) where it is followed half the way,
    `roughness` `own_error_factor`.
    """
    lossy = _LOSSY if group.cluster.lossy_transport else 1.0
    has_experts, known = f.num_experts > 1, DATA_SHEETS[bool(group.stack.name)]
    squares: dict[str, Floats] = {}
    for part in PARTS:
        squares[part] = known[part] ** 2 + np.where(has_experts, _EXPERTS[part] ** 2, 0.0)
        if part in ("layout", "rest"):
            squares[part] = squares[part] * lossy**2
    if stack is not None:
        squares = {p: stack.errors[p] ** 2 + novelty**2 * squares[p] for p in PARTS}
        largest = stack.ranges.get("world_size", (1.0, 1.0))[1]
        doublings = np.maximum(np.log2(f.world_size / largest), 0.0)
        squares["size"] = squares["size"] + doublings * _PER_DOUBLING**2
        squares["common"] = squares["common"] + halved**2
        squares["layout"] = squares["layout"] + (halved / 2) ** 2
    sigmas = {part: np.sqrt(values) for part, values in squares.items()}
    sigmas["layout"] = sigmas["layout"] * roughness
    sigmas["rest"] = np.maximum(sigmas["rest"] * roughness, _LEAST_REST)
    return sigmas


def learned_errors(left_out: Floats, roughness: Floats, *, lossy: bool) -> Mapping[str, float]:
    """PARTS of a calibration, from the errors of its rows left out one at a time, (m,) each.

    Their 80 % quantile, together with a few rows of the prior.
    """
    factor = _LOSSY if lossy else 1.0
    prior = math.sqrt(sum(CALIBRATED[part] ** 2 for part in PARTS)) * factor
    n = len(left_out)
    found = float(np.quantile(np.abs(left_out) / roughness, 0.8)) / Z_80 if n else prior
    sigma = (n * found + _PRIOR_ROWS * prior) / (n + _PRIOR_ROWS)
    return {part: CALIBRATED[part] * sigma / prior * factor for part in PARTS}


def own_error_factor(step: Step) -> Floats:
    """How many times larger than usual a layout's own error is, (n,).

    On published tables it grows with the share of the step that waits for tensor-parallel ranks:
    0.03 to 0.08 below a fiftieth, 0.08 to 0.14 up to a tenth, 0.3 to 0.6 above half.
    """
    return 1 + 4 * step.terms["tp_comm_s"] / step.total


def normal_cdf(z: Floats) -> Floats:
    """The share of a normal distribution below z standard deviations, to within 1e-7.

    Abramowitz and Stegun, 7.1.26: importing scipy takes longer than a prediction.
    """
    x = np.abs(np.asarray(z, dtype=np.float64)) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    tail = 0.5 * series * np.exp(-(x**2))
    return np.asarray(np.where(np.asarray(z) < 0, tail, 1 - tail))


def chance_faster(
    step_a_s: Floats | float, step_b_s: Floats | float, own_a: Floats | float, own_b: Floats | float
) -> Floats:
    """P(a is faster than b), which is P(ln(a / b) < 0), of two layouts of one size.

    Common errors cancel. `own_a` and `own_b` are the errors of layout and rest together.
    """
    apart = np.log(np.asarray(step_b_s, dtype=np.float64) / step_a_s)
    return normal_cdf(apart / np.maximum(np.hypot(own_a, own_b), 1e-12))
