"""The probability that a layout is the best of its size, and how much the winner is flattered."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.analyse.ties import interval_z

Values = npt.NDArray[np.float64]

# Standard deviation of ln time between runs of one layout, 0.1 to 1.4 % in published repeats: the
# starting value, which repeats of the study soon outweigh.
USUAL_SIGMA = 0.007
_USUAL_SIGMA_WEIGHT = 4  # degrees of freedom that it counts for
UNRESOLVED = (0.05, 0.95)  # the order is not resolved between these probabilities of being best
_FAR = 6.0  # standard errors beyond which a layout cannot be the best
# Steps of the integral per standard error; the density of the fastest of thousands is a fourth as
# wide as that of one layout.
_STEPS = 8
_MOST_STEPS = 4096
_AT_ONCE = 1 << 20  # values of the integrand held in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of several layouts, one array entry per layout; times as ln of seconds.

    counts: runs of the layout.
    log_means: mean over the runs' step times.
    squares: sum of squares of these step times about their mean.
    error_squares: sum of the squared standard errors of the runs.
    """

    counts: Values
    log_means: Values
    squares: Values
    error_squares: Values

    @classmethod
    def of(cls, layouts: Sequence[Sequence[tuple[float, float]]]) -> "Runs":
        """From each layout's runs: seconds of a step, and the standard error of its ln."""
        logs = [np.log([seconds for seconds, _ in runs]) for runs in layouts]
        return cls(
            counts=np.array([len(runs) for runs in layouts], dtype=float),
            log_means=np.array([log.mean() for log in logs]),
            squares=np.array([float(log.var()) * len(log) for log in logs]),
            error_squares=np.array([sum(error**2 for _, error in runs) for runs in layouts]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, layouts: slice | npt.NDArray[np.bool_]) -> "Runs":
        return Runs(**{name: getattr(self, name)[layouts] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """The comparison of the layouts of one size.

    probabilities: of being the best, in the order of the layouts.
    sigma: standard deviation of ln time between runs of one layout.
    optimism: ratio by which the winner was measured faster than a new run of it is expected to be.
    """

    probabilities: Values
    sigma: float
    optimism: float

    @property
    def contenders(self) -> tuple[int, ...]:
        """Layouts whose order is not resolved; none if one is clearly the best."""
        low, high = UNRESOLVED
        near = np.flatnonzero((low <= self.probabilities) & (self.probabilities <= high))
        return tuple(near.tolist()) if len(near) > 1 else ()


def between_run_sigma(layouts: Runs) -> float:
    """Standard deviation of ln time between runs of one layout, pooled over the repeated layouts.

    sigma^2 = (w s0^2 + sum of squares about each layout's mean) / (w + sum of (runs - 1)), with the
    usual s0 counting as w degrees of freedom.
    """
    squares = _USUAL_SIGMA_WEIGHT * USUAL_SIGMA**2 + math.fsum(layouts.squares)
    return math.sqrt(squares / (_USUAL_SIGMA_WEIGHT + float((layouts.counts - 1).sum())))


def odds_of_best(layouts: Runs, sigma: float | None = None) -> Odds:
    """Compute the probability of each layout to be the fastest, and the optimism of the winner.

    The mean of n runs of a layout is taken as normal; its variance is sigma^2 / n plus the mean
    variance of its runs over n. With density f and survival function S, layout i is the fastest
    with probability integral over x of f_i(x) times the product of all other S_j(x). The optimism
    is the average, over the same integral, of how far a winner drawn around the measured values
    lies below its true time: a parametric bootstrap, too small rather than too large, because
    measured times are further apart than true ones.

    Args:
        layouts: of one size and setting.
        sigma: standard deviation of ln time between runs; by default from these layouts.

    Raises:
        ValueError: there is no layout.
    """
    from scipy.special import log_ndtr  # takes a quarter of a second, needed only with rows

    if not len(layouts):
        raise ValueError("there is no layout to be the best")
    sigma = between_run_sigma(layouts) if sigma is None else sigma
    means, counts = layouts.log_means, layouts.counts
    errors = np.sqrt(sigma**2 / counts + layouts.error_squares / counts**2)
    latest = float((means + _FAR * errors).min())  # the best is surely faster than this
    possible = np.flatnonzero(means - _FAR * errors <= latest)
    means, errors = means[possible, None], errors[possible, None]
    earliest = float((means - _FAR * errors).min())
    # sums over equal steps integrate normal densities to rounding if steps are small enough
    steps = math.ceil((latest - earliest) / float(errors.min()) * _STEPS)
    times = np.linspace(earliest, latest, min(steps, _MOST_STEPS))
    weights, below = np.zeros(len(possible)), 0.0
    for block in np.array_split(times, math.ceil(len(times) * len(possible) / _AT_ONCE)):
        z = (block - means) / errors
        log_survival = log_ndtr(-z)
        density = np.exp(log_survival.sum(axis=0) - log_survival - z**2 / 2) / errors
        weights += density.sum(axis=1)
        below += float(((means - block) * density).sum())
    probabilities = np.zeros(len(layouts))
    probabilities[possible] = weights / weights.sum()
    optimism = math.expm1(below / float(weights.sum()))
    return Odds(probabilities=probabilities, sigma=sigma, optimism=optimism)


def run_standard_error(row: Mapping[str, float | None], series: str) -> float:
    """The standard error of ln time that follows from a run's interval; 0 if it has none."""
    low, high = row["step_time_low_s"], row["step_time_high_s"]
    if not low or not high:
        return 0.0
    return math.log(high / low) / 2 / interval_z(series)


SCHEMA = pa.schema(
    [
        ("setting_id", pa.int64()), ("series", pa.string()), ("world_size", pa.int64()),
        ("layout", pa.string()), ("stack_fingerprint", pa.string()), ("runs", pa.int64()),
        ("probability_best", pa.float64()), ("contender", pa.bool_()),
        ("between_run_sigma", pa.float64()), ("optimism", pa.float64()),
    ]
)  # fmt: skip

_RUNS = """
select
    setting_id, series, world_size, layout, stack_fingerprint, counts::bigint as runs,
    counts, log_means, squares, error_squares,
    dense_rank() over (order by setting_id, series, world_size, stack_fingerprint) - 1 as field,
    dense_rank() over (order by series, stack_fingerprint) - 1 as pool
from pooled_runs
where counts > 0 and series != 'predicted'
order by field, layout
"""


def odds_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per setting, series, world_size, stack and layout that ran.

    The standard deviation between runs is pooled over all sizes of a series and stack.
    """
    table = connection.sql(_RUNS).to_arrow_table()
    runs = Runs(**{name: table[name].to_numpy() for name in Runs.__slots__})
    pools = table["pool"].to_numpy()
    sigmas = [between_run_sigma(runs[pools == pool]) for pool in np.unique(pools)]
    starts = np.flatnonzero(np.diff(table["field"].to_numpy(), prepend=-1))
    best, contender, sigma, optimism = np.zeros((4, len(runs)))
    for start, end in itertools.pairwise([*starts.tolist(), len(runs)]):
        rows = slice(start, end)
        odds = odds_of_best(runs[rows], sigmas[pools[start]])
        best[rows], sigma[rows], optimism[rows] = odds.probabilities, odds.sigma, odds.optimism
        contender[rows][list(odds.contenders)] = 1
    for name, values in zip(SCHEMA.names[-4:], (best, contender > 0, sigma, optimism), strict=True):
        table = table.append_column(name, pa.array(values))
    return table.select(SCHEMA.names).cast(SCHEMA)
