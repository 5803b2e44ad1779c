"""How often intervals and odds hold, and how often correct ones would on as many rows."""

from itertools import pairwise

import numpy as np

from scaling.predict.cost.interval import OWN_TAIL_FACTOR
from scaling.predict.cost.model import Prediction
from scaling.predict.cost.ratios import chance_faster, ratio_sigma
from scaling.predict.fit.rivals import Pairs, Rows, rows_by
from scaling.predict.read.calibration import Z_80
from scaling.predict.read.features import Points
from scaling.predict.read.observed import Observed

# Low and high share of `steps` and of `ratios` covered, None where there are none.
Expected = dict[str, list[float] | None]

_DRAWS = 200
# Rows that a prior is worth; the 80 % quantile of n errors is off by 0.9 / sqrt(n).
_ROWS_BEFORE, _QUANTILE_NOISE = 30, 0.9
_SAID = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def ratios_covered(observed: Observed, prediction: Prediction, pairs: Pairs) -> float | None:
    """Share of time ratios of rivals inside their 80 % interval, None without rivals."""
    if not len(pairs.a):
        return None
    off = np.log(observed.step_time_s / prediction.step_time_s)
    own = prediction.own_sigma
    reach = Z_80 * ratio_sigma(own[pairs.a], own[pairs.b])
    return float(np.average(np.abs(off[pairs.a] - off[pairs.b]) <= reach, weights=pairs.weight))


def odds_calibration(
    observed: Observed, prediction: Prediction, pairs: Pairs
) -> list[dict[str, float]]:
    """By bins of predicted odds that one of two rivals is faster, the share for which it held.

    Records of `from` (lower end of the bin), `pairs`, `said` (mean odds) and `held`.
    """
    step, own, measured = prediction.step_time_s, prediction.own_sigma, observed.step_time_s
    a, b = pairs.a, pairs.b
    odds = chance_faster(step[a], step[b], ratio_sigma(own[a], own[b]))
    said = np.maximum(odds, 1 - odds)
    # of two that took equally long neither was faster
    held = np.where(measured[a] == measured[b], 0.5, (odds > 0.5) == (measured[a] < measured[b]))
    table = []
    for low, high in pairwise(_SAID):
        # two layouts that are predicted alike are no bet
        inside = (said >= low) & (said < high) & (odds != 0.5)
        if inside.any():
            weight = pairs.weight[inside]
            shares = (float(np.average(each[inside], weights=weight)) for each in (said, held))
            table.append(
                {"from": low, "pairs": int(inside.sum())}
                | dict(zip(("said", "held"), shares, strict=True))
            )
    return table


def expected_coverage(
    points: Points, prediction: Prediction, rows: Rows, pairs: Pairs, calibrated_rows: int
) -> Expected:
    """Range of the share that correct intervals of these rows would cover, 8 times in 10.

    Errors are drawn as predicted: normal, in part shared by a model and by a size. A table of one
    model is thus one draw of what it shares, however many rows it has. Widths learned from n rows
    are themselves off by 0.9 / sqrt(n + 30), log scale. Draws go to the rows in the order given.
    """
    if not rows.size:
        return {"steps": None, "ratios": None}
    own, size = prediction.own_sigma[rows], prediction.size_sigma[rows]
    reach = np.log(prediction.step_time_s / prediction.low)[rows]
    # stalls widen a layout's own error only in ratios and in `high`
    own_share = np.minimum(OWN_TAIL_FACTOR, reach / Z_80 / own)
    common = np.sqrt(np.maximum((reach / Z_80) ** 2 - (own_share * own) ** 2 - size**2, 0))
    columns = (points.framework, points.cluster, points.model, points.world_size)
    keys = [column[rows] for column in columns]
    everyone = np.ones(len(rows), dtype=bool)
    by_model, by_size = (
        [each for _, each in sorted(rows_by(tuple(of), everyone).items())]
        for of in (keys[:3], keys)
    )
    place = np.empty(len(points), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    a, b = place[pairs.a], place[pairs.b]
    width = _QUANTILE_NOISE / np.sqrt(calibrated_rows + _ROWS_BEFORE) if calibrated_rows else 0.0
    draw = np.random.default_rng(0)
    ratio_reach = Z_80 * ratio_sigma(own[a], own[b])
    steps, ratios = [], []
    for _ in range(_DRAWS):
        alone = own * np.exp(width * draw.normal()) * draw.normal(size=len(own))
        shared = np.zeros(len(own))
        for each in by_model:
            shared[each] += common[each] * draw.normal()
        for each in by_size:
            shared[each] += size[each] * draw.normal()
        steps.append((np.abs(own_share * alone + shared) <= reach).mean())
        if len(a):
            held = np.abs(alone[a] - alone[b]) <= ratio_reach
            ratios.append(np.average(held, weights=pairs.weight))
    ends = [np.quantile(each, [0.1, 0.9]).tolist() if each else None for each in (steps, ratios)]
    return dict(zip(("steps", "ratios"), ends, strict=True))
