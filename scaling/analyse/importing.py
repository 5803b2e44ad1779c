"""Measurements that others published become rows of a study: series `published`, nulls kept."""

import csv
import hashlib
import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from scaling import __version__
from scaling.analyse.sources import PUBLISHED
from scaling.errors import InputError, did_you_mean
from scaling.hardware import GPUS, Cluster
from scaling.layout import (
    Attention,
    OptimizerOffload,
    PipelineSchedule,
    Precision,
    label_of,
)
from scaling.measurement import Outcome, Row, fields_of
from scaling.shapes import (
    ActivationCheckpointing,
    ModelShape,
    hardware_flops_per_token,
    matmul_flops_per_token,
    model_flops_per_token,
)
from scaling.store import arrow_schema, write_table

NEEDED = ("model", "cluster", "world_size", "outcome", "seq_length", "global_batch_size")
_SHAPE = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "gated_mlp",
    "vocab_size", "tied_embeddings",
)  # fmt: skip
# What sources say and the row does not: the nearest outcome, and the sentence that says so.
OTHER_OUTCOMES = {
    "oom_or_crash": ("error", "out of memory or a crash: the source does not tell them apart"),
}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "attention": typing.get_args(Attention),
    "optimizer_offload": typing.get_args(OptimizerOffload),
    "pipeline_schedule": typing.get_args(PipelineSchedule),
    "precision": typing.get_args(Precision),
    "activation_checkpointing": typing.get_args(ActivationCheckpointing),
}


def import_rows(source: Path, study_dir: Path, clusters: Mapping[str, Cluster]) -> int:
    """Write published.parquet of a study from a CSV in the project's vocabulary.

    A missing column or an empty cell stays null; only what follows from other columns is derived
    (dp, gradient_accumulation_steps, tokens and FLOPs). FLOPs count every weight but norms and
    biases, whose family the source does not name. The GPU is the cluster's in `clusters`, else the
    catalogue's name that the cluster's name starts with, else null.

    Args:
        source: CSV with a header; units as in scaling.measurement.
        study_dir: results/<study>, new or with a plan of its own.
        clusters: by name.

    Returns:
        How many rows.

    Raises:
        InputError: no such file, a needed column is missing, or a cell cannot be what it says.
    """
    if not source.is_file():
        raise InputError(f"{source}: no such file; give a CSV of published rows")
    with source.open(newline="", encoding="utf-8-sig") as text:
        reader = csv.DictReader(text)
        header = reader.fieldnames or []
        for name in NEEDED:
            if name not in header:
                raise InputError(
                    f"{source}: has no column {name!r}: {did_you_mean(name, header)}; needed are "
                    f"{', '.join(NEEDED)}"
                )
        cells = [_cells(source, number, row) for number, row in enumerate(reader, start=2)]
    if not cells:
        raise InputError(f"{source}: holds no row under its header")
    seen: dict[str, int] = {}
    records = [_record(one, study_dir.name, clusters, seen) for one in cells]
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(Row)])
    write_table(study_dir / PUBLISHED, pa.Table.from_pylist(records, schema=schema))
    return len(records)


def _cells(source: Path, line: int, row: dict[str, str | None]) -> dict[str, Any]:
    """The known columns of one line as values, empty cells as None."""
    kinds = fields_of(Row)
    values: dict[str, Any] = {"framework": row.get("framework") or None}
    values["source"] = row.get("source") or None
    for name, text in row.items():
        if name not in kinds or text is None or text.strip() == "":
            continue
        try:
            values[name] = _value(kinds[name][0], text.strip())
        except ValueError:
            wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}
            raise InputError(
                f"{source}: line {line}: {name}={text!r}: must be "
                f"{wanted.get(kinds[name][0], kinds[name][0])}"
            ) from None
    for name in NEEDED:
        if name not in values:
            raise InputError(f"{source}: line {line}: {name} is empty, and is needed")
    for name, allowed in _WORDS.items():
        if name in values and values[name] not in allowed:
            hint = did_you_mean(values[name], allowed)
            raise InputError(f"{source}: line {line}: {name}={values[name]!r}: {hint}")
    return _with_outcome(source, line, values)


