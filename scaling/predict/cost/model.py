"""Predictions of whole tables: memory, step time and their terms, row for row."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.predict.cost.interval import (
    distance_beyond,
    error_spread,
    is_confounded,
    normal_cdf,
    own_error_factor,
)
from scaling.predict.cost.memory import MEMORY_TERMS, memory_of, need_of
from scaling.predict.cost.memory_odds import fit_odds
from scaling.predict.cost.risk import possible_stall_s, risk_adjusted_step_s, stall_sigma
from scaling.predict.cost.step import TIME_TERMS, step_of
from scaling.predict.read.calibration import NO_ROW_DEPENDS, Calibration, StackCalibration
from scaling.predict.read.features import BLOCK, Group, Points
from scaling.predict.read.parameters import TIME
from scaling.predict.read.residual import places_of
from scaling.predict.read.trust import (
    expected_residual,
    james_stein_trust,
    new_values,
    parameters_at_trust,
    trust_of_rows,
)

_NUDGE = 1.1  # factor on a parameter, to measure how much a step time depends on it

# Two limits, because two mistakes differ in price.
# A plan refuses a point for good, on data-sheet numbers: above this share of the capacity. It hits
# 0 of 165, 7 of 673 and 0 of 139 published layouts that ran, and 159 of 257 and 812 of 1,031 that
# did not (benchmarks/refusals.py).
REFUSE_ABOVE = 1.3
# This project's engine on DeepSpeed has its tensors counted to 2 % (benchmarks/memory.py). From
# here on they alone exceed the capacity: 1.03 of the need is fragmentation.
REFUSE_COUNTED_ABOVE = 1.05
# A choice among layouts only prefers another one that surely starts. Once calibrated, need above
# this share was out of memory in all but 2 of 395 published rows.
LIKELY_OOM_ABOVE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One value per point, NaN (None in words) where a point cannot be predicted.

    A measured step lies between `low` and `high` 8 times in 10. `own_sigma` and `size_sigma` are
    the parts of its error that a layout shares with no other layout, and with its size alone
    (interval.py). `risk_adjusted_s` ranks layouts: likely time plus what a stall may cost.
    `need_bytes` is memory with fragmentation, `capacity_bytes` what a GPU offers. `memory_sigma` is
    the standard deviation of ln(need_bytes)'s error, `memory_offset` its mean as outcomes show it,
    and `fit_threshold` the odds from which a point is called a fit (memory_odds.py).
    """

    step_time_s: Floats
    low: Floats
    high: Floats
    own_sigma: Floats
    size_sigma: Floats
    risk_adjusted_s: Floats
    memory_bytes: Floats
    need_bytes: Floats
    capacity_bytes: Floats
    memory_sigma: Floats
    memory_offset: Floats
    fit_threshold: Floats
    memory_terms: dict[str, Floats]
    peak_phase: Strings  # build, forward, backward or optimizer; None for other software
    time_terms: dict[str, Floats]
    predicted: Flags
    parameters_from: Strings

    @property
    def fits(self) -> Flags:
        """Whether the point is expected to run; False too where it cannot be predicted."""
        return np.asarray(self.fits_chance >= self.fit_threshold)

    @property
    def fits_chance(self) -> Floats:
        """How likely the point fits: ln(need) has a normal error."""
        margin = np.log(self.capacity_bytes / self.need_bytes) + self.memory_offset
        return np.asarray(normal_cdf(margin / self.memory_sigma))

    @property
    def likely_oom(self) -> Flags:
        """Whether the need is likely above the capacity, so that any other point is preferred."""
        return self.need_bytes > LIKELY_OOM_ABOVE * self.capacity_bytes

    @property
    def memory_margin(self) -> Floats:
        """Share of the GPU's memory left free; negative if it does not fit."""
        return 1 - self.need_bytes / self.capacity_bytes


_NUMBERS = tuple(field.name for field in fields(Prediction) if field.type == Floats)


