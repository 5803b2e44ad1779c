"""Whether steps became slower with time, with the hour of the day or on a node: tests of residuals.

A drift that falls on some layouts only would look like a property of theirs.
"""

import math

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]

_SHUFFLES = 2000
_SEED = 20_200
_FEWEST = 5  # runs with a residual, below which nothing is tested
_SHUFFLED = 2000  # runs, above which the effects of shuffles are drawn from their distribution

SCHEMA = pa.schema(
    [
        ("series", pa.string()), ("cluster", pa.string()), ("stack_fingerprint", pa.string()),
        ("test", pa.string()), ("host", pa.string()), ("residual_of", pa.string()),
        ("runs", pa.int64()), ("effect", pa.float64()), ("p_value", pa.float64()),
    ]
)  # fmt: skip

_GROUP = ("series", "cluster", "stack_fingerprint")

# Of a run against the mean of all runs of its point's layout; where nothing was repeated, against
# the prediction, less its median error over the runs of the same stack.
_RUNS = """
with timed as (
    select series, cluster, stack_fingerprint, point_id, hosts,
        epoch(try_cast(started_at as timestamp)) / 86400 as day,
        hash(series, cluster, stack_fingerprint) as field,
        hash(field, setting_id, world_size, layout) as same,
        ln(step_time_s) as y,
        ln(step_time_s / predicted_s) as off
    from measurements
    join settings using (setting_id)
    left join (
        select point_id, step_time_s as predicted_s from measurements where series = 'predicted'
    ) using (point_id)
    where step_time_s is not null and series in ('measured', 'extended')
        and day is not null
),
repeated as (select same, avg(y) as y from timed group by same having count(*) > 1),
middle as (select field, median(off) as off from timed group by field)
select
    field, series, cluster, stack_fingerprint, point_id, hosts, day,
    timed.y - repeated.y as repeats,
    timed.off - middle.off as prediction
from timed
left join repeated using (same)
join middle using (field)
"""


def drift_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per series, cluster, stack and test; of the test `node` one per host.

    Residuals are of ln step time, so effects are ratios: `time` per day (a slope), `hour` between
    the highest and the lowest of a day's wave (a cosine of the UTC hour), `node` of the mean run
    on a host to that of the others. p_value: share of 2,000 shuffles of the residuals whose effect
    is at least as large; of `node` that of the largest of all hosts, so that many hosts are no
    many chances.
    """
    table = connection.sql(_RUNS).to_arrow_table()
    records = []
    fields = table["field"].to_numpy()
    for field in np.unique(fields):
        runs = table.filter(fields == field)
        for residual_of in ("repeats", "prediction"):
            used = runs.filter(runs[residual_of].is_valid())
            if len(used) < _FEWEST:
                continue
            if len(used) <= _SHUFFLED:  # what a shuffle draws depends on the order
                used = used.sort_by([("day", "ascending"), ("point_id", "ascending")])
            common = {
                **{name: used[name][0].as_py() for name in _GROUP},
                "residual_of": residual_of, "runs": len(used),
            }  # fmt: skip
            tests = residual_tests(
                used[residual_of].to_numpy(),
                used["day"].to_numpy(),
                used["hosts"].combine_chunks(),
            )
            records += [common | test for test in tests]
            break
    return pa.Table.from_pylist(records, schema=SCHEMA)


def residual_tests(residuals: Values, days: Values, hosts: pa.ListArray) -> list[dict[str, object]]:
    """The three tests.

    Args:
        residuals: of ln step time, (runs,).
        days: when each run began, in days.
        hosts: names of those that each run was on.
    """
    tests: list[tuple[str, str | None]] = []
    weights: list[Values] = []  # of each residual: their weighted sums are the effects
    if np.ptp(days) > 0:
        away = days - days.mean()
        angle = 2 * math.pi * (days % 1.0)
        waves = [(wave - wave.mean()) / len(days) for wave in (np.cos(angle), np.sin(angle))]
        tests += [("time", None), ("hour", None)]
        weights += [away / float(away @ away), *waves]
    nodes = [(name, here) for name, here in _runs_on(hosts).items() if not here.all()]
    tests += [("node", name) for name, _ in nodes]
    weights += [here / here.sum() - ~here / (~here).sum() for _, here in nodes]
    if not tests:
        return []
    sums = np.stack(weights)
    effects, shuffled = sums @ residuals, _shuffled_effects(residuals, sums)
    if tests[0][0] == "time":  # a wave has two weighted sums and one height
        effects = np.delete(effects, 2)
        effects[1] = np.hypot(*(sums[1:3] @ residuals))
        shuffled[:, 1] = np.hypot(shuffled[:, 1], shuffled[:, 2])
        shuffled = np.delete(shuffled, 2, axis=1)
    sizes = np.abs(shuffled)
    first_node = len(tests) - len(nodes)
    if nodes:
        sizes[:, first_node:] = sizes[:, first_node:].max(axis=1, keepdims=True)
    beyond = (sizes >= np.abs(effects) - 1e-12).mean(axis=0)
    return [
        {
            "test": test, "host": host, "p_value": float(beyond[row]),
            "effect": math.expm1(effects[row] * (4 if test == "hour" else 1)),
        }
        for row, (test, host) in enumerate(tests)
    ]  # fmt: skip


def _shuffled_effects(residuals: Values, weights: Values) -> Values:
    """What the weighted sums of 2,000 shuffles of the residuals are: (shuffles, sums).

    Of many runs they are drawn: a sum with weights w that add up to 0 has the mean 0 over all
    shuffles and, with another of weights v, the covariance (w . v) s^2, s^2 being the residuals'
    variance (ddof 1); of many it is normal (Hoeffding, "A combinatorial central limit theorem",
    Annals of Mathematical Statistics 22, 1951).
    """
    random = np.random.default_rng(_SEED)
    if len(residuals) <= _SHUFFLED:
        shuffled = np.stack([random.permutation(residuals) for _ in range(_SHUFFLES)])
        return np.asarray(shuffled @ weights.T)
    covariance = weights @ weights.T * residuals.var(ddof=1)
    return random.multivariate_normal(np.zeros(len(weights)), covariance, _SHUFFLES, method="eigh")


def _runs_on(hosts: pa.ListArray) -> dict[str, npt.NDArray[np.bool_]]:
    """Which runs each host took part in, by its name."""
    names = hosts.flatten().dictionary_encode()
    runs = np.zeros((len(names.dictionary), len(hosts)), dtype=bool)
    lengths = hosts.value_lengths().fill_null(0).to_numpy()
    runs[names.indices.to_numpy(), np.repeat(np.arange(len(hosts)), lengths)] = True
    return dict(sorted(zip(names.dictionary.to_pylist(), runs, strict=True)))
