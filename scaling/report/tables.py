"""The tables of a study, read with the columns, rows and plain values that the report needs."""

import dataclasses
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.layout.shapes import ModelShape
from scaling.report.text import GPU_WORDS, device_words, gpu_count
from scaling.study.paths import StudyPaths

Record = dict[str, Any]

LISTS = ("statistics", "refused")  # tables whose rows may be cut; no sentence stands on them
MOST_ROWS = 1000  # of a list, in each group
MOST_ROWS_IN_ALL = 2000  # of a list, in all groups together
FEWEST_ROWS = 60  # of a list, in each group, however many groups there are
MOST_LAYOUTS = 40  # of a group and size

# The columns that the page reads of each table. `estimates` are those that speak for a layout.
SHAPE = tuple(one.name for one in dataclasses.fields(ModelShape))
_LAYOUT = (*AXES, "dp", "gradient_accumulation_steps")
_CELL = (
    "group_id", "world_size", "layout", "layout_name", "source", "level", "slot", "runs",
    "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "tokens_per_s_per_gpu", "mfu",
    "model_flop_per_s_per_gpu", "step_time_s", "share_of_best", "share_low", "share_high", "p_best",
    "expected_loss", "fits_probability", "peak_memory_bytes", "predicted_memory_bytes",
    "capacity_bytes", "single_run", "load", "others_share", "suspended_s", "longest_step",
    "slowdown_share", "num_alloc_retries", "losses_agree", "slow_hosts",
)  # fmt: skip
COLUMNS: dict[str, tuple[str, ...]] = {
    "comparison_groups": (
        "group_id", "model", "cluster", "study_kind", "seq_length", "kept_batch_size",
        "kept_choices", "gpu", "gpus_per_node", "vendor", "gpu_memory_bytes", "usd_per_gpu_hour",
        "total_params", *SHAPE,
    ),
    "progress": (
        "group_id", "points", "ok", "failed", "waiting", "predicted", "refusals", "skipped",
    ),
    "estimates": (
        *_CELL, *_LAYOUT, "global_batch_size", "candidate", "close", "advised", "place", "outcome",
        "error_message", "disturbed_points",
    ),
    "sizes": (
        *_CELL, *_LAYOUT, "candidates", "close_layouts", "close_names", "next_points",
        "next_gpu_hours", "efficiency", "hours_per_token", "hours_per_token_low",
        "hours_per_token_high", "gpu_hours_per_token", "global_batch_size", "tokens_per_step",
        "started_at", "stack_fingerprint",
    ),
    "returns": (
        "group_id", "source", "level", "from_world_size", "to_world_size", "faster", "faster_low",
        "faster_high", "step_return", "step_return_low", "step_return_high",
    ),
    "knees": ("group_id", "knee_share", "knee_world_size", "probability", "beyond_data"),
    "noise": ("group_id", "sigma", "assumed", "repeated_layouts", "single_runs", "never_ran"),
    "hosts": ("group_id", "cluster", "host", "effect", "effect_low", "effect_high", "level"),
    "effects": (
        "group_id", "factor", "name", "level", "pairs", "mean_ratio", "lowest", "highest",
        "near_pairs", "near_ratio", "near_low", "near_high", "memory_ratio", "shown",
    ),
    "memory_parts": (
        "group_id", "world_size", "layout_name", "place", "part", "from_bytes", "to_bytes",
        "total_bytes", "peak_phase", "memory_from",
    ),
    "time_split": (
        "group_id", "world_size", "layout_name", "source", "part_order", "part", "seconds",
        "profiled_s", "share_from", "share_to", "host_bound",
    ),
    "accuracy": ("group_id", "compared", "near", "median_error", "predicted_from"),
    "collectives": (
        "cluster", "kind", "ranks", "stride", "nodes", "at_once", "message_bytes",
        "bus_bytes_per_s", "bus_low", "bus_high",
    ),
    "statistics": (
        "group_id", "source", "outcome", "world_size", *_LAYOUT, "layout_name", "repeat",
        "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "model_flop_per_s_per_gpu", "step_time_s",
        "step_time_low_s", "step_time_high_s", "peak_memory_bytes", "energy_j", "mean_power_w",
        "exposed_comm_s", "duration_s", "error_message", "stack_fingerprint", "point_id",
        "predicted_outcome", "predicted_tokens_per_s", "predicted_step_time_s",
        "predicted_memory_bytes",
    ),
    "refused": ("group_id", "world_size", *AXES, "reason"),
    "provenance": (
        "stack_fingerprint", "measurements", "gpu_name", "git_commit", "scaling_version",
        "python_version", "torch_version", "deepspeed_version", "flash_attn_version",
        "liger_kernel_version", "driver_version", "cuda_version", "nccl_version", "clock",
        "memory_meter", "hosts", "seeds", "first_started_at", "last_started_at",
    ),
    "excluded": ("reason", "rows_excluded"),
    "losses": ("point_id", "group_id", "layouts", "differs_in", "at_step", "gap", "bound"),
}  # fmt: skip

