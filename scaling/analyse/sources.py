"""What the SQL files read: the Parquet files of a study and the catalogue of hardware, as views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse import ties
from scaling.analyse.series import SERIES
from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError, shortened
from scaling.layout.axes import AXES, levels_of
from scaling.record.probe_row import Probe
from scaling.record.row import PointColumns, fields_of
from scaling.record.row_checks import COLUMNS, SQL_TYPES, probe_reason_sql
from scaling.record.row_files import Unusable, files_in, kept_aside, read_rows, wrong_rows
from scaling.study.grid import Refusal
from scaling.study.paths import StudyPaths
from scaling.study.study_folder import read_about

_LARGE_BYTES = 4 << 20  # a file of a great many rows is no point's
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
    """Make study.points, .rows, .unusable, .refused, .chosen, .predictions, .probes, the catalogue.

    The catalogue is catalogue.gpus and catalogue.clusters.

    The study's are views, so that a query reads from disk only the columns it names; rows of small
    files are held in memory instead. Columns that an older file lacks are null, columns nobody
    knows any more are left.

    Args:
        connection: an empty database.
        study_dir: results/<study>; it needs a plan (points.parquet) or imported rows
            (published.parquet), all else may be missing.
        clusters: by name, for their prices.

    Returns:
        Files and rows that cannot be what they should be; they stand in no view but .unusable.

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
    chosen = sorted(paths.chosen.glob("*.parquet"))
    _view(connection, "study.every_point", POINT, [[*planned, *imported]])
    _view(connection, "study.impossible", _REFUSAL, [[refused] if planned else []])
    _view(connection, "study.chosen", _CHOSEN, [chosen])
    _leave_out_skipped(connection, guided=bool(chosen))
    unusable = _rows(connection, study_dir, imported)
    known = [paths.predictions] if paths.predictions.exists() else []
    _view(connection, "study.predictions", _PREDICTION, [known])
    unusable += _probes(connection, paths.probes)
    _left_out(connection, study_dir, unusable)
    _catalogue(connection, clusters)
    _axes(connection)
    return unusable


def _rows(
    connection: duckdb.DuckDBPyConnection, study_dir: Path, imported: Sequence[Path]
) -> list[Unusable]:
    """study.rows: small files as one table in memory, large ones where they lie."""
    unusable: list[Unusable] = []
    typed = ", ".join(f'null::{kind} as "{column}"' for column, kind in ROW.items())
    parts = [f"select {typed}, null::varchar as series limit 0"]
    columns = ", ".join(f'"{column}"' for column in ROW)
    for series, files in (
        ("measured", files_in(StudyPaths(study_dir).rows)),
        ("published", imported),
    ):
        sizes = {path: path.stat().st_size for path in sorted(files)}
        found = read_rows([p for p in sizes if sizes[p] <= _LARGE_BYTES], series=series)
        unusable += found.unusable
        connection.register(f"small_{series}", found.table)
        parts.append(f"select {columns}, {_quoted(series)} as series from small_{series}")
        for path in (path for path in sizes if sizes[path] > _LARGE_BYTES):
            readable, wrong = wrong_rows(path, series=series)
            unusable += wrong
            if readable:
                out = ", ".join(str(one.row) for one in wrong)
                where = f" where file_row_number not in ({out})" if wrong else ""
                parts.append(_select(connection, ROW, [path], series, where))
    connection.execute("create view study.rows as " + " union all ".join(f"({p})" for p in parts))
    return unusable


def _probes(connection: duckdb.DuckDBPyConnection, path: Path) -> list[Unusable]:
    """study.probes without the rows that cannot be."""
    _view(connection, "study.every_probe", _PROBE, [[path] if path.exists() else []])
    try:
        connection.execute(
            f"create table study.judged_probe as select *, {probe_reason_sql()} as reason "
            "from study.every_probe"
        )
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise _unreadable([path], error) from error
    connection.execute(
        "create view study.probes as select * exclude (reason) from study.judged_probe "
        "where reason is null"
    )
    wrong = connection.execute(
        "select distinct reason from study.judged_probe where reason is not null order by reason"
    ).fetchall()
    return [Unusable(path, f"a probe's {reason}") for (reason,) in wrong]


def _left_out(
    connection: duckdb.DuckDBPyConnection, study_dir: Path, unusable: Sequence[Unusable]
) -> None:
    """study.unusable (said): sentences about what was left out now, or set aside before."""
    told = [*unusable, *kept_aside(StudyPaths(study_dir).rows)]
    said = [str(one).removeprefix(f"{study_dir}/") for one in told]
    connection.register("source", pa.table({"said": pa.array(said, pa.string())}))
    connection.execute("create table study.unusable as from source")
    connection.unregister("source")


@dataclass(frozen=True, slots=True)
class Choices:
    """What a study says to its tables: study.json, or the defaults of an imported one."""

    mode: str  # measure | predict
    knee_share: float  # of the doubling that perfect scaling would give


def choices_of(study_dir: Path, *, knee_share: float | None = None) -> Choices:
    """The study's choices; `knee_share` goes before its own.

    Raises:
        InputError: study.json is not what `scaling plan` writes, or a share is none.
    """
    said = read_about(study_dir)
    share = said.knee_share if knee_share is None else knee_share
    if not 0 < share <= 1:
        raise InputError(f"knee_share={share:g}: must be a ratio above 0 and at most 1")
    return Choices(said.mode, share)


