"""Results of the draws of each comparison group, as tables that SQL gives names and units.

Each function of `TABLES` needs one pass over the groups, so all of them are made together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

from scaling.analyse.decision import LEAST_FIT, advise, stretches
from scaling.analyse.hosts import SlowHost, slow_in_runs
from scaling.analyse.laws import LEAST_SIZES, law_of
from scaling.analyse.posterior import (
    CLOSE,
    Cells,
    Integers,
    Posterior,
    Runs,
    best_of,
    posterior,
    return_of,
)
from scaling.arrays import Floats

MEASURED_LEVEL, PREDICTED_LEVEL = 0.95, 0.80
PREDICTED = 3  # the class of predicted cells, see cells.sql
_ERRORS = ("common_sigma", "layout_sigma", "size_sigma", "rest_sigma")

_REAL = ("ln_rate", "ln_rate_sigma", "ln_rate_own_sigma", "level", "tokens_per_s",
         "tokens_per_s_low", "tokens_per_s_high", "share_of_best", "share_low", "share_high",
         "p_best", "expected_loss")  # fmt: skip
_FLAGS = ("candidate", "close", "advised")
_STEP = ("faster", "step_return", "marginal_tokens_per_s", "elasticity", "efficiency", "share")


def _ends(*names: str) -> list[tuple[str, pa.DataType]]:
    return [(f"{name}{end}", pa.float64()) for name in names for end in ("", "_low", "_high")]


_GROUP = [("setting_id", pa.int64())]
_RATIO = [*_ends("ratio"), ("level", pa.float64())]
SCHEMAS = {
    "drawn_cells": pa.schema(
        [("cell_id", pa.uint64()), *((name, pa.float64()) for name in _REAL),
         *((name, pa.bool_()) for name in _FLAGS)]
    ),
    "drawn_sizes": pa.schema(
        [*_GROUP, ("world_size", pa.int64()), ("stretch", pa.int64()),
         ("knee_probability", pa.float64()), *_ends("efficiency")]
    ),
    "drawn_steps": pa.schema(
        [*_GROUP, ("from_world_size", pa.int64()), ("to_world_size", pa.int64()),
         ("from_cell", pa.uint64()), ("to_cell", pa.uint64()), ("level", pa.float64()),
         *_ends(*_STEP), ("yardstick_tokens_per_s_per_gpu", pa.float64()),
         ("pays_probability", pa.float64())]
    ),
    "drawn_crossings": pa.schema(
        [*_GROUP, ("from_world_size", pa.int64()), ("to_world_size", pa.int64()),
         ("before_layout", pa.string()), ("after_layout", pa.string()), ("level", pa.float64()),
         *_ends("gain", "crossing"), ("crossing_probability", pa.float64())]
    ),
    "effect_ratios": pa.schema([*_GROUP, ("effect_id", pa.uint64()), *_RATIO]),
    "engine_ratios": pa.schema([("from_cell", pa.uint64()), ("to_cell", pa.uint64()), *_RATIO]),
    "drawn_noise": pa.schema([*_GROUP, *_ends("sigma")]),
    "hosts": pa.schema(
        [*_GROUP, ("cluster", pa.string()), ("host", pa.string()), ("named_by", pa.string()),
         *_ends("effect"), ("level", pa.float64()), ("runs", pa.int64())]
    ),
    "laws": pa.schema(
        [*_GROUP, ("series", pa.string()), ("level", pa.float64()), ("sizes", pa.int64()),
         ("leaves_data_at", pa.int64()), ("fit_error", pa.float64()),
         *_ends("t1", "serial", "coherency", "peak_world_size")]
    ),
}  # fmt: skip
INNER = set(SCHEMAS) - {"hosts", "laws"}  # for other tables only

_CELLS = """
select
    cell_id, setting_id, world_size, layout::varchar as layout, class, speaks, leads, series,
    mean_log_rate, log_sigma, coalesce(fits_probability, 1) as fits_probability,
    coalesce(num_alloc_retries, 0) as num_alloc_retries,
    common_sigma, layout_sigma, size_sigma, coalesce(rest_sigma, log_sigma) as rest_sigma
