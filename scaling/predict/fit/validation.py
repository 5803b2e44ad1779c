"""Scores of predictions on rows that they were not calibrated on."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.fit.coverage import (
    Expected,
    Pairs,
    expected_coverage,
    odds_calibration,
    pairs_of,
    ratios_covered,
    rows_by,
    rows_by_setting,
)
from scaling.predict.read.features import Points
from scaling.predict.read.observed import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one set of rows; ratios, None where nothing can be said.

    step_time: relative errors |predicted / measured - 1| (bias: signed mean), rank_correlation
    Spearman's over the rows. regret: slow-down of the layout that would have been picked against
    the best measured one, over the settings (`rows_by_setting`) with two timed layouts or more;
    top3: of the best of the first three. memory: false_fit_rate, the share of out-of-memory rows
    called a fit; false_oom_rate, the share of rows that ran called out of memory. coverage_80: the
    share of step times inside their interval; coverage_80_ratios: the share of ratios of two
    layouts of one setting, each setting weighted by its number of layouts.
    """

    rows: int
    step_time: dict[str, float | None]
    regret: dict[str, float | int | None]
    memory: dict[str, float | int | None]
    coverage_80: float | None
    coverage_80_ratios: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Scores over all test rows, and by framework, model, cluster and world_size.

    `fitted`, `tested`: masks of the rows calibrated on and tested, (n,). notes: rows set aside, and
    reasons why the scores may flatter.
    """

    points: Points
    observed: Observed
    prediction: Prediction
    fitted: Flags
    tested: Flags
    overall: Scores
    groups: list[tuple[dict[str, str | int], Scores]]
    notes: list[str]

    @property
    def pairs(self) -> Pairs:
        """All pairs of tested layouts that are rivals."""
        return pairs_of(self.points, self._timed)

    @property
    def expected_80(self) -> Expected:
        """Range of the share that correct intervals would cover, 8 times in 10."""
        calibrated = int((self.fitted & self.observed.timed).sum())
        return expected_coverage(self.points, self.prediction, self._timed, self.pairs, calibrated)

    @property
    def _timed(self) -> Flags:
        return self.tested & self.prediction.predicted & self.observed.timed

    @property
    def calibrated_rows(self) -> int:
        """Rows that were calibrated on."""
        return int(self.fitted.sum())

    @property
    def tested_rows(self) -> int:
        """Rows to test, including those that cannot be predicted."""
        return int(self.tested.sum())

    @property
    def assumptions(self) -> list[str]:
        """Sentences on what the table leaves open and the predictions assume."""
        return list(self.points.assumptions)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `scaling validate --json`."""
        return {
            **asdict(self.overall),
            "expected_80": self.expected_80,
            "odds": odds_calibration(self.observed, self.prediction, self.pairs),
            "calibrated_rows": self.calibrated_rows,
            "tested_rows": self.tested_rows,
            "notes": self.notes,
            "assumptions": self.assumptions,
            "groups": [{**key, **asdict(scores)} for key, scores in self.groups],
        }


def validate(
    points: Points, observed: Observed, prediction: Prediction, test: Flags
) -> tuple[Scores, list[tuple[dict[str, str | int], Scores]]]:
    """Score predictions on the rows of the mask `test`, (n,), over all and per group."""
    usable = test & prediction.predicted
    names = ("framework", "model", "cluster", "world_size")
    keys = rows_by(tuple(getattr(points, name) for name in names), usable)
    groups = []
    for key, rows in sorted(keys.items(), key=lambda item: item[0][1:]):
        inside = np.zeros(len(points), dtype=bool)
        inside[rows] = True
        record = dict(zip(names, (*key[:3], int(key[3])), strict=True))
        groups.append((record, _scores(points, observed, prediction, inside)))
    return _scores(points, observed, prediction, usable), groups


def _scores(points: Points, observed: Observed, prediction: Prediction, rows: Flags) -> Scores:
    timed = rows & observed.timed
    measured, predicted = observed.step_time_s[timed], prediction.step_time_s[timed]
    first, three = regrets_of(points, observed, prediction, timed)
    inside = (measured >= prediction.low[timed]) & (measured <= prediction.high[timed])
    return Scores(
        rows=int(rows.sum()),
        step_time=_step_time(measured, predicted),
        regret={
            "mean": float(np.mean(first)) if first else None,
            "median": float(np.median(first)) if first else None,
            "max": max(first, default=None),
            "groups": len(first),
            "top3_mean": float(np.mean(three)) if three else None,
            "top3_max": max(three, default=None),
        },
        memory=_memory(observed, prediction, rows),
        coverage_80=float(inside.mean()) if inside.size else None,
        coverage_80_ratios=ratios_covered(observed, prediction, pairs_of(points, timed)),
    )


def _step_time(measured: Floats, predicted: Floats) -> dict[str, float | None]:
    if not measured.size:
        names = ("mape", "median_ape", "rms", "max_ape", "bias", "rank_correlation")
        return {"rows": 0, **dict.fromkeys(names)}
    error = predicted / measured - 1
    size = np.abs(error)
    return {
        "rows": int(measured.size),
        "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
        "rms": float(np.sqrt((size**2).mean())),
        "max_ape": float(size.max()),
        "bias": float(error.mean()),
        "rank_correlation": _rank_correlation(measured, predicted),
    }


def _rank_correlation(a: Floats, b: Floats) -> float | None:
    """Spearman's; None for fewer than three rows or if all are equal."""
    if a.size < 3:
        return None
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy.stats import spearmanr  # half a second, for whoever only plans

    return float(spearmanr(a, b).statistic)


def regrets_of(
    points: Points, observed: Observed, prediction: Prediction, timed: Flags
) -> tuple[list[float], list[float]]:
    """Regret per setting of the layout picked, and of the best of the first three.

    Layouts that likely run out of memory are picked only if there are no others.
    """
    first, three = [], []
    for rows in rows_by_setting(points, timed).values():
        if len(rows) > 1:
            at: npt.NDArray[np.int64] = np.array(rows)
            started = at[~prediction.likely_oom[at]]
            candidates = started if started.size else at
            order = candidates[np.argsort(prediction.risk_adjusted_s[candidates], kind="stable")]
            slower = observed.step_time_s[order] / observed.step_time_s[at].min() - 1
            first.append(float(slower[0]))
            three.append(float(slower[:3].min()))
    return first, three


def _memory(
    observed: Observed, prediction: Prediction, rows: Flags
) -> dict[str, float | int | None]:
    """Confusion matrix of predicted fit and outcome, and the error of peak memory."""
    ran, oom = rows & observed.ran, rows & (observed.out_of_memory | observed.ambiguous)
    fits = prediction.fits
    false_fit = float(fits[oom].mean()) if oom.any() else None
    false_oom = float((~fits[ran]).mean()) if ran.any() else None
    both = false_fit is not None and false_oom is not None
    peaks = ran & (observed.peak_memory_bytes > 0)
    error = np.abs(prediction.memory_bytes[peaks] / observed.peak_memory_bytes[peaks] - 1)
    return {
        "balanced_accuracy": 1 - ((false_fit or 0) + (false_oom or 0)) / 2 if both else None,
        "false_fit_rate": false_fit,
        "false_oom_rate": false_oom,
        "ran_fits": int(fits[ran].sum()),
        "ran_called_oom": int((~fits[ran]).sum()),
        "oom_called_fit": int(fits[oom].sum()),
        "oom_called_oom": int((~fits[oom]).sum()),
        "peak_median_ape": float(np.median(error)) if error.size else None,
    }
