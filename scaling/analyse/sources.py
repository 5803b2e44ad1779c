"""What the SQL files read: the Parquet files of a study as views, and the catalogue."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from scaling.analyse.catalogue import attach_axes, attach_catalogue, kept_choices_sql
from scaling.analyse.views import make_table, make_view, select_from, unreadable
from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.record.probe_row import Probe
from scaling.record.row import PointColumns, fields_of
from scaling.record.row_checks import COLUMNS, SQL_TYPES, invalid_probe_reason_sql
from scaling.record.row_files import (
    Unusable,
    find_invalid_rows,
    quoted,
    read_rows,
    row_files_in,
    unreadable_set_aside,
)
from scaling.study.grid import Refusal
from scaling.study.paths import StudyPaths

_LARGE_BYTES = 4 << 20  # larger files hold very many rows and are queried where they are
ROW = COLUMNS
_REFUSAL = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Refusal).items()}
_CHOSEN = {
    **_REFUSAL,
    "point_id": "varchar",
    "repeat": "bigint",
    "chosen": "boolean",
    "predicted_step_time_s": "double",
    "best_step_time_s": "double",
}
POINT = {name: ROW[name] for name in fields_of(PointColumns)}

MEMORY_PARTS = (
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes",
    "buffers_bytes", "fragmentation_bytes",
)  # fmt: skip
TIME_PARTS = (
    "gemm_s", "attention_s", "elementwise_s", "head_s", "tp_comm_s", "ep_comm_s", "host_s",
    "pp_comm_s", "bubble_s", "dp_comm_s", "optimizer_s", "jitter_s", "overhead_s", "stall_s",
)  # fmt: skip
_PREDICTION = {
    "point_id": "varchar",
    "fits": "boolean",
    "predicted_memory_bytes": "bigint",
    "predicted_peak_phase": "varchar",
    "capacity_bytes": "bigint",
    "predicted_step_time_s": "double",
    "low": "double",
    "high": "double",
    "predicted_own_sigma": "double",
    "predicted_size_sigma": "double",
    "parameters_from": "varchar",
    **dict.fromkeys(MEMORY_PARTS, "bigint"),
    **dict.fromkeys(TIME_PARTS, "double"),
}
_PROBE = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Probe).items()}


def attach(
    connection: duckdb.DuckDBPyConnection, study_dir: Path, clusters: Mapping[str, Cluster]
) -> list[Unusable]:
    """Create what SQL reads: study.points, .rows, .refused, .predictions, ... and the catalogue.

    Most are views, so that a query reads only the columns it names from disk; rows of small files
    are held in memory. Columns that a file lacks are null, unknown columns are dropped.

    Args:
        connection: an empty database.
        study_dir: results/<study>, with a plan (points.parquet) or imported rows
            (published.parquet); all else may be missing.
        clusters: by name, for their prices.

    Returns:
        Files and rows that are not valid; they are in no view but study.unusable.

    Raises:
        InputError: neither plan nor imported rows, or a file that is no Parquet of this project.
    """
    paths = StudyPaths(study_dir)
    points, published, refused = paths.points_table, paths.published, paths.refused
    imported = [published] if published.exists() else []
    if not points.exists() and not imported:
        raise InputError(f"{points}: is missing; `scaling plan` writes it")
    if points.exists() and not refused.exists():
        raise InputError(f"{refused}: is missing; `scaling plan` writes it")
    connection.execute("create schema study; create schema catalogue")
    planned = [points] if points.exists() else []
    choices = sorted(paths.chosen.glob("*.parquet"))
    elsewhere = sorted(paths.chosen.glob(paths.choice_elsewhere("*").name))
    point_files = [*planned, *elsewhere, *imported]
    make_view(connection, "study.every_point", POINT, [point_files])
    make_view(connection, "study.impossible", _REFUSAL, [[refused] if planned else []])
    make_view(connection, "study.chosen", _CHOSEN, [choices])
    try:
        _create_points_and_refusals(connection, guided=bool(choices))
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise unreadable(point_files, error) from error
    unusable = _create_rows(connection, study_dir, imported)
    _create_planned_rows(connection)
    _create_latest_rows(connection)
    predictions = [paths.predictions] if paths.predictions.exists() else []
    make_view(connection, "study.predictions", _PREDICTION, [predictions])
    unusable += _create_probes(connection, paths.probes)
    _create_unusable(connection, study_dir, unusable)
    attach_catalogue(connection, clusters)
    attach_axes(connection)
    return unusable


def _create_rows(
    connection: duckdb.DuckDBPyConnection, study_dir: Path, imported: Sequence[Path]
) -> list[Unusable]:
    """Create study.rows: small files as a table in memory, large ones queried where they are."""
    unusable: list[Unusable] = []
    nulls = ", ".join(f'null::{kind} as "{column}"' for column, kind in ROW.items())
    parts = [f"select {nulls}, null::varchar as series limit 0"]
    columns = ", ".join(f'"{column}"' for column in ROW)
    for series, files in (
        ("measured", row_files_in(StudyPaths(study_dir).rows)),
        ("published", imported),
    ):
        sizes = {path: path.stat().st_size for path in sorted(files)}
        small = read_rows([p for p in sizes if sizes[p] <= _LARGE_BYTES], series=series)
        unusable += small.unusable
        make_table(connection, f"study.small_{series}", small.table)
        parts.append(f"select {columns}, {quoted(series)} as series from study.small_{series}")
        large = [path for path in sizes if sizes[path] > _LARGE_BYTES]
        readable, invalid = find_invalid_rows(large, series=series)
        unusable += invalid
        for path in readable:
            numbers = ", ".join(str(one.row) for one in invalid if one.path == path)
            where = f" where file_row_number not in ({numbers})" if numbers else ""
            parts.append(select_from(connection, ROW, [path], series, where))
    connection.execute("create view study.rows as " + " union all ".join(f"({p})" for p in parts))
    return unusable


def _create_planned_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Create study.planned_rows: the rows of points that are still in the study."""
    connection.execute(
        "create table study.unplanned as select distinct point_id from study.rows "
        "anti join study.points using (point_id)"
    )
    is_any = connection.execute("select count(*) from study.unplanned").fetchall() != [(0,)]
    anti_join = "anti join study.unplanned using (point_id)" if is_any else ""
    connection.execute(f"create view study.planned_rows as from study.rows {anti_join}")


