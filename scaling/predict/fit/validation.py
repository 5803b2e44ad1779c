"""Scores of predictions on rows that they were not calibrated on."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats
from scaling.cluster.hardware import Cluster
from scaling.errors import InputError, grouped_reasons
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.interval import Z_80
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.read.features import Points, places_among
from scaling.predict.read.observed import Observed, impossible_rows, observed_of
from scaling.predict.read.points import points_of
from scaling.record.conditions import rows_where

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb

Rows = npt.NDArray[np.int64]  # row numbers
# The timed layouts that could replace each other: a row and the median step time of each, (k,).
Setting = tuple[Rows, Floats]
# Layouts of a setting whose ratios are counted, evenly chosen of more.
_MOST_LAYOUTS = 1000
MEMORY_RATES = ("balanced_accuracy", "false_fit_rate", "false_oom_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one set of rows; ratios, None where nothing can be said.

    step_time: relative errors |predicted / measured - 1| (bias: signed mean), rank_correlation
    Spearman's over the rows. regret: slow-down of the layout that would have been picked against
    the best measured one, over the settings with two timed layouts or more. A layout's time is the
    median of its repeats. memory: false_fit_rate, the share of out-of-memory rows called a fit;
    false_oom_rate, the share of rows that ran called out of memory. coverage_80: the share of step
    times inside their interval; coverage_80_ratios: the share of ratios of two layouts of one
    setting, each setting weighted by its layouts.
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

    notes: excluded rows, and reasons why the scores may flatter. assumptions: sentences on what
    the table leaves open and the predictions assume.
    """

    overall: Scores
    calibrated_rows: int
    tested_rows: int  # including those that cannot be predicted
    notes: list[str]
    assumptions: list[str]
    groups: list[tuple[dict[str, str | int], Scores]]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `scaling validate --json`."""
        record = asdict(self)
        groups = [key | scores for key, scores in record.pop("groups")]
        return {**record.pop("overall"), **record, "groups": groups}


def trial(
    table: "Table",
    *,
    calibrate_where: str | None = None,
    test_where: str | None = None,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> Validation:
    """Calibrate and test on rows of one table.

    Without `calibrate_where` data-sheet numbers are tested. Without `test_where` all rows that were
    not calibrated on are tested.

    Raises:
        InputError: a condition is wrong, or leaves nothing to test.
    """
    rows, source = table.rows, table.source
    if not rows.num_rows:
        raise InputError(f"{source}: holds no row under its header")
    points, observed = points_of(table, models=models, clusters=clusters), observed_of(table)
    impossible, why_impossible = impossible_rows(table, points, observed)
    fitted = np.zeros(len(points), dtype=bool)
    if calibrate_where is not None:
        fitted = rows_where(rows, calibrate_where, source, "--calibrate-where")
    tested = ~fitted
    if test_where is not None:
        tested = rows_where(rows, test_where, source, "--test-where")
    fitted, tested = fitted & ~impossible, tested & ~impossible
    known = observed.ran | observed.out_of_memory | observed.ambiguous
    wrong = None
    if calibrate_where is not None and not fitted.any():
        wrong = "--calibrate-where leaves no row to calibrate on; widen it"
    elif not tested.any():
        narrow = "; narrow --calibrate-where" if fitted.any() else ""
        hint = narrow if test_where is None else "; widen --test-where"
        wrong = f"no row is left to test{hint}"
    elif not (tested & known).any():
        wrong = (
            f"none of the {int(tested.sum())} rows to test ran or ran out of memory "
            "(step_time_s, outcome): nothing can be compared with predictions"
        )
    if wrong is not None:
        raise InputError(f"{source}: {'; '.join(filter(None, [wrong, why_impossible]))}")
    calibration = None
    if fitted.any():
        calibration = calibrate(points, observed.only(fitted), source=source)
    overall, groups = validate(points, observed, predict(points, calibration), tested)
    notes = {
        "nothing was calibrated: data-sheet numbers": not (calibration and calibration.stacks),
        "{} rows are in both parts: their errors flatter the model": (fitted & tested).sum(),
        "{} rows failed by memory or crash, counted as out of memory": (
            tested & observed.ambiguous
        ).sum(),
    }
    reasons = (reason for reason in points.note[tested].tolist() if reason is not None)
    return Validation(
        overall=overall,
        calibrated_rows=int(fitted.sum()),
        tested_rows=int(tested.sum()),
        notes=[
            *(note.format(int(count)) for note, count in notes.items() if count),
            *(f"{n} rows are set aside: {reason}" for n, reason in grouped_reasons(reasons)),
            *filter(None, [why_impossible]),
        ],
        assumptions=[*dict.fromkeys(points.assumptions)],
        groups=groups,
    )


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

    rows = np.flatnonzero(usable)
    keys = rows_by(tuple(getattr(points, name) for name in names), rows)
    groups = [
        (dict(zip(names, (*key[:3], int(key[3])), strict=True)), scores(np.array(rows)))
        for key, rows in sorted(keys.items(), key=lambda item: (item[0][1:], item[0][0]))
    ]
    return scores(rows), groups


def rows_by(columns: tuple[npt.NDArray[Any], ...], rows: Rows) -> dict[tuple[Any, ...], list[int]]:
    """Row numbers by the values of the columns."""
    by_key: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(*(column[rows].tolist() for column in columns), strict=True)
    for row, key in zip(rows.tolist(), keys, strict=True):
        by_key.setdefault(key, []).append(row)
    return by_key


def rows_by_setting(points: Points, rows: Rows) -> dict[tuple[Any, ...], list[int]]:
    """Row numbers by what candidates share: software, model, cluster, size and work."""
    software = (points.framework, points.model, points.cluster)
    size = (points.world_size, points.seq_length, points.global_batch_size)
    return rows_by((*software, *size, points.setting), rows)


def layout_numbers(points: Points) -> Rows:
    """A number for each row, (n,), equal where all that is predicted from is equal.

    Numbers are in the order of stacks, models and features; -1 for rows that cannot be predicted.
    """
    numbers = np.full(len(points), -1, dtype=np.int64)
    taken = 0
    for group in sorted(points.groups, key=lambda group: group.key):
        code = np.zeros(len(group.rows), dtype=np.int64)
        names = (points.model[group.rows], points.setting[group.rows])
        for place in (*map(places_among, names), *group.features.places()):
            code = np.unique(code * len(code) + place, return_inverse=True)[1]
        numbers[group.rows] = taken + code
        taken += int(code.max()) + 1
    return numbers


def settings_of(points: Points, layouts: Rows, step_time_s: Floats, timed: Rows) -> list[Setting]:
    """The settings of the timed rows; `layouts` are `layout_numbers`, (n,)."""
    settings = []
    for rows in rows_by_setting(points, timed).values():
        repeats = sorted(rows_by((layouts,), np.array(rows)).items())
        medians = [statistics.median(step_time_s[of_one].tolist()) for _, of_one in repeats]
        settings.append((np.array([of_one[0] for _, of_one in repeats]), np.array(medians)))
    return settings


def _scores(
    observed: Observed, prediction: Prediction, rows: Rows, timed: Rows, settings: list[Setting]
) -> Scores:
    measured, predicted = observed.step_time_s[timed], prediction.step_time_s[timed]

    def regret(layouts: Rows, step_s: Floats) -> float:
        """A layout that likely runs out of memory is picked only without others."""
        order = (prediction.risk_adjusted_s[layouts], prediction.likely_oom[layouts])
        return float(step_s[np.lexsort(order)[0]] / step_s.min() - 1)

    regrets = [regret(*setting) for setting in settings if len(setting[0]) > 1]
    inside = (measured >= prediction.low[timed]) & (measured <= prediction.high[timed])
    return Scores(
        rows=len(rows),
        step_time=_step_time(measured, predicted),
        regret={
            "mean": float(np.mean(regrets)) if regrets else None,
            "median": float(np.median(regrets)) if regrets else None,
            "max": max(regrets, default=None),
            "groups": len(regrets),
        },
        memory=_memory(observed, prediction, rows),
        coverage_80=float(inside.mean()) if inside.size else None,
        coverage_80_ratios=_ratios_covered(prediction, settings),
    )


def _ratios_covered(prediction: Prediction, settings: list[Setting]) -> float | None:
    """Share of time ratios of two layouts inside their 80 % interval, None without any."""
    shares, weights, own_sigma = [], [], prediction.own_sigma
    for layouts, step_s in settings:
        every = len(layouts) // _MOST_LAYOUTS + 1
        off = np.log(step_s / prediction.step_time_s[layouts])[::every]
        own = own_sigma[layouts][::every]
        a, b = np.triu_indices(len(off), 1)
        if len(a):
            shares.append((np.abs(off[a] - off[b]) <= Z_80 * np.hypot(own[a], own[b])).mean())
            weights.append(len(layouts))
    return float(np.average(shares, weights=weights)) if shares else None


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