def _value(kind: str, text: str) -> Any:
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if kind == "int":
        whole = float(text)
        if not whole.is_integer() or whole < 0:
            raise ValueError(text)
        return int(whole)
    if kind == "float":
        number = float(text)
        if not 0 <= number < float("inf"):
            raise ValueError(text)
        return number
    if kind == "str":
        return text
    raise ValueError(text)


def _with_outcome(source: Path, line: int, values: dict[str, Any]) -> dict[str, Any]:
    said = values["outcome"]
    if said in OTHER_OUTCOMES:
        outcome, sentence = OTHER_OUTCOMES[said]
        values |= {"outcome": outcome, "error_message": values.get("error_message", sentence)}
    elif said not in typing.get_args(Outcome):
        allowed = [*typing.get_args(Outcome), *OTHER_OUTCOMES]
        raise InputError(f"{source}: line {line}: outcome={said!r}: {did_you_mean(said, allowed)}")
    if values["outcome"] == "ok" and not values.get("step_time_s"):
        raise InputError(f"{source}: line {line}: outcome=ok without a step_time_s above 0")
    return values


def _record(
    cells: dict[str, Any], study: str, clusters: Mapping[str, Cluster], seen: dict[str, int]
) -> dict[str, Any]:
    gpu = cells.get("gpu") or _gpu_of(cells["cluster"], clusters)
    record: dict[str, Any] = dict.fromkeys(fields_of(Row))
    facts = {name: value for name, value in cells.items() if name in record}
    record |= facts | _derived(facts)
    record["layout"] = label_of(record) or "unnamed"
    peak = GPUS[gpu].peak(record["precision"]) if gpu in GPUS else None
    identity = json.dumps(
        {k: v for k, v in cells.items() if k not in ("step_time_s", "peak_memory_bytes")}
        | {"outcome": None, "error_message": None},
        sort_keys=True,
    )
    repeat = seen.get(identity, 0)
    seen[identity] = repeat + 1
    digest = hashlib.sha256(f"{identity}{repeat}".encode()).hexdigest()[:8]
    words = f"{cells['model']}-g{cells['world_size']}-{record['layout']}-{digest}"
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
        "stack_fingerprint": f"published: {cells['framework'] or cells['source'] or 'unnamed'}",
    }


def _gpu_of(cluster: str, clusters: Mapping[str, Cluster]) -> str | None:
    if cluster in clusters:
        return clusters[cluster].gpu
    named = [gpu for gpu in GPUS if cluster == gpu or cluster.startswith(f"{gpu}-")]
    return max(named, key=len, default=None)


def _derived(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the columns that are there; nothing where one is missing."""
    made: dict[str, Any] = {}
    known = facts.get
    if known("dp") is None and None not in (known("tp"), known("pp"), known("cp")):
        made["dp"] = facts["world_size"] // (facts["tp"] * facts["pp"] * facts["cp"])
    dp, micro = known("dp", made.get("dp")), known("micro_batch_size")
    if known("gradient_accumulation_steps") is None and dp and micro:
        made["gradient_accumulation_steps"] = facts["global_batch_size"] // (dp * micro)
    if known("tokens_per_step") is None:
        made["tokens_per_step"] = facts["global_batch_size"] * facts["seq_length"]
    if all(known(name) is not None for name in _SHAPE):
        shape = ModelShape(
            **{name: facts[name] for name in _SHAPE},
            head_dim=known("head_dim") or facts["hidden_size"] // facts["num_heads"],
        )
        length = facts["seq_length"]
        made |= {
            "head_dim": shape.head_dim,
            "total_params": shape.total_params,
            "model_flops_per_token": model_flops_per_token(shape, length),
            "matmul_flops_per_token": matmul_flops_per_token(shape, length),
        }
        if (kept := known("activation_checkpointing")) is not None:
            made["hardware_flops_per_token"] = hardware_flops_per_token(shape, length, kept)
    return {name: value for name, value in made.items() if known(name) is None}
