"""Build rows.parquet, which is shipped, from rows.csv, which people edit.

    python -m scaling.published.build

Derived only here: the catalogue's GPU of a cluster, the parameters and FLOPs of a model
(scaling/layout/shapes.py), and the rates that follow from them and the step time.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from scaling.cluster.hardware import GPUS
from scaling.errors import InputError
from scaling.layout.optional_parts import PART_SIZES, parts_of_kind
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.published.table import TABLE

READABLE = TABLE.with_suffix(".csv")
LICENCES = ("Apache-2.0", "MIT")  # that allow shipping the rows with this project
_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")


def build(readable: Path = READABLE, out: Path = TABLE) -> pa.Table:
    """Write the shipped table and return it.

    Raises:
        InputError: a row has no source, a licence that does not allow shipping it, or no shape.
    """
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    table = built(pyarrow.csv.read_csv(readable, convert_options=options), str(readable))
    pq.write_table(table, out, compression="zstd", compression_level=19)
    return table


def built(table: pa.Table, source: str) -> pa.Table:
    """The table with the derived columns.

    Raises:
        InputError: as `build`.
    """
    records = []
    for number, row in enumerate(table.to_pylist(), 1):
        for name in ("source", "release", *_SIZES):
            if row[name] in (None, ""):
                raise InputError(f"{source}: row {number}: {name} is empty")
        if row["licence"] not in LICENCES:
            raise InputError(
                f"{source}: row {number}: licence={row['licence']!r}: only {' and '.join(LICENCES)}"
            )
        records.append(_derived(row))
    for name in records[0]:
        table = table.append_column(name, pa.array([record[name] for record in records]))
    return table


def _derived(row: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = parts_of_kind(row["attention_kind"] or "", row["num_layers"])
    if (row.get("num_experts") or 0) > 1:
        parts |= {name: row[name] for name in PART_SIZES if (row.get(name) or 0) > 0}
    shape = ModelShape(
        **{name: row[name] for name in _SIZES},
        head_dim=row["head_dim"] or row["hidden_size"] // row["num_heads"],
        gated_mlp=row["gated_mlp"] is not False,
        tied_embeddings=row["tied_embeddings"] is True,
        **parts,
    )
    flops = model_flops_per_token(shape, row["seq_length"])
    tokens_per_s = row["global_batch_size"] * row["seq_length"] / row["step_time_s"]
    rate = tokens_per_s / row["world_size"]
    return {
        "gpu": max((name for name in GPUS if row["cluster"].startswith(name)), key=len),
        "total_params": shape.total_params,
        "active_params": shape.active_params,
        "model_flops_per_token": flops,
        "tokens_per_s_per_gpu": rate,
        "model_flop_per_s_per_gpu": rate * flops,
    }


if __name__ == "__main__":
    rows = build()
    print(f"{rows.num_rows} rows, {TABLE.stat().st_size / 1000:.0f} kB -> {TABLE}")  # noqa: T201
