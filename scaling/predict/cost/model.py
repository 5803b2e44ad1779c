"""Predictions of whole tables: memory, step time and their terms, row for row."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.predict.cost.interval import below, beyond_of, rough_of, spread_of
from scaling.predict.cost.memory import MEMORY_TERMS, memory_of, need_of
from scaling.predict.cost.outcomes import judged_by
from scaling.predict.cost.risk import possible_stall_s, ranked_by, stall_sigma
from scaling.predict.cost.step import TIME_TERMS, step_of
from scaling.predict.read.calibration import UNFELT, Calibration, StackCalibration
from scaling.predict.read.features import BLOCK, Group, Points
from scaling.predict.read.parameters import TIME
from scaling.predict.read.residual import places_of
from scaling.predict.read.trust import followed, new_in, residual_in, shrunk, trust_in

_NUDGE = 1.1  # of a parameter, to see what a step gains by it

# Two lines, because two mistakes differ in price. A plan refuses a point for good, on data-sheet
# numbers: above this share of the capacity that hits 0 of 165, 7 of 673 and 0 of 139 published
# layouts that ran, and 159 of 257 and 812 of 1,031 that did not (benchmarks/refusals.py).
REFUSE_ABOVE = 1.3
# Of this project's engine on DeepSpeed the tensors alone, counted to 2 % (benchmarks/memory.py),
# are more than the capacity from here on: 1.03 of the need is fragmentation.
REFUSE_COUNTED_ABOVE = 1.05
# A choice among layouts only passes one over for another that surely starts: predicted need above
# this share was out of memory in all but 2 of 395 published rows, once calibrated.
PASS_OVER_ABOVE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One value per point, NaN (None in words) where a point cannot be predicted.

    `low` and `high` bound the step 8 times in 10; `own_sigma` and `size_sigma` say how much of its
    error a layout shares with none of its size, and with none of other sizes (interval.py).
    `need_bytes` is memory with fragmentation, `capacity_bytes` what a GPU offers; `memory_sigma` is
    the standard deviation of ln(need_bytes)'s error, `memory_offset` what outcomes tell of it and
    `fits_from` the odds from which a point is called a fit (outcomes.py). `ranked_s` orders
    layouts: likely time plus what a stall may cost.
    """

    step_time_s: Floats
    low: Floats
    high: Floats
    own_sigma: Floats
    size_sigma: Floats
    ranked_s: Floats
    memory_bytes: Floats
    need_bytes: Floats
    capacity_bytes: Floats
    memory_sigma: Floats
    memory_offset: Floats
    fits_from: Floats
    memory_terms: dict[str, Floats]
    peak_phase: Strings  # build, forward, backward or optimizer; None for other software
    time_terms: dict[str, Floats]
    predicted: Flags
    parameters_from: Strings

    @property
    def fits(self) -> Flags:
        """Whether the point is expected to run; False too where it cannot be predicted."""
        return np.asarray(self.fits_chance >= self.fits_from)

    @property
    def fits_chance(self) -> Floats:
        """How likely the point fits: its need is off by a normal error on a logarithmic scale."""
        off = np.log(self.capacity_bytes / self.need_bytes) + self.memory_offset
        return np.asarray(below(off / self.memory_sigma))

    @property
    def passed_over(self) -> Flags:
        """Whether a choice prefers any other point: the need is likely above the capacity."""
        return self.need_bytes > PASS_OVER_ABOVE * self.capacity_bytes

    @property
    def memory_margin(self) -> Floats:
        """Share of the GPU's memory left free; negative if it does not fit."""
        return 1 - self.need_bytes / self.capacity_bytes


_NUMBERS = tuple(each.name for each in fields(Prediction) if each.type == Floats)


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
        trust = np.ones(len(group.rows))
        residual, unfitted = np.zeros(len(trust)), np.zeros(len(trust))
        if stack is not None and stack.cluster == group.cluster_name:
            axes = axes_of(points, group)
            new = new_in(stack, axes, beyond_of(group.features, stack.seen))
            # a precision too can be new: in doublings, as interval.py's range_of has it
            peak = np.log2(group.features.gemm_peak)
            trust = trust_in(stack, {**axes, "gemm_peak": peak}, new)
            if stack.sheet_error is not None:
                some = np.flatnonzero(np.any([*new.values()], axis=0))
                unfitted[some] = _unfitted(group, some, stack, p)
                trust = np.minimum(trust, followed(stack.sheet_error, unfitted))
                unfitted = np.minimum(unfitted, stack.sheet_error)
            if stack.residual is not None:
                residual = residual_in(stack, new, trust, places_of(group.features))
        start = group.start if stack is None else {**group.start, **stack.starts}
        unfollowed = np.zeros(len(group.rows))
        for share in np.unique(trust).tolist():
            near = shrunk(p, start, share, None if stack is None else stack.cautious)
            rows = np.flatnonzero(trust == share)
            if len(rows) > BLOCK:  # alike side by side: what none of a block has is not computed
                f = group.features
                rows = rows[np.argsort(4 * (f.pp[rows] > 1) + f.zero_stage[rows], kind="stable")]
            for block in range(0, len(rows), BLOCK):
                some = rows[block : block + BLOCK]
                _predict_block(group, some, near, residual[some], out)
                if share < 1:
                    unfollowed[some] = _way_left(group, some, p, out)
        index = group.rows
        out.predicted[index] = True
        out.parameters_from[index] = parameters_from
        _judge(points, group, out, stack, trust, unfollowed, unfitted)
    return out