_FILTERS = {
    "estimates": f"where speaks and (place <= {MOST_LAYOUTS} or advised)",
    "memory_parts": "where place = 1",
    "losses": f"where not agrees order by gap desc limit {MOST_ROWS}",
    "excluded": f"order by rows_excluded desc, reason limit {MOST_ROWS}",
}
_ORDER = {
    "statistics": "group_id, tokens_per_s desc nulls last, "
    "predicted_tokens_per_s desc nulls last, world_size, layout_name, repeat, source, point_id",
    "estimates": "group_id, world_size, place",
    "sizes": "group_id, world_size",
    "returns": "group_id, from_world_size",
    "refused": f"group_id, world_size, {', '.join(AXES)}, reason",
}
_LEADING = {"statistics": "tokens_per_s"}  # the column that decides the order of a long list

# Unicode categories printed as numbers: controls, formats (text direction), surrogates, private
# and unassigned characters, line and paragraph separators.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the report by name, and the names of the lists that were cut.

    Those of one group have its `words` for GPUs.
    """

    records: Mapping[str, list[Record]]
    cut: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=lambda: GPU_WORDS)

    def of(self, group_id: int) -> "Tables":
        """The rows of one group, in tables by cluster those of its cluster, all other rows."""
        groups = self.records.get("comparison_groups", [])
        group = next((one for one in groups if one["group_id"] == group_id), Record())
        cluster = group.get("cluster")

        def belongs(row: Record) -> bool:
            if "group_id" in row:
                return bool(row["group_id"] == group_id)
            return bool(row.get("cluster", cluster) == cluster)

        chosen = {name: [*filter(belongs, rows)] for name, rows in self.records.items()}
        return Tables(chosen, self.cut, device_words(group.get("vendor")))

    def gpus(self, number: int) -> str:
        """`1 rank`, `8 GPUs`."""
        return gpu_count(number, self.words)

    def __getitem__(self, name: str) -> list[Record]:
        return self.records[name]


def read_tables(study_dir: Path) -> Tables:
    """Read the report's columns and rows of tables/*.parquet.

    Raises:
        InputError: a table is missing, unreadable or without a column that the report needs.
    """
    records: dict[str, list[Record]] = {}
    cut: list[str] = []
    with duckdb.cursor() as connection:
        for name, columns in COLUMNS.items():
            path = StudyPaths(study_dir).table(name)
            if not path.exists():
                raise InputError(f"{path}: is missing; `scaling tabulate` writes it")
            try:
                rows, is_cut = _read(connection, path, name, columns)
            except (duckdb.Error, UnicodeDecodeError) as error:
                reason = str(error).splitlines()[0].rstrip("!")
                raise InputError(
                    f"{path}: is no table of this version: {reason}; run `scaling tabulate` again"
                ) from error
            cells = [_plain(column) for column in zip(*rows, strict=True)]
            records[name] = [
                dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)
            ]
            if is_cut:
                cut.append(name)
    return Tables(records, tuple(cut))


def _read(
    connection: duckdb.DuckDBPyConnection, path: Path, name: str, columns: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows of a table, and whether the file has more."""
    selected = ", ".join(f'"{column}"' for column in columns)
    order = f" order by {_ORDER[name]}" if name in _ORDER else ""
    query = f"select {selected} from read_parquet(?) {_FILTERS.get(name, '')}"
    if name not in LISTS:
        return connection.execute(query + order, [str(path)]).fetchall(), False
    whole, groups = connection.execute(
        "select count(*), count(distinct group_id) from read_parquet(?)", [str(path)]
    ).fetchall()[0]
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_ROWS_IN_ALL // max(1, groups)))
    rank = f"row_number() over (partition by group_id order by {_ORDER[name]})"
    prefilter = _prefilter(_LEADING[name], most) if name in _LEADING else ""
    listed = f"{query}{prefilter} qualify {rank} <= {most}{order}"
    rows = connection.execute(listed, [str(path)] * listed.count("?")).fetchall()
    return rows, whole > len(rows)


def _prefilter(column: str, most: int) -> str:
    """SQL that drops rows below the `most`-th largest `column` of their group.

    It comes before the ranking, because ranking a million wide rows to keep a few takes ten times
    as long.
    """
    least = f"if(count({column}) < {most}, null, list_min(max({column}, {most})))"
    thresholds = f"select group_id, {least} as least from read_parquet(?) group by group_id"
    return f" join ({thresholds}) using (group_id) where least is null or {column} >= least"


def _plain(column: Sequence[Any]) -> Sequence[Any]:
    """Values that JSON can hold: six digits, printable text, null for NaN and infinity."""
    kind = next((type(value) for value in column if value is not None), None)
    if kind is float:
        return [
            float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
            for value in column
        ]
    if kind is list:
        return [
            cell and [page_text(str(part)) for part in cell if part is not None] for cell in column
        ]
    if kind is str:
        texts = {text: None if text is None else page_text(text) for text in set(column)}
        return [texts[text] for text in column]
    return column


def page_text(text: str) -> str:
    """Text from outside: unprintable characters as their numbers, line ends and tabs as spaces."""
    if text.isprintable():
        return text
    text = " ".join(text.split("\n")).replace("\t", " ").replace("\r", " ")
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in _UNPRINTABLE else char
        for char in text
    )
