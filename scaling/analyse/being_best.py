"""How probable it is that a layout is the best of its size, and how much a winner is flattered."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.analyse.ties import Z80, Z95

Values = npt.NDArray[np.float64]

# Runs of one layout differ by 0.1 to 1.4 % in published repeats (standard deviation of ln time).
# Where nothing has been repeated the middle is taken; own repeats soon outweigh it.
USUAL_SIGMA = 0.007
_WORTH = 4  # degrees of freedom that this counts for
UNRESOLVED = (0.05, 0.95)  # probabilities of being best between which an order is not known
_FAR = 6.0  # standard errors, beyond which a layout is not the best
_STEPS = 8  # of the integral, to a standard error: the fastest of thousands is a fourth as wide
_MOST_STEPS = 4096
_AT_ONCE = 1 << 20  # values of the integrand held in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of layouts, one entry of each array a layout; times as logarithms of seconds.

    counts: runs.
    log_means: of the runs' step times.
    squares: sum of squares of the runs' step times about their mean.
    error_squares: sum of squares of the runs' own standard errors.
    """

    counts: Values
    log_means: Values
    squares: Values
    error_squares: Values

    @classmethod
    def of(cls, layouts: Sequence[Sequence[tuple[float, float]]]) -> "Runs":
        """Of each layout's runs as seconds of a step, and its own standard error, of ln."""
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
    """Layouts of one size beside each other.

    probabilities: of being the best, in the order of the layouts.
    sigma: standard deviation of ln time between runs of one layout.
    optimism: ratio; how much faster the winner is measured than it is to be expected again.
    """

    probabilities: Values
    sigma: float
    optimism: float

    @property
    def contenders(self) -> tuple[int, ...]:
        """Layouts whose order is not resolved; none where one is the best beyond doubt."""
        low, high = UNRESOLVED
        near = np.flatnonzero((low <= self.probabilities) & (self.probabilities <= high))
        return tuple(near.tolist()) if len(near) > 1 else ()


def between_run_sigma(layouts: Runs) -> float:
    """Standard deviation of ln time between runs of one layout, pooled over all that were repeated.

    sigma^2 = (w s0^2 + sum of squares about each layout's mean) / (w + sum of (runs - 1)), with the
    usual s0 counting as w degrees of freedom.
    """
    squares = _WORTH * USUAL_SIGMA**2 + math.fsum(layouts.squares)
    return math.sqrt(squares / (_WORTH + float((layouts.counts - 1).sum())))


def odds_of_best(layouts: Runs, sigma: float | None = None) -> Odds:
    """Who may be the best, by what is measured and what it may be wrong by.

    A layout's mean of n runs is normal, with variance sigma^2 / n and the mean of its runs' own
    variances over n. With f its density and S its survival function, a layout is the best with the
    probability of the integral over x of f_i(x) times the product of all other S_j(x). Optimism is
    that of the best of many: drawn again around what was measured, a winner is on average, over the
    same integral, so much below its own true time (a parametric bootstrap; since measured times
    lie further apart than true ones, rather too small than too large).

    Args:
        layouts: of one size and setting.
        sigma: between runs; by default from these layouts.

    Raises:
        ValueError: there is no layout.
    """
    from scipy.special import log_ndtr  # a fourth of a second, for whoever has no rows

    if not len(layouts):
        raise ValueError("there is no layout to be the best")
    sigma = between_run_sigma(layouts) if sigma is None else sigma
    means, counts = layouts.log_means, layouts.counts
    errors = np.sqrt(sigma**2 / counts + layouts.error_squares / counts**2)
    latest = float((means + _FAR * errors).min())  # one of them is faster than that
    near = np.flatnonzero(means - _FAR * errors <= latest)
    means, errors = means[near, None], errors[near, None]
    earliest = float((means - _FAR * errors).min())
    # equal steps integrate normal densities to rounding where a step is small beside their width
    steps = math.ceil((latest - earliest) / float(errors.min()) * _STEPS)
    times = np.linspace(earliest, latest, min(steps, _MOST_STEPS))
    weights, below = np.zeros(len(near)), 0.0
    for block in np.array_split(times, math.ceil(len(times) * len(near) / _AT_ONCE)):
        away = (block - means) / errors
        later = log_ndtr(-away)
        first = np.exp(later.sum(axis=0) - later - away**2 / 2) / errors
        weights += first.sum(axis=1)
        below += float(((means - block) * first).sum())
    probabilities = np.zeros(len(layouts))
    probabilities[near] = weights / weights.sum()
    optimism = math.expm1(below / float(weights.sum()))
    return Odds(probabilities=probabilities, sigma=sigma, optimism=optimism)


def run_standard_error(row: Mapping[str, float | None], series: str) -> float:
    """The standard error of ln time that a run's own interval says; 0 where it has none.

    The interval is of 95 % of a measured step, of 80 % of an extended one.
    """
    low, high = row["step_time_low_s"], row["step_time_high_s"]
    if not low or not high:
        return 0.0
    return math.log(high / low) / 2 / (Z80 if series == "extended" else Z95)


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

    The spread between runs is pooled over all sizes of a series and stack.
    """
    table = connection.sql(_RUNS).to_arrow_table()
    runs = Runs(**{name: table[name].to_numpy() for name in Runs.__slots__})
    pools = table["pool"].to_numpy()
    sigmas = [between_run_sigma(runs[pools == pool]) for pool in np.unique(pools)]
    starts = np.flatnonzero(np.diff(table["field"].to_numpy(), prepend=-1))
    best, contender, sigma, optimism = np.zeros((4, len(runs)))
    for start, end in itertools.pairwise([*starts.tolist(), len(runs)]):
        here = slice(start, end)
        odds = odds_of_best(runs[here], sigmas[pools[start]])
        best[here], sigma[here], optimism[here] = odds.probabilities, odds.sigma, odds.optimism
        contender[here][list(odds.contenders)] = 1
    for name, values in zip(SCHEMA.names[-4:], (best, contender > 0, sigma, optimism), strict=True):
        table = table.append_column(name, pa.array(values))
    return table.select(SCHEMA.names).cast(SCHEMA)
