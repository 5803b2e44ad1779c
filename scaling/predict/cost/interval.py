"""How wrong a predicted step time may be, and which part of that error layouts share.

ln(measured / predicted) is the sum of three independent errors: one that all sizes of a model,
software and cluster share, one that the layouts of a size share, and each layout's own. The
interval of a step time includes all three; a ratio of two layouts of one size only the own errors
(`ratios.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.read.calibration import Z_80, Band, StackCalibration
from scaling.predict.read.features import Features
from scaling.predict.read.trust import LAYOUT, TRUSTS, trust_band

# Repeats of one layout differ by this much, so no prediction claims less.
_LEAST_OWN = 0.012
# Standard deviations of the shared error by the axis in which a row has a new value, before any
# fold was measured: what leaving one value out cost on published tables. `interpolation`: the error
# a size shares where nothing is new.
_SHARED_PRIOR = {
    "interpolation": 0.016,
    "world_size": 0.025,
    "seq_length": 0.065,
    "model": 0.05,
    "hidden_size": 0.04,
    LAYOUT: 0.04,
}
# The axes on which a layout can lie outside the calibrated rows: counts, whose distance is in
# doublings, and switches.
COUNT_AXES = ("tp", "pp", "cp", "ep", "virtual", "micro_batch_size", "gemm_peak")
_SWITCHES = (
    "zero_stage", "sequence_parallel", "full", "selective", "math", "fused_softmax", "flash1",
    "fused_norm", "ring", "offload",
)  # fmt: skip
# A layout's own error before any fold was measured: inside and outside of the calibrated rows.
_OWN_PRIOR, _OWN_PRIOR_OUTSIDE = 0.055, 0.08
# Factors of the own and shared priors, without and with lean kernels, whose data-sheet errors below
# are smaller too.
_PRIOR_FACTORS = {False: (1.0, 1.0), True: (0.45, 0.6)}
# Factor of the own error over a lossy transport, which stalls steps by chance.
_OWN_IF_LOSSY = 1.4
# Growth of the own error per doubling of nodes beyond the data, over a lossy transport (from 16 and
# 32 GPUs to 64 over EFA) and elsewhere (from 128 to 2,304).
_OWN_PER_DOUBLING = {True: 0.6, False: 0.05}
# Own errors have heavy tails: more of them than of a normal error lie close to 0, so that 8 in 10
# of all errors lie within the interval of an own sigma this much smaller.
OWN_TAIL_FACTOR = 0.9
# Errors of published tables predicted from data sheets: own, shared by a size, shared by all sizes;
# without and with lean kernels. With these every operator is fused and nothing waits for the host,
# which leaves less to chance.
_DATA_SHEET = {False: (0.085, 0.04, 0.07), True: (0.035, 0.03, 0.057)}
# The same of unknown software (read/stacks.py), from published tables predicted as if theirs were.
# Before Hopper its kernels and overlap may be anybody's: whole tables are off by 10 to 17 %.
_UNKNOWN_SOFTWARE = {False: (0.095, 0.04, 0.13), True: (0.045, 0.03, 0.06)}
# What experts add to the own and the common error, of known and of unknown software: the time of
# routing, permutation and grouped GEMMs differs by a quarter between releases of one stack, and
# more between stacks. Layouts of one model and cluster differ from each other by 0.13 to 0.31 (80 %
# interval of 0.18 with 5 degrees of freedom), models from each other by 0.17.
_EXPERTS = {False: (0.12, 0.11), True: (0.12, 0.17)}
# The same software calibrated on another cluster: its efficiencies carry over, its links do not.
_OTHER_CLUSTER = (0.045, 0.03, 0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Interval and errors of predicted step times, (n,) each.

    A measured step lies between `low` and `high` seconds 8 times in 10. The sigmas are standard
    deviations of parts of ln(step time)'s error.
    """

    low: Floats
    high: Floats
    own_sigma: Floats  # a layout's own part
    size_sigma: Floats  # the part that the layouts of a size share but other sizes do not


