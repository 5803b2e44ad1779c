"""One comparison group: the draws of its rates, its decision, and what to measure next."""

from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from scaling.analyse.catalogue import Z80
from scaling.analyse.decision import LEAST_FIT, advise
from scaling.analyse.hosts import SlowHost, named_hosts
from scaling.analyse.next_points import Estimates, Plan, next_points
from scaling.analyse.posterior import (
    CLOSE,
    PARTS,
    Cells,
    Integers,
    Posterior,
    Runs,
    best_of,
    posterior,
    shares_of_best,
)
from scaling.arrays import Flags, Floats
from scaling.record.probe_row import Probe
from scaling.study.time_limits import TYPICAL_STARTUP_S

MEASURED_LEVEL, PREDICTED_LEVEL = 0.95, 0.80
LIKELY = 0.5  # a cell names its disturbed runs if it expects at least so many
_PREDICTED = 3  # the class of predicted cells, see cells.sql
_RUN_STEPS = 13  # of a run without a row: 3 steps of warm-up, 10 measured
_DRAWS = 400  # that choose what to measure next, as in a sweep

_CELLS = """
select
    cell_id, group_id, world_size, layout::varchar as layout, class, speaks, leads,
    mean_log_rate, log_sigma, coalesce(fits_probability, 1) as fits_probability,
    coalesce(num_alloc_retries, 0) as num_alloc_retries, duration_s, tokens_per_step,
    common_sigma, layout_sigma, size_sigma, coalesce(rest_sigma, log_sigma) as rest_sigma
from cells
where mean_log_rate is not null
order by group_id, world_size, layout, class, stack_fingerprint
"""
_RUNS = """
select
    cell_id, point_id, group_id, log_rate, own_sigma, hosts, cluster,
    log_rate - predicted_log_rate as gap, size_id
from runs
order by group_id, cell_id, log_rate, own_sigma
"""


def groups_of(
    connection: duckdb.DuckDBPyConnection, probes: Iterable[Probe] = ()
) -> Iterator["Group"]:
    """The comparison groups of the tables `cells` and `runs`; `probes` name slow hosts too."""
    cells, runs = (connection.sql(query).to_arrow_table() for query in (_CELLS, _RUNS))
    named, runs_of = named_hosts(runs, probes), by_group(runs)
    for group_id, of_group in by_group(cells).items():
        yield Group(group_id, of_group, runs_of.get(group_id, runs.slice(0, 0)), named)


def by_group(table: pa.Table) -> dict[int, pa.Table]:
    """The rows of each comparison group of a table that is sorted by them."""
    found = np.unique(table["group_id"].to_numpy(), return_index=True, return_counts=True)
    return {number: table.slice(at, rows) for number, at, rows in np.transpose(found).tolist()}


