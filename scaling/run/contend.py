"""Repeats where they decide: which layouts of a size run once more, round after round.

chosen/<world_size>.repeat<n>.parquet holds every point of that repeat: whether it is measured, else
why not, and the hosts that its earlier runs were on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.analyse.being_best import UNRESOLVED, Runs, between_runs, odds_of, own_error
from scaling.errors import InputError
from scaling.record.files import write_table
from scaling.run import exclusion
from scaling.run.choices import choice_table, chosen_ids, rows_of, same_layout, same_setting
from scaling.study.grid import Plan
from scaling.study.paths import StudyPaths
from scaling.study.point import Point

if TYPE_CHECKING:
    from scaling.study.study import Study

COLUMNS = [
    "outcome", "step_time_s", "step_time_low_s", "step_time_high_s", "extended_step_time_s",
    "extended_low_s", "extended_high_s", "hosts", "stack_fingerprint",
]  # fmt: skip
Timed = tuple[float, float]  # seconds of a step, and the error of their logarithm


def contend(
    study: "Study", planned: Plan, world_size: int, repeat: int, study_dir: Path, out: Path
) -> str:
    """Choose which layouts of a size are measured once more and write them; a sentence about it.

    A point that has a row already stays chosen.

    Raises:
        InputError: the study repeats no contenders, or has no such size or repeat.
    """
    repeats = study.measure.repeats
    if repeats.only is None or not 0 < repeat < repeats.at_most:
        raise InputError(
            f"{study.path}: measure.repeats: there is no repeat {repeat} of contenders; write "
            f"repeats: {{at_most: {max(repeat + 1, 2)}, for: contenders}}"
        )
    here = [point for point in planned.points if point.world_size == world_size]
    if not here:
        sizes = ", ".join(str(s) for s in sorted({p.world_size for p in planned.points}))
        raise InputError(f"{study.path}: world_size={world_size}: the study has {sizes}")
    rows = rows_of(StudyPaths(study_dir), planned.points, COLUMNS)
    sigma = between_runs(Runs.of([*_by_layout(planned.points, rows).values()]))
    probabilities: dict[Any, float] = {}
    contenders: set[Any] = set()
    for layouts in _by_setting(here, rows).values():
        odds = odds_of(Runs.of([*layouts.values()]), sigma)
        keys = list(layouts)
        probabilities |= dict(zip(keys, odds.probabilities, strict=True))
        contenders |= {keys[row] for row in odds.contenders}
    again = [point for point in here if point.repeat == repeat]
    timed = timed_on(rows)
    slow = exclusion.name_slow(study, planned.points, timed, StudyPaths(study_dir).excluded)
    suspect = only_on_slow(here, timed, set(slow))
    reasons = {
        point.point_id: _reason(
            probabilities.get(same_layout(point)), same_layout(point), contenders | suspect
        )
        for point in again
        if point.point_id not in rows
    }
    hosts: dict[Any, list[str]] = {}
    for point in here:
        if point.point_id in rows:
            hosts.setdefault(same_layout(point), []).extend(rows[point.point_id]["hosts"])
    write_table(
        out,
        choice_table(
            again,
            {name: reason for name, reason in reasons.items() if reason is not None},
            hosts={p.point_id: sorted(set(hosts.get(same_layout(p), []))) for p in again},
        ),
    )
    count = len(chosen_ids(out))
    return (
        f"world_size={world_size}, repeat {repeat}: {count} of {len(again)} layouts are measured "
        f"once more; runs of one layout differ by {sigma:.2%}" + exclusion.left_out(slow)
    )


def only_on_slow(
    points: Sequence[Point], timed: Mapping[str, exclusion.Timed], slow: set[str]
) -> set[Any]:
    """Layouts of which every run was on a node that is slow: they are repeated elsewhere."""
    runs: dict[Any, list[bool]] = {}
    for point in points:
        if point.point_id in timed:
            there = not slow.isdisjoint(timed[point.point_id][1])
            runs.setdefault(same_layout(point), []).append(there)
    return {key for key, there in runs.items() if all(there)}


def _reason(probability: float | None, key: Any, contenders: set[Any]) -> str | None:
    """Why a layout is not repeated; None if it is."""
    if key in contenders:
        return None
    if probability is None:
        return "is not repeated: no run of it gave a step time"
    low, high = UNRESOLVED
    if low <= probability <= high or probability > high:
        return (
            f"is not repeated: it is the best of its size with a probability of {probability:.0%}"
        )
    return f"is not repeated: the probability that it is the best of its size is {probability:.1%}"


def timed_on(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, exclusion.Timed]:
    """Seconds of a step and the hosts of each row that has a step time."""
    return {name: (each[0], row["hosts"]) for name, row in rows.items() if (each := _timed(row))}


def _timed(row: Mapping[str, Any]) -> Timed | None:
    """Seconds of a step and the error of its logarithm: as extended where short steps ran."""
    if row["outcome"] != "ok":
        return None
    if row["extended_step_time_s"] is not None:
        ends = {
            "step_time_low_s": row["extended_low_s"],
            "step_time_high_s": row["extended_high_s"],
        }
        return row["extended_step_time_s"], own_error(ends, "extended")
    return row["step_time_s"], own_error(row, "measured")


def _by_layout(
    points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]]
) -> dict[Any, list[Timed]]:
    """The timed runs of each layout."""
    runs: dict[Any, list[Timed]] = {}
    for point in points:
        timed = _timed(rows[point.point_id]) if point.point_id in rows else None
        if timed is not None:
            runs.setdefault(same_layout(point), []).append(timed)
    return runs


def _by_setting(
    points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]]
) -> dict[Any, dict[Any, list[Timed]]]:
    """The same of one size, by what is compared with each other."""
    settings = {same_layout(point): same_setting(point) for point in points}
    grouped: dict[Any, dict[Any, list[Timed]]] = {}
    for key, runs in _by_layout(points, rows).items():
        grouped.setdefault(settings[key], {})[key] = runs
    return grouped
