"""Baselines to compare the model with: nearest neighbour, boosted trees, and a rule of thumb.

They learn step times from rows; all they take from data sheets is the peak FLOP/s.
"""

import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
from scipy.spatial.distance import cdist

from scaling.foreign.arrays import Flags, Floats
from scaling.predict.cost.stages import head_params, multiplied_params
from scaling.predict.fit.rivals import Rows, Setting, regrets_of
from scaling.predict.read.features import Group, Points
from scaling.predict.read.observed import Observed

_FEWEST_TO_LEARN = 10
# Features for neighbours and trees, sizes and degrees as log2.
_LOGARITHMS = (
    "num_layers", "hidden_size", "seq_length", "world_size", "tp", "pp", "cp", "dp",
    "micro_batch_size", "accumulation",
)  # fmt: skip
_PLAIN = ("zero_stage", "sequence_parallel", "full", "selective", "math", "fused_softmax")

TREES_MISSING = "gradient-boosted trees are left out: scikit-learn is not installed"


def trees_available() -> bool:
    """Whether scikit-learn is installed, which only development needs."""
    return importlib.util.find_spec("sklearn") is not None


def neighbour_scaled(points: Points, observed: Observed, fitted: Flags, wanted: Flags) -> Floats:
    """Step seconds of the nearest measured layout, scaled by work per GPU, (n,); NaN without rows.

    Work is the FLOPs of a step over GPUs times their peak. Distance is the sum of absolute feature
    differences, where a doubling counts 1.
    """

    def nearest(about: Floats, log_share: Floats, about_wanted: Floats) -> Floats:
        return np.asarray(log_share[cdist(about_wanted, about, "cityblock").argmin(axis=1)])

    return _learned(points, observed, fitted, wanted, nearest, fewest=1)


def boosted_trees(points: Points, observed: Observed, fitted: Flags, wanted: Flags) -> Floats:
    """Step seconds by gradient-boosted trees on ln(time / work), (n,); NaN without rows.

    Raises:
        ImportError: scikit-learn is missing.
    """
    from sklearn.ensemble import GradientBoostingRegressor

    trees = GradientBoostingRegressor(
        n_estimators=300, max_depth=4, learning_rate=0.05, subsample=0.8, random_state=0
    )

    def grown(about: Floats, log_share: Floats, about_wanted: Floats) -> Floats:
        return np.asarray(trees.fit(about, log_share).predict(about_wanted))

    return _learned(points, observed, fitted, wanted, grown, fewest=_FEWEST_TO_LEARN)


def _learned(
    points: Points,
    observed: Observed,
    fitted: Flags,
    wanted: Flags,
    learner: Callable[[Floats, Floats, Floats], Floats],
    *,
    fewest: int,
) -> Floats:
    """Work times exp of what `learner` predicts of ln(time / work), (n,).

    NaN unless at least `fewest` rows can be learned from.
    """
    about, work_s = _described(points)
    known = np.isfinite(work_s)
    seen, wanted = fitted & observed.timed & known, wanted & known
    step_s = np.full(len(points), np.nan)
    if seen.sum() >= fewest and wanted.any():
        log_share = np.log(observed.step_time_s[seen] / work_s[seen])
        step_s[wanted] = np.exp(learner(about[seen], log_share, about[wanted])) * work_s[wanted]
    return step_s


def rule_regrets(points: Points, settings: Sequence[Setting]) -> list[float]:
    """Regret, per setting, of the rule of thumb: pp 1, tp 4, the largest micro-batch that ran.

    Without such a layout: the one with the fewest stages, then with the nearest tp.
    """
    values = {name: np.full(len(points), np.nan) for name in ("pp", "tp", "micro_batch_size")}
    for group in points.groups:
        for name, column in values.items():
            column[group.rows] = getattr(group.features, name)

    def pick(at: Rows) -> Rows:
        far = np.abs(np.log2(values["tp"][at] / 4))
        return np.lexsort((-values["micro_batch_size"][at], far, values["pp"][at]))[:1]

    return regrets_of(settings, pick)


def _described(points: Points) -> tuple[Floats, Floats]:
    """Features of each layout, (n, k), and its step seconds at the GPUs' peak, (n,).

    FLOPs are 6 per weight that a token meets, 2 more under full checkpointing, and attention's.
    """
    about = np.zeros((len(points), len(_LOGARITHMS) + len(_PLAIN)))
    work_s = np.full(len(points), np.nan)
    for group in points.groups:
        f = group.features
        columns = [np.log2(np.asarray(getattr(f, name), dtype=np.float64)) for name in _LOGARITHMS]
        columns += [np.asarray(getattr(f, name), dtype=np.float64) for name in _PLAIN]
        about[group.rows] = np.stack(columns, axis=1)
        work_s[group.rows] = _work_s(points, group)
    return about, work_s


def _work_s(points: Points, group: Group) -> Floats:
    f = group.features
    scores = 4 * f.causal * f.attentions * f.query_width * f.seq_length
    per_layer = 6 * (multiplied_params(f) + scores) * np.where(f.full, 4 / 3, 1.0)
    per_token = f.num_layers * per_layer + 6 * head_params(f)
    flops = per_token * points.tokens_per_step[group.rows]
    return np.asarray(flops / (f.world_size * f.gemm_peak))
