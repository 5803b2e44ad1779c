"""Predictions of whole tables: memory, step time and their terms, row for row."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from scaling.arrays import Flags, Floats, Strings
from scaling.predict.cost.interval import Z_80, errors_of, normal_cdf, own_error_factor
from scaling.predict.cost.memory import (
    ENGINES,
    MEMORY_TERMS,
    MOST_LATE,
    memory_of,
    need_of,
    rehearsed_memory,
)
from scaling.predict.cost.risk import stalls_of
from scaling.predict.cost.stages import ONE_F_ONE_B
from scaling.predict.cost.step import TIME_TERMS, bound_by_host, step_of
from scaling.predict.read.calibration import HALVED, Calibration, StackCalibration
from scaling.predict.read.features import BLOCK, Features, Group, Points
from scaling.predict.read.parameters import TIME
from scaling.predict.read.residual import places_of

# Standard deviation of ln(need)'s error: published outcomes are told as well with this number as
# with offsets and widths of their own. Whether software that has no entry keeps fp32 gradients or
# gathers its logits is a fifth of the need of many layouts.
MEMORY_SIGMA, MEMORY_SIGMA_UNKNOWN = 0.08, 0.2
# The same for the pipelines of our engines that are bounded, not counted (own_memory.py), and
# where a rehearsal has counted the layout: kernels' workspaces, NCCL and fragmentation are left.
MEMORY_SIGMA_BOUNDED, MEMORY_SIGMA_REHEARSED = 0.15, 0.03
# P(fits) from which a layout is called a fit, and below which no other choice would prefer it.
_EVEN, _UNLIKELY = 0.5, 0.27


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One value per point, NaN (None in words) where a point cannot be predicted.

    A measured step lies between `low` and `high` 8 times in 10. The sigmas are the standard
    deviations of the parts of ln(step time)'s error (interval.py). `risk_adjusted_s` ranks layouts:
    likely time plus what a stall may cost. `need_bytes` is memory with fragmentation,
    `capacity_bytes` what a GPU offers, `fits_chance` how likely the point fits.
    """

    step_time_s: Floats
    low: Floats
    high: Floats
    common_sigma: Floats
    layout_sigma: Floats
    size_sigma: Floats
    rest_sigma: Floats
    risk_adjusted_s: Floats
    memory_bytes: Floats
    need_bytes: Floats
    capacity_bytes: Floats
    memory_sigma: Floats
    rehearsed: Flags  # the bytes are those of a rehearsal
    memory_terms: dict[str, Floats]
    peak_phase: Strings  # build, forward, backward or optimizer; None for other software
    time_terms: dict[str, Floats]
    predicted: Flags
    parameters_from: Strings

    @property
    def own_sigma(self) -> Floats:
        """Standard deviation of what a layout shares with no other layout of its size."""
        return np.hypot(self.layout_sigma, self.rest_sigma)

    @property
    def fits_chance(self) -> Floats:
        """How likely the point fits: ln(need) has a normal error."""
        return normal_cdf(np.log(self.capacity_bytes / self.need_bytes) / self.memory_sigma)

    @property
    def fits(self) -> Flags:
        """Whether the point is expected to run; False too where it cannot be predicted."""
        return np.asarray(self.fits_chance >= _EVEN)

    @property
    def likely_oom(self) -> Flags:
        """Whether the need is likely above the capacity, so that any other point is preferred."""
        return np.asarray(self.fits_chance < _UNLIKELY)

    @property
    def host_bound(self) -> Flags:
        """Whether the host's launches and hooks bound the step, not the GPU's work."""
        return bound_by_host(self.time_terms)

    @property
    def memory_margin(self) -> Floats:
        """Share of the GPU's memory left free; negative if it does not fit."""
        return 1 - self.need_bytes / self.capacity_bytes


_NUMBERS = tuple(field.name for field in fields(Prediction) if field.type == Floats)


