"""A guided sweep, size after size: what the smaller ones measured chooses the points of the next.

chosen/<world_size>.parquet holds every point of a size: whether it is measured, else why not.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError
from scaling.record.files import arrow_schema, write_table
from scaling.record.row import fields_of
from scaling.record.row_files import read_rows as read_measured
from scaling.run import planning, price
from scaling.study.grid import Plan, Refusal
from scaling.study.paths import StudyPaths
from scaling.study.point import Point, columns_of

if TYPE_CHECKING:
    from scaling.predict.advise.guide import Choice
    from scaling.predict.read.calibration import Calibration
    from scaling.study.study import Study


def choose(study: "Study", planned: Plan, world_size: int, study_dir: Path, out: Path) -> str:
    """Choose the points of one size and write them; a sentence about it.

    A point that has a row already stays chosen, and its cost counts as spent.

    Raises:
        InputError: the study does not ask for it, or has no point of that size.
    """
    from scaling.predict.advise.guide import choose as choose_rows

    if not study.measure.guided:
        raise InputError(f"{study.path}: measure: neither keep nor budget_gpu_hours is given")
    once = [point for point in planned.points if point.repeat == 0]
    if not any(point.world_size == world_size for point in once):
        sizes = ", ".join(str(s) for s in sorted({point.world_size for point in once}))
        raise InputError(f"{study.path}: world_size={world_size}: the study has {sizes}")
    rows = _rows(study_dir, planned.points)
    calibration, basis = _calibrated(study, study_dir, planned.points, rows, world_size)
    points, prediction = planning.predict_points(study, once, calibration)
    choices = choose_rows(
        points,
        prediction,
        world_size,
        guide_of(study, _startup_s(rows), price.run_s(study, once, prediction)),
        spent_gpu_s=sum(row["duration_s"] * row["world_size"] for row in rows.values()),
    )
    # repeats of contenders are chosen by what the first runs say
    every = once if study.measure.repeats.only else planned.points
    table = _table(once, choices, every, set(rows))
    write_table(out, table)
    count = sum(table.column("chosen").to_pylist())
    return f"world_size={world_size}: {count} of {table.num_rows} points are measured; {basis}"


def chosen_ids(path: Path) -> list[str]:
    """The points of one size that are to be measured.

    Raises:
        InputError: the file is broken.
    """
    try:
        table = pq.read_table(path, columns=["point_id", "chosen"])
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of choices: {reason}; remove it and run") from None
    return [one["point_id"] for one in table.to_pylist() if one["chosen"]]


def _rows(study_dir: Path, points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """What the rows that are there say, by point."""
    paths = {StudyPaths(study_dir).row(point.point_id): point for point in points}
    wanted = ["file", "duration_s", "world_size", "startup_s", "stack_fingerprint"]
    table = read_measured([path for path in paths if path.exists()]).table.select(wanted)
    return {paths[Path(row["file"])].point_id: row for row in table.to_pylist()}


def _startup_s(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Seconds before the first step, as the points so far took."""
    from scaling.predict.advise.guide import STARTUP_S

    known = sorted(row["startup_s"] for row in rows.values() if row["startup_s"] is not None)
    return known[len(known) // 2] if known else STARTUP_S


def guide_of(
    study: "Study", startup_s: float, run_s: "price.Floats", *, keep: float | None = None
) -> Any:
    """What the study says about what to measure.

    Args:
        study: whose `measure` says it.
        startup_s: seconds before the first step of a point.
        run_s: predicted seconds of all the steps of each point.
        keep: what holds where the study chooses nothing.
    """
    from scaling.predict.advise.guide import Guide

    measure = study.measure
    hours = budget_gpu_hours(study)
    return Guide(
        keep=measure.keep if measure.guided else keep,
        spread=measure.spread,
        budget_gpu_s=None if hours is None else hours * 3600,
        run_s=run_s,
        steps=measure.warmup_steps + measure.measured_steps.at_most,
        repeats=1 if measure.repeats.only else measure.repeats.at_most,
        startup_s=startup_s,
    )


def budget_gpu_hours(study: "Study") -> float | None:
    """The budget of a guided sweep in GPU-hours, money at its cluster's price."""
    measure = study.measure
    if measure.budget_usd is None:
        return measure.budget_gpu_hours
    names = {name for block in study.layouts for name in {**study.axes, **block}["cluster"]}
    prices = [study.clusters[name].usd_per_gpu_hour for name in names]
    bought = [measure.budget_usd / price for price in prices if price]
    return min([*bought, *([measure.budget_gpu_hours] if measure.budget_gpu_hours else [])])


def _calibrated(
    study: "Study",
    study_dir: Path,
    points: Sequence[Point],
    rows: Mapping[str, Mapping[str, Any]],
    world_size: int,
) -> tuple["Calibration | None", str]:
    """A calibration on the rows of smaller sizes, of the software that left most of them."""
    from scaling.foreign.columns import Columns
    from scaling.foreign.reading import read_rows
    from scaling.predict.fit.calibrate import calibrate
    from scaling.predict.fit.probes import probed_parameters
    from scaling.predict.read.observed import observed_of
    from scaling.predict.read.points import points_of

    smaller = [p.point_id for p in points if p.point_id in rows and p.world_size < world_size]
    if not smaller:
        return None, "nothing smaller has been measured: data-sheet numbers"
    prints = Counter(rows[point_id]["stack_fingerprint"] for point_id in smaller)
    stack, count = prints.most_common(1)[0]
    left = StudyPaths(study_dir)
    paths = [
        left.row(point_id) for point_id in smaller if rows[point_id]["stack_fingerprint"] == stack
    ]
    columns = Columns(read_measured(paths).table, str(left.rows))
    probed = None
    if left.probes.exists():
        probed = probed_parameters(
            Columns(read_rows(left.probes), str(left.probes)), study.clusters
        )
    calibration = calibrate(
        points_of(columns, clusters=study.clusters),
        observed_of(columns),
        source=str(left.rows),
        bands=False,
        probes=probed,
    )
    basis = f"calibrated on {count} rows of smaller sizes"
    if len(prints) > 1:
        basis += f", those of stack_fingerprint {stack}: {len(smaller) - count} are of another"
    return calibration, basis


def _table(
    once: Sequence[Point],
    choices: Sequence["Choice"],
    every: Sequence[Point],
    measured: set[str],
) -> pa.Table:
    """A row per point of the size, repeats of a layout alike."""
    by_layout = {same_layout(once[choice.row]): choice for choice in choices}
    here = {p.point_id: by_layout[same_layout(p)] for p in every if same_layout(p) in by_layout}
    reasons = {
        name: str(choice.reason)
        for name, choice in here.items()
        if not choice.chosen and name not in measured
    }
    return choice_table(
        [point for point in every if point.point_id in here],
        reasons,
        predicted={name: choice.predicted_step_time_s for name, choice in here.items()},
        best={name: choice.best_step_time_s for name, choice in here.items()},
    )


def choice_table(
    points: Sequence[Point],
    reasons: Mapping[str, str],
    *,
    predicted: Mapping[str, float | None] | None = None,
    best: Mapping[str, float | None] | None = None,
    hosts: Mapping[str, list[str]] | None = None,
) -> pa.Table:
    """A row per point: chosen, or the reason why not.

    Args:
        points: of one size.
        reasons: by point, of those that are not chosen.
        predicted: seconds of a step, by point.
        best: the same of the best of its size and setting.
        hosts: that earlier runs of the layout were on.
    """
    names = [name for name in fields_of(Refusal) if name != "reason"]
    records = []
    for point in points:
        known, name = columns_of(point), point.point_id
        records.append(
            {column: known[column] for column in names}
            | {
                "point_id": name,
                "repeat": point.repeat,
                "chosen": name not in reasons,
                "reason": reasons.get(name),
                "predicted_step_time_s": (predicted or {}).get(name),
                "best_step_time_s": (best or {}).get(name),
                "hosts": (hosts or {}).get(name),
            }
        )
    own = {
        "point_id": pa.string(),
        "repeat": pa.int64(),
        "chosen": pa.bool_(),
        "predicted_step_time_s": pa.float64(),
        "best_step_time_s": pa.float64(),
        "hosts": pa.list_(pa.string()),
    }
    refusal_fields = [field.with_nullable(True) for field in arrow_schema(Refusal)]
    schema = pa.schema([*refusal_fields, *(pa.field(name, kind) for name, kind in own.items())])
    return pa.Table.from_pylist(records, schema=schema)


def same_layout(point: Point) -> tuple[Any, ...]:
    """What repeats of one layout share."""
    return point.model, point.cluster, point.study_kind, point.layout
