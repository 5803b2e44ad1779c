"""Error bands from rows held back: what of an error is a layout's own, and what its size shares."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Floats, Words
from scaling.predict.cost.interval import EIGHTY, before
from scaling.predict.read.calibration import Band

# What is taken before any fold tells is worth so many rows (own part) and folds (shared part).
_OWN_ROWS_BEFORE, _WEIGHT_BEFORE = 15, 1.0
_OWN_OF_SINGLE = 0.85  # share of single errors that is a layout's own, where none has a rival
_FEWEST_PAIRED = 6  # rows with a rival, below which own and shared parts cannot be told apart
_MOST_PAIRED = 300  # rows of one setting that are compared with one another


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Rows of one fold that the fit has not seen, (n,) each.

    `log_residual`: ln(measured / predicted). `roughness`: the factor of their own part, `rough_of`.
    `beyond`: doublings and switches beyond the rows that were fitted. `setting`: equal where rows
    share model, size, sequence length and batch.
    """

    log_residual: Floats
    roughness: Floats
    beyond: Floats
    setting: Words


def band_of(
    axis: str,
    folds: Iterable[HeldBack],
    *,
    lean_kernels: bool = False,
    lossy_transport: bool = False,
) -> Band:
    """The error of rows held back, fold by fold; few rows widen it by 1 + 2 / n.

    own: 8 in 10 differences between rows of a setting, and 8 in 10 single errors less their
    setting's median (the fold's where few share it), lie within what independent normal errors of
    this size give; the root mean square of the two, since rivals are few where rows are. shared:
    root mean square over folds of what settings are off by, with the scatter of their medians taken
    off. Both with some rows' worth of what published tables show.
    """
    several = list(folds)
    residuals = np.concatenate([fold.log_residual for fold in several])
    low, high = np.quantile(residuals, [0.1, 0.9])
    n = len(residuals)
    factor = 1 + 2 / n
    own = _own(several) * factor
    own_before, shared_before = before(axis, lean_kernels, lossy_transport)
    own = math.sqrt((n * own**2 + _OWN_ROWS_BEFORE * own_before**2) / (n + _OWN_ROWS_BEFORE))
    squares = [_WEIGHT_BEFORE * shared_before**2]
    squares += [_shared_square(fold, own) for fold in several]
    shared = np.sqrt(sum(squares) / (_WEIGHT_BEFORE + len(several)))
    return Band(
        low=float(low) * factor,
        high=float(high) * factor,
        rows=n,
        own=own,
        shared=float(shared),
    )


def one_fold(parts: Sequence[HeldBack]) -> HeldBack:
    """Random folds as one: each row was predicted by a fit that had its neighbours."""
    return HeldBack(
        log_residual=np.concatenate([part.log_residual for part in parts]),
        roughness=np.concatenate([part.roughness for part in parts]),
        beyond=np.concatenate([part.beyond for part in parts]),
        setting=np.concatenate([part.setting for part in parts]),
    )


def _own(folds: Iterable[HeldBack]) -> float:
    """The own error of a layout of roughness 1, from rows that are not beyond the fitted ones."""
    differences, weights, singles, rows = [], [], [], 0
    for fold in folds:
        known = fold.beyond == 0 if (fold.beyond == 0).sum() >= _FEWEST_PAIRED else fold.beyond >= 0
        r, rough = fold.log_residual, fold.roughness
        middle = np.full(len(r), np.median(r))
        for index in _settings(fold):
            if len(index) >= _FEWEST_PAIRED:
                middle[index] = np.median(r[index])
            index = index[known[index]]
            count = len(index)
            if count < 2:
                continue
            rows += count
            index = index[:: -(-count // _MOST_PAIRED)]
            a, b = (index[side] for side in np.triu_indices(len(index), 1))
            differences.append(np.abs(r[a] - r[b]) / np.hypot(rough[a], rough[b]))
            weights.append(np.full(len(a), count / len(a)))
        singles.append((np.abs(r - middle) / rough)[known])
    single = float(np.quantile(np.concatenate(singles), 0.8)) / EIGHTY
    if rows < _FEWEST_PAIRED:
        return _OWN_OF_SINGLE * single
    each, weight = np.concatenate(differences), np.concatenate(weights)
    among = float(np.quantile(each, 0.8, weights=weight, method="inverted_cdf")) / EIGHTY
    return math.sqrt((single**2 + among**2) / 2)


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
