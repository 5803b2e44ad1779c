"""Error bands from held-out rows: a layout's own error, and the error its size shares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats, Strings
from scaling.predict.cost.interval import prior_sigmas
from scaling.predict.read.calibration import Z_80, Band

# Weight of the prior own error, in rows. The prior shared error weighs as much as one fold.
_PRIOR_ROWS = 30
_FEWEST_RIVALS = 6  # rows of a setting from which its median is estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Rows of a fold, predicted by a fit without them, (n,) each.

    `log_residual`: ln(measured / predicted). `roughness`: the factor on their own error, see
    `own_error_factor`. `distance_beyond`: distance outside the fitted rows, see `distance_beyond`.
    `setting`: equal where rows share model, size, sequence length and batch.
    """

    log_residual: Floats
    roughness: Floats
    distance_beyond: Floats
    setting: Strings


def band_of(
    axis: str,
    folds: Sequence[HeldOut],
    *,
    lean_kernels: bool = False,
    lossy_transport: bool = False,
) -> Band:
    """The error of held-out rows. With n rows it is widened by 1 + 2 / n.

    own: the 80 % quantile of errors around their setting's median (the fold's if few rows share the
    setting), as the sigma of normal errors. shared: root mean square over folds of the settings'
    medians, without their sampling noise. Both are averaged with priors from published tables.
    """
    log_residuals = np.concatenate([fold.log_residual for fold in folds])
    low, high = np.quantile(log_residuals, [0.1, 0.9])
    n = len(log_residuals)
    widening = 1 + 2 / n
    prior_own, prior_shared = prior_sigmas(axis, lean_kernels, lossy_transport)
    own = (n * (_own(folds) * widening) + _PRIOR_ROWS * prior_own) / (n + _PRIOR_ROWS)
    shared = math.sqrt(np.mean([_shared_square(fold, own) for fold in folds]))
    return Band(
        low=float(low) * widening,
        high=float(high) * widening,
        rows=n,
        own=own,
        shared=(len(folds) * shared + prior_shared) / (len(folds) + 1),
    )


def joined_folds(parts: Sequence[HeldOut]) -> HeldOut:
    """Several folds as one; for random folds, whose fits all had neighbours of the rows."""
    names = [each.name for each in fields(HeldOut)]
    return HeldOut(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def _own(folds: Sequence[HeldOut]) -> float:
    """Own error, as sigma, of a layout of roughness 1, from rows inside the fitted range."""
    errors = []
    for fold in folds:
        within = fold.distance_beyond == 0
        if within.sum() < _FEWEST_RIVALS:
            within[:] = True
        middle = np.full(len(within), np.median(fold.log_residual))
        for index in _settings(fold):
            if len(index) >= _FEWEST_RIVALS:
                middle[index] = np.median(fold.log_residual[index])
        errors.append((np.abs(fold.log_residual - middle) / fold.roughness)[within])
    return float(np.quantile(np.concatenate(errors), 0.8)) / Z_80


def _shared_square(fold: HeldOut, own: float) -> float:
    """Mean square over rows of the error that their setting shares."""
    squares, rows = 0.0, 0
    for index in _settings(fold):
        # the variance of a median of normal errors is pi / 2 that of a mean
        noise = np.pi / 2 * own**2 * float(np.mean(fold.roughness[index] ** 2)) / len(index)
        middle = float(np.median(fold.log_residual[index]))
        squares += len(index) * (middle**2 - noise)
        rows += len(index)
    return max(squares / max(rows, 1), 0.0)


def _settings(fold: HeldOut) -> list[npt.NDArray[np.int64]]:
    """Row numbers of each setting."""
    return [np.flatnonzero(fold.setting == setting) for setting in sorted(set(fold.setting))]
