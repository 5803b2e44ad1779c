"""The tables of a study as the page needs them: some columns, plain values, by setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.report.text.words import shown
from scaling.study.paths import StudyPaths

Record = dict[str, Any]

MOST_ROWS = 2000  # a setting, of a table of LISTS; no sentence stands on those
MOST_ROWS_IN_ALL, FEWEST_ROWS = 4000, 100  # of all settings together; of each at least
LISTS = ("statistics", "refused")
MOST_LAYOUTS = 40  # a setting and size, of contenders; those with a colour come on top

# Of some tables the page holds only the rows its charts draw, or states another order.
_ROWS = {
    "best": "where drawn",
    "contenders": f"where drawn and (place <= {MOST_LAYOUTS} or slot < 7)",
    "returns": "where drawn",
    "fixed_layout": "where drawn",
    "switches": "where drawn",
    "costs": "where drawn",
    "losses": "where not agrees",
}
_ORDER = {
    "statistics": "setting_id, tokens_per_s desc nulls last, world_size, layout_name, repeat",
    "contenders": "setting_id, world_size, place",
    "refused": f"setting_id, world_size, {', '.join(AXES)}",
}
_LEADING = {"statistics": "tokens_per_s"}  # the amount that decides the order of a long list

_LAYOUT = (*AXES, "dp", "gradient_accumulation_steps")
_RATES = (
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "mfu", "hfu",
    "model_flop_per_s_per_gpu", "step_time_s", "step_time_low_s", "step_time_high_s",
    "peak_memory_bytes",
)  # fmt: skip

# The page holds each of these tables once; charts, tables, sentences and downloads read them.
COLUMNS: dict[str, tuple[str, ...]] = {
    "settings": (
        "setting_id", "model", "cluster", "study_kind", "seq_length", "kept_batch_size", "gpu",
        "vendor", "gpu_memory_bytes", "gpu_tdp_w", "usd_per_gpu_hour", "total_params",
        "num_layers", "hidden_size",
    ),
    "progress": ("setting_id", "points", "ok", "failed", "waiting", "predicted", "refusals"),
    "outcomes": ("setting_id", "world_size", "outcome", "points"),
    "noise": (
        "setting_id", "series", "layouts", "interval_half_width", "repeated_layouts",
        "repeat_half_spread",
    ),
    "statistics": (
        "setting_id", "series", "outcome", "world_size", *_LAYOUT, "layout_name", "repeat",
        "attempt", *_RATES, "energy_j", "mean_power_w", "exposed_comm_s", "startup_s",
        "duration_s", "error_message", "stack_fingerprint", "point_id", "predicted_outcome",
        "predicted_tokens_per_s", "predicted_step_time_s", "predicted_memory_bytes",
        "predicted_from",
    ),
    "best": (
        "setting_id", "series", "world_size", "layout_name", "layout", "label", "slot", *_RATES,
        "ideal_tokens_per_s", "speed_up", "efficiency", "runner_up_layout_name",
        "runner_up_tokens_per_s", "tied", "slowest_share", "runs", "predicted_memory_bytes",
        "energy_j", "tokens_per_joule", "power_per_gpu_w", "stack_fingerprint",
    ),
    "curves": (
        "setting_id", "style", "series", "world_size", "tokens_per_s", "tokens_per_s_per_gpu",
        "mfu", "model_flop_per_s_per_gpu",
    ),
    "contenders": (
        "setting_id", "series", "world_size", "position", "place", "layout_name", "slot", "outcome",
        *_RATES, "share_of_best", "within_noise", "runs", "ok_runs", "stack_fingerprint",
    ),
    "returns": (
        "setting_id", "series", "from_world_size", "to_world_size", "from_layout", "to_layout",
        "same_stack", "marginal_tokens_per_s", "marginal_low", "marginal_high",
        "yardstick_tokens_per_s_per_gpu", "share", "share_low", "share_high", "interval_from",
        "speed_up", "efficiency", "efficiency_low", "efficiency_high", "elasticity",
        "elasticity_low", "elasticity_high", "returned", "pays", "per_watt", "per_watt_low",
        "per_watt_high", "yardstick_per_watt", "watt_from", "per_usd", "per_usd_low",
        "per_usd_high", "yardstick_per_usd",
    ),
    "knees": (
        "setting_id", "series", "knee_share", "knee_world_size", "beyond_data", "returned",
    ),
    "fixed_layout": (
        "setting_id", "series", "world_size", "layout_name", "tokens_per_s",
        "tokens_per_s_per_gpu", "share_of_best", "efficiency",
    ),
    "switches": (
        "setting_id", "series", "from_world_size", "to_world_size", "before_name", "before_slot",
        "after_name", "after_slot", "crossing", "crossing_low", "crossing_high", "verdict",
    ),
    "crossovers": (
        "setting_id", "series", "from_world_size", "to_world_size", "before_name", "after_name",
        "of_fastest", "crossing", "crossing_low", "crossing_high", "resolved",
    ),
    "laws": (
        "setting_id", "series", "law", "chosen", "sizes", "held_out", "held_out_error",
        "fit_error", "leaves_data_at", "peak_world_size", "t1", "t1_low", "t1_high", "serial",
        "serial_low", "serial_high", "coherency", "coherency_low", "coherency_high",
        "communication", "communication_low", "communication_high",
    ),
    "law_curves": (
        "setting_id", "series", "law", "world_size", "tokens_per_s", "tokens_per_s_low",
        "tokens_per_s_high", "inside_data",
    ),
    "costs": (
        "setting_id", "series", "world_size", "layout_name", "slot", "hours_per_token",
        "hours_per_token_low", "hours_per_token_high", "gpu_hours_per_token", "joules_per_token",
        "joules_from", "usd_per_token", "on_front", "cheapest_front",
    ),
    "effects": (
        "setting_id", "series", "name", "pairs", "mean_ratio", "lowest", "lower_quartile",
        "upper_quartile", "highest", "smallest_world_size", "ratio_at_smallest",
        "largest_world_size", "ratio_at_largest", "shown",
    ),
    "map": (
        "setting_id", "series", "world_size", "tp", "pp", "status", "layout_name", "text", "mfu",
        "tokens_per_s", "tokens_per_s_per_gpu", "share_of_best", "exposed_comm_s", "tried",
        "failed",
    ),
    "memory_parts": (
        "setting_id", "world_size", "layout_name", "place", "outcome", "series", "part_order",
        "part", "bytes", "from_bytes", "to_bytes", "total_bytes", "peak_memory_bytes",
        "capacity_bytes",
    ),
    "time_split": (
        "setting_id", "world_size", "layout_name", "series", "part_order", "part", "seconds",
        "share_from", "share_to", "hidden_share",
    ),
    "levels": (
        "setting_id", "series", "world_size", "axis", "axis_order", "level", "level_order", "name",
        "compared", "outcome", "layout_name", "slot", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
        "step_time_s", "least_memory_bytes", "tried", "failed",
    ),
    "batches": (
        "setting_id", "series", "world_size", "precision", "micro_batch_size", "outcome",
        "layout_name", "tokens_per_s", "mfu", "tried", "failed",
    ),
    "interactions": (
        "setting_id", "series", "title", "name", "axis", "level", "level_order", "pairs",
        "mean_ratio", "strength", "rank", "shown",
    ),
    "communication": (
        "setting_id", "series", "world_size", "layout_name", "split", "part_order", "part",
        "seconds", "from_s", "to_s", "comm_s", "exposed_s",
    ),
    "peers": (
        "setting_id", "series", "dimension", "model", "cluster", "seq_length", "total_params",
        "world_size", "layout_name", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "itself",
    ),
    "collectives": (
        "cluster", "kind", "ranks", "nodes", "at_once", "message_bytes", "probes", "seconds",
        "bus_bytes_per_s", "bus_low", "bus_high",
    ),
    "slow_hosts": ("cluster", "host", "kind", "slowdown", "probes", "slow_from"),
    "gemms": (
        "cluster", "precision", "m", "n", "k", "flops", "flop_per_s", "slowest_flop_per_s",
        "fastest_flop_per_s", "probes",
    ),
    "refused": (
        "setting_id", "world_size", *AXES, "reason",
    ),
    "engines": (
        "setting_id", "series", "world_size", "from_engine", "to_engine", "layout_name",
        "from_outcome", "to_outcome", "from_tokens_per_s", "to_tokens_per_s", "ratio",
        "ratio_low", "ratio_high", "reason",
    ),
    "provenance": (
        "stack_fingerprint", "measurements", "gpu_name", "git_commit", "scaling_version",
        "python_version", "torch_version", "deepspeed_version", "flash_attn_version",
        "driver_version", "cuda_version", "nccl_version", "clock", "memory_meter", "hosts",
        "seeds", "first_started_at", "last_started_at",
    ),
    "busy": ("cluster", "own_ranks", "rows_told", "busy", "highest_load_average"),
    "left_out": ("reason", "rows_left_out"),
    "losses": ("point_id", "layouts", "largest_gap", "at_step", "tolerance"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tables:
    """The page's tables, and the names of those of which the page holds only the first rows."""

    records: Mapping[str, list[Record]]
    cut: tuple[str, ...] = ()

    def of(self, setting_id: int) -> "Tables":
        """The rows of one setting; of tables by cluster those of its own, others whole."""
        settings = self.records.get("settings", [])
        cluster = next((s["cluster"] for s in settings if s["setting_id"] == setting_id), None)
        chosen = {
            name: [
                row
                for row in rows
                if (
                    row["setting_id"] == setting_id
                    if "setting_id" in row
                    else row.get("cluster", cluster) == cluster
                )
            ]
            for name, rows in self.records.items()
        }
        return Tables(chosen, self.cut)

    def of_series(self, series: str) -> "Tables":
        """The rows of one series; tables that do not tell series apart whole."""
        chosen = {
            name: [row for row in rows if row.get("series", series) in (series, None)]
            for name, rows in self.records.items()
        }
        return Tables(chosen, self.cut)

    def __getitem__(self, name: str) -> list[Record]:
        return self.records[name]


