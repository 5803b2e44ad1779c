"""Compare two studies, or two periods of one: what changed, and whether beyond the noise."""

import itertools
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from scaling.analyse.posterior import Cells, Runs, posterior
from scaling.arrays import Floats
from scaling.errors import InputError
from scaling.study.paths import StudyPaths

_KEYS = (
    "model", "cluster", "study_kind", "seq_length", "kept_batch_size", "kept_choices",
    "world_size", "layout",
)  # fmt: skip
_SIDE = f"""
select
    {", ".join(_KEYS)}, measured.setting_id, stack_fingerprint, outcome,
    ln(tokens_per_s) as log_rate, log_sigma
from read_parquet($measurements) as measured
join read_parquet($settings) as settings using (setting_id)
where measured.series in ('measured', 'extended')
    and ($since is null or started_at >= $since) and ($until is null or started_at < $until)
order by all
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A tabulated study, or its rows that started at or after `since` and before `until` (UTC)."""

    study_dir: Path
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class _Cell:
    """A layout at a size in one software stack: its runs, and draws of its ln tokens/s."""

    outcome: str
    runs: int
    stack: str
    rates: Floats | None


def compare(before: Side, after: Side) -> list[dict[str, Any]]:
    """One record per layout and size of either side: what ran here, short steps included.

    `ratio` is throughput after over before, with its 95 % interval by the draws of both sides
    (`scaling.analyse.posterior`); `faster` and `slower` mean that it excludes 1. `same_stack`: both
    sides ran on the same software and hardware. A side with several stacks is compared by the one
    that both have, else the one with the most runs.

    Raises:
        InputError: a side is not tabulated, or by another version.
    """
    sides = _cells_of(before), _cells_of(after)
    records = [
        _record(key, *_chosen(sides[0].get(key, []), sides[1].get(key, [])))
        for key in {**sides[0], **sides[1]}
    ]
    return sorted(
        records,
        key=lambda one: (
            one["model"], one["cluster"], one["world_size"], one["ratio"] is None,
            -(one["ratio"] or 0.0), one["layout"],
        ),
    )  # fmt: skip


def _cells_of(side: Side) -> dict[tuple[Any, ...], list[_Cell]]:
    """The cells of a side, those of one key in several stacks."""
    tables = {table: _table(side, table) for table in ("measurements", "settings")}
    with duckdb.connect() as connection:
        try:
            rows = connection.execute(
                _SIDE, {**tables, "since": side.since, "until": side.until}
            ).fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{StudyPaths(side.study_dir).tables}: cannot be compared: {reason}"
            ) from error
    found: dict[tuple[Any, ...], list[_Cell]] = {}
    settings: dict[int, dict[Any, list[Any]]] = {}
    for row in rows:
        key, (setting, stack, *run) = row[: len(_KEYS)], row[len(_KEYS) :]
        settings.setdefault(setting, {}).setdefault((key, stack), []).append(run)
    for cells in settings.values():
        ran = [[run for run in runs if run[1] is not None] for runs in cells.values()]
        flat = [(number, *run[1:]) for number, runs in enumerate(ran) for run in runs]
        cell, log_rate, own = np.array(flat, dtype=float).reshape(-1, 3).T
        runs = Runs(log_rate, own, cell.astype(int), np.full(len(cell), -1))
        drawn = posterior(runs, Cells.without_predictions(len(ran))).rates
        for number, ((key, stack), all_runs) in enumerate(cells.items()):
            outcomes = sorted(run[0] for run in all_runs)
            outcome = "ok" if "ok" in outcomes else statistics.mode(outcomes)
            rates = drawn[number] if ran[number] else None
            found.setdefault(key, []).append(_Cell(outcome, len(all_runs), stack, rates))
    return found


def _chosen(before: list[_Cell], after: list[_Cell]) -> tuple[_Cell | None, _Cell | None]:
    """The stacks that are compared: both have it and it ran, then the most runs."""

    def least(pair: tuple[_Cell, _Cell]) -> tuple[Any, ...]:
        one, other = pair
        failed = one.rates is None or other.rates is None
        return failed, one.stack != other.stack, -one.runs - other.runs, one.stack, other.stack

    if before and after:
        return min(itertools.product(before, after), key=least)
    (cell, *_) = sorted(before or after, key=lambda one: (one.rates is None, -one.runs, one.stack))
    return (cell, None) if before else (None, cell)


def _record(key: tuple[Any, ...], before: _Cell | None, after: _Cell | None) -> dict[str, Any]:
    record = dict(zip(_KEYS, key, strict=True))
    for name, side in (("before", before), ("after", after)):
        rates = side.rates if side else None
        record[f"{name}_outcome"] = side.outcome if side else None
        record[f"{name}_tokens_per_s"] = None if rates is None else float(np.exp(rates.mean()))
        record[f"{name}_runs"] = side.runs if side else None
    record |= dict.fromkeys(("ratio", "ratio_low", "ratio_high", "same_stack"))
    if before is None or after is None:
        return record | {"verdict": "new" if before is None else "gone"}
    record["same_stack"] = before.stack == after.stack
    if before.rates is None or after.rates is None:
        same = before.outcome == after.outcome
        return record | {"verdict": "failed both times" if same else "outcome changed"}
    # the sides are independent, and their draws are not: one is shuffled
    shuffled = np.random.default_rng(1).permutation(after.rates)
    count = min(len(shuffled), len(before.rates))
    low, high = np.exp(np.quantile(shuffled[:count] - before.rates[:count], [0.025, 0.975]))
    ratio = float(np.exp(after.rates.mean() - before.rates.mean()))
    verdict = "faster" if low > 1 else "slower" if high < 1 else "within noise"
    return record | {
        "ratio": ratio, "ratio_low": float(low), "ratio_high": float(high), "verdict": verdict,
    }  # fmt: skip


def _table(side: Side, name: str) -> str:
    path = StudyPaths(side.study_dir).table(name)
    if not path.exists():
        raise InputError(
            f"{path}: is missing; `scaling tabulate {shlex.quote(str(side.study_dir))}` writes it"
        )
    return str(path)
