"""Bootstrap of what the steps between neighbouring sizes returned, from the steps as timed."""

import itertools
from collections.abc import Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.record.interval import resampled_medians

Rates = npt.NDArray[np.float64]

RESAMPLES = 1000
_SEED = 20_200  # fixed: the same rows give the same intervals
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
    """One row per step between neighbouring sizes whose both ends kept their step times.

    Bootstrap percentile intervals, 95 %: repeats are drawn first, then blocks of steps of each
    drawn repeat (scaling.record.interval), so that the difference between runs is inside as far as
    repeats have sampled it. With one repeat it is of one run.
    """
    groups = connection.execute(_STEPS).fetchall()
    runs: dict[tuple[int, str], dict[int, list[Rates]]] = {}
    for setting, series, size, tokens, seconds in groups:
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
    """Medians of resampled rates, (RESAMPLES,): over drawn repeats of the median drawn step."""
    drawn = random.integers(len(repeats), size=(RESAMPLES, len(repeats)))
    medians = np.empty(drawn.shape)
    for number, rates in enumerate(repeats):
        taken = drawn == number
        medians[taken] = resampled_medians(rates, int(taken.sum()), random)
    return np.asarray(np.median(medians, axis=1))


def step_values(
    first: Rates, n: int, before: Rates, n0: int, after: Rates, n1: int
) -> dict[str, Rates]:
    """What one step returned, for rates (tokens/s) at the smallest size n and at n0 < n1."""
    marginal = (after - before) / (n1 - n0)
    return {
        "marginal": marginal,
        "share": marginal / (first / n),
        "elasticity": np.log(after / before) / np.log(n1 / n0),
        "efficiency": after / n1 / (first / n),
    }