def error_spread(
    step_s: Floats,
    roughness: Floats,
    stack: StackCalibration | None,
    *,
    trust: Floats | float = 1.0,
    unfollowed: Floats | float = 0.0,
    unfitted: Floats | float = 0.0,
    new: Mapping[str, Flags],
    world_size: Floats,
    gpus_per_node: Floats,
    experts: Flags,
    lossy_transport: bool = False,
    lean_kernels: bool = False,
    unknown_software: bool = False,
    other_cluster: bool = False,
) -> Spread:
    """Errors of predictions made with the parameters of `stack`, or from data sheets.

    Args:
        step_s: predicted step times, (n,).
        roughness: `own_error_factor`.
        stack: the calibration, None where data sheets are used.
        trust: how far the fit is followed, 0 to 1 (trust.py).
        unfollowed: ln(step time by the whole fit / `step_s`). It counts as one standard deviation,
            since the whole fit may be right all the same.
        unfitted: standard deviation by parameters on which no calibrated row depends.
        new: rows whose value was not calibrated, by axis (`new_values`), (n,) each. They get the
            error of the folds that left such a value out.
        world_size: GPUs, (n,).
        gpus_per_node: GPUs of a node, (n,).
        experts: whether layers have experts, (n,).
        lossy_transport: of the cluster.
        lean_kernels: of the software.
        unknown_software: nothing is known of it.
        other_cluster: `stack` was calibrated on another cluster.
    """
    if stack is None or other_cluster:
        sheets = (_UNKNOWN_SOFTWARE if unknown_software else _DATA_SHEET)[lean_kernels]
        sheet_own, sheet_size, sheet_common = sheets if stack is None else _OTHER_CLUSTER
        expert_own, expert_common = _EXPERTS[unknown_software]
        sheet_own *= _OWN_IF_LOSSY if lossy_transport else 1
        own = np.hypot(sheet_own, expert_own * experts) * roughness
        common = np.hypot(sheet_common, expert_common * experts)
        return _spread(step_s, own, np.full(len(step_s), sheet_size), common)
    n = len(step_s)
    inner_own, inner_size = _own_and_shared(stack.bands["interpolation"], "interpolation")
    own, size, common = np.full(n, inner_own), np.full(n, inner_size), np.zeros(n)
    largest = max((float(seen) for seen in stack.seen["world_size"]), default=1.0)
    doublings = np.maximum(np.log2(world_size / largest), 0.0)
    nodes = np.maximum(np.log2(world_size / np.maximum(gpus_per_node, largest)), 0.0)
    for axis, is_new in new.items():
        band = stack.bands.get(axis)
        axis_own, shared = prior_sigmas(axis, lean_kernels, lossy_transport)
        if band:
            axis_own, shared = _own_and_shared(band, axis)
        own = np.where(is_new, np.maximum(own, axis_own), own)
        if axis == "world_size":
            # beyond the largest size the shared error grows as a random walk does
            grown = shared * np.sqrt(np.maximum(doublings, 1))
            size = np.where(is_new, np.hypot(size, grown), size)
        else:
            common = np.where(is_new, np.hypot(common, shared), common)
    bands = [stack.bands.get(trust_band(share), stack.bands["interpolation"]) for share in TRUSTS]
    own_by_trust = [_own_and_shared(band, "interpolation")[0] for band in bands]
    own = np.maximum(own, np.interp(trust, TRUSTS, own_by_trust))
    own = own * (1 + _OWN_PER_DOUBLING[lossy_transport] * nodes)
    return _spread(step_s, np.hypot(own * roughness, unfitted), size, np.hypot(common, unfollowed))


def _spread(step_s: Floats, own: Floats, size: Floats, common: Floats) -> Spread:
    own = np.maximum(own, _LEAST_OWN)
    reach = Z_80 * np.sqrt((OWN_TAIL_FACTOR * own) ** 2 + size**2 + common**2)
    return Spread(
        low=step_s * np.exp(-reach), high=step_s * np.exp(reach), own_sigma=own, size_sigma=size
    )


def _own_and_shared(band: Band, axis: str) -> tuple[float, float]:
    """Standard deviations of a layout's own error and of the shared one.

    Older calibrations do not tell them apart: nearly all of their band counts as own error.
    """
    if band.own is not None and band.shared is not None:
        return band.own, band.shared
    return 0.85 * (band.high - band.low) / (2 * Z_80), _SHARED_PRIOR[axis]


def prior_sigmas(axis: str, lean_kernels: bool, lossy_transport: bool) -> tuple[float, float]:
    """Own and shared standard deviations assumed before any fold was measured."""
    own_factor, shared_factor = _PRIOR_FACTORS[lean_kernels]
    own = _OWN_PRIOR_OUTSIDE if axis == LAYOUT else _OWN_PRIOR
    own *= own_factor * (_OWN_IF_LOSSY if lossy_transport else 1.0)
    return own, shared_factor * _SHARED_PRIOR[axis]


def own_error_factor(tp_share: Floats, memory_used: Floats, *, lossy_transport: bool) -> Floats:
    """How many times larger than usual a layout's own error is, (n,).

    On published tables it grows with the share of the step that waits for tensor-parallel ranks:
    0.03 to 0.08 below a fiftieth, 0.08 to 0.14 up to a tenth, 0.3 to 0.6 above half. Over a lossy
    transport it doubles where memory is nearly full.

    Args:
        tp_share: tensor-parallel communication over step time.
        memory_used: predicted need over capacity.
        lossy_transport: of the cluster.
    """
    full = 1 / (1 + np.exp(-np.clip((memory_used - 0.87) / 0.02, -50, 50)))
    return np.asarray((1 + 4 * tp_share) * (1 + (full if lossy_transport else 0.0)))


def layout_ranges(f: Features) -> dict[str, tuple[float, ...]]:
    """The least and the largest of the rows' `layout_coordinates`, by axis."""
    return {name: (float(v.min()), float(v.max())) for name, v in layout_coordinates(f).items()}


def distance_beyond(f: Features, ranges: Mapping[str, Sequence[float | str]]) -> Floats:
    """How far layouts lie outside of `layout_ranges`, in doublings and switches, (n,)."""
    distance = np.zeros(len(f))
    for name, values in layout_coordinates(f).items():
        if name in ranges:
            least, largest = (float(end) for end in ranges[name])
            distance += np.maximum(least - values, 0) + np.maximum(values - largest, 0)
    return distance


def is_confounded(f: Features, ranges: Mapping[str, Sequence[float | str]]) -> Flags:
    """Mask, (n,): layouts with another count or switch than the one all calibrated layouts have.

    Rows that all have tp 8 do not tell what tp costs from what the rest costs. Rows that all have
    tp 1, or a switch off, do not pay for it, so there is nothing to confuse.
    """
    confounded = np.zeros(len(f), dtype=bool)
    for name, values in layout_coordinates(f).items():
        if name in ranges:
            least, largest = (float(end) for end in ranges[name])
            confounded |= (least == largest > 0) & (values != least)
    return confounded


def layout_coordinates(f: Features) -> dict[str, Floats]:
    """log2 of counts, and switches, by axis, (n,) each."""
    doublings = {name: np.log2(np.asarray(getattr(f, name), np.float64)) for name in COUNT_AXES}
    return doublings | {name: np.asarray(getattr(f, name), np.float64) for name in _SWITCHES}


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
