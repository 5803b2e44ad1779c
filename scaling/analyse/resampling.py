"""Intervals of the returns of steps between sizes (bootstrap) and of the mean of an effect."""

import itertools
from collections.abc import Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.record.interval import resampled_medians

Rates = npt.NDArray[np.float64]

RESAMPLES = 1000
_SEED = 20_200  # fixed, so that the same rows give the same intervals
_LEVELS = (0.025, 0.975)

SCHEMA = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()),
        ("from_world_size", pa.int64()), ("to_world_size", pa.int64()),
        ("marginal_low", pa.float64()), ("marginal_high", pa.float64()),
        ("share_low", pa.float64()), ("share_high", pa.float64()),
        ("elasticity_low", pa.float64()), ("elasticity_high", pa.float64()),
        ("efficiency_low", pa.float64()), ("efficiency_high", pa.float64()),
    ]
)  # fmt: skip

_STEPS = """
select setting_id, series, world_size, tokens_per_step, step_times_s
from winner_rows
where fastest and step_times_s is not null
order by setting_id, series, world_size, point_id
"""


def resampled_steps(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per step between neighbouring sizes for which both ends kept their step times.

    95 % bootstrap percentile intervals: first repeats are drawn, then blocks of steps within each
    drawn repeat (scaling.record.interval), so that differences between repeats are included. With
    one repeat the interval describes that run only.
    """
    rows = connection.execute(_STEPS).fetchall()
    runs: dict[tuple[int, str], dict[int, list[Rates]]] = {}
    for setting, series, size, tokens, seconds in rows:
        sizes = runs.setdefault((setting, series), {})
        sizes.setdefault(size, []).append(tokens / np.asarray(seconds, dtype=float))
    records = []
    for (setting, series), sizes in runs.items():
        random = np.random.default_rng(_SEED)
        draws = {size: resampled_rates(sizes[size], random) for size in sorted(sizes)}
        ordered = list(draws)
        for small, large in itertools.pairwise(ordered):
            values = step_values(
                draws[ordered[0]], ordered[0], draws[small], small, draws[large], large
            )
            ends = {
                f"{name}_{end}": float(np.quantile(drawn, level))
                for name, drawn in values.items()
                for end, level in zip(("low", "high"), _LEVELS, strict=True)
            }
            records.append(
                {
                    "setting_id": setting, "series": series, "from_world_size": small,
                    "to_world_size": large, **ends,
                }
            )  # fmt: skip
    return pa.Table.from_pylist(records, schema=SCHEMA)


def resampled_rates(repeats: Sequence[Rates], random: np.random.Generator) -> Rates:
    """Medians of resampled rates, (RESAMPLES,): the median over drawn repeats of median steps."""
    drawn = random.integers(len(repeats), size=(RESAMPLES, len(repeats)))
    medians = np.empty(drawn.shape)
    for number, rates in enumerate(repeats):
        taken = drawn == number
        medians[taken] = resampled_medians(rates, int(taken.sum()), random)
    return np.asarray(np.median(medians, axis=1))


def step_values(
    first: Rates, n: int, before: Rates, n0: int, after: Rates, n1: int
) -> dict[str, Rates]:
    """What the step from n0 to n1 GPUs returned; rates are tokens/s, n is the smallest size."""
    marginal = (after - before) / (n1 - n0)
    return {
        "marginal": marginal,
        "share": marginal / (first / n),
        "elasticity": np.log(after / before) / np.log(n1 / n0),
        "efficiency": after / n1 / (first / n),
    }


FEWEST_PAIRS = 3  # fewer do not show how other pairs would spread

_EFFECT = ("setting_id", "series", "factor_id", "from_place", "to_place")
EFFECTS = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("factor_id", pa.int64()),
        ("from_place", pa.float64()), ("to_place", pa.float64()), ("near_low", pa.float64()),
        ("near_high", pa.float64()),
    ]
)  # fmt: skip


def effect_intervals(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per effect with at least FEWEST_PAIRS pairs near the fastest layouts.

    95 % interval of the geometric mean ratio by Student's t over the pairs. A bootstrap of three
    pairs holds the mean 73 times in 100, of ten 90 times.
    """
    from scipy.special import stdtrit  # takes a quarter of a second, needed only with rows

    effects = connection.execute(
        f"select {', '.join(_EFFECT)}, list(ln(ratio) order by world_size, to_layout_id) "
        f"from matched_pairs where near group by all having count(*) >= {FEWEST_PAIRS} order by all"
    ).fetchall()
    records = []
    for *keys, logarithms in effects:
        values = np.asarray(logarithms)
        error = values.std(ddof=1) / len(values) ** 0.5
        half = stdtrit(len(values) - 1, _LEVELS[1]) * error
        low, high = values.mean() - half, values.mean() + half
        ends = {"near_low": float(np.exp(low)), "near_high": float(np.exp(high))}
        records.append({**dict(zip(_EFFECT, keys, strict=True)), **ends})
    return pa.Table.from_pylist(records, schema=EFFECTS)