def predict(points: Points, calibration: Calibration | None = None) -> Prediction:
    """Predict every point; points with a note stay NaN."""
    n = len(points)
    out = Prediction(
        **{name: np.full(n, np.nan) for name in _NUMBERS},
        memory_terms={name: np.full(n, np.nan) for name in MEMORY_TERMS},
        peak_phase=np.full(n, None, dtype=object),
        time_terms={name: np.full(n, np.nan) for name in TIME_TERMS},
        predicted=np.zeros(n, dtype=bool),
        parameters_from=np.full(n, None, dtype=object),
    )
    source = calibration or Calibration(source="none", stacks={})
    for group in points.groups:
        p, stack, parameters_from = source.parameters_for(group)
        new, trust, residual, unfitted = _use_of_fit(points, group, stack, p)
        unfollowed = _predict_group(group, stack, p, trust, residual, out)
        out.predicted[group.rows] = True
        out.parameters_from[group.rows] = parameters_from
        _set_errors(group, out, stack, new, trust, unfollowed, unfitted)
    return out


def axis_values(points: Points, group: Group) -> dict[str, npt.NDArray[np.generic]]:
    """The group's values of the axes in which a row can be new to a calibration."""
    return {
        "world_size": points.world_size[group.rows],
        "seq_length": points.seq_length[group.rows],
        "model": points.model[group.rows],
        "hidden_size": group.features.hidden_size,
    }


def _use_of_fit(
    points: Points, group: Group, stack: StackCalibration | None, p: Mapping[str, float]
) -> tuple[dict[str, Flags], Floats, Floats, Floats]:
    """How a calibration is applied to the rows of a group, (n,) each.

    New: rows whose value was not calibrated, by axis; empty without a calibration of this cluster,
    whose errors are those of data sheets.
    Trust: how far its parameters are followed, 0 to 1. Residual: ln(measured / predicted) of
    neighbouring rows. Unfitted: standard deviation of ln(step) by parameters on which no calibrated
    row depends.
    """
    n = len(group.rows)
    trust: Floats = np.ones(n)
    residual: Floats = np.zeros(n)
    unfitted = np.zeros(n)
    if stack is None:
        return {}, trust, residual, unfitted
    axes = axis_values(points, group)
    new = new_values(stack, axes, distance_beyond(group.features, stack.seen))
    # a precision can be new too; its range is in doublings, as in `layout_ranges`
    peak = np.log2(group.features.gemm_peak)
    confounded = is_confounded(group.features, stack.seen)
    trust = trust_of_rows(stack, {**axes, "gemm_peak": peak}, new, confounded)
    if stack.sheet_error is not None:
        new_rows = np.flatnonzero(np.any([*new.values()], axis=0))
        unfitted[new_rows] = _unfitted_sigma(group, new_rows, stack, p)
        trust = np.minimum(trust, james_stein_trust(stack.sheet_error, unfitted))
        unfitted = np.minimum(unfitted, stack.sheet_error)
    if stack.cluster != group.cluster_name:
        return {}, trust, residual, np.zeros(n)
    if stack.residual is not None:
        residual = expected_residual(stack, new, trust, places_of(group.features))
    return new, trust, residual, unfitted


def _unfitted_sigma(
    group: Group, rows: npt.NDArray[np.int64], stack: StackCalibration, p: Mapping[str, float]
) -> Floats:
    """Standard deviation of ln(step) of the rows by parameters that no calibrated row felt, (n,).

    The priors of those parameters times d ln(step) / d ln(parameter), by finite differences. Rows
    whose step does not change when all of them are nudged together have 0.
    """
    unfelt = [q for q in TIME if stack.parameters[q.name].reason == NO_ROW_DEPENDS]
    variance = np.zeros(len(rows))
    for block in range(0, len(rows), BLOCK):
        f = group.features.take(rows[block : block + BLOCK])
        used = memory_of(group, f, p).total / group.capacity_bytes
        step_s = step_of(group, f, p, used).total
        nudged = {**p, **{q.name: p[q.name] * _NUDGE for q in unfelt}}
        moved = np.flatnonzero(step_of(group, f, nudged, used).total != step_s)
        f, used, step_s = f.take(moved), used[moved], step_s[moved]
        for q in unfelt if moved.size else ():
            nudged_s = step_of(group, f, {**p, q.name: p[q.name] * _NUDGE}, used).total
            slope = np.log(nudged_s / step_s) / np.log(_NUDGE)
            variance[block + moved] += np.square(slope * q.spread)
    return np.sqrt(variance)


