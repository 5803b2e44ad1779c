"""Measurements that others published become rows of a study: series `published`, nulls kept."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scaling import __version__
from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError, shortened
from scaling.foreign.columns import MAX_COUNT, MAX_EXACT_INT, Columns
from scaling.foreign.identity import SHAPE, identify_gpus, identify_models, rename_by_depth
from scaling.foreign.layouts import (
    AXIS_WORDS,
    complete_layout,
    fsdp_ranks,
    read_layout,
    skip_inconsistent_layouts,
)
from scaling.foreign.measured import RATES, read_outcomes, skip_adapter_training
from scaling.foreign.reading import read_table
from scaling.layout.axes import layout_label
from scaling.layout.optional_parts import PART_SIZES, part_errors, stated_parts
from scaling.layout.shapes import (
    ModelShape,
    hardware_flops_per_token,
    matmul_flops_per_token,
    model_flops_per_token,
)
from scaling.record.files import arrow_schema, write_table
from scaling.record.row import Row, fields_of
from scaling.record.row_checks import invalid_row_reasons
from scaling.study.paths import StudyPaths

# What every row must say, and the columns from which it follows where a table has no such column.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "model": (), "cluster": ("gpu", "gpu_name"), "world_size": ("nodes", "dp"), "seq_length": (),
    "outcome": ("step_time_s", *RATES), "global_batch_size": ("tokens_per_step", "dp"),
}  # fmt: skip
_NONE_IS_ONE = ("ep", "virtual_stages")  # 0 where there is no such thing
# Whole numbers that may be zero; every other one divides something or counts what there is.
_FROM_ZERO = (
    "num_encoder_layers", "max_positions", "repeat", "seed", "warmup_steps", "zero_stage",
    *PART_SIZES, *_NONE_IS_ONE,
)  # fmt: skip
_MOST_INTEGER = 2**63 - 1
_MOST_SAID = 40  # rows that are left out, one by one
# What sources say and the row does not: the nearest outcome, and the sentence that says so.
OTHER_OUTCOMES = {
    "oom_or_crash": ("error", "out of memory or a crash: the source does not tell them apart"),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """How many rows a table became, and a sentence for each thing read otherwise or left out."""

    rows: int
    sentences: tuple[str, ...]


def import_rows(
    source: Path,
    study_dir: Path,
    clusters: Mapping[str, Cluster],
    models: Mapping[str, ModelShape] | None = None,
) -> Imported:
    """Write published.parquet of a study from a table in the project's vocabulary.

    A missing column or an empty cell stays null; only what follows from other columns is derived
    (scaling/foreign/layouts.py, and tokens and FLOPs). FLOPs count every weight but norms and
    biases, whose family the source does not name. The GPU is the cluster's in `clusters`, else the
    catalogue's name that the cluster's name starts with, else null.

    Args:
        source: CSV with a header, or Parquet; units as in scaling.record.row.
        study_dir: results/<study>, new or with a plan of its own.
        clusters: by name.
        models: by name. A row of the shape of one, or that names one without its shape, is its.

    Returns:
        How many rows, and what is to be said of them.

    Raises:
        InputError: no such file, a needed column is missing, a number is none, or no row can be.
    """
    columns = Columns(read_table(source), str(source))
    for name, instead in NEEDED.items():
        if not any(one in columns for one in (name, *instead)):
            there = ", ".join(columns.table.column_names)
            raise columns.missing_column(
                name,
                f"the table has {shortened(there, 200)}; needed are {', '.join(NEEDED)}"
                + (f" (or {' or '.join(instead)} instead)" if instead else ""),
            )
    if not len(columns):
        raise InputError(f"{source}: holds no row under its header")
    skip_adapter_training(columns)
    cells, layouts = _cells(columns), complete_layout(read_layout(columns))
    skip_inconsistent_layouts(columns, layouts)
    hardware = identify_gpus(columns, cells, clusters)
    named = identify_models(columns, cells, models or {})
    seen: dict[str, int] = {}
    records = {}
    # FLOPs of attention that the shape does not state are not those of plain attention
    plain = np.isin(columns.strings("attention_kind", ""), ["", "mha", "mqa", "gqa"])
    for row, stated in enumerate(cells):
        if row in columns.skipped:
            continue
        derived = {
            name: int(values[row]) for name, values in layouts.items() if np.isfinite(values[row])
        }
        try:
            facts = {**stated, **derived, **named[row]}
            _check(columns, row, facts)
            facts |= _derived(facts, plain=bool(plain[row]))
            record = _record(stated, facts, hardware[row], study_dir.name, seen)
            for name in ("total_params", "model_flops_per_token", "hardware_flops_per_token"):
                if (record[name] or 0) > _MOST_INTEGER:  # which no file holds
                    raise InputError(f"{columns.place(row)}: {name} would be {record[name]:.0e}")
        except InputError as error:
            columns.skip_row(row, str(error))
        else:
            records[row] = record
    rename_by_depth(columns, list(records.values()))
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(Row)])
    table = pa.Table.from_pylist(list(records.values()), schema=schema)
    for row, reason in zip(
        list(records), invalid_row_reasons(table, series="published"), strict=True
    ):
        if reason is not None and records[row]["outcome"] == "ok":
            columns.skip_row(row, f"{columns.place(row)}: {reason}")
            del records[row]
    out = StudyPaths(study_dir).published
    write_table(out, pa.Table.from_pylist(list(records.values()), schema=schema))
    left = list(dict.fromkeys(columns.skipped.values()))
    more = [f"{len(left) - _MOST_SAID} more rows"] if len(left) > _MOST_SAID else []
    return Imported(
        len(records),
        (
            *(f"assumed: {sentence}" for sentence in columns.assumptions),
            *(f"left out: {sentence}" for sentence in [*left[:_MOST_SAID], *more]),
        ),
    )


def _cells(columns: Columns) -> list[dict[str, Any]]:
    """The known cells of each row that are not empty, and who published it."""
    stated: dict[str, list[Any]] = {}
    for name, (kind, _) in fields_of(Row).items():
        if name in columns:
            stated[name] = _values(columns, name, kind)
    named = {n: columns.strings(n, "").tolist() for n in ("framework", "release", "source")}
    outcome, step = read_outcomes(columns)
    stated["outcome"] = [word or None for word in outcome.tolist()]
    stated["step_time_s"] = [None if np.isnan(seconds) else seconds for seconds in step.tolist()]
    if (whole := fsdp_ranks(columns) > 1).any():
        stages = stated.get("zero_stage", [None] * len(columns))
        stated["zero_stage"] = [
            3 if all_sharded else stage for all_sharded, stage in zip(whole, stages, strict=True)
        ]
    return [
        {name: values[row] or None for name, values in named.items()}
        | {name: values[row] for name, values in stated.items() if values[row] is not None}
        for row in range(len(columns))
    ]


def _values(columns: Columns, name: str, kind: str) -> list[Any]:
    """A column in its own type, None where a cell is empty."""
    if kind == "bool":
        flags = columns.flags(name, False, silent=True).tolist()
        return [
            flag if given else None
            for flag, given in zip(flags, columns.is_given(name).tolist(), strict=True)
        ]
    if kind == "int":
        # of the batch in tokens `read_layout` makes sequences
        large = dict.fromkeys(("peak_memory_bytes", "global_batch_size"), MAX_EXACT_INT)
        high = (large | {"zero_stage": 3}).get(name, MAX_COUNT)
        if name.endswith(("_bytes", "_params", "_per_token", "_per_step")):
            high = MAX_EXACT_INT
        numbers = columns.counts(name, low=0 if name in _FROM_ZERO else 1, high=high).tolist()
        least = 1 if name in _NONE_IS_ONE else 0
        return [None if np.isnan(number) else max(int(number), least) for number in numbers]
    if kind == "float":
        numbers = columns.numbers(name, high=1e18).tolist()
        return [None if np.isnan(number) else number for number in numbers]
    if kind == "str":
        return [word or None for word in columns.strings(name, "", AXIS_WORDS.get(name)).tolist()]
    raise InputError(f"{columns.source}: column {name} holds lists, which cannot be imported")


def _check(columns: Columns, row: int, cells: dict[str, Any]) -> None:
    """Give the outcome its name here, and refuse a row that says too little."""
    for name in NEEDED:
        if cells.get(name) is None:
            is_missing = f"{name} is empty, and is needed"
            if name == "outcome":
                is_missing = "neither outcome nor step time is stated"
            raise InputError(f"{columns.place(row)}: {is_missing}")
    outcome = cells["outcome"]
    if outcome in OTHER_OUTCOMES:
        ours, sentence = OTHER_OUTCOMES[outcome]
        cells |= {"outcome": ours, "error_message": cells.get("error_message", sentence)}
    if cells["outcome"] == "ok" and not cells.get("step_time_s"):
        raise InputError(f"{columns.place(row)}: outcome=ok without a step_time_s above 0")


def _record(
    cells: Mapping[str, Any],
    facts: Mapping[str, Any],
    gpu: str | None,
    study: str,
    seen: dict[str, int],
) -> dict[str, Any]:
    """The row; `cells` are what the table says of it, `facts` what follows as well."""
    record: dict[str, Any] = {name: facts.get(name) for name in fields_of(Row)}
    record["layout"] = layout_label(record) or "unnamed"
    peak = GPUS[gpu].peak(record["precision"]) if gpu in GPUS else None
    identity = json.dumps(
        {k: v for k, v in cells.items() if k not in ("step_time_s", "peak_memory_bytes")}
        | {"outcome": None, "error_message": None},
        sort_keys=True,
    )
    repeat = seen.get(identity, 0)
    seen[identity] = repeat + 1
    digest = hashlib.sha256(f"{identity}{repeat}".encode()).hexdigest()[:8]
    words = f"{cells['model']}-g{record['world_size']}-{record['layout']}-{digest}"
    software = " ".join(filter(None, (cells["framework"], cells["release"])))
    return record | {
        "study": study,
        # rows of one global batch are compared; who published them did not say what they kept
        "study_kind": record["study_kind"] or "strong",
        "point_id": re.sub(r"[^A-Za-z0-9._-]+", "-", words),
        "repeat": repeat,
        "attempt": 1,
        "gpu": gpu,
        "peak_flop_per_s": record["peak_flop_per_s"] or peak,
        "scaling_version": __version__,
        "hosts": [],
        "stack_fingerprint": f"published: {software or cells['source'] or 'unnamed'}",
    }


def _derived(facts: Mapping[str, Any], *, plain: bool) -> dict[str, Any]:
    """What follows from the columns that are there; nothing where one is missing."""
    derived: dict[str, Any] = {}
    stated = facts.get
    if stated("tokens_per_step") is None:
        derived["tokens_per_step"] = facts["global_batch_size"] * facts["seq_length"]
    parts = stated_parts(facts)
    whole = all(stated(name) is not None for name in SHAPE)
    whole = whole and (plain or bool(parts.get("key_value_rank") or parts.get("window")))
    if whole and (stated("head_dim") or facts["hidden_size"] % facts["num_heads"] == 0):
        shape = ModelShape(
            **{name: facts[name] for name in SHAPE},
            head_dim=stated("head_dim") or facts["hidden_size"] // facts["num_heads"],
            **parts,
        )
        if part_errors(shape):  # what its experts are is not all stated
            return {name: value for name, value in derived.items() if stated(name) is None}
        length = facts["seq_length"]
        derived |= {
            "head_dim": shape.head_dim,
            "total_params": shape.total_params,
            "active_params": shape.active_params,
            "model_flops_per_token": model_flops_per_token(shape, length),
            "matmul_flops_per_token": matmul_flops_per_token(shape, length),
        }
        if (kept := stated("activation_checkpointing")) is not None:
            derived["hardware_flops_per_token"] = hardware_flops_per_token(shape, length, kept)
    return {name: value for name, value in derived.items() if stated(name) is None}
