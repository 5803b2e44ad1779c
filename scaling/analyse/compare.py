"""Compare two studies, or two periods of one: what changed, and whether beyond the noise."""

import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from scaling.analyse.catalogue import set_variables
from scaling.analyse.group import groups_of
from scaling.arrays import Floats
from scaling.errors import InputError
from scaling.study.paths import StudyPaths

_KEYS = (
    "model", "cluster", "study_kind", "seq_length", "kept_batch_size", "kept_choices",
    "world_size", "layout",
)  # fmt: skip
_MEASUREMENTS = """
create table measurements as from read_parquet($path)
where source in ('measured', 'extended')
    and ($since is null or started_at >= $since) and ($until is null or started_at < $until)
"""
_CELLS = f"select cell_id, outcome, runs, stack_fingerprint, {', '.join(_KEYS)} from cells"


@dataclass(frozen=True, slots=True)
class Side:
    """A tabulated study, or its rows that started at or after `since` and before `until` (UTC)."""

    study_dir: Path
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class _Cell:
    """A layout at a size in one software stack; `rates`: draws of ln tokens/s, None if none ran."""

    outcome: str
    runs: int
    stack: str
    advised: bool
    rates: Floats | None


def compare(before: Side, after: Side, sql_dir: Path) -> list[dict[str, Any]]:
    """One record per layout and size of either side: what ran here, short steps included.

    `ratio` is throughput after over before, with its 95 % interval by the draws of both sides
    (`scaling.analyse.group`); `faster` and `slower` mean that it excludes 1. `same_stack`: both
    sides ran on the same software and hardware. A side with several stacks is compared by the one
    that both have, else the one with the most runs. `before_advised`, `after_advised`: the layout
    to use at the size, by the runs of that side alone.

    Raises:
        InputError: a side has no row, is not tabulated, or by another version.
    """
    sides = _cells_of(before, sql_dir), _cells_of(after, sql_dir)
    records = [
        _record(key, *(side.get(key, []) for side in sides)) for key in {**sides[0], **sides[1]}
    ]
    return sorted(
        records,
        key=lambda one: (
            one["model"], one["cluster"], one["world_size"], one["ratio"] is None,
            -(one["ratio"] or 0.0), one["layout"],
        ),
    )  # fmt: skip


def _cells_of(side: Side, sql_dir: Path) -> dict[tuple[Any, ...], list[_Cell]]:
    """The cells of a side, those of one key in several stacks."""
    measurements, groups = (_table(side, table) for table in ("measurements", "comparison_groups"))
    period = {"path": measurements, "since": side.since, "until": side.until}
    found: dict[tuple[Any, ...], list[_Cell]] = {}
    with duckdb.connect() as connection:
        set_variables(connection)
        try:
            connection.execute(_MEASUREMENTS, period)
            connection.read_parquet(groups).create_view("comparison_groups")
            for name in ("cells", "runs"):
                query = (sql_dir / "inner" / f"{name}.sql").read_text(encoding="utf-8")
                connection.execute(f"create table {name} as {query}")
            rows = connection.sql(f"{_CELLS} join comparison_groups using (group_id) order by all")
            cells = rows.fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{StudyPaths(side.study_dir).tables}: cannot be compared: {reason}"
            ) from error
        rates: dict[int, Floats] = {}
        advised: set[int] = set()
        for group in groups_of(connection):
            rates |= zip(group.ids.tolist(), group.rates, strict=True)
            advised |= set(group.ids[group.advised].tolist())
    when = f"before {side.until}" if side.until else f"since {side.since}" if side.since else "here"
    if not cells:
        raise InputError(
            f"{side.study_dir}: no row was measured {when}; imported ones do not count"
        )
    for cell, outcome, runs, stack, *key in cells:
        one = _Cell(outcome, runs, stack, cell in advised, rates.get(cell))
        found.setdefault(tuple(key), []).append(one)
    return found


def _record(key: tuple[Any, ...], before: list[_Cell], after: list[_Cell]) -> dict[str, Any]:
    one, other = min(itertools.product(before or (None,), after or (None,)), key=_rank)
    record = dict(zip(_KEYS, key, strict=True))
    for name, cell, cells in (("before", one, before), ("after", other, after)):
        rates = cell.rates if cell else None
        record[f"{name}_outcome"] = cell.outcome if cell else None
        record[f"{name}_tokens_per_s"] = None if rates is None else float(np.exp(rates.mean()))
        record[f"{name}_runs"] = cell.runs if cell else None
        record[f"{name}_advised"] = any(cell.advised for cell in cells)
    record |= dict.fromkeys(("ratio", "ratio_low", "ratio_high", "same_stack"))
    if one is None or other is None:
        return record | {"verdict": "new" if one is None else "gone"}
    record["same_stack"] = one.stack == other.stack
    if one.rates is None or other.rates is None:
        same = one.outcome == other.outcome
        return record | {"verdict": "failed both times" if same else "outcome changed"}
    # the sides are independent, and their draws are not: one is shuffled
    shuffled = np.random.default_rng(1).permutation(other.rates)
    count = min(len(shuffled), len(one.rates))
    low, high = np.exp(np.quantile(shuffled[:count] - one.rates[:count], [0.025, 0.975]))
    ratio = float(np.exp(other.rates.mean() - one.rates.mean()))
    verdict = "faster" if low > 1 else "slower" if high < 1 else "within noise"
    return record | {
        "ratio": ratio, "ratio_low": float(low), "ratio_high": float(high), "verdict": verdict,
    }  # fmt: skip


def _rank(pair: tuple[_Cell | None, _Cell | None]) -> tuple[Any, ...]:
    """The order of what is compared: it ran, in one stack, most often."""
    cells = [cell for cell in pair if cell]
    stacks = [cell.stack for cell in cells]
    failed = any(cell.rates is None for cell in cells)
    return failed, len({*stacks}) > 1, -sum(cell.runs for cell in cells), stacks


def _table(side: Side, name: str) -> str:
    path = StudyPaths(side.study_dir).table(name)
    if not path.exists():
        raise InputError(
            f"{path}: is missing; `scaling tabulate {shlex.quote(str(side.study_dir))}` writes it"
        )
    return str(path)
