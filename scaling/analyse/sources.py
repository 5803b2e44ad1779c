"""The inputs of the SQL files from a study: its Parquet files as views of fixed columns.

The columns are the same whatever version wrote the files.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.catalogue import make_table
from scaling.errors import InputError, shortened
from scaling.layout.axes import AXES
from scaling.record.row import PointColumns, fields_of
from scaling.record.row_checks import COLUMNS, PROBE_COLUMNS, SQL_TYPES, invalid_probe_reason_sql
from scaling.record.row_files import Unusable, create_rows, quoted, row_files_in
from scaling.study.grid import Refusal
from scaling.study.paths import StudyPaths
from scaling.study.plan_file import read_json_object

_REFUSAL = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Refusal).items()}
_POINT = {name: COLUMNS[name] for name in fields_of(PointColumns)}
_ROUND = _POINT | {
    "round": "bigint", "chosen": "boolean", "reason": "varchar", "predicted_step_time_s": "double",
    "expected_gain": "double",
}  # fmt: skip
_PREDICTION = {
    name: kind
    for kind, names in {
        "varchar": "point_id memory_from predicted_peak_phase parameters_from calibrated_until",
        "boolean": "fits host_bound",
        "bigint": "predicted_memory_bytes capacity_bytes weights_bytes gradients_bytes "
        "optimizer_bytes activations_bytes logits_bytes buffers_bytes fragmentation_bytes",
        "double": "predicted_step_time_s low high fits_chance predicted_common_sigma "
        "predicted_layout_sigma predicted_size_sigma predicted_rest_sigma gemm_s attention_s "
        "elementwise_s head_s tp_comm_s ep_comm_s host_s pp_comm_s bubble_s dp_comm_s optimizer_s "
        "jitter_s stall_s",
    }.items()
    for name in names.split()
}


def attach(connection: duckdb.DuckDBPyConnection, paths: StudyPaths) -> list[Unusable]:
    """Create what SQL reads of a study: study.points, .rows, .refused, .predictions, .probes, ...

    Most are views, so that a query reads only the columns it names from disk; rows of small files
    are held in memory. Columns that a file lacks are null, unknown columns are dropped.

    Args:
        connection: an empty database.
        paths: of a study with a plan (points.parquet) or imported rows (published.parquet); all
            else may be missing.

    Returns:
        Files and rows that are not valid; they are in no view but study.unusable.

    Raises:
        InputError: neither plan nor imported rows, or a file that is no Parquet of this project.
    """
    points, published, refused = paths.points_table, paths.published, paths.refused
    imported = [published] if published.exists() else []
    if not points.exists() and not imported:
        raise InputError(f"{points}: is missing; `scaling plan` writes it")
    if points.exists() and not refused.exists():
        raise InputError(f"{refused}: is missing; `scaling plan` writes it")
    planned = [points] if points.exists() else []
    connection.execute("create schema study")
    unusable = _create_rows(connection, paths, imported)
    files = {
        "listed": (_POINT, [*planned, *imported]),
        "impossible": (_REFUSAL, [refused] if planned else []),
        "rounds": (_ROUND, paths.rounds()),
        "predictions": (_PREDICTION, [paths.predictions] if paths.predictions.exists() else []),
        "every_probe": (PROBE_COLUMNS, [paths.probes] if paths.probes.exists() else []),
    }
    for name, (types, of) in files.items():
        make_view(connection, f"study.{name}", types, of)
    try:
        connection.execute(_views())
    except (duckdb.Error, UnicodeDecodeError) as error:
        read = [file for _, of in files.values() for file in of]
        raise unreadable_error(read, error) from error
    reasons = connection.sql(
        "select distinct reason from study.judged_probe where reason is not null order by reason"
    ).fetchall()
    unusable += [Unusable(paths.probes, f"a probe's {reason}") for (reason,) in reasons]
    sentences = [str(one).removeprefix(f"{paths.folder}/") for one in unusable]
    failure = read_json_object(paths.calibration).get("failure")
    if failure:
        sentences.append(f"calibration.json: the fit failed ({failure}); data sheets stand in")
    told = pa.table({"reason": pa.array(sentences, pa.string())})
    make_table(connection, "study.unusable", told)
    return unusable


def _create_rows(
    connection: duckdb.DuckDBPyConnection, paths: StudyPaths, imported: Sequence[Path]
) -> list[Unusable]:
    """Create study.rows: the valid rows, measured and published."""
    unusable: list[Unusable] = []
    columns = ", ".join(f'"{column}"' for column in (*COLUMNS, "source"))
    parts = []
    for source, files in (("measured", row_files_in(paths.rows)), ("published", imported)):
        if source == "published" and not imported:
            continue
        connection.execute(f"create schema {source}")
        unusable += create_rows(connection, sorted(files), source=source, schema=source)
        parts.append(f"select {columns} from {source}.valid_rows")
    connection.execute(f"create view study.rows as {' union all '.join(parts)}")
    return unusable


def _views() -> str:
    """SQL for what follows from the files: study.points, .refused, .latest_rows, .probes, ...

    To study.refused the points belong too that a guided sweep skips.
    kept_batch_size: sequences per step (strong scaling) or per GPU and step (weak scaling).
    kept_choices: choices on the axes that belong to the comparison group.
    """
    kept = (
        "if(study_kind = 'strong', global_batch_size, global_batch_size // world_size) "
        f"as kept_batch_size, {_kept_choices_sql()} as kept_choices"
    )
    point, refusal = ", ".join(f'"{name}"' for name in _POINT), ", ".join(_REFUSAL)
    return f"""
    -- a point left out by one round may be taken by a later one
    create view study.skipped as from study.rounds where not chosen
        and point_id not in (select point_id from study.rounds where chosen)
        qualify row_number() over (partition by point_id order by round desc) = 1;
    -- rounds choose points that no plan has, too
    create view study.every_point as
        from study.listed union all
        select {point} from study.rounds anti join study.listed using (point_id) where chosen;
    -- grouping and joining a million rows by an enum is faster
    create type study.layout as enum (
        select distinct layout from study.every_point where layout is not null order by layout
    );
    create view study.points as
        select * replace (layout::study.layout as layout), {kept}
        from study.every_point anti join study.skipped using (point_id);
    create view study.refused as select *, {kept} from (
        select {refusal}, false as skipped from study.impossible union all
        select {refusal}, true from study.skipped where repeat = 0
    );
    create table study.replaced as
        select point_id, source, attempt, started_at from study.rows
        semi join (
            select point_id from study.rows group by point_id having count(*) > 1
        ) using (point_id)
        qualify rank() over (
            partition by point_id, source order by attempt desc, started_at desc
        ) > 1;
    -- without attempts that a later one replaced
    create view study.latest_rows as
        from study.rows anti join study.replaced using (point_id, source, attempt, started_at);
    create table study.judged_probe as
        select *, {invalid_probe_reason_sql()} as reason from study.every_probe;
    create view study.probes as
        select * exclude (reason) from study.judged_probe where reason is null;
    """


def _kept_choices_sql() -> str:
    """SQL for the choices of a point or refusal on the axes of its group, in words; '' by default.

    Null counts as the default: the file is older than the axis, or the row was published.
    """
    choices = []
    for axis in AXES.values():
        if axis.setting:
            default = "null" if axis.default is None else quoted(str(axis.default).lower())
            value = f"""nullif(lower("{axis.name}"::varchar), {default})"""
            choices.append(f"replace({quoted(axis.text.name)}, '{{}}', {value})")
    return f"concat_ws({', '.join([quoted(', '), 'null', *choices])})"


def make_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    types: Mapping[str, str],
    files: Sequence[Path],
) -> None:
    """Create a view of these columns over several files; columns that a file lacks are null.

    Raises:
        InputError: a file is not Parquet, or a column of it holds another type.
    """
    source, kinds = "range(0)", {}
    if files:
        listed = ", ".join(quoted(str(file)) for file in files)
        source = f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"
        try:
            described = connection.execute(f"describe from {source}").fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise unreadable_error(files, error) from error
        kinds = {row[0]: row[1] for row in described}
    columns = []
    for column, kind in types.items():
        given = kinds.get(column, '"NULL"')
        if not _casts(given, kind):
            place = files[0] if len(files) == 1 else files[0].parent
            raise InputError(
                f"{place}: column {column} holds {shortened(given)}, must hold {kind}: the file is "
                "of another version, write it anew"
            )
        value = f'"{column}"' if column in kinds else "null"
        columns.append(f'{value}::{kind} as "{column}"')
    connection.execute(f"create view {name} as select {', '.join(columns)} from {source}")


def _casts(given: str, wanted: str) -> bool:
    """Whether one SQL type may be cast to another: no text to numbers, no list to a value."""
    if given.startswith(("STRUCT", "MAP", "UNION")) or given.endswith("]") != wanted.endswith("]"):
        return given == '"NULL"'
    return wanted.startswith("varchar") or not given.startswith(("VARCHAR", "BLOB"))


def unreadable_error(files: Sequence[Path], error: Exception) -> InputError:
    """An error that names the first unreadable file; DuckDB may name another."""
    for file in files:
        try:
            pq.read_schema(file)
        except (pa.ArrowInvalid, OSError) as reason:
            if isinstance(reason, OSError) and reason.errno:  # it may be a good one
                return InputError(f"{file}: cannot be read: {os.strerror(reason.errno)}")
            sentence = str(reason).splitlines()[0].rstrip(".")
            is_imported = file == StudyPaths(file.parent).published
            again = "`scaling import` makes it" if is_imported else "it is made"
            return InputError(
                f"{file}: is no Parquet file of this project: {sentence}; remove it, so that "
                f"{again} again"
            )
    return InputError(f"{files[0].parent}: its files do not go together: {error}")
