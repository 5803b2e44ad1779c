"""What the SQL files read: the Parquet files of a study and the catalogue of hardware, as views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError
from scaling.grid import Refusal
from scaling.hardware import GPUS, Cluster
from scaling.measurement import Row, fields_of
from scaling.probes import Probe
from scaling.study_folder import read_about

PUBLISHED = "published.parquet"
PREDICTIONS = "predictions.parquet"
PROBES = "probes.parquet"

_SQL = {
    "str": "varchar",
    "int": "bigint",
    "float": "double",
    "bool": "boolean",
    "list[float]": "double[]",
    "list[str]": "varchar[]",
}
ROW = {name: _SQL[kind] for name, (kind, _) in fields_of(Row).items()}
_REFUSAL = {name: _SQL[kind] for name, (kind, _) in fields_of(Refusal).items()}
_CHOSEN = {
    **_REFUSAL,
    "point_id": "varchar",
    "repeat": "bigint",
    "chosen": "boolean",
    "predicted_step_time_s": "double",
    "best_step_time_s": "double",
}
_OF_THE_RUN = ("attempt", "outcome", "error_message", "clock")
_KNOWN_BEFORE = list(ROW)[: list(ROW).index("matmul_flops_per_token") + 1]
POINT = {name: ROW[name] for name in _KNOWN_BEFORE if name not in _OF_THE_RUN}

MEMORY_PARTS = (
    "weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes",
    "buffers_bytes", "fragmentation_bytes",
)  # fmt: skip
TIME_PARTS = (
    "gemm_s", "attention_s", "elementwise_s", "head_s", "tp_comm_s", "host_s", "pp_comm_s",
    "bubble_s", "dp_comm_s", "optimizer_s", "jitter_s", "overhead_s", "stall_s",
)  # fmt: skip
_PREDICTION = {
    "point_id": "varchar",
    "fits": "boolean",
    "predicted_memory_bytes": "bigint",
    "capacity_bytes": "bigint",
    "predicted_step_time_s": "double",
    "low": "double",
    "high": "double",
    "parameters_from": "varchar",
    **dict.fromkeys(MEMORY_PARTS, "bigint"),
    **dict.fromkeys(TIME_PARTS, "double"),
}
_PROBE = {name: _SQL[kind] for name, (kind, _) in fields_of(Probe).items()}


def attach(
    connection: duckdb.DuckDBPyConnection, study_dir: Path, clusters: Mapping[str, Cluster]
) -> None:
    """Make study.points, .rows, .refused, .chosen, .predictions, .probes, the catalogue.

    The catalogue is catalogue.gpus and catalogue.clusters.

    The study's are views, so that a query reads from disk only the columns it names. Columns that
    an older file lacks are null, columns nobody knows any more are left.

    Args:
        connection: an empty database.
        study_dir: results/<study>; it needs a plan (points.parquet) or imported rows
            (published.parquet), all else may be missing.
        clusters: by name, for their prices.

    Raises:
        InputError: neither plan nor imported rows, or a file that is no Parquet of this project.
    """
    points, published = study_dir / "points.parquet", study_dir / PUBLISHED
    predictions, refused = study_dir / PREDICTIONS, study_dir / "refused.parquet"
    imported = [published] if published.exists() else []
    if not points.exists() and not imported:
        raise InputError(f"{points}: is missing; `scaling plan` writes it")
    if points.exists() and not refused.exists():
        raise InputError(f"{refused}: is missing; `scaling plan` writes it")
    rows = sorted((study_dir / "rows").glob("*.parquet"))
    connection.execute("create schema study; create schema catalogue")
    planned = [points] if points.exists() else []
    chosen = sorted((study_dir / "chosen").glob("*.parquet"))
    _view(connection, "study.every_point", POINT, [([*planned, *imported], None)])
    _view(connection, "study.impossible", _REFUSAL, [([refused] if planned else [], None)])
    _view(connection, "study.chosen", _CHOSEN, [(chosen, None)])
    _leave_out_skipped(connection, guided=bool(chosen))
    _view(connection, "study.rows", ROW, [(rows, "measured"), (imported, "published")])
    known = [predictions] if predictions.exists() else []
    _view(connection, "study.predictions", _PREDICTION, [(known, None)])
    probes = study_dir / PROBES
    _view(connection, "study.probes", _PROBE, [([probes] if probes.exists() else [], None)])
    _catalogue(connection, clusters)


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
    if not guided:
        connection.execute("create view study.points as from study.every_point")
        connection.execute("create view study.refused as from study.impossible")
        return
    columns = ", ".join(_REFUSAL)
    connection.execute(
        "create view study.points as from study.every_point "
        "anti join (from study.chosen where not chosen) using (point_id)"
    )
    connection.execute(
        f"create view study.refused as select {columns} from study.impossible union all "
        f"select {columns} from study.chosen where not chosen and repeat = 0"
    )


def _view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    types: Mapping[str, str],
    parts: Sequence[tuple[Sequence[Path], str | None]],
) -> None:
    """A view over several lists of files, each with its series, in the stated columns."""
    empty = ", ".join(f'null::{kind} as "{column}"' for column, kind in types.items())
    labelled = any(series is not None for _, series in parts)
    label = ", null::varchar as series" if labelled else ""
    selects = [f"select {empty}{label} limit 0"]
    for files, series in parts:
        if not files:
            continue
        listed = ", ".join(_quoted(str(file)) for file in files)
        source = f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"
        try:
            found = {row[0] for row in connection.execute(f"describe from {source}").fetchall()}
        except duckdb.Error as error:
            raise _unreadable(files, error) from error
        columns = ", ".join(
            f'"{column}"::{kind} as "{column}"'
            if column in found
            else f'null::{kind} as "{column}"'
            for column, kind in types.items()
        )
        stated = f", {_quoted(series)} as series" if series else label
        selects.append(f"select {columns}{stated} from {source}")
    body = " union all ".join(f"({one})" for one in selects)
    connection.execute(f"create view {name} as {body}")


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
        connection.register("source", table)
        connection.execute(f"create table catalogue.{name} as from source")
        connection.unregister("source")
