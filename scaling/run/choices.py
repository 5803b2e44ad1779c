"""Choices made while a study runs: which files hold them, and what such a file says.

A file holds points of one size: whether each is measured, else why not.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.cluster.hardware import gpu_named
from scaling.errors import InputError
from scaling.record.files import arrow_schema
from scaling.record.row import fields_of
from scaling.record.row_files import read_rows
from scaling.study import plan_file
from scaling.study.grid import Refusal
from scaling.study.paths import StudyPaths
from scaling.study.point import LONG_DIGEST, Point, columns_of, point_of
from scaling.study.study import Study


def turns(study: Study) -> int:
    """Times that each size is chosen for again, by its own rows."""
    if study.mode != "measure" or not study.measure.guided:
        return 0
    from scaling.predict.advise.surprise import TURNS

    return TURNS


def choices_of(study: Study, points: Sequence[Point], paths: StudyPaths) -> set[Path]:
    """The files of every choice that is made while the study runs."""
    measure, sizes = study.measure, {point.world_size for point in points}
    choices: set[Path] = set()
    if study.mode == "measure" and measure.guided:
        choices = {paths.choice(size) for size in sizes}
        again = range(1, turns(study) + 1)
        choices |= {paths.choice_again(size, turn) for size in sizes for turn in again}
    if study.mode == "measure" and measure.repeats.only:
        repeats = {(point.world_size, point.repeat) for point in points if point.repeat}
        choices |= {paths.choice_of_repeat(*repeat) for repeat in repeats}
    if repeats_elsewhere(study, points, paths):
        choices |= {paths.choice_elsewhere(size) for size in sizes}
    return choices


def repeats_elsewhere(study: Study, points: Sequence[Point], paths: StudyPaths) -> bool:
    """Whether what ran on slow nodes only runs once more, on others.

    Where contenders are repeated their rounds do that. A study that had its report before there
    was this choice is left alone.
    """
    measure = study.measure
    if study.mode != "measure" or not measure.exclude_slow_nodes or measure.repeats.only:
        return False
    cluster = study.clusters[points[0].cluster]
    if cluster.nodes == 1:
        return False
    if gpu_named(cluster.gpu).memory_bytes is None and measure.repeats.at_most == 1:
        return False  # neither a prediction nor another run to compare a run with
    return plan_file.chooses_elsewhere(paths) or not paths.report.exists()


def once_more(study: Study, points: Sequence[Point], paths: StudyPaths) -> list[Point]:
    """Of each layout the run that is added where all others were on slow nodes."""
    if not points or not repeats_elsewhere(study, points, paths):
        return []
    repeat = study.measure.repeats.at_most
    added = []
    for point in points:
        if point.repeat == 0:
            axes = columns_of(point)
            named = point_of(study, axes, point.layout, repeat, digits=LONG_DIGEST)
            added.append(dataclasses.replace(point, repeat=repeat, point_id=named.point_id))
    return added


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


def rows_of(
    paths: StudyPaths, points: Iterable[Point], columns: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """These columns of the rows that are there, by point."""
    by_path = {paths.row(point.point_id): point.point_id for point in points}
    table = read_rows([path for path in by_path if path.exists()]).table
    records = table.select(["file", *columns]).to_pylist()
    return {by_path[Path(row["file"])]: row for row in records}


def choice_table(
    points: Sequence[Point],
    reasons: Mapping[str, str],
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> pa.Table:
    """A row per point of one size: chosen, or by `reasons` why not.

    `more` has values by point of further columns: predicted_step_time_s (seconds), best_step_time_s
    (of its size and setting), hosts (that earlier runs were on).
    """
    own = {
        "point_id": pa.string(),
        "repeat": pa.int64(),
        "chosen": pa.bool_(),
        "predicted_step_time_s": pa.float64(),
        "best_step_time_s": pa.float64(),
        "hosts": pa.list_(pa.string()),
    }
    records = [
        refusal_columns(point)
        | {"point_id": name, "repeat": point.repeat, "chosen": name not in reasons}
        | {"reason": reasons.get(name)}
        | {column: values.get(name) for column, values in (more or {}).items()}
        for point in points
        for name in [point.point_id]
    ]
    refusal_fields = [field.with_nullable(True) for field in arrow_schema(Refusal)]
    schema = pa.schema([*refusal_fields, *(pa.field(name, kind) for name, kind in own.items())])
    return pa.Table.from_pylist(records, schema=schema)


def refusal_columns(point: Point) -> dict[str, Any]:
    """What a refusal says of a point, the reason apart."""
    columns = columns_of(point)
    return {name: columns[name] for name in fields_of(Refusal) if name != "reason"}


def same_layout(point: Point) -> tuple[Any, ...]:
    """What repeats of one layout share."""
    return point.model, point.cluster, point.study_kind, point.layout


def same_setting(point: Point) -> tuple[Any, ...]:
    """What layouts of one size that are compared with each other share."""
    layout = point.layout
    return (
        point.model, point.cluster, point.study_kind, layout.seq_length, layout.setting_choices,
    )  # fmt: skip
