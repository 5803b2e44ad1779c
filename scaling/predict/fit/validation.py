"""Scores of predictions on rows that they were not calibrated on."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.model import Prediction
from scaling.predict.fit.coverage import (
    Expected,
    expected_coverage,
    odds_calibration,
    ratios_covered,
)
from scaling.predict.fit.rivals import (
    Pairs,
    Rows,
    Setting,
    layout_numbers,
    pairs_of,
    regrets_of,
    rows_by,
    settings_of,
)
from scaling.predict.read.features import Points
from scaling.predict.read.observed import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one set of rows; ratios, None where nothing can be said.

    step_time: relative errors |predicted / measured - 1| (bias: signed mean), rank_correlation
    Spearman's over the rows. regret: slow-down of the layout that would have been picked against
    the best measured one, over the settings with two timed layouts or more; top3: of the best of
    the first three. A layout's time is the median of its repeats. memory: false_fit_rate, the share
    of out-of-memory rows called a fit; false_oom_rate, the share of rows that ran called out of
    memory. coverage_80: the share of step times inside their interval; coverage_80_ratios: the
    share of ratios of two layouts of one setting, each setting weighted by its number of rows.
    """

    rows: int
    step_time: dict[str, float | None]
    regret: dict[str, float | int | None]
    memory: dict[str, float | int | None]
    coverage_80: float | None
    coverage_80_ratios: float | None


@dataclass(frozen=True, kw_only=True)  # no slots: settings and pairs are found once
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

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings of all tested rows that are timed."""
        timed = self.tested & self.prediction.predicted & self.observed.timed
        return settings_of(
            self.points, layout_numbers(self.points), self.observed.step_time_s, timed
        )

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs of tested layouts that are rivals."""
        return pairs_of(self.settings)

    @property
    def expected_80(self) -> Expected:
        """Range of the share that correct intervals would cover, 8 times in 10."""
        calibrated = int((self.fitted & self.observed.timed).sum())
        rows = [setting.rows for setting in self.settings] or [np.empty(0, dtype=np.int64)]
        return expected_coverage(
            self.points, self.prediction, np.concatenate(rows), self.pairs, calibrated
        )

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
    layouts = layout_numbers(points)

    def scores(rows: Rows) -> Scores:
        timed = rows[observed.timed[rows]]
        settings = settings_of(points, layouts, observed.step_time_s, timed)
        return _scores(observed, prediction, rows, timed, settings)

    keys = rows_by(tuple(getattr(points, name) for name in names), usable)
    groups = [
        (dict(zip(names, (*key[:3], int(key[3])), strict=True)), scores(np.array(rows)))
        for key, rows in sorted(keys.items(), key=lambda item: (item[0][1:], item[0][0]))
    ]
    return scores(np.flatnonzero(usable)), groups


def _scores(
    observed: Observed, prediction: Prediction, rows: Rows, timed: Rows, settings: list[Setting]
) -> Scores:
    measured, predicted = observed.step_time_s[timed], prediction.step_time_s[timed]

    def first_three(layouts: Rows) -> Rows:
        """Layouts that likely run out of memory are picked only if there are no others."""
        risky = prediction.likely_oom[layouts]
        order = np.lexsort((prediction.risk_adjusted_s[layouts], risky))
        return order[: min(3, len(layouts) if risky.all() else int((~risky).sum()))]

    first = regrets_of(settings, lambda layouts: first_three(layouts)[:1])
    three = regrets_of(settings, first_three)
    inside = (measured >= prediction.low[timed]) & (measured <= prediction.high[timed])
    return Scores(
        rows=len(rows),
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
        coverage_80_ratios=ratios_covered(observed, prediction, pairs_of(settings)),
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


def _memory(
    observed: Observed, prediction: Prediction, rows: Rows
) -> dict[str, float | int | None]:
    """Confusion matrix of predicted fit and outcome, and the error of peak memory."""
    fits = prediction.fits
    ran = fits[rows[observed.ran[rows]]]
    oom = fits[rows[(observed.out_of_memory | observed.ambiguous)[rows]]]
    false_fit = float(oom.mean()) if oom.size else None
    false_oom = float((~ran).mean()) if ran.size else None
    both = false_fit is not None and false_oom is not None
    peaks = rows[(observed.ran & (observed.peak_memory_bytes > 0))[rows]]
    error = np.abs(prediction.memory_bytes[peaks] / observed.peak_memory_bytes[peaks] - 1)
    return {
        "balanced_accuracy": 1 - ((false_fit or 0) + (false_oom or 0)) / 2 if both else None,
        "false_fit_rate": false_fit,
        "false_oom_rate": false_oom,
        "ran_fits": int(ran.sum()),
        "ran_called_oom": int((~ran).sum()),
        "oom_called_fit": int(oom.sum()),
        "oom_called_oom": int((~oom).sum()),
        "peak_median_ape": float(np.median(error)) if error.size else None,
    }
