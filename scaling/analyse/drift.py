"""Test whether step times drift with time, with the hour of the day or between nodes.

A drift that affects only some layouts would look like a property of these layouts. Runs are
compared within their group only: the repeats of a layout or, by their predictions, the layouts of
one size. Small sizes run first and on few nodes, so what a prediction gets wrong about a size would
look like a drift, and every node that only large sizes use like a slow one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]

SIGNIFICANT = 0.01  # largest p-value of what is called a drift or a slow node
_SHUFFLES = 2000
_SEED = 20_200
_FEWEST_DAYS = 1.0  # spanned by runs of a group; in less, an hour of the day is only a time
_LARGEST_LOG = 100.0  # of an effect per day; a larger one is no number for anybody
_MOST_SHUFFLED_RUNS = 2000  # above, effects of shuffles are drawn from their known distribution
_NOTHING = 1e-6  # length, per root of the runs, below which a column does not differ between runs

SCHEMA = pa.schema(
    [
        ("series", pa.string()), ("cluster", pa.string()), ("stack_fingerprint", pa.string()),
        ("test", pa.string()), ("host", pa.string()), ("residual_of", pa.string()),
        ("runs", pa.int64()), ("effect", pa.float64()), ("change", pa.float64()),
        ("p_value", pa.float64()),
    ]
)  # fmt: skip

_FIELD = ("series", "cluster", "stack_fingerprint")
_GROUPS = {"repeats": "layout_id", "prediction": "size_id"}

# ln step time of runs whose layout ran repeatedly at that size, and ln of its ratio to the
# prediction for studies without repeats.
_RUNS = """
with timed as (
    select series, cluster, stack_fingerprint, point_id, hosts,
        epoch(try_cast(started_at as timestamp)) / 86400 as day,
        hash(series, cluster, stack_fingerprint) as field,
        hash(field, setting_id, world_size) as size_id,
        hash(size_id, layout) as layout_id,
        ln(step_time_s) as log_time,
        ln(step_time_s / predicted_s) as log_error
    from measurements
    join settings using (setting_id)
    left join (
        select point_id, step_time_s as predicted_s from measurements where series = 'predicted'
    ) using (point_id)
    where step_time_s is not null and series in ('measured', 'extended')
        and day is not null
    -- a run of full and short steps stands in both series
    qualify row_number() over (
        partition by point_id order by list_position(getvariable('series_order'), series)
    ) = 1
)
select
    field, series, cluster, stack_fingerprint, point_id, hosts, day, layout_id, size_id,
    if(count(*) over (partition by layout_id) > 1, log_time, null) as repeats,
    if(count(log_error) over (partition by size_id) > 1, log_error, null) as prediction
from timed
"""


def drift_table(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row per series, cluster, stack and test; for the test `node` one per host.

    Effects are ratios of step time: `time` per day (a slope), `hour` between the slowest and the
    fastest run's hour on a daily wave (a cosine of the UTC hour, only where runs of a group span a
    day), `node` between the runs on a host and the others of their groups. change: of `time`, from
    the first run of a group to its last, where these are furthest apart; else null. p_value: see
    `residual_tests`.
    """
    table = connection.sql(_RUNS).to_arrow_table()
    records = []
    fields = table["field"].to_numpy()
    for field in np.unique(fields):
        runs = table.filter(fields == field)
        for residual_of, group in _GROUPS.items():
            used = runs.filter(runs[residual_of].is_valid())
            # shuffles depend on the order
            used = used.sort_by([("day", "ascending"), ("point_id", "ascending")])
            tests = residual_tests(
                used[residual_of].to_numpy(),
                used["day"].to_numpy(),
                used["hosts"].combine_chunks(),
                used[group].to_numpy(),
                used["size_id"].to_numpy(),
            )
            if tests:
                common = {
                    **{name: used[name][0].as_py() for name in _FIELD},
                    "residual_of": residual_of, "runs": len(used),
                }  # fmt: skip
                records += [common | test for test in tests]
                break
    return pa.Table.from_pylist(records, schema=SCHEMA)


