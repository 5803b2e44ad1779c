"""How wrong a predicted step time may be, and what of that error layouts have in common.

ln(measured / predicted) is taken apart into three independent parts: one that all sizes of a model,
software and cluster share, one that the layouts of a size share, and a layout's own. The interval
of a step time holds all three; a ratio at one size only what is each layout's own (`ratios.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.read.calibration import EIGHTY, Band, StackCalibration
from scaling.predict.read.features import Features
from scaling.predict.read.trust import LAYOUT, TRUSTS, at_trust, new_in

# A band narrower than repeats of one layout would claim more than a measurement can.
_NARROWEST = 0.012
# Standard deviation of what rows share when a new value of an axis is met, before any fold tells:
# what leaving one out cost on published tables. `interpolation`: what a size is off within the fit.
_SHARED_BEFORE = {
    "interpolation": 0.016,
    "world_size": 0.025,
    "seq_length": 0.065,
    "model": 0.05,
    "hidden_size": 0.04,
    LAYOUT: 0.04,
}
# What of a layout the calibrated rows must have shown: counts, in doublings, and switches.
COUNT_AXES = ("tp", "pp", "cp", "ep", "virtual", "micro_batch_size", "gemm_peak")
_SWITCHES = (
    "zero_stage", "sequence_parallel", "full", "selective", "math", "fused_softmax", "flash1",
    "fused_norm", "ring", "offload",
)  # fmt: skip
# A layout's own part, before any fold tells: within what calibrated rows show, and beyond it.
_OWN_BEFORE, _OWN_BEYOND = 0.055, 0.08
# Of own and shared parts for stacks of lean kernels, as of their data sheets' errors below.
_BEFORE = {False: (1.0, 1.0), True: (0.45, 0.6)}
# Of a layout's own part over a lossy transport, whose steps are stalled by chance.
_OWN_IF_LOSSY = 1.4
# A layout's own error grows by this share of itself per doubling of the nodes beyond the data, over
# a lossy transport and elsewhere: from 16 and 32 GPUs to 64 over EFA, from 128 to 2,304 without.
_OWN_PER_DOUBLING = {True: 0.6, False: 0.05}
# Tails are heavy: 8 in 10 of sums with what is shared lie closer than those of normal errors.
OWN_TAIL_FACTOR = 0.9
# Errors of published tables predicted from data sheets: own, shared by a size, by all sizes. Stacks
# of lean kernels (every operator fused, nothing waits for the host) leave less to chance.
_DATA_SHEET = {False: (0.085, 0.04, 0.07), True: (0.035, 0.03, 0.057)}
# The same of software unheard of (read/stacks.py), from tables predicted as if theirs were: before
# Hopper its kernels and overlap may be anybody's, so that whole tables are off by 10 to 17 %.
_UNHEARD_OF = {False: (0.095, 0.04, 0.13), True: (0.045, 0.03, 0.06)}
# More of both own and common where layers have experts: what routing, permutation and grouped GEMMs
# take differs between releases of one stack by a quarter, and more between stacks.
_OF_EXPERTS = {False: (0.05, 0.13), True: (0.09, 0.18)}
# The same software calibrated on another cluster: its efficiencies carry over, its links do not.
_OTHER_CLUSTER = (0.045, 0.03, 0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The error of predicted step times, (n,) each.

    `low`, `high`: seconds between which a measured step lies 8 times in 10. `own_sigma`: standard
    deviation of the part of ln(step time)'s error that a layout does not share with the other
    layouts of its model, cluster and size; `size_sigma`: of the part shared within a size but not
    between sizes.
    """

    low: Floats
    high: Floats
    own_sigma: Floats
    size_sigma: Floats


