"""Cross-validation of one stack's fit: bands, trust and residual from rows held out of refits.

Held out are random quarters of the rows, and whole values of an axis or of a layout's choices.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.predict.cost.interval import (
    COUNT_AXES,
    distance_beyond,
    layout_coordinates,
    layout_ranges,
    own_error_factor,
)
from scaling.predict.cost.memory import memory_of, need_of
from scaling.predict.cost.step import step_of
from scaling.predict.fit.bands import HeldOut, band_of, joined_folds
from scaling.predict.fit.fitting import fit_cautiously, fit_time, with_fitted
from scaling.predict.read.calibration import Fitted
from scaling.predict.read.features import Features, Group
from scaling.predict.read.observed import Observed
from scaling.predict.read.residual import (
    NOISES,
    chosen_noise,
    fitted_residual,
    is_improvement,
    places_of,
)
from scaling.predict.read.trust import (
    LAYOUT,
    TRUSTS,
    UNTESTED,
    chosen_trust,
    clipped_rms,
    parameters_at_trust,
    trust_band,
    untested_trust,
)

_FOLDS = 4
FEWEST_TO_FOLD = 8  # timed rows that a fit needs
_FEWEST_HELD_OUT = 3
_MOST_VALUES = 3  # of one axis that are left out in turn

# (rows held out, rows to fit on)
_Split = tuple[Flags, Flags]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """Rows held out of one fit.

    `by_trust`: predicted at each of TRUSTS. `residual`: what the other rows' residuals let one
    expect of theirs at full trust, by noise.
    """

    by_trust: list[HeldOut]
    residual: dict[float, Floats]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _TimedRows:
    """The timed rows of a stack, to be fitted again without some of them.

    `fitted` and `cautious` are the parameters fitted on all of them, from which a refit starts.
    """

    group: Group
    observed: Observed
    settings: Strings
    places: Floats
    start: Mapping[str, float]
    fitted: Mapping[str, float]
    cautious: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.places)

    def fold(self, held: Flags, rest: Flags) -> _Fold:
        """Fit on `rest`, predict `held`."""
        rows = np.flatnonzero(rest)
        part, observed = _rows_of(self.group, rows), self.observed.take(rows)
        time = fit_time(part, observed, self.start, first_guess=self.fitted)
        fitted = with_fitted(self.start, time)
        cautious = fit_cautiously(part, observed, self.start, fitted, first_guess=self.cautious)
        known = self.predicted(fitted, rest, rest).log_residual
        residual = {
            noise: fitted_residual(self.places[rest], known, noise=noise).at(self.places[held])
            for noise in NOISES
        }
        by_trust = [
            self.predicted(parameters_at_trust(fitted, self.start, trust, cautious), held, rest)
            for trust in TRUSTS
        ]
        return _Fold(by_trust=by_trust, residual=residual)

    def predicted(self, p: Mapping[str, float], rows: Flags, fitted_rows: Flags) -> HeldOut:
        """Errors of `rows` by parameters that were fitted on `fitted_rows`."""
        group = self.group
        f = group.features.take(np.flatnonzero(rows))
        memory = memory_of(group, f, p)
        step = step_of(group, f, p, memory.total / group.capacity_bytes)
        ranges = layout_ranges(group.features.take(np.flatnonzero(fitted_rows)))
        return HeldOut(
            log_residual=np.log(self.observed.step_time_s[rows] / step.total),
            roughness=own_error_factor(
                step.terms["tp_comm_s"] / step.total,
                need_of(memory, p) / group.capacity_bytes,
                lossy_transport=group.cluster.lossy_transport,
            ),
            distance_beyond=distance_beyond(f, ranges),
            setting=self.settings[rows],
        )


def held_out_errors(
    group: Group,
    observed: Observed,
    start: Mapping[str, float],
    fitted: Mapping[str, Fitted],
    axes: Mapping[str, npt.NDArray[np.generic]],
    settings: Strings,
) -> dict[str, Any]:
    """`bands`, `trust`, `residual` and `sheet_error` of a StackCalibration, from rows held out.

    Args:
        group: the stack.
        observed: its measurements, (n,).
        start: parameters before the fit of time, with memory fitted.
        fitted: time parameters fitted on all rows.
        axes: values of the timed rows by names of AXES, (m,) each.
        settings: equal where timed rows share model, size, sequence length and batch, (m,).
    """
    timed = np.flatnonzero(observed.timed)
    part = _rows_of(group, timed)
    rows = _TimedRows(
        group=part,
        observed=observed.take(timed),
        settings=settings,
        places=places_of(part.features),
        start=start,
        fitted=with_fitted(start, fitted),
        cautious={name: one.cautious or one.value for name, one in fitted.items()},
    )
    kind = {
        "lean_kernels": group.stack.lean_kernels,
        "lossy_transport": group.cluster.lossy_transport,
    }

    quarter = np.random.default_rng(0).permutation(len(rows)) % _FOLDS
    random = [rows.fold(quarter == one, quarter != one) for one in range(_FOLDS)]
    noise = chosen_noise(
        {noise: _log_residuals(_corrected(random, 1.0, noise)) for noise in NOISES}
    )
    helps, within = _with_residual(random, 1.0, noise, must_help=True)
    bands = {"interpolation": band_of("interpolation", [joined_folds(within)], **kind)}
    for trust in TRUSTS[:-1]:
        held_out = [joined_folds(_at(trust, random))]
        bands[trust_band(trust)] = band_of("interpolation", held_out, **kind)

    trusts: dict[str, float] = {}
    holds_in = ["interpolation"]
    splits = {axis: _splits(axis, values) for axis, values in axes.items()}
    for axis, pairs in (splits | {LAYOUT: _layout_splits(part.features)}).items():
        folds = [
            rows.fold(held, rest)
            for held, rest in pairs
            if held.sum() >= _FEWEST_HELD_OUT and rest.sum() >= FEWEST_TO_FOLD
        ]
        holds = True  # unless folds show that it does not
        if folds:
            trusts[axis] = chosen_trust(
                axis, [[at.log_residual for at in fold.by_trust] for fold in folds]
            )
            held_out = _at(trusts[axis], folds)
            if helps:
                holds, held_out = _with_residual(folds, trusts[axis], noise, must_help=False)
            bands[axis] = band_of(axis, held_out, **kind)
        if holds:
            holds_in.append(axis)
    trusts[UNTESTED] = untested_trust([trusts[axis] for axis in axes if axis in trusts])

    residual = None
    if helps:
        everyone = np.ones(len(rows), dtype=bool)
        log_residual = rows.predicted(rows.fitted, everyone, everyone).log_residual
        residual = fitted_residual(rows.places, log_residual, tuple(holds_in), noise=noise)
    sheet_error = clipped_rms(_log_residuals(_at(0.0, random)))
    return {"bands": bands, "trust": trusts, "residual": residual, "sheet_error": sheet_error}


def _at(trust: float, folds: list[_Fold]) -> list[HeldOut]:
    return [fold.by_trust[TRUSTS.index(trust)] for fold in folds]


def _log_residuals(parts: list[HeldOut]) -> Floats:
    return np.concatenate([part.log_residual for part in parts])


def _corrected(folds: list[_Fold], trust: float, noise: float) -> list[HeldOut]:
    """The folds' rows predicted with the residual of this noise."""
    return [
        dataclasses.replace(part, log_residual=part.log_residual - trust * fold.residual[noise])
        for part, fold in zip(_at(trust, folds), folds, strict=True)
    ]