def axes_of(points: Points, group: Group) -> dict[str, npt.NDArray[np.generic]]:
    """The group's values of the axes in which a row can be new to a calibration."""
    return {
        "world_size": points.world_size[group.rows],
        "seq_length": points.seq_length[group.rows],
        "model": points.model[group.rows],
        "hidden_size": group.features.hidden_size,
    }


def _way_left(
    group: Group, rows: npt.NDArray[np.int64], p: dict[str, float], out: Prediction
) -> Floats:
    """ln(step by the whole fit / predicted step) of rows that follow a fit in part, (n,)."""
    f, index = group.features.take(rows), group.rows[rows]
    step = step_of(group, f, p, out.memory_bytes[index] / group.capacity_bytes)
    return np.log(step.total / out.step_time_s[index])


def _unfitted(
    group: Group, rows: npt.NDArray[np.int64], stack: StackCalibration, p: Mapping[str, float]
) -> Floats:
    """Standard deviation of ln(step) of the rows by what no calibrated row depends on, (n,).

    The priors of those parameters, by differences: a row whose step they do not move has 0.
    """
    unfelt = [q for q in TIME if stack.parameters[q.name].reason == UNFELT]
    variance = np.zeros(len(rows))
    for block in range(0, len(rows), BLOCK):
        f = group.features.take(rows[block : block + BLOCK])
        used = memory_of(group, f, p).total / group.capacity_bytes
        step_s = step_of(group, f, p, used).total
        together = {**p, **{q.name: p[q.name] * _NUDGE for q in unfelt}}
        moved = np.flatnonzero(step_of(group, f, together, used).total != step_s)
        f, used, step_s = f.take(moved), used[moved], step_s[moved]
        for q in unfelt if moved.size else ():
            nudged = step_of(group, f, {**p, q.name: p[q.name] * _NUDGE}, used).total
            slope = np.log(nudged / step_s) / np.log(_NUDGE)
            variance[block + moved] += np.square(slope * q.spread)
    return np.sqrt(variance)


def _judge(
    points: Points,
    group: Group,
    out: Prediction,
    stack: StackCalibration | None,
    trust: Floats,
    unfollowed: Floats,
    unfitted: Floats,
) -> None:
    """How wrong the group's predictions may be."""
    index, f = group.rows, group.features
    step_s = out.step_time_s[index]
    spread = spread_of(
        step_s,
        rough_of(
            out.time_terms["tp_comm_s"][index] / step_s,
            out.need_bytes[index] / out.capacity_bytes[index],
            lossy_transport=group.cluster.lossy_transport,
        ),
        stack,
        trust=trust,
        unfollowed=unfollowed,
        unfitted=unfitted,
        beyond=0.0 if stack is None else beyond_of(f, stack.seen),
        axes=axes_of(points, group),
        gpus_per_node=f.gpus_per_node,
        experts=f.num_experts > 1,
        lossy_transport=group.cluster.lossy_transport,
        lean_kernels=group.stack.lean_kernels,
        unheard_of=not group.stack.name,
        other_cluster=stack is not None and stack.cluster != group.cluster_name,
    )
    out.low[index] = spread.low
    out.high[index] = np.maximum(spread.high, step_s + possible_stall_s(group, f))
    out.own_sigma[index] = np.hypot(spread.own_sigma, stall_sigma(group, f, step_s))
    out.size_sigma[index] = spread.size_sigma
    counted = out.peak_phase[index].astype(bool)  # a phase is named
    sigma, offset, fits_from = judged_by(group, stack, counted)
    out.memory_sigma[index], out.memory_offset[index] = sigma, offset
    out.fits_from[index] = fits_from


def _predict_block(
    group: Group,
    rows: npt.NDArray[np.int64],
    p: dict[str, float],
    residual: Floats,
    out: Prediction,
) -> None:
    whole = len(rows) == len(group.rows)
    f = group.features if whole else group.features.take(rows)
    index: npt.NDArray[np.int64] = group.rows[rows]
    memory = memory_of(group, f, p)
    need = need_of(memory, p)
    step = step_of(group, f, p, memory.total / group.capacity_bytes).times(np.exp(residual))
    out.memory_bytes[index] = memory.total
    out.need_bytes[index] = need
    out.capacity_bytes[index] = group.capacity_bytes
    out.step_time_s[index] = step.total
    out.ranked_s[index] = ranked_by(group, f, step.total, need / group.capacity_bytes)
    if memory.phase is not None:
        out.peak_phase[index] = memory.phase
    for name, values in memory.terms.items():
        out.memory_terms[name][index] = values
    for name, values in step.terms.items():
        out.time_terms[name][index] = values