from cells
where mean_log_rate is not null
order by setting_id, world_size, layout, class, stack_fingerprint
"""
_RUNS = """
select cell_id, setting_id, log_rate, own_sigma, hosts, cluster
from runs
order by cell_id, log_rate, own_sigma
"""
_EFFECTS = "select setting_id, effect_id, from_cell, to_cell from matched_pairs where near"
_ENGINES = """
select setting_id, from_cell, to_cell from engine_pairs
where from_outcome = 'ok' and to_outcome = 'ok'
"""


def drawn_tables(connection: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """The tables of SCHEMAS."""
    cells, runs, effects, engines = (
        connection.sql(query).to_arrow_table() for query in (_CELLS, _RUNS, _EFFECTS, _ENGINES)
    )
    share = connection.execute("select knee_share from study.options").fetchall()[0][0]
    named = _named_hosts(connection, cells, runs)
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMAS}
    for setting in np.unique(cells["setting_id"].to_numpy()).tolist():
        of_cells, of_runs, of_effects, of_engines = (
            table.filter(table["setting_id"].to_numpy() == setting)
            for table in (cells, runs, effects, engines)
        )
        group = _Group(setting, of_cells, of_runs, named)
        columns["drawn_cells"].append(group.cells_table())
        columns["drawn_noise"].append(group.noise_record())
        columns["hosts"] += group.host_records()
        columns["effect_ratios"].append(group.effects(of_effects))
        columns["engine_ratios"].append(group.engines(of_engines))
        columns["drawn_steps"] += group.step_records(share)
        columns["drawn_sizes"] += group.size_records(share)
        columns["drawn_crossings"] += group.crossing_records()
        columns["laws"] += group.law_records()
    tables = {}
    for name, schema in SCHEMAS.items():
        parts = columns[name]
        if parts and isinstance(parts[0], pa.Table):
            tables[name] = pa.concat_tables(parts).cast(schema)
        else:
            tables[name] = pa.Table.from_pylist(parts, schema=schema)
    return tables


def _named_hosts(
    connection: duckdb.DuckDBPyConnection, cells: pa.Table, runs: pa.Table
) -> dict[str, list[tuple[SlowHost, str]]]:
    """By cluster the hosts that are slow by their runs, then those that are by probes."""
    named: dict[str, list[tuple[SlowHost, str]]] = {}
    for cluster in sorted(runs["cluster"].unique().to_pylist()):
        of_cluster = runs.filter(pc.equal(runs["cluster"], cluster))
        hosts = of_cluster["hosts"].combine_chunks()
        if len(hosts.flatten().unique()) < 2:
            continue
        rates: Floats = of_cluster["log_rate"].to_numpy()
        groups: Integers
        ids, groups = np.unique(of_cluster["cell_id"].to_numpy(), return_inverse=True)
        if len(ids) == len(groups):  # nothing was repeated: by the ratio to the prediction
            rates, groups, hosts = _ratios(cells, of_cluster)
        if len(rates):
            found = slow_in_runs(rates, groups, hosts)
            named[cluster] = [(one, "runs") for one in found]
    probes = connection.execute(
        "select cluster, host, max(slowdown) from slow_hosts group by all order by all"
    ).fetchall()
    for cluster, host, slowdown in sorted(probes, key=lambda row: -row[2]):
        known = named.setdefault(cluster, [])
        if host not in {one.host for one, _ in known}:
            known.append((SlowHost(host, -float(np.log(slowdown)), 0), "probes"))
    return named


def _ratios(cells: pa.Table, runs: pa.Table) -> tuple[Floats, Integers, pa.ListArray]:
    """Log ratios of the rates to predictions, the sizes as groups, and the hosts of the runs."""
    places = list(
        zip(*(cells[name].to_pylist() for name in ("setting_id", "world_size", "layout")),
            strict=True)
    )  # fmt: skip
    classes, rates = cells["class"].to_pylist(), cells["mean_log_rate"].to_pylist()
    predicted = {
        place: rate for place, kind, rate in zip(places, classes, rates, strict=True)
        if kind == PREDICTED
    }  # fmt: skip
    place_of = dict(zip(cells["cell_id"].to_pylist(), places, strict=True))
    of_runs = [place_of[cell] for cell in runs["cell_id"].to_pylist()]
    known = np.array([place in predicted for place in of_runs], dtype=bool)
    used = runs.filter(known)
    kept = [place for place, is_known in zip(of_runs, known, strict=True) if is_known]
    gaps = used["log_rate"].to_numpy() - np.array([predicted[place] for place in kept])
    sizes = {size: n for n, size in enumerate(sorted({place[:2] for place in kept}))}
    groups = np.array([sizes[place[:2]] for place in kept], dtype=np.int64)
    return gaps, groups, used["hosts"].combine_chunks()


@dataclass(frozen=True, slots=True)
class _Advised:
    """The cell to use at a size: its index, and whether it is predicted."""

    size: int
    cell: int
    predicted: bool


class _Group:
    """One comparison group: its cells, the draws of their rates, and the decision."""

    def __init__(
        self,
        setting: int,
        cells: pa.Table,
        runs: pa.Table,
        named: dict[str, list[tuple[SlowHost, str]]],
    ) -> None:
        self.setting = setting
        self.ids = cells["cell_id"].to_numpy()
        self._order = np.argsort(self.ids)
        self.is_predicted = cells["class"].to_numpy() == PREDICTED
        self.speaks = _flags(cells["speaks"])
        self.series = cells["series"].to_pylist()
        self.names, self.layout = np.unique(cells["layout"].to_pylist(), return_inverse=True)
        self.sizes, self.size = np.unique(cells["world_size"].to_numpy(), return_inverse=True)
        self.mean = cells["mean_log_rate"].to_numpy()
        self.errors = np.stack(
            [cells[name].to_numpy(zero_copy_only=False) for name in _ERRORS], axis=1
        )
        self.errors = np.nan_to_num(self.errors)
        fits = cells["fits_probability"].to_numpy()
        # A retry frees the allocator's cache: such steps are slow today and may not fit tomorrow.
        retried = cells["num_alloc_retries"].to_numpy() > 0
        self.candidate = _flags(cells["leads"]) & (fits >= LEAST_FIT) & ~retried
        self.cluster = runs["cluster"][0].as_py() if len(runs) else None
        self.named = named.get(self.cluster, []) if self.cluster else []
        self.runs = self._runs(runs)
        self.posterior = self._posterior()
        self.rates = self.posterior.rates
        self.shares = self._shares()
        self.advised = self._advised()

    def index(self, cell_ids: pa.ChunkedArray) -> Integers:
        """Places of these cells in the group."""
        found = np.searchsorted(self.ids, cell_ids.to_numpy(), sorter=self._order)
        return np.asarray(self._order[found])

    def level(self, *cells: int) -> float:
        return PREDICTED_LEVEL if self.is_predicted[list(cells)].any() else MEASURED_LEVEL

    def _runs(self, runs: pa.Table) -> Runs:
        cell = self.index(runs["cell_id"])
        own = runs["own_sigma"].to_numpy(zero_copy_only=False).astype(float)
        host = np.full(len(cell), -1)
        if self.named:
            lists = runs["hosts"].to_pylist()
            for number, (one, _) in reversed(list(enumerate(self.named))):
                host[[one.host in (hosts or ()) for hosts in lists]] = number
        return Runs(runs["log_rate"].to_numpy(), own, cell, host)

    def _posterior(self) -> Posterior:
        """Draws of what ran, and of predictions that speak for a layout."""
        place = self.layout * len(self.sizes) + self.size
        own_prediction = np.full(len(self.names) * len(self.sizes), -1)
        own_prediction[place[self.is_predicted]] = np.flatnonzero(self.is_predicted)
        source = own_prediction[place]
        known = (source >= 0) & self.speaks
        predicted = np.where(known, self.mean[source], np.nan)
        cells = Cells(self.layout, self.size, predicted, self.errors[source])
        return posterior(self.runs, cells, np.array([one.effect for one, _ in self.named]))

    def _shares(self) -> Floats:
        """Draws of each rate over the best candidate's of the size; NaN without a candidate."""
        shares = np.full_like(self.rates, np.nan)
        for size in range(len(self.sizes)):
            here, of_size = self.size == size, self.candidate & (self.size == size)
            if of_size.any():
                shares[here] = np.exp(self.rates[here] - self.rates[of_size].max(axis=0))
        return shares

    def _advised(self) -> list[_Advised]:
        chosen = advise(self.rates, self.layout, self.size, self.candidate)
        return [
            _Advised(size, cell, bool(self.is_predicted[cell])) for size, cell in chosen.items()
        ]

    def cells_table(self) -> pa.Table:
        drawn = ~np.isnan(self.rates[:, 0])
        level = np.where(self.is_predicted, PREDICTED_LEVEL, MEASURED_LEVEL)
        mean = np.where(drawn, self.rates.mean(axis=1), self.mean)
        stated = np.sqrt((self.errors**2).sum(axis=1))  # of a prediction that is not drawn
        sigma = np.where(drawn, self.rates.std(axis=1), stated)
        own = np.where(self.is_predicted, np.hypot(self.errors[:, 1], self.errors[:, 3]), sigma)
        low, high = self.quantiles(self.rates)
        half = 1.2816 * stated
        low, high = np.where(drawn, low, mean - half), np.where(drawn, high, mean + half)
        share = self.shares.mean(axis=1)
        share_low, share_high = self.quantiles(self.shares)
        p_best = np.full(len(mean), np.nan)
        for size in range(len(self.sizes)):
            at = np.flatnonzero(self.candidate & (self.size == size))
            if len(at):
                p_best[at] = best_of(self.rates[at])
        likely = p_best >= CLOSE
        several = np.bincount(self.size[likely], minlength=len(self.sizes)) > 1
        advised = np.zeros(len(mean), dtype=bool)
        advised[[one.cell for one in self.advised]] = True
        loss = np.where(self.candidate, 1 - share, np.nan)
        real = (mean, sigma, np.minimum(own, sigma), level, np.exp(mean), np.exp(low),
                np.exp(high), share, share_low, share_high, p_best, loss)  # fmt: skip
        flags = (self.candidate, likely & several[self.size], advised)
        columns = {"cell_id": self.ids}
        columns |= {
            name: pa.array(values, from_pandas=True)
            for name, values in zip((*_REAL, *_FLAGS), (*real, *flags), strict=True)
        }
        return pa.table(columns)

    def quantiles(self, draws: Floats) -> tuple[Floats, Floats]:
        """The ends of each cell's interval, at the level of its class."""
        ends = np.full((2, len(draws)), np.nan)
        for of_class, level in (
            (self.is_predicted, PREDICTED_LEVEL), (~self.is_predicted, MEASURED_LEVEL)
        ):  # fmt: skip
            at = np.flatnonzero(of_class & ~np.isnan(draws[:, 0]))
            if len(at):
                ends[:, at] = _interval(draws[at], level)
        return ends[0], ends[1]

    def noise_record(self) -> dict[str, Any]:
        noise = self.posterior.noise
        record: dict[str, Any] = {"setting_id": self.setting}
        if not np.isnan(noise[0]):
            record |= _with_ends("sigma", float(np.median(noise)), noise, MEASURED_LEVEL)
        return record

    def host_records(self) -> Iterator[dict[str, Any]]:
        for number, (one, named_by) in enumerate(self.named):
            runs = int((self.runs.host == number).sum())
            if runs:
                slower = np.expm1(-self.posterior.hosts[number])
                yield {
                    "setting_id": self.setting, "cluster": self.cluster, "host": one.host,
                    "named_by": named_by, "level": MEASURED_LEVEL, "runs": runs,
                    **_with_ends("effect", float(np.median(slower)), slower, MEASURED_LEVEL),
                }  # fmt: skip

    def effects(self, pairs: pa.Table) -> pa.Table:
        """The mean ratio of each effect over its pairs, with its interval."""
        ids, index = np.unique(pairs["effect_id"].to_numpy(), return_inverse=True)
        return self._ratios_table(
            pairs, index, {"setting_id": np.full(len(ids), self.setting), "effect_id": ids}
        )

    def engines(self, pairs: pa.Table) -> pa.Table:
        ends = {name: pairs[name] for name in ("from_cell", "to_cell")}
        return self._ratios_table(pairs, np.arange(len(pairs)), ends)

    def _ratios_table(self, pairs: pa.Table, index: Integers, keys: dict[str, Any]) -> pa.Table:
        """Geometric means of the ratios to_cell over from_cell of the pairs with one index."""
        count = int(index.max(initial=-1)) + 1
        one, other = self.index(pairs["from_cell"]), self.index(pairs["to_cell"])
        weight = 1 / np.bincount(index, minlength=count)[index]
        contrast = csr_array(
            (np.r_[weight, -weight], (np.r_[index, index], np.r_[other, one])),
            shape=(count, len(self.ids)),
        )
        used = np.unique(np.r_[one, other])
        drawn = contrast[:, used] @ self.rates[used]
        predicted = np.zeros(count, dtype=bool)
        predicted[index[self.is_predicted[one] | self.is_predicted[other]]] = True
        ends = np.full((2, count), np.nan)
        for of_class, level in ((predicted, PREDICTED_LEVEL), (~predicted, MEASURED_LEVEL)):
            if of_class.any():
                ends[:, of_class] = _interval(drawn[of_class], level)
        return pa.table(
            keys
            | {
                "ratio": np.exp(drawn.mean(axis=1)), "ratio_low": np.exp(ends[0]),
                "ratio_high": np.exp(ends[1]),
                "level": np.where(predicted, PREDICTED_LEVEL, MEASURED_LEVEL),
            }
        )  # fmt: skip

    def _steps(self) -> Iterator[tuple[_Advised, _Advised, int, int]]:
        for before, after in zip(self.advised, self.advised[1:], strict=False):
            yield before, after, int(self.sizes[before.size]), int(self.sizes[after.size])

    def step_records(self, knee_share: float) -> list[dict[str, Any]]:
        """The return of each step between neighbouring sizes, each at its advised layout."""
        records = []
        for before, after, n0, n1 in self._steps():
            first = self.advised[0]
            level, n = self.level(before.cell, after.cell), int(self.sizes[first.size])
            rates = self.rates[[first.cell, before.cell, after.cell]]
            drawn = _step_values(rates, n, n0, n1)
            middle = _step_values(rates.mean(axis=1, keepdims=True), n, n0, n1)
            record: dict[str, Any] = {
                "setting_id": self.setting, "from_world_size": n0, "to_world_size": n1,
                "from_cell": int(self.ids[before.cell]), "to_cell": int(self.ids[after.cell]),
                "level": level,
                "yardstick_tokens_per_s_per_gpu":
                    float(np.exp(self.rates[first.cell].mean())) / n,
                "pays_probability": float(self._pays(before, after, knee_share).mean()),
            }  # fmt: skip
            for name, values in drawn.items():
                record |= _with_ends(name, float(middle[name][0]), values, level)
            records.append(record)
        return records

    def _pays(self, before: _Advised, after: _Advised, knee_share: float) -> Any:
        growth = np.log(self.sizes[after.size] / self.sizes[before.size])
        gained = self.rates[after.cell] - self.rates[before.cell]
        return gained >= growth + np.log(knee_share) * growth / np.log(2)

    def size_records(self, knee_share: float) -> list[dict[str, Any]]:
        """Efficiency against the smallest size, and the probability that the knee is there."""
        if not self.advised:
            return []
        still = np.ones(self.rates.shape[1], dtype=bool)  # draws in which every step paid so far
        knees = []
        for before, after, _, _ in self._steps():
            pays = self._pays(before, after, knee_share)
            knees.append(float((still & ~pays).mean()))
            still &= pays
        knees.append(float(still.mean()))
        layouts = [int(self.layout[one.cell]) for one in self.advised]
        first = self.advised[0]
        records = []
        for one, knee, stretch in zip(self.advised, knees, stretches(layouts), strict=True):
            growth = np.log(self.sizes[one.size] / self.sizes[first.size])
            efficiency = np.exp(self.rates[one.cell] - self.rates[first.cell] - growth)
            middle = self.rates[one.cell].mean() - self.rates[first.cell].mean() - growth
            records.append(
                {
                    "setting_id": self.setting, "world_size": int(self.sizes[one.size]),
                    "stretch": stretch, "knee_probability": knee,
                    **_with_ends("efficiency", float(np.exp(middle)), efficiency,
                                 self.level(one.cell, first.cell)),
                }
            )  # fmt: skip
        return records

    def crossing_records(self) -> Iterator[dict[str, Any]]:
        """Each change of the advised layout: what it gains, and where the two lines cross."""
        cell_of = {
            (int(self.layout[cell]), int(self.size[cell])): int(cell)
            for cell in np.flatnonzero(self.speaks & ~np.isnan(self.rates[:, 0]))
        }
        for before, after, n0, n1 in self._steps():
            old, new = int(self.layout[before.cell]), int(self.layout[after.cell])
            if old == new:
                continue
            record: dict[str, Any] = {
                "setting_id": self.setting, "from_world_size": n0, "to_world_size": n1,
                "before_layout": str(self.names[old]), "after_layout": str(self.names[new]),
                "level": self.level(before.cell, after.cell),
            }  # fmt: skip
            stayed, came = cell_of.get((old, after.size)), cell_of.get((new, before.size))
            if stayed is not None:
                level = record["level"] = self.level(stayed, after.cell)
                gain = self.rates[after.cell] - self.rates[stayed]
                record |= _with_ends("gain", float(np.exp(gain.mean())), np.exp(gain), level)
                if came is not None:
                    lead = self.rates[before.cell] - self.rates[came]
                    crosses = (lead > 0) & (gain > 0)
                    record["crossing_probability"] = float(crosses.mean())
                    if crosses.any():
                        at = lead[crosses] / (lead + gain)[crosses]
                        sizes = n0 * (n1 / n0) ** at
                        record |= _with_ends("crossing", float(np.median(sizes)), sizes, level)
            yield record

    def law_records(self) -> Iterator[dict[str, Any]]:
        """The universal scalability law through the advised rates that ran."""
        ran = [one for one in self.advised if not one.predicted]
        if len(ran) >= LEAST_SIZES:
            sizes = self.sizes[[one.size for one in ran]].astype(float)
            law = law_of(sizes, self.rates[[one.cell for one in ran]])
            yield {
                "setting_id": self.setting, "series": self.series[ran[-1].cell],
                "level": MEASURED_LEVEL, "sizes": len(ran), "leaves_data_at": int(sizes[-1]), **law,
            }  # fmt: skip


def _step_values(rates: Floats, n: int, n0: int, n1: int) -> dict[str, Floats]:
    """The return of a step, from draws of ln tokens/s at n, n0 and n1 GPUs, (3, draws).

    The step is from n0 to n1; n is the smallest size.
    """
    first, before, after = rates
    marginal = (np.exp(after) - np.exp(before)) / (n1 - n0)
    values = (
        np.exp(after - before), return_of(before, after, n1 / n0), marginal,
        (after - before) / np.log(n1 / n0), np.exp(after - first) * n / n1,
        marginal * n / np.exp(first),
    )  # fmt: skip
    return dict(zip(_STEP, values, strict=True))


def _interval(draws: Floats, level: float) -> Floats:
    """The ends of the interval of the last axis, (2, ...)."""
    return np.asarray(np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=-1))


def _with_ends(name: str, middle: float, draws: Floats, level: float) -> dict[str, float]:
    low, high = _interval(draws, level).tolist()
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


def _flags(column: pa.ChunkedArray) -> Any:
    return column.to_numpy(zero_copy_only=False).astype(bool)
