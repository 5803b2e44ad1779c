"""The tables of a study as the page needs them: some columns, plain values, by setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scaling.errors import InputError

Record = dict[str, Any]

MOST_ROWS = 2000  # a setting, of a table of LISTS; no sentence or chart stands on those
LISTS = ("statistics", "refused")

_LAYOUT = (
    "tp", "pp", "cp", "dp", "zero_stage", "sequence_parallel", "micro_batch_size",
    "gradient_accumulation_steps", "activation_checkpointing", "attention", "fused_norm",
    "precision",
)  # fmt: skip
_RATES = (
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "mfu", "hfu",
    "model_flop_per_s_per_gpu", "step_time_s", "step_time_low_s", "step_time_high_s",
    "peak_memory_bytes",
)  # fmt: skip

# The page holds each of these tables once; charts, tables, sentences and downloads read them.
COLUMNS: dict[str, tuple[str, ...]] = {
    "settings": (
        "setting_id", "model", "cluster", "study_kind", "seq_length", "kept_batch_size", "gpu",
        "vendor", "gpu_memory_bytes", "total_params", "num_layers", "hidden_size",
    ),
    "progress": ("setting_id", "points", "ok", "failed", "waiting", "refusals"),
    "outcomes": ("setting_id", "world_size", "outcome", "points"),
    "noise": (
        "setting_id", "series", "layouts", "interval_half_width", "repeated_layouts",
        "repeat_half_spread",
    ),
    "statistics": (
        "setting_id", "series", "outcome", "world_size", *_LAYOUT, "layout_name", "repeat",
        "attempt", *_RATES, "energy_j", "mean_power_w", "exposed_comm_s", "startup_s",
        "duration_s", "error_message", "stack_fingerprint", "point_id",
    ),
    "best": (
        "setting_id", "series", "world_size", "layout_name", "layout", "label", "slot", *_RATES,
        "ideal_tokens_per_s", "speed_up", "efficiency", "runner_up_layout_name",
        "runner_up_tokens_per_s", "tied", "runs", "stack_fingerprint",
    ),
    "curves": (
        "setting_id", "style", "series", "world_size", "tokens_per_s", "tokens_per_s_per_gpu",
        "mfu", "model_flop_per_s_per_gpu",
    ),
    "contenders": (
        "setting_id", "series", "world_size", "position", "layout_name", "slot", "outcome",
        *_RATES, "share_of_best", "within_noise", "runs", "ok_runs", "stack_fingerprint",
    ),
    "returns": (
        "setting_id", "series", "from_world_size", "to_world_size", "from_layout", "to_layout",
        "same_stack", "marginal_tokens_per_s", "marginal_low", "marginal_high",
        "yardstick_tokens_per_s_per_gpu", "share", "share_low", "share_high", "speed_up",
        "efficiency",
    ),
    "refused": (
        "setting_id", "world_size", "tp", "pp", "cp", "zero_stage", "sequence_parallel",
        "micro_batch_size", "activation_checkpointing", "attention", "fused_norm", "precision",
        "reason",
    ),
    "provenance": (
        "stack_fingerprint", "measurements", "gpu_name", "git_commit", "scaling_version",
        "python_version", "torch_version", "deepspeed_version", "flash_attn_version",
        "driver_version", "cuda_version", "nccl_version", "clock", "memory_meter", "hosts",
        "seeds", "first_started_at", "last_started_at",
    ),
    "left_out": ("reason", "rows_left_out"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tables:
    """The page's tables, and the names of those of which the page holds only the first rows."""

    records: Mapping[str, list[Record]]
    cut: tuple[str, ...] = ()

    def of(self, setting_id: int) -> "Tables":
        """The rows of one setting; tables without settings whole."""
        chosen = {
            name: [row for row in rows if row.get("setting_id", setting_id) == setting_id]
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
    """Read the page's columns of tables/*.parquet.

    Raises:
        InputError: a table is missing, or was written by SQL that does not know a column.
    """
    records: dict[str, list[Record]] = {}
    cut: list[str] = []
    for name, columns in COLUMNS.items():
        path = study_dir / "tables" / f"{name}.parquet"
        try:
            table = pq.read_table(path, columns=list(columns), partitioning=None)
        except FileNotFoundError as error:
            raise InputError(f"{path}: is missing; `scaling tabulate` writes it") from error
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: is no table of this project: {reason}") from error
        if missing := set(columns) - set(table.column_names):
            raise InputError(
                f"{path}: has no column {min(missing)!r}; run `scaling tabulate` again"
            )
        kept = _first_rows(table) if name in LISTS else table
        if kept.num_rows < table.num_rows:
            cut.append(name)
        rows = kept.select(list(columns)).to_pylist()
        records[name] = [{key: _plain(value) for key, value in row.items()} for row in rows]
    return Tables(records, tuple(cut))


def _first_rows(table: pa.Table) -> pa.Table:
    """At most MOST_ROWS of each setting, in the order of the file."""
    settings = table["setting_id"]
    parts = [table.filter(pc.equal(settings, one)) for one in pc.unique(settings)]
    return pa.concat_tables([table.slice(0, 0), *(part.slice(0, MOST_ROWS) for part in parts)])


def columnar(records: list[Record], columns: tuple[str, ...]) -> dict[str, Any]:
    """Columns once, rows as arrays: a third of the size of records."""
    return {"columns": columns, "rows": [[row[column] for column in columns] for row in records]}


def _plain(value: Any) -> Any:
    """A value JSON can hold: six digits; what is no number (a loss that diverged) is unknown."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return value
