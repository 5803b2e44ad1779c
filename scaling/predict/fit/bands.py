"""Error bands from rows held back: what of an error is a layout's own, and what its size shares."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats, Strings
from scaling.predict.cost.interval import prior_sigmas
from scaling.predict.read.calibration import EIGHTY, Band

# What is taken before any fold tells is worth so many rows (own part), and one fold (shared part).
_ROWS_BEFORE = 30
_FEWEST_RIVALS = 6  # rows of a setting, below which its median is not told from theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Rows of one fold that the fit has not seen, (n,) each.

    `log_residual`: ln(measured / predicted). `roughness`: `own_error_factor`.
    `beyond`: doublings and switches beyond the rows that were fitted. `setting`: equal where rows
    share model, size, sequence length and batch.
    """

    log_residual: Floats
    roughness: Floats
    beyond: Floats
    setting: Strings


def band_of(
    axis: str,
    folds: Iterable[HeldBack],
    *,
    lean_kernels: bool = False,
    lossy_transport: bool = False,
) -> Band:
    """The error of rows held back, fold by fold; few rows widen it by 1 + 2 / n.

    own: 8 in 10 errors less their setting's median (the fold's where few share it) lie within what
    normal errors of this size give. shared: root mean square over folds of what settings are off
    by, with the scatter of their medians taken off. Both are means of what rows show and of what
    published tables show, weighted by rows and by folds.
    """
    several = list(folds)
    residuals = np.concatenate([fold.log_residual for fold in several])
    low, high = np.quantile(residuals, [0.1, 0.9])
    n = len(residuals)
    factor = 1 + 2 / n
    own_before, shared_before = prior_sigmas(axis, lean_kernels, lossy_transport)
    shown = _own(several) * factor
    own = (n * shown + _ROWS_BEFORE * own_before) / (n + _ROWS_BEFORE)
    folded = math.sqrt(np.mean([_shared_square(fold, own) for fold in several]))
    return Band(
        low=float(low) * factor,
        high=float(high) * factor,
        rows=n,
        own=own,
        shared=(len(several) * folded + shared_before) / (len(several) + 1),
    )


def one_fold(parts: Sequence[HeldBack]) -> HeldBack:
    """Random folds as one: each row was predicted by a fit that had its neighbours."""
    names = [each.name for each in fields(HeldBack)]
    return HeldBack(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def _own(folds: Iterable[HeldBack]) -> float:
    """The own error of a layout of roughness 1, from rows that are not beyond the fitted ones."""
    errors = []
    for fold in folds:
        within = fold.beyond == 0
        if within.sum() < _FEWEST_RIVALS:
            within[:] = True
        middle = np.full(len(within), np.median(fold.log_residual))
        for index in _settings(fold):
            if len(index) >= _FEWEST_RIVALS:
                middle[index] = np.median(fold.log_residual[index])
        errors.append((np.abs(fold.log_residual - middle) / fold.roughness)[within])
    return float(np.quantile(np.concatenate(errors), 0.8)) / EIGHTY


def _shared_square(fold: HeldBack, own: float) -> float:
    """Mean over settings of what their rows share, squared."""
    squares, rows = 0.0, 0
    for index in _settings(fold):
        # the variance of a median of normal errors is pi / 2 that of a mean
        noise = np.pi / 2 * own**2 * float(np.mean(fold.roughness[index] ** 2)) / len(index)
        middle = float(np.median(fold.log_residual[index]))
        squares += len(index) * (middle**2 - noise)
        rows += len(index)
    return max(squares / max(rows, 1), 0.0)


def _settings(fold: HeldBack) -> Iterator[npt.NDArray[np.int64]]:
    _, which = np.unique(fold.setting.astype(str), return_inverse=True)
    for one in range(int(which.max(initial=-1)) + 1):
        yield np.flatnonzero(which == one)