def residual_tests(
    logs: Values,
    days: Values,
    hosts: pa.ListArray,
    groups: npt.NDArray[np.generic],
    sizes: npt.NDArray[np.generic],
) -> list[dict[str, object]]:
    """Run the tests `time`, `hour` and `node`.

    p_value: share of 2,000 shuffles whose effect is at least as large; for `node` whose largest
    effect of all hosts is, which corrects for testing many hosts. `time` and `hour` shuffle within
    groups, `node` within sizes, because few groups ran both on a host and elsewhere. Nothing is
    tested where runs have too few orders to be significant.

    Args:
        logs: ln step time, or ln of its ratio to the prediction, (runs,).
        days: start of each run, in days.
        hosts: names of the hosts of each run.
        groups: of each run: it is compared with the others of its group.
        sizes: of each run. A group is of one size.
    """
    order = np.lexsort((groups, sizes))
    runs = _Runs(logs[order], _numbered(groups[order]), _numbered(sizes[order]))
    on_hosts = _runs_on(hosts.take(pa.array(order)))
    return [*_clock_tests(runs, days[order]), *_node_tests(runs, on_hosts)]


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs, those of one size and in it those of one group side by side; each array (runs,)."""

    logs: Values
    groups: Groups  # numbered from 0 in this order, as are sizes
    sizes: Groups

    def within(self, mask: npt.NDArray[np.bool_]) -> "_Runs":
        return _Runs(self.logs[mask], _numbered(self.groups[mask]), _numbered(self.sizes[mask]))

    def centred(self, values: Values) -> Values:
        """Columns less their means over each group, (runs, n) or (runs,)."""
        starts = np.flatnonzero(np.diff(self.groups, prepend=-1))
        totals = np.add.reduceat(values, starts, axis=0)
        return values - (totals.T / np.bincount(self.groups)).T[self.groups]

    def sums_and_shuffles(self, weights: Values, blocks: Groups) -> tuple[Values, Values]:
        """The weighted sums of the residuals, (n,), and of 2,000 shuffles in blocks, (2000, n).

        Residuals from the means of several groups are too small; those shuffled are scaled to the
        variance of single runs. Of many runs these sums are drawn from their limiting distribution:
        with weights w and v that add up to 0 in each block they have mean 0 and covariance sum of
        w v s^2, where s^2 is the variance in a block, and are normal (Hoeffding, "A combinatorial
        central limit theorem", Annals of Mathematical Statistics 22, 1951).

        Args:
            weights: (runs, n), centred.
            blocks: the groups, or the sizes.
        """
        random = np.random.default_rng(_SEED)
        residuals = self.centred(self.logs)
        first = np.diff(self.groups, prepend=-1) != 0
        counts, groups = np.bincount(blocks), np.bincount(blocks, first)
        free = np.maximum(counts - groups, 1)
        if len(residuals) <= _MOST_SHUFFLED_RUNS:
            orders = np.argsort(blocks + random.random((_SHUFFLES, len(residuals))), axis=1)
            scaled = residuals * np.sqrt((counts - 1) / free)[blocks]
            return residuals @ weights, scaled[orders] @ weights
        variances = np.bincount(blocks, residuals**2) / free
        covariance = (weights.T * variances[blocks]) @ weights
        shuffled = random.multivariate_normal(
            np.zeros(weights.shape[1]), covariance, _SHUFFLES, method="eigh"
        )
        return residuals @ weights, shuffled


def _numbered(keys: npt.NDArray[np.generic]) -> Groups:
    """Equal neighbours by a number: 0, 0, 1, ..."""
    return np.cumsum(np.append(0, keys[1:] != keys[:-1]))[: len(keys)]


def _too_few_orders(blocks: Groups) -> bool:
    """Whether even the rarest order of the runs in their blocks, or its reverse, is no surprise."""
    orders = math.fsum(math.lgamma(count + 1) for count in np.bincount(blocks).tolist())
    return orders < math.log(2 / SIGNIFICANT)


def _clock_tests(runs: _Runs, days: Values) -> list[dict[str, object]]:
    """Test `time` and `hour`, each given the other, because a slope and a wave look alike."""
    if _too_few_orders(runs.groups):
        return []
    starts = np.flatnonzero(np.diff(runs.groups, prepend=-1))
    spans = np.maximum.reduceat(days, starts) - np.minimum.reduceat(days, starts)
    span = float(spans.max())
    if span == 0:
        return []
    angle = 2 * math.pi * (days % 1.0)
    terms = {"time": (days - days.min())[:, None] / span}
    if span >= _FEWEST_DAYS:
        terms["hour"] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centred = {test: runs.centred(term) for test, term in terms.items()}
    tests: list[dict[str, object]] = []
    for test, term in terms.items():
        own = centred[test]
        for other in centred.keys() - {test}:
            directions, _, _ = _decomposed(centred[other])
            own = own - directions @ (directions.T @ own)
        directions, lengths, mixed = _decomposed(own)
        if not len(lengths):
            continue
        sums, shuffled = runs.sums_and_shuffles(directions, runs.groups)
        p_value = np.mean(np.linalg.norm(shuffled, axis=1) >= np.linalg.norm(sums) - 1e-12)
        slopes = (sums / lengths) @ mixed
        log = float(np.ptp(term @ slopes)) if test == "hour" else float(slopes[0]) / span
        tests.append(
            {
                "test": test, "host": None, "p_value": float(p_value),
                "effect": math.expm1(log) if log < _LARGEST_LOG else None,
                "change": math.expm1(log * span) if test == "time" else None,
            }
        )  # fmt: skip
    return tests


def _decomposed(columns: Values) -> tuple[Values, Values, Values]:
    """The singular value decomposition of columns (runs, n), without what does not differ."""
    directions, lengths, mixed = np.linalg.svd(columns, full_matrices=False)
    seen = lengths > _NOTHING * len(columns) ** 0.5
    return directions[:, seen], lengths[seen], mixed[seen]


def _node_tests(
    runs: _Runs, on_hosts: Mapping[str, npt.NDArray[np.bool_]]
) -> list[dict[str, object]]:
    """Test `node`, the host that is most surely slow first.

    Its runs are left out for the others, which shared them or look fast beside it.
    """
    tests: list[dict[str, object]] = []
    left = dict(on_hosts)
    while left and not _too_few_orders(runs.sizes):
        weights = runs.centred(np.stack([*left.values()], axis=1).astype(float))
        lengths = np.linalg.norm(weights, axis=0)
        differ = lengths > _NOTHING * len(runs.logs) ** 0.5
        names = [name for name, differs in zip(left, differ, strict=True) if differs]
        if not names:
            break
        lengths = lengths[differ]
        sums, shuffled = runs.sums_and_shuffles(weights[:, differ] / lengths, runs.sizes)
        largest = np.abs(shuffled).max(axis=1)
        p_values = (largest[:, None] >= np.abs(sums) - 1e-12).mean(axis=0)
        found = [
            {
                "test": "node", "host": name, "p_value": p_value, "effect": math.expm1(effect),
                "change": None,
            }
            for name, p_value, effect in zip(
                names, p_values.tolist(), (sums / lengths).tolist(), strict=True
            )
        ]  # fmt: skip
        slowest = int(np.argmax(sums))
        if sums[slowest] < 0 or p_values[slowest] > SIGNIFICANT:
            return tests + found
        tests.append(found[slowest])
        others = ~left[names[slowest]]
        runs = runs.within(others)
        left = {name: left[name][others] for name in names if name != names[slowest]}
    return tests


def _runs_on(hosts: pa.ListArray) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of the runs on each host, by its name."""
    names = hosts.flatten().dictionary_encode()
    runs = np.zeros((len(names.dictionary), len(hosts)), dtype=bool)
    lengths = hosts.value_lengths().fill_null(0).to_numpy()
    runs[names.indices.to_numpy(), np.repeat(np.arange(len(hosts)), lengths)] = True
    return dict(sorted(zip(names.dictionary.to_pylist(), runs, strict=True)))
