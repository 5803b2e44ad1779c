"""Whether steps became slower with time, with the hour of the day or on a node: tests of residuals.

A drift that falls on some layouts only would look like a property of theirs.
"""

import datetime
import math
from collections.abc import Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]

_SHUFFLES = 2000
_SEED = 20_200
_FEWEST = 5  # runs with a residual, below which nothing is tested
_HOURS = 24.0

SCHEMA = pa.schema(
    [
        ("series", pa.string()), ("cluster", pa.string()), ("stack_fingerprint", pa.string()),
        ("test", pa.string()), ("host", pa.string()), ("residual_of", pa.string()),
        ("runs", pa.int64()), ("effect", pa.float64()), ("p_value", pa.float64()),
    ]
)  # fmt: skip

# Of a run against the mean of all runs of its point's layout; where nothing was repeated, against
# the prediction, less its median error over the runs of the same stack.
_RUNS = """
with timed as (
    select measurements.*, rows.cluster, rows.hosts,
        ln(measurements.step_time_s) as y,
        ln(measurements.step_time_s / foretold.step_time_s) as off
    from measurements
    join study.rows as rows using (point_id, attempt, started_at)
    left join (from measurements where series = 'predicted') as foretold using (point_id)
    where measurements.step_time_s is not null and measurements.series in ('measured', 'extended')
        and rows.series = 'measured'
)
select series, cluster, stack_fingerprint, started_at, hosts,
    if(count(*) over same > 1, y - avg(y) over same, null) as against_repeats,
    off - median(off) over (partition by series, cluster, stack_fingerprint) as against_prediction,
    count(*) over same as runs_of_layout
from timed
window same as (
    partition by setting_id, series, cluster, stack_fingerprint, world_size, layout
)
order by all
"""


def drift_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per series, cluster, stack and test; of the test `node` one per host.

    Residuals are of ln step time, so effects are ratios: `time` per day (a slope), `hour` between
    the highest and the lowest of a day's wave (a cosine of the UTC hour), `node` of the mean run
    on a host to that of the others. p_value: share of 2,000 shuffles of the residuals whose effect
    is at least as large; of `node` that of the largest of all hosts, so that many hosts are no
    many chances.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, list[str], float | None, float | None]]] = {}
    for series, cluster, stack, at, hosts, repeats, foretold, _ in connection.execute(
        _RUNS
    ).fetchall():
        groups.setdefault((series, cluster, stack), []).append((at, hosts, repeats, foretold))
    records = []
    for (series, cluster, stack), runs in groups.items():
        for place, residual_of in ((2, "repeats"), (3, "prediction")):
            used = [run for run in runs if run[place] is not None]
            if len(used) < _FEWEST:
                continue
            values = np.array([run[place] for run in used], dtype=float)
            days = np.array([_days(run[0]) for run in used])
            common = {
                "series": series, "cluster": cluster, "stack_fingerprint": stack,
                "residual_of": residual_of, "runs": len(used),
            }  # fmt: skip
            for record in residual_tests(values, days, [run[1] for run in used]):
                records.append(common | record)
            break
    return pa.Table.from_pylist(records, schema=SCHEMA)


def residual_tests(
    residuals: Values, days: Values, hosts: Sequence[Sequence[str]]
) -> list[dict[str, object]]:
    """The three tests.

    Args:
        residuals: of ln step time, (runs,).
        days: when each run began, in days.
        hosts: that each run was on.
    """
    random = np.random.default_rng(_SEED)
    shuffled = np.stack([random.permutation(residuals) for _ in range(_SHUFFLES)])
    every = np.concatenate([residuals[None], shuffled])
    found: list[dict[str, object]] = []
    if np.ptp(days) > 0:
        slopes = _slopes(every, days)
        found.append(_result("time", None, float(np.expm1(slopes[0])), slopes))
        angle = 2 * math.pi * (days % 1.0)
        waves = np.hypot(_mean_product(every, np.cos(angle)), _mean_product(every, np.sin(angle)))
        found.append(_result("hour", None, float(np.expm1(4 * waves[0])), waves))
    names = sorted({host for run in hosts for host in run})
    on = {name: np.array([name in run for run in hosts]) for name in names}
    effects = {
        name: every[:, here].mean(axis=1) - every[:, ~here].mean(axis=1)
        for name, here in on.items()
        if here.any() and not here.all()
    }
    if effects:
        largest = np.max(np.abs(np.stack(list(effects.values()))), axis=0)
        for name, effect in effects.items():
            beyond = float((largest[1:] >= abs(effect[0]) - 1e-12).mean())
            found.append(
                {"test": "node", "host": name, "effect": math.expm1(effect[0]), "p_value": beyond}
            )
    return found


def _result(test: str, host: str | None, effect: float, values: Values) -> dict[str, object]:
    beyond = float((np.abs(values[1:]) >= abs(values[0]) - 1e-12).mean())
    return {"test": test, "host": host, "effect": effect, "p_value": beyond}


def _slopes(every: Values, days: Values) -> Values:
    away = days - days.mean()
    return np.asarray(every @ away / float(away @ away))


def _mean_product(every: Values, wave: Values) -> Values:
    return np.asarray(every @ (wave - wave.mean()) / len(wave))


def _days(started_at: str) -> float:
    return datetime.datetime.fromisoformat(started_at).timestamp() / (_HOURS * 3600)