def _leave_out_skipped(connection: duckdb.DuckDBPyConnection, *, guided: bool) -> None:
    """study.points and study.refused: what a guided sweep skips is refused with its reason."""
    connection.execute(  # what one choice leaves out a later one may take
        "create view study.skipped as from study.chosen where not chosen "
        "and point_id not in (select point_id from study.chosen where chosen)"
    )
    if not guided:
        connection.execute("create view study.points as from study.every_point")
        connection.execute("create view study.refused as from study.impossible")
        return
    columns = ", ".join(_REFUSAL)
    connection.execute(
        "create view study.points as from study.every_point "
        "anti join study.skipped using (point_id)"
    )
    connection.execute(
        f"create view study.refused as select {columns} from study.impossible union all "
        f"select {columns} from study.skipped where repeat = 0"
    )


def _view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    types: Mapping[str, str],
    parts: Sequence[Sequence[Path]],
) -> None:
    """A view over several lists of files in the stated columns."""
    empty = ", ".join(f'null::{kind} as "{column}"' for column, kind in types.items())
    selects = [f"select {empty} limit 0"]
    selects += [_select(connection, types, files) for files in parts if files]
    body = " union all ".join(f"({one})" for one in selects)
    connection.execute(f"create view {name} as {body}")


def _select(
    connection: duckdb.DuckDBPyConnection,
    types: Mapping[str, str],
    files: Sequence[Path],
    series: str | None = None,
    where: str = "",
) -> str:
    """A query for the stated columns of several files, and of what series they are."""
    listed = ", ".join(_quoted(str(file)) for file in files)
    source = (
        f"read_parquet([{listed}], union_by_name=true, file_row_number=true, "
        "hive_partitioning=false)"
    )
    try:
        kinds = {row[0]: row[1] for row in connection.execute(f"describe from {source}").fetchall()}
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise _unreadable(files, error) from error
    for column in types.keys() & kinds.keys():
        if not _casts(kinds[column], types[column]):
            place = files[0] if len(files) == 1 else files[0].parent
            raise InputError(
                f"{place}: column {column} holds {shortened(kinds[column])}, must hold "
                f"{types[column]}: the file is of another version, write it anew"
            )
    columns = ", ".join(
        f'"{column}"::{kind} as "{column}"' if column in kinds else f'null::{kind} as "{column}"'
        for column, kind in types.items()
    )
    stated = f", {_quoted(series)} as series" if series else ""
    return f"select {columns}{stated} from {source}{where}"


def _casts(given: str, wanted: str) -> bool:
    """Whether values of one SQL type can be those of another: text is no number, a list no cell."""
    if given.startswith(("STRUCT", "MAP", "UNION")) or given.endswith("]") != wanted.endswith("]"):
        return given == '"NULL"'
    return wanted.startswith("varchar") or not given.startswith(("VARCHAR", "BLOB"))


def _unreadable(files: Sequence[Path], error: Exception) -> InputError:
    """The sentence about the first file that is none of ours; DuckDB may name another."""
    for file in files:
        try:
            pq.read_schema(file)
        except (pa.ArrowInvalid, OSError) as reason:
            said = str(reason).splitlines()[0]
            return InputError(f"{file}: is no Parquet file of this project: {said}")
    return InputError(f"{files[0].parent}: its files do not go together: {error}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _catalogue(connection: duckdb.DuckDBPyConnection, clusters: Mapping[str, Cluster]) -> None:
    gpus = pa.Table.from_pylist(
        [
            {
                "name": gpu.name,
                "vendor": gpu.vendor,
                "memory_bytes": gpu.memory_bytes,
                "tdp_w": gpu.tdp_w,
            }
            for gpu in GPUS.values()
        ]
    )
    prices = pa.table(
        {
            "name": pa.array(list(clusters), pa.string()),
            "usd_per_gpu_hour": pa.array(
                [cluster.usd_per_gpu_hour for cluster in clusters.values()], pa.float64()
            ),
        }
    )
    for name, table in (("gpus", gpus), ("clusters", prices)):
        _register(connection, name, table)


def _register(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    connection.register("source", table)
    connection.execute(f"create table catalogue.{name} as from source")
    connection.unregister("source")


def _axes(connection: duckdb.DuckDBPyConnection) -> None:
    """The table of axes as catalogue.axes and .levels, and its names as the variable `axes`."""
    connection.execute("set variable axes = $1", [list(AXES)])
    connection.execute("set variable series_order = $1", [list(SERIES)])
    ties.set_variables(connection)
    axes, levels = [], []
    for order, axis in enumerate(AXES.values(), start=1):
        counted = axis.values is None
        axes.append(
            {
                "axis_order": order,
                "name": axis.name,
                "axis": axis.words.title,
                "words": axis.words.name if counted else None,
                "short": axis.words.short if counted else None,
                "otherwise": axis.otherwise,
                "degree": axis.ranks,
                "always": axis.words.leading or axis.words.said == "always",
            }
        )
        levels += [{"name": axis.name, **level} for level in levels_of(axis)]
    _register(connection, "axes", pa.Table.from_pylist(axes))
    _register(connection, "levels", pa.Table.from_pylist(levels))