def error_spread(
    step_s: Floats,
    roughness: Floats,
    stack: StackCalibration | None,
    *,
    trust: Floats | float = 1.0,
    unfollowed: Floats | float = 0.0,
    unfitted: Floats | float = 0.0,
    beyond: Floats | float = 0.0,
    axes: Mapping[str, npt.NDArray[np.generic]],
    gpus_per_node: Floats,
    experts: Flags,
    lossy_transport: bool = False,
    lean_kernels: bool = False,
    unheard_of: bool = False,
    other_cluster: bool = False,
) -> Spread:
    """The spread of predictions made with the parameters of `stack`, data sheets if None.

    Rows with a value of `axes` (n,) that was not calibrated take the errors of the folds that left
    such a value out. Beyond the largest calibrated size what rows share grows as the root of the
    doublings, as in a random walk, and their own part with every doubling of the nodes.
    A fit followed in part (`trust`, trust.py) is off by what folds show at that trust, and
    `unfollowed`, ln(step by the whole fit / step_s), is one standard deviation: it may be right all
    the same. `unfitted` is that of what no calibrated row depends on; `beyond` is
    `distance_beyond`.
    """
    n = len(step_s)
    if stack is None or other_cluster:
        sheets = (_UNHEARD_OF if unheard_of else _DATA_SHEET)[lean_kernels]
        own, size, common = (np.full(n, part) for part in (_OTHER_CLUSTER if stack else sheets))
        own_of_experts, common_of_experts = _OF_EXPERTS[unheard_of]
        own = np.hypot(own * (_OWN_IF_LOSSY if lossy_transport else 1), own_of_experts * experts)
        common = np.hypot(common, common_of_experts * experts)
        return _spread(step_s, own * roughness, size, common)
    inner_own, inner_size = _parts(stack.bands["interpolation"], "interpolation")
    own, size, common = np.full(n, inner_own), np.full(n, inner_size), np.zeros(n)
    world_size = axes["world_size"].astype(np.float64)
    largest = max((float(seen) for seen in stack.seen["world_size"]), default=1.0)
    doublings = np.maximum(np.log2(world_size / largest), 0.0)
    nodes = np.maximum(np.log2(world_size / np.maximum(gpus_per_node, largest)), 0.0)
    for axis, new in new_in(stack, axes, np.full(n, beyond)).items():
        band = stack.bands.get(axis)
        axis_own, shared = (
            _parts(band, axis) if band else prior_sigmas(axis, lean_kernels, lossy_transport)
        )
        own = np.where(new, np.maximum(own, axis_own), own)
        if axis == "world_size":
            size = np.where(new, np.hypot(size, shared * np.sqrt(np.maximum(doublings, 1))), size)
            own = own * (1 + _OWN_PER_DOUBLING[lossy_transport] * nodes)
        else:
            common = np.where(new, np.hypot(common, shared), common)
    common = np.hypot(common, unfollowed)
    by_trust = [stack.bands.get(at_trust(share), stack.bands["interpolation"]) for share in TRUSTS]
    own = np.maximum(
        own, np.interp(trust, TRUSTS, [_parts(b, "interpolation")[0] for b in by_trust])
    )
    return _spread(step_s, np.hypot(own * roughness, unfitted), size, common)


def _spread(step_s: Floats, own: Floats, size: Floats, common: Floats) -> Spread:
    own = np.maximum(own, _NARROWEST)
    reach = EIGHTY * np.sqrt((OWN_TAIL_FACTOR * own) ** 2 + size**2 + common**2)
    return Spread(
        low=step_s * np.exp(-reach), high=step_s * np.exp(reach), own_sigma=own, size_sigma=size
    )


def _parts(band: Band, axis: str) -> tuple[float, float]:
    """Standard deviations of a layout's own part and of the shared one.

    A calibration of before these were told apart takes nearly all of its band as the layouts' own.
    """
    if band.own is not None and band.shared is not None:
        return band.own, band.shared
    return 0.85 * (band.high - band.low) / (2 * EIGHTY), _SHARED_BEFORE[axis]


def prior_sigmas(axis: str, lean_kernels: bool, lossy_transport: bool) -> tuple[float, float]:
    """What own and shared parts are taken as before any fold tells."""
    of_own, of_shared = _BEFORE[lean_kernels]
    own = _OWN_BEYOND if axis == LAYOUT else _OWN_BEFORE
    own *= of_own * (_OWN_IF_LOSSY if lossy_transport else 1.0)
    return own, of_shared * _SHARED_BEFORE[axis]


def own_error_factor(tp_share: Floats, memory_used: Floats, *, lossy_transport: bool) -> Floats:
    """How many times the usual own error a layout's is, (n,).

    On published tables a layout's own error grows with what waiting for tensor-parallel ranks takes
    of its step: 0.03 to 0.08 below a fiftieth, 0.08 to 0.14 up to a tenth, 0.3 to 0.6 above half;
    over a lossy transport it doubles where memory is nearly full.

    Args:
        tp_share: tensor-parallel communication over step time.
        memory_used: predicted need over capacity.
        lossy_transport: of the cluster.
    """
    crowded = 1 / (1 + np.exp(-np.clip((memory_used - 0.87) / 0.02, -50, 50)))
    return np.asarray((1 + 4 * tp_share) * (1 + (crowded if lossy_transport else 0.0)))


def layout_ranges(f: Features) -> dict[str, tuple[float, ...]]:
    """The least and the largest of what rows show of layouts, by names of features."""
    return {name: (float(v.min()), float(v.max())) for name, v in layout_coordinates(f).items()}


def distance_beyond(f: Features, seen: Mapping[str, Sequence[float | str]]) -> Floats:
    """Doublings and switches by which layouts lie outside `seen` (of `layout_ranges`), (n,)."""
    beyond = np.zeros(len(f))
    for name, values in layout_coordinates(f).items():
        if name in seen:
            least, largest = (float(end) for end in seen[name])
            beyond += np.maximum(least - values, 0) + np.maximum(values - largest, 0)
    return beyond


def layout_coordinates(f: Features) -> dict[str, Floats]:
    """Counts in doublings and switches, (n,) each."""
    doublings = {name: np.log2(np.asarray(getattr(f, name), np.float64)) for name in COUNT_AXES}
    return doublings | {name: np.asarray(getattr(f, name), np.float64) for name in _SWITCHES}


def normal_cdf(z: Floats) -> Floats:
    """The share of a normal distribution below z standard deviations, within 1e-7.

    Abramowitz and Stegun, 7.1.26: importing scipy takes longer than a prediction.
    """
    x = np.abs(np.asarray(z, dtype=np.float64)) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    tail = 0.5 * series * np.exp(-(x**2))
    return np.asarray(np.where(np.asarray(z) < 0, tail, 1 - tail))