def _predict_group(
    group: Group,
    stack: StackCalibration | None,
    p: dict[str, float],
    trust: Floats,
    residual: Floats,
    out: Prediction,
) -> Floats:
    """Write the group's times and memory; return ln(step by the whole fit / predicted step), (n,).

    Rows are evaluated in blocks of equal trust, and so of equal parameters.
    """
    start = group.start if stack is None else {**group.start, **stack.starts}
    unfollowed = np.zeros(len(group.rows))
    f = group.features
    for share in np.unique(trust).tolist():
        followed_p = parameters_at_trust(p, start, share, None if stack is None else stack.cautious)
        rows = np.flatnonzero(trust == share)
        if len(rows) > BLOCK:
            # similar rows in one block: what none of them has is not computed
            rows = rows[np.argsort(4 * (f.pp[rows] > 1) + f.zero_stage[rows], kind="stable")]
        for begin in range(0, len(rows), BLOCK):
            block = rows[begin : begin + BLOCK]
            _predict_block(group, block, followed_p, residual[block], out)
            if share < 1:
                index = group.rows[block]
                used = out.memory_bytes[index] / group.capacity_bytes
                by_fit_s = step_of(group, f.take(block), p, used).total
                unfollowed[block] = np.log(by_fit_s / out.step_time_s[index])
    return unfollowed


def _predict_block(
    group: Group,
    rows: npt.NDArray[np.int64],
    p: dict[str, float],
    residual: Floats,
    out: Prediction,
) -> None:
    """Write times and memory of some rows of the group under parameters `p`."""
    is_whole_group = len(rows) == len(group.rows)
    f = group.features if is_whole_group else group.features.take(rows)
    index: npt.NDArray[np.int64] = group.rows[rows]
    memory = memory_of(group, f, p)
    need = need_of(memory, p)
    step = step_of(group, f, p, memory.total / group.capacity_bytes).times(np.exp(residual))
    used = need / group.capacity_bytes
    out.memory_bytes[index] = memory.total
    out.need_bytes[index] = need
    out.capacity_bytes[index] = group.capacity_bytes
    out.step_time_s[index] = step.total
    out.risk_adjusted_s[index] = risk_adjusted_step_s(group, f, step.total, used)
    if memory.phase is not None:
        out.peak_phase[index] = memory.phase
    for name, values in memory.terms.items():
        out.memory_terms[name][index] = values
    for name, values in step.terms.items():
        out.time_terms[name][index] = values


def _set_errors(
    group: Group,
    out: Prediction,
    stack: StackCalibration | None,
    new: dict[str, Flags],
    trust: Floats,
    unfollowed: Floats,
    unfitted: Floats,
) -> None:
    """Write how wrong the group's step times and needs may be."""
    index, f, lossy_transport = group.rows, group.features, group.cluster.lossy_transport
    step_s = out.step_time_s[index]
    spread = error_spread(
        step_s,
        own_error_factor(
            out.time_terms["tp_comm_s"][index] / step_s,
            out.need_bytes[index] / out.capacity_bytes[index],
            lossy_transport=lossy_transport,
        ),
        stack,
        trust=trust,
        unfollowed=unfollowed,
        unfitted=unfitted,
        new=new,
        world_size=f.world_size,
        gpus_per_node=f.gpus_per_node,
        experts=f.num_experts > 1,
        lossy_transport=lossy_transport,
        lean_kernels=group.stack.lean_kernels,
        unknown_software=not group.stack.name,
        other_cluster=stack is not None and stack.cluster != group.cluster_name,
    )
    out.low[index] = spread.low
    out.high[index] = np.maximum(spread.high, step_s + possible_stall_s(group, f))
    out.own_sigma[index] = np.hypot(spread.own_sigma, stall_sigma(group, f, step_s))
    out.size_sigma[index] = spread.size_sigma
    counted = out.peak_phase[index].astype(bool)  # only counted memory has a phase
    odds = fit_odds(group, stack, counted)
    out.memory_sigma[index], out.memory_offset[index], out.fit_threshold[index] = odds