def read_tables(study_dir: Path) -> Tables:
    """Read the page's columns and rows of tables/*.parquet.

    Raises:
        InputError: a table is missing, or was written by SQL that does not know a column.
    """
    records: dict[str, list[Record]] = {}
    cut: list[str] = []
    with duckdb.connect() as connection:
        for name, columns in COLUMNS.items():
            path = StudyPaths(study_dir).table(name)
            try:
                _check(connection, path, columns)
                rows, more = _rows(connection, path, name, columns)
            except (duckdb.Error, UnicodeDecodeError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"{path}: is no table of this project: {reason}") from error
            records[name] = [
                {key: _plain(value) for key, value in zip(columns, row, strict=True)}
                for row in rows
            ]
            if more:
                cut.append(name)
    return Tables(records, tuple(cut))


def _check(connection: duckdb.DuckDBPyConnection, path: Path, columns: tuple[str, ...]) -> None:
    if not path.exists():
        raise InputError(f"{path}: is missing; `scaling tabulate` writes it")
    described = connection.execute("describe from read_parquet(?)", [str(path)]).fetchall()
    if missing := set(columns) - {row[0] for row in described}:
        raise InputError(f"{path}: has no column {min(missing)!r}; run `scaling tabulate` again")


def _rows(
    connection: duckdb.DuckDBPyConnection, path: Path, name: str, columns: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows the page holds, and whether the file has more of a list than that."""
    named = ", ".join(f'"{column}"' for column in columns)
    order = f" order by {_ORDER[name]}" if name in _ORDER else ""
    query = f"select {named} from read_parquet(?) {_ROWS.get(name, '')}"
    if name not in LISTS:
        return connection.execute(query + order, [str(path)]).fetchall(), False
    whole, settings = connection.execute(
        "select count(*), count(distinct setting_id) from read_parquet(?)", [str(path)]
    ).fetchall()[0]
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_ROWS_IN_ALL // max(1, settings)))
    rank = f"row_number() over (partition by setting_id order by {_ORDER[name]})"
    likely = _likely(_LEADING[name], most) if name in _LEADING else ""
    listed = f"{query}{likely} qualify {rank} <= {most}{order}"
    rows = connection.execute(listed, [str(path)] * listed.count("?")).fetchall()
    return rows, whole > len(rows)


def _likely(column: str, most: int) -> str:
    """Only rows that may be among the first `most` of their setting by `column`, falling.

    Ranking a million wide rows to keep a few takes a second; dropping first what lies below the
    last that can be kept takes a tenth of it.
    """
    least = f"if(count({column}) < {most}, null, list_min(max({column}, {most})))"
    lasts = f"select setting_id, {least} as least from read_parquet(?) group by setting_id"
    return f" join ({lasts}) using (setting_id) where least is null or {column} >= least"


def columnar(records: list[Record], columns: tuple[str, ...]) -> dict[str, Any]:
    """Columns once, rows as arrays: a third of the size of records."""
    return {"columns": columns, "rows": [[row[column] for column in columns] for row in records]}


def _plain(value: Any) -> Any:
    """A value JSON can hold: six digits, printable text; what is no number is unknown."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return shown(", ".join(str(part) for part in value))
    if isinstance(value, str):
        return shown(value)
    return value
