"""Test whether step times drift with time, with the hour of the day or between nodes.

A drift that affects only some layouts would look like a property of these layouts.
"""

import math

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]

_SHUFFLES = 2000
_SEED = 20_200
_FEWEST_RUNS = 5  # with a residual; below, nothing is tested
_FEWEST_DAYS = 1.0  # spanned by the runs; in less, an hour of the day is only a time
_LARGEST_LOG = 100.0  # of an effect per day; a larger one is no number for anybody
_MOST_SHUFFLED_RUNS = 2000  # above, effects of shuffles are drawn from their known distribution

SCHEMA = pa.schema(
    [
        ("series", pa.string()), ("cluster", pa.string()), ("stack_fingerprint", pa.string()),
        ("test", pa.string()), ("host", pa.string()), ("residual_of", pa.string()),
        ("runs", pa.int64()), ("effect", pa.float64()), ("change", pa.float64()),
        ("p_value", pa.float64()),
    ]
)  # fmt: skip

_GROUP = ("series", "cluster", "stack_fingerprint")

# Residuals of ln step time: against the mean of all runs of the layout at that size and, for
# studies without repeats, against the prediction corrected by its median error on that stack.
_RUNS = """
with timed as (
    select series, cluster, stack_fingerprint, point_id, hosts,
        epoch(try_cast(started_at as timestamp)) / 86400 as day,
        hash(series, cluster, stack_fingerprint) as field,
        hash(field, setting_id, world_size, layout) as layout_id,
        ln(step_time_s) as log_time,
        ln(step_time_s / predicted_s) as log_error
    from measurements
    join settings using (setting_id)
    left join (
        select point_id, step_time_s as predicted_s from measurements where series = 'predicted'
    ) using (point_id)
    where step_time_s is not null and series in ('measured', 'extended')
        and day is not null
),
repeated as (
    select layout_id, avg(log_time) as log_time from timed group by layout_id having count(*) > 1
),
corrections as (select field, median(log_error) as log_error from timed group by field)
select
    field, series, cluster, stack_fingerprint, point_id, hosts, day,
    timed.log_time - repeated.log_time as repeats,
    timed.log_error - corrections.log_error as prediction
from timed
left join repeated using (layout_id)
join corrections using (field)
"""


def drift_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per series, cluster, stack and test; for the test `node` one per host.

    Residuals are of ln step time, so effects are ratios: `time` per day (a slope), `hour` between
    the highest and the lowest point of a daily wave (a cosine of the UTC hour, only of runs that
    span a day), `node` between the mean run on a host and that on the others. change: of `time`,
    from the first run to the last, else null. p_value: share of 2,000 shuffles of the residuals
    whose effect is at least as large; for `node` whose largest effect of all hosts is, which
    corrects for testing many hosts.
    """
    table = connection.sql(_RUNS).to_arrow_table()
    records = []
    fields = table["field"].to_numpy()
    for field in np.unique(fields):
        runs = table.filter(fields == field)
        for residual_of in ("repeats", "prediction"):
            used = runs.filter(runs[residual_of].is_valid())
            if len(used) < _FEWEST_RUNS:
                continue
            if len(used) <= _MOST_SHUFFLED_RUNS:  # shuffles depend on the order
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
    """Run the tests `time`, `hour` and `node`.

    Args:
        residuals: of ln step time, (runs,).
        days: start of each run, in days.
        hosts: names of the hosts of each run.
    """
    tests: list[tuple[str, str | None]] = []
    weights: list[Values] = []  # weights of the residuals; their weighted sums are the effects
    span = float(np.ptp(days))
    if span > 0:
        deviations = days - days.mean()
        tests.append(("time", None))
        weights.append(deviations / float(deviations @ deviations))
    if span >= _FEWEST_DAYS:
        angle = 2 * math.pi * (days % 1.0)
        tests.append(("hour", None))
        weights += [(wave - wave.mean()) / len(days) for wave in (np.cos(angle), np.sin(angle))]
    nodes = [(name, runs) for name, runs in _runs_on(hosts).items() if not runs.all()]
    tests += [("node", name) for name, _ in nodes]
    weights += [runs / runs.sum() - ~runs / (~runs).sum() for _, runs in nodes]
    if not tests:
        return []
    weights_of_sums = np.stack(weights)
    effects = weights_of_sums @ residuals
    shuffled = _shuffled_effects(residuals, weights_of_sums)
    if span >= _FEWEST_DAYS:  # a wave has two weighted sums (cosine, sine) and one height
        effects[1] = np.hypot(effects[1], effects[2])
        effects = np.delete(effects, 2)
        shuffled[:, 1] = np.hypot(shuffled[:, 1], shuffled[:, 2])
        shuffled = np.delete(shuffled, 2, axis=1)
    sizes = np.abs(shuffled)
    first_node = len(tests) - len(nodes)
    if nodes:
        sizes[:, first_node:] = sizes[:, first_node:].max(axis=1, keepdims=True)
    p_values = (sizes >= np.abs(effects) - 1e-12).mean(axis=0)
    logs = [
        float(effect) * (4 if test == "hour" else 1)
        for effect, (test, _) in zip(effects, tests, strict=True)
    ]
    return [
        {
            "test": test, "host": host, "p_value": float(p_value),
            "effect": math.expm1(log) if log < _LARGEST_LOG else None,
            "change": math.expm1(log * span) if test == "time" else None,
        }
        for (test, host), log, p_value in zip(tests, logs, p_values, strict=True)
    ]  # fmt: skip


def _shuffled_effects(residuals: Values, weights: Values) -> Values:
    """The weighted sums of 2,000 shuffles of the residuals: (shuffles, sums).

    For many runs they are drawn from their limiting distribution: over all shuffles, sums with
    weights w and v that add up to 0 have mean 0 and covariance (w . v) s^2, where s^2 is the
    variance of the residuals (ddof 1), and are normal for many runs (Hoeffding, "A combinatorial
    central limit theorem", Annals of Mathematical Statistics 22, 1951).
    """
    random = np.random.default_rng(_SEED)
    if len(residuals) <= _MOST_SHUFFLED_RUNS:
        shuffled = np.stack([random.permutation(residuals) for _ in range(_SHUFFLES)])
        return np.asarray(shuffled @ weights.T)
    covariance = weights @ weights.T * residuals.var(ddof=1)
    return random.multivariate_normal(np.zeros(len(weights)), covariance, _SHUFFLES, method="eigh")


def _runs_on(hosts: pa.ListArray) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of the runs on each host, by its name."""
    names = hosts.flatten().dictionary_encode()
    runs = np.zeros((len(names.dictionary), len(hosts)), dtype=bool)
    lengths = hosts.value_lengths().fill_null(0).to_numpy()
    runs[names.indices.to_numpy(), np.repeat(np.arange(len(hosts)), lengths)] = True
    return dict(sorted(zip(names.dictionary.to_pylist(), runs, strict=True)))
