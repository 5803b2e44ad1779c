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


FEWEST_PAIRS = 3  # fewer pairs of layouts do not show how others would spread
_OTHERS_WEIGHT = 4  # degrees of freedom that the spread of a setting's other effects counts for

_EFFECT = ("setting_id", "series", "factor_id", "from_place", "to_place")
EFFECTS = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("factor_id", pa.int64()),
        ("from_place", pa.float64()), ("to_place", pa.float64()), ("near_low", pa.float64()),
        ("near_high", pa.float64()),
    ]
)  # fmt: skip

# Of each effect: the spread of its pairs of layouts, each averaged over the sizes. A pair that
# differs from others does so at all sizes alike, so sizes are no further evidence.
_SPREADS = f"""
with layout_pairs as (
    select {", ".join(_EFFECT)}, avg(ln(ratio)) as mean, sum(ln(ratio)) as total, count(*) as sizes
    from matched_pairs
    where near
    group by {", ".join(_EFFECT)}, from_layout_id, to_layout_id
)
select
    {", ".join(_EFFECT)}, sum(total) / sum(sizes) as mean,
    var_pop(mean) * count(*) as squares, count(*) - 1 as freedom,
    sum(sizes ** 2) / sum(sizes) ** 2 as share  -- of the variance of a pair, in that of the mean
from layout_pairs
group by all
having count(*) >= {FEWEST_PAIRS}
order by all
"""


def effect_intervals(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per effect with at least FEWEST_PAIRS pairs of layouts near the fastest.

    95 % interval of the geometric mean ratio for all effects of a setting and series together: in
    19 of 20 settings every one of them holds its mean over other layouts (Student's t, Bonferroni).
    So few pairs hardly show their spread; that of the other effects counts as well.
    """
    from scipy.special import stdtrit  # takes a quarter of a second, needed only with rows

    columns = connection.sql(_SPREADS).to_arrow_table()
    mean, squares, freedom, share = (columns[name].to_numpy() for name in columns.column_names[-4:])
    keys = zip(columns["setting_id"].to_pylist(), columns["series"].to_pylist(), strict=True)
    half = np.empty(len(mean))
    for _, group in itertools.groupby(enumerate(keys), key=lambda row: row[1]):
        of = [row for row, _ in group]
        others = freedom[of].sum() - freedom[of]
        weight = np.minimum(_OTHERS_WEIGHT, others)
        prior = weight * (squares[of].sum() - squares[of]) / np.maximum(others, 1)
        degrees = weight + freedom[of]
        error = np.sqrt((prior + squares[of]) / degrees * share[of])
        half[of] = stdtrit(degrees, 1 - (1 - _LEVELS[1]) / len(of)) * error
    ends = {"near_low": np.exp(mean - half), "near_high": np.exp(mean + half)}
    return pa.table({name: columns[name] for name in _EFFECT} | ends).cast(EFFECTS)
