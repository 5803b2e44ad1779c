"""How probable it is that a layout is the best of its size, and how much a winner is flattered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]

# Runs of one layout differ by 0.1 to 1.4 % in published repeats (standard deviation of ln time).
# Where nothing has been repeated the middle is taken; own repeats soon outweigh it.
USUAL_SIGMA = 0.007
_WORTH = 4  # degrees of freedom that this counts for
UNRESOLVED = (0.05, 0.95)  # probabilities of being best between which an order is not known
_DRAWS = 4000
_FAR = 6.0  # standard errors, beyond which no draw of thousands makes a layout the best
_SEED = 20_200
# of what its interval is: 95 % of a measured step, 80 % of an extended one; normal quantiles
_QUANTILE = {"extended": 1.2816}
_USUAL_QUANTILE = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of one layout: seconds of a step, and each one's own standard error, of ln."""

    step_times_s: Sequence[float]
    errors: Sequence[float]

    @property
    def log_mean(self) -> float:
        """The mean of the logarithms."""
        return math.fsum(math.log(seconds) for seconds in self.step_times_s) / len(self)

    @property
    def squares(self) -> float:
        """The sum of squares of the logarithms about their mean."""
        mean = self.log_mean
        return math.fsum((math.log(seconds) - mean) ** 2 for seconds in self.step_times_s)

    def __len__(self) -> int:
        return len(self.step_times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """Layouts of one size beside each other.

    probabilities: of being the best, in the order of the layouts.
    sigma: standard deviation of ln time between runs of one layout.
    optimism: ratio; how much faster the winner is measured than it is to be expected again.
    """

    probabilities: tuple[float, ...]
    sigma: float
    optimism: float

    @property
    def contenders(self) -> tuple[int, ...]:
        """Layouts whose order is not resolved; none where one is the best beyond doubt."""
        low, high = UNRESOLVED
        near = [row for row, p in enumerate(self.probabilities) if low <= p <= high]
        return tuple(near) if len(near) > 1 else ()


def between_runs(layouts: Sequence[Runs]) -> float:
    """Standard deviation of ln time between runs of one layout, pooled over all that were repeated.

    sigma^2 = (w s0^2 + sum of squares about each layout's mean) / (w + sum of (runs - 1)), with the
    usual s0 counting as w degrees of freedom.
    """
    squares, free = _WORTH * USUAL_SIGMA**2, float(_WORTH)
    for runs in layouts:
        squares += runs.squares
        free += len(runs) - 1
    return math.sqrt(squares / free)


def odds_of(layouts: Sequence[Runs], sigma: float | None = None) -> Odds:
    """Who may be the best, as drawn from what is measured and what it may be wrong by.

    A layout's mean of n runs is normal with variance sigma^2 / n and the mean of its runs' own
    variances over n. Optimism is that of the best of many: drawn again around what was measured,
    the winner of each draw is on average so much below its own true time (a parametric bootstrap;
    since measured times lie further apart than true ones, rather too small than too large).

    Args:
        layouts: of one size and setting.
        sigma: between runs; by default from these layouts.

    Raises:
        ValueError: there is no layout.
    """
    if not layouts:
        raise ValueError("there is no layout to be the best")
    sigma = between_runs(layouts) if sigma is None else sigma
    means = np.array([runs.log_mean for runs in layouts])
    errors = np.array(
        [
            math.sqrt(sigma**2 / len(runs) + sum(e**2 for e in runs.errors) / len(runs) ** 2)
            for runs in layouts
        ]
    )
    near = np.flatnonzero(means - _FAR * errors <= (means + _FAR * errors).min())
    random = np.random.default_rng(_SEED)
    drawn = means[near] + errors[near] * random.standard_normal((_DRAWS, len(near)))
    fastest = drawn.argmin(axis=1)
    winners = near[fastest]
    counts = np.bincount(winners, minlength=len(means))
    above = means[winners] - drawn[np.arange(_DRAWS), fastest]
    return Odds(
        probabilities=tuple((counts / _DRAWS).tolist()),
        sigma=sigma,
        optimism=math.expm1(float(above.mean())),
    )


def own_error(row: Mapping[str, float | None], series: str) -> float:
    """The standard error of ln time that a run's own interval says; 0 where it has none."""
    low, high = row["step_time_low_s"], row["step_time_high_s"]
    if not low or not high:
        return 0.0
    return math.log(high / low) / 2 / _QUANTILE.get(series, _USUAL_QUANTILE)


SCHEMA = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("world_size", pa.int64()),
        ("layout", pa.string()), ("stack_fingerprint", pa.string()), ("runs", pa.int64()),
        ("probability_best", pa.float64()), ("contender", pa.bool_()),
        ("between_run_sigma", pa.float64()), ("optimism", pa.float64()),
    ]
)  # fmt: skip

_TIMES = """
select setting_id, series, world_size, stack_fingerprint, layout,
    list({s: step_time_s, step_time_low_s: step_time_low_s, step_time_high_s: step_time_high_s}
        order by point_id) as runs
from measurements
where step_time_s is not null and series != 'predicted'
group by all
order by all
"""


def odds_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per setting, series, world_size, stack and layout that ran.

    The spread between runs is pooled over all sizes of a series and stack.
    """
    sizes: dict[tuple[int, str, int, str], list[tuple[str, Runs]]] = {}
    for setting, series, size, stack, layout, runs in connection.execute(_TIMES).fetchall():
        times = [run["s"] for run in runs]
        errors = [own_error(run, series) for run in runs]
        sizes.setdefault((setting, series, size, stack), []).append(
            (layout, Runs(step_times_s=times, errors=errors))
        )
    alike: dict[tuple[str, str], list[Runs]] = {}
    for (_, series, _, stack), layouts in sizes.items():
        alike.setdefault((series, stack), []).extend(runs for _, runs in layouts)
    sigmas = {key: between_runs(runs) for key, runs in alike.items()}
    records = []
    for (setting, series, size, stack), layouts in sizes.items():
        odds = odds_of([runs for _, runs in layouts], sigmas[series, stack])
        contenders = set(odds.contenders)
        for row, (layout, runs) in enumerate(layouts):
            records.append(
                {
                    "setting_id": setting, "series": series, "world_size": size, "layout": layout,
                    "stack_fingerprint": stack, "runs": len(runs),
                    "probability_best": odds.probabilities[row], "contender": row in contenders,
                    "between_run_sigma": odds.sigma, "optimism": odds.optimism,
                }
            )  # fmt: skip
    return pa.Table.from_pylist(records, schema=SCHEMA)