def _with_residual(
    folds: list[_Fold], trust: float, noise: float, *, must_help: bool
) -> tuple[bool, list[HeldOut]]:
    """Whether the residual is used, and the folds' rows with it if so.

    Within the calibrated rows it must help. Where a row is new it only must not harm.
    """
    without, with_it = _at(trust, folds), _corrected(folds, trust, noise)
    before, after = _log_residuals(without), _log_residuals(with_it)
    is_used = is_improvement(before, after) if must_help else not is_improvement(after, before)
    return is_used, with_it if is_used else without


def _splits(axis: str, values: npt.NDArray[np.generic]) -> list[_Split]:
    """Splits that leave out one value; world sizes are only predicted from smaller ones."""
    unique, counts = np.unique(
        values.astype(str) if axis == "model" else values, return_counts=True
    )
    if len(unique) < 2:
        return []
    if axis == "world_size":
        return [(values == v, values < v) for v in unique[-2:]]
    commonest = unique[np.argsort(-counts)][:_MOST_VALUES]
    return [(values == v, values != v) for v in commonest]


def _layout_splits(f: Features) -> list[_Split]:
    """Splits that leave out the largest of each count, or a position of a switch."""
    splits = []
    for name, values in layout_coordinates(f).items():
        if name in COUNT_AXES:
            largest = values.max()
            splits.append((values == largest, values < largest))
        else:
            splits += [(values == v, values != v) for v in np.unique(values)]
    return splits


def _rows_of(group: Group, rows: npt.NDArray[np.int64]) -> Group:
    return dataclasses.replace(group, rows=group.rows[rows], features=group.features.take(rows))
