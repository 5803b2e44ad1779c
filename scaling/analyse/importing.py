"""Import measurements that others published as rows of a study, series `published`."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scaling import __version__
from scaling.cluster.hardware import GPUS, Cluster
from scaling.errors import InputError, shortened
from scaling.foreign.columns import MAX_COUNT, MAX_EXACT_INT, Columns
from scaling.foreign.decoder_parts import PLAIN_ATTENTION, attention_kinds
from scaling.foreign.identity import SHAPE, identify_gpus, identify_models, rename_by_depth
from scaling.foreign.layouts import (
    AXIS_WORDS,
    ZERO_MEANS_ONE,
    complete_layout,
    fsdp_ranks,
    read_layout,
    skip_inconsistent_layouts,
)
from scaling.foreign.measured import read_outcomes, skip_adapter_training
from scaling.foreign.reading import read_table
from scaling.foreign.spellings import RATES
from scaling.layout.axes import AXES
from scaling.layout.layout import layout_label
from scaling.layout.optional_parts import PART_SIZES, stated_parts
from scaling.layout.shapes import (
    ModelShape,
    hardware_flops_per_token,
    matmul_flops_per_token,
    model_flops_per_token,
)
from scaling.record.files import ROWS, write_table
from scaling.record.row import Row, fields_of
from scaling.record.row_checks import invalid_row_reasons
from scaling.study.catalogues import part_errors
from scaling.study.paths import StudyPaths

# What every row must state, and the columns from which it follows if a table has no such column.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "model": (), "cluster": ("gpu", "gpu_name"), "world_size": ("nodes", "dp"), "seq_length": (),
    "outcome": ("step_time_s", *RATES), "global_batch_size": ("tokens_per_step", "dp"),
}  # fmt: skip
# Whole numbers that may be zero; the others divide something or count parts of the model.
_FROM_ZERO = (
    "num_encoder_layers", "max_positions", "repeat", "seed", "warmup_steps", "zero_stage",
    *PART_SIZES, *ZERO_MEANS_ONE,
)  # fmt: skip
_MOST_INTEGER = 2**63 - 1  # that a Parquet file holds
_MOST_LISTED = 40  # skipped rows that are listed one by one
# Outcomes that sources state and rows do not have: the nearest outcome, and an explanation.
OTHER_OUTCOMES = {
    "oom_or_crash": ("error", "out of memory or a crash: the source does not tell them apart"),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """How many rows were imported, and a sentence for each assumption and each skipped row."""

    rows: int
    sentences: tuple[str, ...]


def import_rows(
    source: Path,
    study_dir: Path,
    clusters: Mapping[str, Cluster],
    models: Mapping[str, ModelShape] | None = None,
) -> Imported:
    """Write published.parquet of a study from a table of published measurements.

    Missing columns and empty cells stay null. Only what follows from other columns is derived: the
    layout (scaling/foreign/layouts.py), tokens and FLOPs. FLOPs count every weight except norms and
    biases, because the source does not name the model's family. The GPU is that of the cluster in
    `clusters`, else the catalogue's name with which the cluster's name starts, else null.

    Args:
        source: CSV with a header, or Parquet; units as in scaling.record.row.
        study_dir: results/<study>, new or with a plan of its own.
        clusters: by name.
        models: by name. A row is of a model if it has its shape, or its name and no shape.

    Returns:
        The number of rows, and sentences about assumptions and rows that were left out.

    Raises:
        InputError: no such file, a needed column is missing, a number cannot be read, or no row is
            usable.
    """
    columns = Columns(read_table(source), str(source))
    _require_columns(columns)
    skip_adapter_training(columns)
    records = _records(columns, clusters, models or {}, study_dir.name)
    rename_by_depth(columns, list(records.values()))
    reasons = invalid_row_reasons(_table(records), series="published")
    for row, reason in zip(list(records), reasons, strict=True):
        if reason is not None and records[row]["outcome"] == "ok":
            columns.skip_row(row, f"{columns.place(row)}: {reason}")
            del records[row]
    _tell_apart(records.values())
    write_table(StudyPaths(study_dir).published, _table(records))
    skipped = list(dict.fromkeys(columns.skipped.values()))
    if (more := len(skipped) - _MOST_LISTED) > 0:
        skipped[_MOST_LISTED:] = [f"{more} more rows"]
    return Imported(
        len(records),
        (
            *(f"assumed: {sentence}" for sentence in columns.assumptions),
            *(f"left out: {sentence}" for sentence in skipped),
        ),
    )


def _require_columns(columns: Columns) -> None:
    for name, alternatives in NEEDED.items():
        if not any(column in columns for column in (name, *alternatives)):
            there = ", ".join(columns.table.column_names)
            raise columns.missing_column(
                name,
                f"the table has {shortened(there, 200)}; needed are {', '.join(NEEDED)}"
                + (f" (or {' or '.join(alternatives)} instead)" if alternatives else ""),
            )
    if not len(columns):
        raise InputError(f"{columns.source}: holds no row under its header")


def _records(
    columns: Columns, clusters: Mapping[str, Cluster], models: Mapping[str, ModelShape], study: str
) -> dict[int, dict[str, Any]]:
    """The rows that can be read, by their number in the table; the others are skipped."""
    cells, layouts = _cells(columns), complete_layout(read_layout(columns))
    skip_inconsistent_layouts(columns, layouts)
    gpus = identify_gpus(columns, cells, clusters)
    shapes = identify_models(columns, cells, models)
    # the FLOPs of another kind of attention follow only from a shape that states its parts
    plain = np.isin(attention_kinds(columns), PLAIN_ATTENTION)
    repeats: dict[str, int] = {}
    records = {}
    for row, stated in enumerate(cells):
        if row in columns.skipped:
            continue
        layout = {
            name: int(values[row]) for name, values in layouts.items() if np.isfinite(values[row])
        }
        try:
            facts = {**stated, **layout, **shapes[row]}
            _check(columns, row, facts)
            facts |= _derived(facts, plain=bool(plain[row]))
            record = _record(stated, facts, gpus[row], study, repeats)
            for name in ("total_params", "model_flops_per_token", "hardware_flops_per_token"):
                if (record[name] or 0) > _MOST_INTEGER:
                    raise InputError(f"{columns.place(row)}: {name} would be {record[name]:.0e}")
        except InputError as error:
            columns.skip_row(row, str(error))
        else:
            records[row] = record
    return records


def _tell_apart(records: Iterable[dict[str, Any]]) -> None:
    """Name layouts apart of which one leaves unstated what the other states: no repeats of one."""
    alike = defaultdict(list)
    for record in records:
        key = ("model", "cluster", "seq_length", "global_batch_size", "layout")
        alike[tuple(record[name] for name in key)].append(record)
    for name, axis in AXES.items():
        for group in alike.values():
            unstated = [record for record in group if record[name] is None]
            if len(unstated) < len(group) and not axis.optional:
                for record in unstated:
                    record["layout"] += f" {name}-unstated"


def _table(records: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema([field.with_nullable(True) for field in ROWS])
    return pa.Table.from_pylist(list(records.values()), schema=schema)


def _cells(columns: Columns) -> list[dict[str, Any]]:
    """The known cells of each row that are not empty, and its framework, release and source."""
    stated = {
        name: _values(columns, name, kind)
        for name, (kind, _) in fields_of(Row).items()
        if name in columns
    }
    publisher = {n: columns.strings(n, "").tolist() for n in ("framework", "release", "source")}
    outcome, step = read_outcomes(columns)
    stated["outcome"] = [word or None for word in outcome.tolist()]
    stated["step_time_s"] = [None if np.isnan(seconds) else seconds for seconds in step.tolist()]
    if (is_fsdp := fsdp_ranks(columns) > 1).any():
        stages = np.array(stated.get("zero_stage", [None] * len(columns)), dtype=object)
        stated["zero_stage"] = np.where(is_fsdp, 3, stages).tolist()
    return [
        {name: values[row] or None for name, values in publisher.items()}
        | {name: values[row] for name, values in stated.items() if values[row] is not None}
        for row in range(len(columns))
    ]


def _values(columns: Columns, name: str, kind: str) -> list[Any]:
    """The values of a column in its type, None for empty cells."""
    if kind == "bool":
        flags = columns.flags(name, False, silent=True).astype(object)
        return list(np.where(columns.is_given(name), flags, np.array(None)).tolist())
    if kind == "int":
        # `read_layout` turns a batch in tokens into sequences
        high = {"zero_stage": 3, "global_batch_size": MAX_EXACT_INT}.get(name, MAX_COUNT)
        if name.endswith(("_bytes", "_params", "_per_token", "_per_step")):
            high = MAX_EXACT_INT
        low = 0 if name in _FROM_ZERO else 1
        whole = not name.endswith("_bytes")  # 39.47 GiB are no whole number of bytes
        numbers = np.rint(columns.numbers(name, low=low, high=high, whole=whole)).tolist()
        least = 1 if name in ZERO_MEANS_ONE else 0
        return [None if np.isnan(number) else max(int(number), least) for number in numbers]
    if kind == "float":
        numbers = columns.numbers(name, high=1e18).tolist()
        return [None if np.isnan(number) else number for number in numbers]
    if kind == "str":
        return [word or None for word in columns.strings(name, "", AXIS_WORDS.get(name)).tolist()]
    raise InputError(f"{columns.source}: column {name} holds lists, which cannot be imported")


def _check(columns: Columns, row: int, cells: dict[str, Any]) -> None:
    """Translate the outcome, and refuse a row that states too little."""
    for name in NEEDED:
        if cells.get(name) is None:
            problem = f"{name} is empty, and is needed"
            if name == "outcome":
                problem = "neither outcome nor step time is stated"
            raise InputError(f"{columns.place(row)}: {problem}")
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
    repeats: dict[str, int],
) -> dict[str, Any]:
    """Make a row of what the table states (`cells`) and of what follows too (`facts`).

    `repeats` counts the rows that state the same.
    """
    record: dict[str, Any] = {name: facts.get(name) for name in fields_of(Row)}
    record["layout"] = layout_label(record) or "unnamed"
    peak = GPUS[gpu].peaks.get(record["precision"]) if gpu in GPUS else None
    identity = json.dumps(
        {k: v for k, v in cells.items() if k not in ("step_time_s", "peak_memory_bytes")}
        | {"outcome": None, "error_message": None},
        sort_keys=True,
    )
    repeat = repeats.get(identity, 0)
    repeats[identity] = repeat + 1
    digest = hashlib.sha256(f"{identity}{repeat}".encode()).hexdigest()[:8]
    readable_id = f"{cells['model']}-g{record['world_size']}-{record['layout']}-{digest}"
    software = " ".join(filter(None, (cells["framework"], cells["release"])))
    return record | {
        "study": study,
        # compared at equal global batch, because publishers do not state what they kept fixed
        "study_kind": record["study_kind"] or "strong",
        "point_id": re.sub(r"[^A-Za-z0-9._-]+", "-", readable_id),
        "repeat": repeat,
        "attempt": 1,
        "gpu": gpu,
        "peak_flop_per_s": record["peak_flop_per_s"] or peak,
        "scaling_version": __version__,
        "hosts": [],
        "stack_fingerprint": f"published: {software or cells['source'] or 'unnamed'}",
    }


def _derived(facts: Mapping[str, Any], *, plain: bool) -> dict[str, Any]:
    """Tokens, parameters and FLOPs that the row does not state and that follow from it.

    plain: the attention is no other kind than the shape states.
    """
    derived = {"tokens_per_step": facts["global_batch_size"] * facts["seq_length"]}
    shape = _shape(facts, plain=plain)
    if shape is not None:
        length = facts["seq_length"]
        derived |= {
            "head_dim": shape.head_dim,
            "total_params": shape.total_params,
            "active_params": shape.active_params,
            "model_flops_per_token": model_flops_per_token(shape, length),
            "matmul_flops_per_token": matmul_flops_per_token(shape, length),
        }
        if (checkpointing := facts.get("activation_checkpointing")) is not None:
            flops = hardware_flops_per_token(shape, length, checkpointing)
            derived["hardware_flops_per_token"] = flops
    return {name: value for name, value in derived.items() if facts.get(name) is None}


def _shape(facts: Mapping[str, Any], *, plain: bool) -> ModelShape | None:
    """The shape of the model, None if the row does not state all of it."""
    parts = stated_parts(facts)
    if any(facts.get(name) is None for name in SHAPE):
        return None
    if not (plain or parts.get("key_value_rank") or parts.get("window")):
        return None
    head_dim = facts.get("head_dim")
    if not head_dim and facts["hidden_size"] % facts["num_heads"]:
        return None
    shape = ModelShape(
        **{name: facts[name] for name in SHAPE},
        head_dim=head_dim or facts["hidden_size"] // facts["num_heads"],
        **parts,
    )
    return None if part_errors(shape) else shape  # errors: its experts are not fully stated