class Group:
    """The cells of a comparison group, in the order of _CELLS, and what their draws say.

    rates: draws of ln tokens/s, (cells, draws).   shares: of the best candidate of the size.
    advised: the cell to use at each size, in rising order of the sizes.
    """

    def __init__(
        self, group_id: int, cells: pa.Table, runs: pa.Table, named: dict[str, list[SlowHost]]
    ) -> None:
        def column(name: str) -> Any:
            return cells[name].to_numpy()

        self.id = group_id
        self.ids = column("cell_id")
        self._order = np.argsort(self.ids)
        self._mean = column("mean_log_rate")
        self.is_predicted = column("class") == _PREDICTED
        self.level = np.where(self.is_predicted, PREDICTED_LEVEL, MEASURED_LEVEL)
        self.speaks = column("speaks").astype(bool)
        self.names, self.layout = np.unique(cells["layout"].to_pylist(), return_inverse=True)
        self.sizes, self.size = np.unique(column("world_size"), return_inverse=True)
        self._errors = np.nan_to_num(np.stack([column(f"{part}_sigma") for part in PARTS], axis=1))
        self._fits = column("fits_probability")
        # A retry frees the allocator's cache: such steps are slow today and may not fit tomorrow.
        retried = column("num_alloc_retries") > 0
        self.candidate = column("leads").astype(bool) & (self._fits >= LEAST_FIT) & ~retried
        self.cluster = runs["cluster"][0].as_py() if len(runs) else ""
        self.named = named.get(self.cluster, [])
        self.runs = self._runs(runs)
        drawn = self._drawn()
        self.rates, self.noise, self.hosts = drawn.rates, drawn.noise, drawn.hosts
        self.disturbed = self._disturbed(runs["point_id"].to_numpy(), drawn.disturbed)
        self.shares = shares_of_best(self.rates, self.size, self.candidate)
        chosen = advise(self.rates, self.layout, self.size, self.candidate)
        self.advised = [chosen[size] for size in sorted(chosen)]
        self.p_best, self.close = self._best()
        seconds = TYPICAL_STARTUP_S + _RUN_STEPS * column("tokens_per_step") / np.exp(self._mean)
        seconds = np.where(self.is_predicted, seconds, column("duration_s"))
        self.run_gpu_s: Floats = seconds * self.sizes[self.size]
        self.measure_next = self._next()

    def index(self, cell_ids: pa.ChunkedArray) -> Integers:
        """Places of these cells in the group."""
        found = np.searchsorted(self.ids, cell_ids.to_numpy(), sorter=self._order)
        return np.asarray(self._order[found])

    def _runs(self, runs: pa.Table) -> Runs:
        cell, host = self.index(runs["cell_id"]), np.full(len(runs), -1)
        if self.named:
            lists = runs["hosts"].to_pylist()
            for number, one in reversed(list(enumerate(self.named))):  # the slowest one counts
                host[[one.host in (hosts or ()) for hosts in lists]] = number
        own = runs["own_sigma"].to_numpy().astype(float)
        return Runs(runs["log_rate"].to_numpy(), own, cell, host)

    def _drawn(self) -> Posterior:
        """Draws of what ran, and of predictions that speak for a layout; of noise and hosts."""
        place = self.layout * len(self.sizes) + self.size
        own_prediction = np.full(len(self.names) * len(self.sizes), -1)
        own_prediction[place[self.is_predicted]] = np.flatnonzero(self.is_predicted)
        source = own_prediction[place]
        predicted = np.where((source >= 0) & self.speaks, self._mean[source], np.nan)
        cells = Cells(self.layout, self.size, predicted, self._errors[source])
        return posterior(self.runs, cells, np.array([one.effect for one in self.named]))

    def _disturbed(self, point_ids: Any, chance: Floats) -> list[list[str] | None]:
        """The runs of each cell that may be the disturbed one, if there likely is one."""
        many = np.bincount(self.runs.cell, chance, len(self.ids)) >= LIKELY
        found: list[list[str] | None] = [None] * len(self.ids)
        for run in np.flatnonzero(many[self.runs.cell] & (chance >= CLOSE)):
            cell = self.runs.cell[run]
            found[cell] = sorted([*(found[cell] or []), point_ids[run]])
        return found

    def _best(self) -> tuple[Floats, Flags]:
        """P(best) of each candidate, NaN for others; whether it is one of several likely ones."""
        p_best = np.full(len(self.ids), np.nan)
        for size in range(len(self.sizes)):
            at = np.flatnonzero(self.candidate & (self.size == size))
            if len(at):
                p_best[at] = best_of(self.rates[at])
        likely = p_best >= CLOSE
        several = np.bincount(self.size[likely], minlength=len(self.sizes)) > 1
        return p_best, likely & several[self.size]

    def _next(self) -> Flags:
        """The cells to measure next at sizes that are too close to call (`next_points`)."""
        chosen = np.zeros(len(self.ids), dtype=bool)
        undecided = np.isin(self.size, self.size[self.close]) & self.speaks
        at = np.flatnonzero(undecided & ~np.isnan(self.rates[:, 0]))
        if len(at):
            half = self.rates.shape[1] // 2
            picked = np.arange(0, half, max(1, 2 * half // _DRAWS))  # the noise rises with them
            rates = self.rates[at][:, np.r_[picked, half + picked]]
            ran = ~self.is_predicted[at]
            known = Estimates(rates, self._fits[at], self.size[at], ran, ran)
            gpu_s = self.run_gpu_s[at]  # unknown of what others published
            plan = Plan(np.nan_to_num(gpu_s, nan=np.inf), np.isfinite(gpu_s).astype(int))
            chosen[at[next_points(known, plan).cells]] = True
        return chosen

    def cells_table(self) -> pa.Table:
        """The columns of `estimates` that follow from the draws."""
        drawn = ~np.isnan(self.rates[:, 0])
        mean = np.where(drawn, self.rates.mean(axis=1), self._mean)
        stated = np.sqrt((self._errors**2).sum(axis=1))  # of a prediction that is not drawn
        sigma = np.where(drawn, self.rates.std(axis=1), stated)
        own = np.where(self.is_predicted, np.hypot(self._errors[:, 1], self._errors[:, 3]), sigma)
        low, high = intervals(self.rates, self.level)
        share = self.shares.mean(axis=1)
        share_low, share_high = intervals(self.shares, self.level)
        advised = np.zeros(len(mean), dtype=bool)
        advised[self.advised] = True
        columns = {
            "ln_rate": mean,
            "ln_rate_sigma": sigma,
            "ln_rate_own_sigma": np.minimum(own, sigma),
            "level": self.level,
            "tokens_per_s": np.exp(mean),
            "tokens_per_s_low": np.exp(np.where(drawn, low, mean - Z80 * stated)),
            "tokens_per_s_high": np.exp(np.where(drawn, high, mean + Z80 * stated)),
            "share_of_best": share,
            "share_low": share_low,
            "share_high": share_high,
            "p_best": self.p_best,
            "expected_loss": np.where(self.candidate, 1 - share, np.nan),
            "run_gpu_hours": self.run_gpu_s / 3600,
            "candidate": self.candidate,
            "close": self.close,
            "advised": advised,
            "measure_next": self.measure_next,
            "disturbed_points": self.disturbed,
        }
        made = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
        return pa.table({"cell_id": self.ids, **made})

    def ratios(self, pairs: pa.Table, index: Integers, keys: dict[str, Any]) -> pa.Table:
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
        level = np.full(count, MEASURED_LEVEL)
        level[index[self.is_predicted[one] | self.is_predicted[other]]] = PREDICTED_LEVEL
        low, high = np.exp(intervals(drawn, level))
        found = {"ratio": np.exp(drawn.mean(axis=1)), "ratio_low": low, "ratio_high": high}
        return pa.table(keys | found | {"level": level})

    def line(self, *cells: int) -> Floats:
        """The mean ln rate of each of these cells, then its draws, (cells, 1 + draws)."""
        rates = self.rates[list(cells)]
        return np.column_stack([rates.mean(axis=1), rates])

    def level_of(self, *cells: int) -> float:
        """The level of an interval that depends on these cells."""
        return float(self.level[list(cells)].min())


def intervals(draws: Floats, level: Floats) -> Floats:
    """The ends of the interval of each row, at its level, (2, rows); NaN for what is not drawn."""
    ends = np.full((2, len(draws)), np.nan)
    for one in np.unique(level):
        at = np.flatnonzero((level == one) & ~np.isnan(draws[:, 0]))
        if len(at):
            ends[:, at] = np.quantile(draws[at], [(1 - one) / 2, (1 + one) / 2], axis=1)
    return ends