def _create_latest_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Create study.latest_rows: without attempts that a later one replaced."""
    # sorted in numpy: counting a million points in SQL takes five times as long
    hashes = connection.sql("select hash(point_id, series) as point from study.rows").fetchnumpy()
    points = np.sort(hashes["point"])
    repeated = np.unique(points[1:][points[1:] == points[:-1]])
    make_table(connection, "study.run_again", pa.table({"point": repeated}))
    anti_join = """
        anti join (
            select point_id, series, attempt, started_at
            from study.rows
            where hash(point_id, series) in (from study.run_again)
            qualify rank() over (
                partition by point_id, series order by attempt desc, started_at desc
            ) > 1
        ) using (point_id, series, attempt, started_at)
    """
    # a needless join would spoil DuckDB's estimates for the joins after it
    connection.execute(
        f"create view study.latest_rows as from study.rows {anti_join if len(repeated) else ''}"
    )


def _create_probes(connection: duckdb.DuckDBPyConnection, path: Path) -> list[Unusable]:
    """Create study.probes without its invalid rows."""
    make_view(connection, "study.every_probe", _PROBE, [[path] if path.exists() else []])
    try:
        connection.execute(
            f"create table study.judged_probe as select *, {invalid_probe_reason_sql()} as reason "
            "from study.every_probe"
        )
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise unreadable([path], error) from error
    connection.execute(
        "create view study.probes as select * exclude (reason) from study.judged_probe "
        "where reason is null"
    )
    reasons = connection.execute(
        "select distinct reason from study.judged_probe where reason is not null order by reason"
    ).fetchall()
    return [Unusable(path, f"a probe's {reason}") for (reason,) in reasons]


def _create_unusable(
    connection: duckdb.DuckDBPyConnection, study_dir: Path, unusable: Sequence[Unusable]
) -> None:
    """Create study.unusable (reason): sentences about rows left out now or set aside before."""
    sentences = [
        str(one).removeprefix(f"{study_dir}/")
        for one in (*unusable, *unreadable_set_aside(StudyPaths(study_dir).rows))
    ]
    reasons = pa.table({"reason": pa.array(sentences, pa.string())})
    make_table(connection, "study.unusable", reasons)


def _create_points_and_refusals(connection: duckdb.DuckDBPyConnection, *, guided: bool) -> None:
    """Create study.points and study.refused; points that a guided sweep skips count as refused.

    kept_batch_size: sequences per step (strong scaling) or per GPU and step (weak scaling).
    kept_choices: choices on the axes that belong to the setting.
    """
    connection.execute(  # a point left out by one choice may be taken by a later one
        "create view study.skipped as from study.chosen where not chosen "
        "and point_id not in (select point_id from study.chosen where chosen)"
    )
    kept = (
        "if(study_kind = 'strong', global_batch_size, global_batch_size // world_size) "
        f"as kept_batch_size, {kept_choices_sql()} as kept_choices"
    )
    columns = ", ".join(_REFUSAL)
    measured, skipped = "", ""
    if guided:
        measured = " anti join study.skipped using (point_id)"
        skipped = f" union all select {columns} from study.skipped where repeat = 0"
    connection.execute(  # an enum: grouping and joining a million rows by it is faster
        "create type study.layout as enum "
        "(select distinct layout from study.every_point where layout is not null order by layout)"
    )
    connection.execute(
        f"create view study.points as select * replace (layout::study.layout as layout), {kept} "
        f"from study.every_point{measured}"
    )
    connection.execute(
        f"create view study.refused as select *, {kept} "
        f"from (select {columns} from study.impossible{skipped})"
    )
