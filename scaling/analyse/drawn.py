"""The tables made of the draws of all comparison groups; SQL gives them names and units.

Each needs one pass over the groups, so all of them are made together.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from scaling.analyse.group import MEASURED_LEVEL, Group, by_group, groups_of
from scaling.analyse.laws import LEAST_SIZES, law_of
from scaling.analyse.posterior import return_of
from scaling.arrays import Flags, Floats
from scaling.record.probe_row import Probe


def _ends(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("", "_low", "_high"))


_COLUMNS = {
    "drawn_cells": (
        "cell_id", "ln_rate", "ln_rate_sigma", "ln_rate_own_sigma", "level",
        *_ends("tokens_per_s"), "share_of_best", "share_low", "share_high", "p_best",
        "expected_loss", "run_gpu_hours", "candidate", "close", "advised", "measure_next",
        "disturbed_points",
    ),
    "drawn_sizes": (
        "group_id", "world_size", "knee_probability", *_ends("efficiency"),
    ),
    "drawn_steps": (
        "group_id", "from_world_size", "to_world_size", "from_cell", "to_cell", "level",
        *_ends("faster", "step_return", "marginal_tokens_per_s", "elasticity", "efficiency",
               "share"),
        "yardstick_tokens_per_s_per_gpu", "pays_probability",
    ),
    "drawn_crossings": (
        "group_id", "from_world_size", "to_world_size", "before_layout", "after_layout", "level",
        *_ends("gain", "crossing"), "crossing_probability",
    ),
    "effect_ratios": ("group_id", "effect_id", *_ends("ratio"), "level"),
    "engine_ratios": ("from_cell", "to_cell", *_ends("ratio"), "level"),
    "drawn_noise": ("group_id", *_ends("sigma")),
    "hosts": ("group_id", "cluster", "host", "named_by", *_ends("effect"), "level", "runs"),
    "laws": (
        "group_id", "level", "sizes", "leaves_data_at", "fit_error",
        *_ends("t1", "serial", "coherency", "peak_world_size"),
    ),
}  # fmt: skip
_KINDS = {  # of columns that are no real numbers
    name: kind
    for kind, names in {
        pa.int64(): "group_id world_size from_world_size to_world_size runs sizes leaves_data_at",
        pa.uint64(): "cell_id from_cell to_cell effect_id",
        pa.string(): "before_layout after_layout cluster host named_by",
        pa.bool_(): "candidate close advised measure_next",
        pa.list_(pa.string()): "disturbed_points",
    }.items()
    for name in names.split()
}
SCHEMAS = {
    table: pa.schema([(name, _KINDS.get(name, pa.float64())) for name in names])
    for table, names in _COLUMNS.items()
}
INNER = set(SCHEMAS) - {"hosts", "laws"}  # for other tables only

_EFFECTS = (
    "select group_id, effect_id, from_cell, to_cell from matched_pairs where near order by group_id"
)
_ENGINES = """
select group_id, from_cell, to_cell from engine_pairs
where from_outcome = 'ok' and to_outcome = 'ok' order by group_id
"""


def drawn_tables(connection: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """The tables of SCHEMAS."""
    effects, engines = (connection.sql(query).to_arrow_table() for query in (_EFFECTS, _ENGINES))
    effects_of, engines_of = by_group(effects), by_group(engines)
    share = connection.execute("select knee_share from study.options").fetchall()[0][0]
    rows = connection.sql("from study.probes where slowdown is not null").to_arrow_table()
    parts: dict[str, list[Any]] = {name: [] for name in SCHEMAS}
    for group in groups_of(connection, [Probe(**row) for row in rows.to_pylist()]):
        group_id = group.id
        of_effects = effects_of.get(group_id, effects.slice(0, 0))
        of_engines = engines_of.get(group_id, engines.slice(0, 0))
        effect_ids, index = np.unique(of_effects["effect_id"].to_numpy(), return_inverse=True)
        keys = {"group_id": np.full(len(effect_ids), group_id), "effect_id": effect_ids}
        parts["effect_ratios"].append(group.ratios(of_effects, index, keys))
        ends = {name: of_engines[name] for name in ("from_cell", "to_cell")}
        parts["engine_ratios"].append(group.ratios(of_engines, np.arange(len(of_engines)), ends))
        parts["drawn_cells"].append(group.cells_table())
        for name, records in (
            ("drawn_noise", _noise(group)), ("hosts", _hosts(group)),
            ("drawn_steps", _steps(group, share)), ("drawn_sizes", _sizes(group, share)),
            ("drawn_crossings", _crossings(group)), ("laws", _laws(group)),
        ):  # fmt: skip
            made = [{"group_id": group_id, **record} for record in records]
            parts[name].append(pa.Table.from_pylist(made, schema=SCHEMAS[name]))
    return {
        name: pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts[name])])
        for name, schema in SCHEMAS.items()
    }


def _with_ends(name: str, values: Floats, level: float) -> dict[str, float]:
    """A value, then the ends of the interval of its draws: `values` has it before them."""
    low, high = np.quantile(values[1:], [(1 - level) / 2, (1 + level) / 2]).tolist()
    return {name: float(values[0]), f"{name}_low": low, f"{name}_high": high}


def _with_median(draws: Floats) -> Floats:
    return np.append(np.median(draws), draws)


def _noise(group: Group) -> Iterator[dict[str, Any]]:
    known = not np.isnan(group.noise[0])
    yield _with_ends("sigma", _with_median(group.noise), MEASURED_LEVEL) if known else {}


def _hosts(group: Group) -> Iterator[dict[str, Any]]:
    for number, one in enumerate(group.named):
        runs = int((group.runs.host == number).sum())
        if runs:
            slower = np.expm1(-group.hosts[number])
            yield {
                "cluster": group.cluster, "host": one.host, "level": MEASURED_LEVEL, "runs": runs,
                "named_by": "runs" if one.kind == "runs" else "probes",
                **_with_ends("effect", _with_median(slower), MEASURED_LEVEL),
            }  # fmt: skip


def _laws(group: Group) -> Iterator[dict[str, Any]]:
    """The universal scalability law through the advised rates that ran."""
    ran = [cell for cell in group.advised if not group.is_predicted[cell]]
    if len(ran) >= LEAST_SIZES:
        sizes = group.sizes[group.size[ran]].astype(float)
        law = law_of(sizes, group.rates[ran])
        yield {
            "level": MEASURED_LEVEL, "sizes": len(ran), "leaves_data_at": int(sizes[-1]), **law,
        }  # fmt: skip


def _steps_of(group: Group) -> Iterator[tuple[int, int, int, int]]:
    """The advised cells of neighbouring sizes, and these sizes."""
    for before, after in pairwise(group.advised):
        n0, n1 = group.sizes[group.size[[before, after]]].tolist()
        yield before, after, n0, n1


def _steps(group: Group, knee_share: float) -> Iterator[dict[str, Any]]:
    """The return of each step between neighbouring sizes, each at its advised layout."""
    for cell0, cell1, n0, n1 in _steps_of(group):
        smallest = group.advised[0]
        n, level = int(group.sizes[group.size[smallest]]), group.level_of(cell0, cell1)
        first, before, after = group.line(smallest, cell0, cell1)
        marginal = (np.exp(after) - np.exp(before)) / (n1 - n0)
        drawn = {
            "faster": np.exp(after - before),
            "step_return": return_of(before, after, n1 / n0),
            "marginal_tokens_per_s": marginal,
            "elasticity": (after - before) / np.log(n1 / n0),
            "efficiency": np.exp(after - first) * n / n1,
            "share": marginal * n / np.exp(first),
        }
        record = {
            "from_world_size": n0, "to_world_size": n1, "level": level,
            "from_cell": int(group.ids[cell0]), "to_cell": int(group.ids[cell1]),
            "yardstick_tokens_per_s_per_gpu": float(np.exp(first[0])) / n,
            "pays_probability": float(_pays(group, cell0, cell1, knee_share).mean()),
        }  # fmt: skip
        for name, values in drawn.items():
            record |= _with_ends(name, values, level)
        yield record


def _pays(group: Group, before: int, after: int, knee_share: float) -> Flags:
    """The draws in which every doubling of a step returns the share of twice the rate."""
    growth = np.log(group.sizes[group.size[after]] / group.sizes[group.size[before]])
    gained = group.rates[after] - group.rates[before]
    return np.asarray(gained >= growth + np.log(knee_share) * growth / np.log(2))


def _sizes(group: Group, knee_share: float) -> Iterator[dict[str, Any]]:
    """Efficiency against the smallest size, and the probability that the knee is there."""
    still = np.ones(group.rates.shape[1], dtype=bool)  # draws in which every step paid so far
    for place, cell in enumerate(group.advised):
        pays = np.zeros_like(still)
        if place + 1 < len(group.advised):
            pays = _pays(group, cell, group.advised[place + 1], knee_share)
        first = group.advised[0]
        sizes = group.sizes[group.size[[cell, first]]]
        here, smallest = group.line(cell, first)
        efficiency = np.exp(here - smallest) * sizes[1] / sizes[0]
        yield {
            "world_size": int(sizes[0]), "knee_probability": float((still & ~pays).mean()),
            **_with_ends("efficiency", efficiency, group.level_of(cell, first)),
        }  # fmt: skip
        still &= pays


def _crossings(group: Group) -> Iterator[dict[str, Any]]:
    """Each change of the advised layout: what it gains, and where the two lines cross."""
    drawn = np.flatnonzero(group.speaks & ~np.isnan(group.rates[:, 0]))
    cell_of = {(group.layout[cell], group.size[cell]): int(cell) for cell in drawn}
    for before, after, n0, n1 in _steps_of(group):
        old, new = group.layout[before], group.layout[after]
        if old == new:
            continue
        record: dict[str, Any] = {
            "from_world_size": n0, "to_world_size": n1, "level": group.level_of(before, after),
            "before_layout": str(group.names[old]), "after_layout": str(group.names[new]),
        }  # fmt: skip
        stayed, came = cell_of.get((old, group.size[after])), cell_of.get((new, group.size[before]))
        if stayed is not None:
            level = record["level"] = group.level_of(stayed, after)
            there, staying = group.line(after, stayed)
            record |= _with_ends("gain", np.exp(there - staying), level)
            if came is not None:
                lead, gain = group.rates[before] - group.rates[came], (there - staying)[1:]
                crosses = (lead > 0) & (gain > 0)
                record["crossing_probability"] = float(crosses.mean())
                if crosses.any():
                    at = lead[crosses] / (lead + gain)[crosses]
                    record |= _with_ends("crossing", _with_median(n0 * (n1 / n0) ** at), level)
        yield record
