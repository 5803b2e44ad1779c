"""Import rows that others measured into a study, as its source `published`."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling import __version__
from scaling.cluster.hardware import GPUS, Cluster, gpu_of_cluster
from scaling.errors import InputError
from scaling.importing.reader import Table, read_rows
from scaling.layout.axes import AXES, REPLICA_AXES
from scaling.layout.layout import idle_choices, layout_label, replica_size
from scaling.layout.optional_parts import PART_SIZES, stated_parts
from scaling.layout.shapes import ModelShape, counts_per_token
from scaling.record.files import ROWS, write_table
from scaling.record.row import Row, fields_of
from scaling.record.row_checks import OOM_OR_CRASH, invalid_row_reasons
from scaling.study.catalogues import part_errors
from scaling.study.paths import StudyPaths

NEEDED = ("model", "cluster", "world_size", "seq_length", "global_batch_size", "outcome")
SHAPE = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "gated_mlp",
    "vocab_size", "tied_embeddings",
)  # fmt: skip
_LARGEST = 2**63 - 1
_PLAIN_ATTENTION = ("mha", "mqa", "gqa")
_RESULTS = ("outcome", "step_time_s", "peak_memory_bytes", "error_message")


def import_rows(
    source: Path,
    study_dir: Path,
    clusters: Mapping[str, Cluster],
    models: Mapping[str, ModelShape] | None = None,
    earlier: pa.Table | None = None,
    *,
    rename: Mapping[str, str] | None = None,
) -> Table:
    """Write published.parquet of a study, and return what was read.

    A column or cell that the source lacks stays null, but what follows from others: dp and the
    accumulation, the shape of a model of the catalogue, tokens and FLOPs, the GPU of a cluster.

    Args:
        source: CSV, JSON lines or Parquet in our columns and units, or a folder of rows.
        study_dir: results/<study>, new or with a plan of its own.
        clusters: by name; the name of any other begins with its GPU's.
        models: by name. A row of another name that has all of a model's sizes is of that model.
        earlier: what was imported before, and is kept.
        rename: header of the file -> our column, or '' to ignore it.
    """
    table = read_rows(source, rename=rename)
    for name in set(NEEDED) - {*table.rows.column_names}:
        others = f"; ignored are {', '.join(table.ignored)}" if table.ignored else ""
        raise InputError(
            f"{source}: column {name} is missing; needed are {', '.join(NEEDED)}{others}"
        )
    if not table.rows.num_rows:
        raise InputError(f"{source}: holds no row")
    records = []
    for row, cells in enumerate(table.rows.to_pylist()):
        stated = {name: value for name, value in cells.items() if value is not None}
        for name in NEEDED:
            if name not in stated:
                raise InputError(f"{table.place(row)}: {name} is empty, and is needed")
        records.append(_record(stated, clusters, models or {}, study_dir.name))
    _tell_apart(records)
    schema = pa.schema([field.with_nullable(True) for field in ROWS])
    rows = pa.Table.from_pylist(records, schema=schema)
    for row, reason in enumerate(invalid_row_reasons(rows, source="published")):
        if reason is not None:
            raise InputError(f"{table.place(row)}: {reason}")
    if earlier is not None and earlier.num_rows:
        known = {*earlier["point_id"].to_pylist()}
        for row, record in enumerate(records):
            if record["point_id"] in known:
                raise InputError(f"{table.place(row)}: was imported before; drop it")
        rows = pa.concat_tables([rows, earlier], promote_options="default")
    write_table(StudyPaths(study_dir).published, rows)
    return table


def earlier_import(out: Path, *, add: bool, replace: bool) -> pa.Table:
    """The rows or probes that a further import keeps; an empty table without any."""
    if replace or not out.exists():
        return pa.table({})
    if not add:
        raise InputError(f"{out}: exists; give --add or --replace, or the folder of another study")
    try:
        return pq.read_table(out)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{out}: cannot be read; --replace drops it") from error


def _record(
    stated: Mapping[str, Any],
    clusters: Mapping[str, Cluster],
    models: Mapping[str, ModelShape],
    study: str,
) -> dict[str, Any]:
    """A row of what the table states and of what follows."""
    facts: dict[str, Any] = {**stated, **_model(stated, models)}
    if "dp" not in facts and all(name in facts for name in REPLICA_AXES):
        # at least one, so that the rules name the world_size that no replica fits into
        facts["dp"] = max(facts["world_size"] // replica_size(facts), 1)
    if "dp" in facts and "micro_batch_size" in facts:
        batch = facts["global_batch_size"] // (facts["micro_batch_size"] * facts["dp"])
        facts.setdefault("gradient_accumulation_steps", batch)
    if facts.get("fsdp", 0) > 1:
        facts["zero_stage"] = 3
    idle = idle_choices(facts, facts.get("dp", 0))
    facts |= idle
    if facts["outcome"] == OOM_OR_CRASH:
        said = "out of memory or a crash: the source does not tell them apart"
        facts |= {"outcome": "error", "error_message": said}
    gpu = gpu_of_cluster(facts["cluster"], clusters)
    peak = GPUS[gpu].peaks.get(facts.get("precision", "")) if gpu else None
    of_stack = (stated.get(name) for name in ("framework", "release"))
    software = " ".join(filter(None, of_stack)) or stated.get("source") or "unnamed"
    derived = {
        "study": study,
        "study_kind": "strong",  # publishers do not state what they kept fixed
        "gpu": gpu,
        "peak_flop_per_s": peak,
        "attempt": 1,
        "scaling_version": __version__,
        "hosts": [],
        "tokens_per_step": facts["global_batch_size"] * facts["seq_length"],
        **_flops(facts),
    }
    record = {name: facts.get(name, derived.get(name)) for name in fields_of(Row)}
    for name, value in record.items():
        if isinstance(value, int):  # no more than Arrow holds; the rules name what is too large
            record[name] = min(value, _LARGEST)
    return record | {
        "stack_fingerprint": f"published: {software}",
        # of what is stated; `_tell_apart` makes it an id
        "point_id": json.dumps({k: v for k, v in {**stated, **idle}.items() if k not in _RESULTS}),
    }


def _model(stated: Mapping[str, Any], models: Mapping[str, ModelShape]) -> dict[str, Any]:
    """Name and sizes of the model of the catalogue that the row is of; empty if of none."""
    sizes = (*SHAPE, "head_dim", *PART_SIZES)
    alike = [
        name
        for name, shape in models.items()
        if all(stated.get(size, getattr(shape, size)) == getattr(shape, size) for size in sizes)
    ]
    is_whole = all(name in stated for name in SHAPE)
    if stated["model"] not in alike and not (is_whole and len(alike) == 1):
        return {}
    name = stated["model"] if stated["model"] in alike else alike[0]
    return {"model": name} | {size: getattr(models[name], size) for size in sizes}


def _flops(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and FLOPs per token; empty unless the row states the whole shape."""
    parts, kind = stated_parts(facts), facts.get("attention_kind")
    told = kind in (None, *_PLAIN_ATTENTION) or parts.get("key_value_rank") or parts.get("window")
    if not told or any(name not in facts for name in SHAPE):
        return {}
    head_dim = facts.get("head_dim") or facts["hidden_size"] // facts["num_heads"]
    shape = ModelShape(**{name: facts[name] for name in SHAPE}, head_dim=head_dim, **parts)
    if part_errors(shape):  # its experts are not fully stated
        return {}
    checkpointing = facts.get("activation_checkpointing")
    return {"head_dim": head_dim, **counts_per_token(shape, facts["seq_length"], checkpointing)}


def _tell_apart(records: list[dict[str, Any]]) -> None:
    """Number repeats, make ids, and name apart models and layouts that only share a name."""
    depths: dict[str, set[int | None]] = defaultdict(set)
    for record in records:
        depths[record["model"]].add(record["num_layers"])
    stated = [  # by some row; null is the default of an axis that was added later
        name
        for name, axis in AXES.items()
        if not axis.added_later and any(record[name] is not None for record in records)
    ]
    repeats: Counter[str] = Counter()
    for record in records:
        if len(depths[record["model"]]) > 1 and record["num_layers"]:
            record["model"] += f"-{record['num_layers']}-layers"
        unstated = [axis for axis in stated if record[axis] is None]
        said = [layout_label(record), *(f"{axis}-unstated" for axis in unstated)]
        record["layout"] = " ".join(filter(None, said)) or "unnamed"
        facts = record["point_id"]
        record["repeat"] = repeats[facts]
        repeats[facts] += 1
        digest = hashlib.sha256(f"{facts}{record['repeat']}".encode()).hexdigest()[:8]
        readable = f"{record['model']}-g{record['world_size']}-{record['layout']}-{digest}"
        record["point_id"] = re.sub(r"[^A-Za-z0-9._-]+", "-", readable).strip("-.")