def predict(
    points: Points, calibration: Calibration | None = None, *, rehearsed: Floats | None = None
) -> Prediction:
    """Predict every point; points with a note stay NaN.

    `rehearsed` bytes of the fullest rank, (n,), take the place of the formulas'; NaN: none.
    """
    n = len(points)
    counted = np.full(n, np.nan) if rehearsed is None else rehearsed
    names = (*_NUMBERS, *MEMORY_TERMS, *TIME_TERMS)
    columns: dict[str, Any] = {name: np.full(n, np.nan) for name in names}
    columns |= {name: np.full(n, None, dtype=object) for name in ("peak_phase", "parameters_from")}
    columns["predicted"] = np.zeros(n, dtype=bool)
    source = calibration or Calibration(source="none", stacks={})
    for group in points.groups:
        p, stack, columns["parameters_from"][group.rows] = source.parameters_for(group)
        columns["predicted"][group.rows], f = True, group.features
        # similar rows in one block: what none of them has is not computed
        alike = np.argsort(4 * (f.pp > 1) + f.zero_stage, kind="stable")
        for begin in range(0, len(f), BLOCK):
            rows = alike[begin : begin + BLOCK]
            index = group.rows[rows]
            block = _predicted(group, f.take(rows), p, stack, counted[index])
            for name, values in block.items():
                columns[name][index] = values
    return Prediction(
        **{name: columns[name] for name in _NUMBERS},
        **{name: columns[name] for name in ("peak_phase", "parameters_from", "predicted")},
        rehearsed=np.isfinite(counted),
        memory_terms={name: columns[name] for name in MEMORY_TERMS},
        time_terms={name: columns[name] for name in TIME_TERMS},
    )


def _beyond_ranges(f: Features, stack: StackCalibration) -> Flags:
    """Mask, (n,): rows with a sequence length or a width beyond those calibrated."""
    beyond = np.zeros(len(f), dtype=bool)
    for name in HALVED if stack.ranges else ():
        least, largest = stack.ranges[name]
        values = getattr(f, name)
        beyond |= (values < least) | (values > largest)
    return beyond


def _predicted(
    group: Group,
    f: Features,
    fitted: Mapping[str, Any],
    stack: StackCalibration | None,
    rehearsed: Floats,
) -> dict[str, Any]:
    """Times, memory and errors of some layouts of the group, by name."""
    p = fitted
    novelty: Floats = np.ones(len(f))
    halved: Floats = np.zeros(len(f))
    beyond = np.zeros(len(f), dtype=bool) if stack is None else _beyond_ranges(f, stack)
    if stack is not None and beyond.any():
        # time parameters at half the logarithmic distance from their start, others as fitted
        half = {q.name: (fitted[q.name] * stack.starts[q.name]) ** 0.5 for q in TIME}
        p = {**p, **{name: np.where(beyond, value, p[name]) for name, value in half.items()}}
    memory = rehearsed_memory(memory_of(group, f, p, late=MOST_LATE), rehearsed, p)
    of_memory = memory.total / group.capacity_bytes
    step = step_of(group, f, p, of_memory)
    if beyond.any():
        halved = np.log(step_of(group, f, fitted, of_memory).total / step.total)
    if stack is not None and stack.cluster == group.cluster_name:
        expected, novelty = stack.residual.at(places_of(f))
        step = step.times(np.exp(expected))
    stalls, roughness = stalls_of(group, f, p), own_error_factor(step)
    errors = errors_of(group, f, stack, novelty=novelty, halved=halved, roughness=roughness)
    reach = Z_80 * np.sqrt(sum(np.square(sigma) for sigma in errors.values()))
    errors["rest"] = np.hypot(errors["rest"], stalls.sigma(step.total))
    usual = MEMORY_SIGMA if group.stack.name or stack is not None else MEMORY_SIGMA_UNKNOWN
    counted = (f.pp == 1) | ((f.schedule == ONE_F_ONE_B) & (f.attentions == 1))
    bounded = ~counted & (group.stack.name in ENGINES)
    return {
        "step_time_s": step.total,
        "low": step.total * np.exp(-reach),
        "high": np.maximum(step.total * np.exp(reach), step.total + stalls.possible_s),
        **{f"{part}_sigma": sigma for part, sigma in errors.items()},
        "risk_adjusted_s": stalls.ranked_s(step.total),
        "memory_bytes": memory.total,
        "need_bytes": need_of(memory, p),
        "capacity_bytes": group.capacity_bytes,
        "memory_sigma": np.select(
            [np.isfinite(rehearsed), bounded],
            [MEMORY_SIGMA_REHEARSED, MEMORY_SIGMA_BOUNDED],
            usual,
        ),
        "peak_phase": memory.phase,
        **memory.terms,
        **step.terms,
    }
