"""Build rows.parquet, which is shipped, from rows.csv, which people edit.

    python -m scaling.published.build

Derived only here: the catalogue's GPU of a cluster, the parameters and FLOPs of a model
(scaling/layout/shapes.py), and the rates that follow from them and the step time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scaling.errors import InputError
from scaling.foreign.columns import Columns
from scaling.foreign.decoder_parts import read_optional_parts
from scaling.foreign.layouts import gpu_of_cluster
from scaling.foreign.reading import read_table
from scaling.layout.shapes import ModelShape, model_flops_per_token
from scaling.published.table import TABLE

READABLE = TABLE.with_suffix(".csv")
LICENCES = {"MIT", "Apache-2.0"}  # that allow shipping the rows with this project
_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")


def build(readable: Path = READABLE, out: Path = TABLE) -> pa.Table:
    """Write the shipped table and return it.

    Raises:
        InputError: a row has no source, a licence that does not allow shipping it, or an
            impossible shape.
    """
    # without metadata, which describes the local file
    table = built(read_table(readable), str(readable)).replace_schema_metadata(None)
    pq.write_table(table, out, compression="zstd", compression_level=19)
    return table


def built(table: pa.Table, source: str) -> pa.Table:
    """The table with the derived columns.

    Raises:
        InputError: as `build`.
    """
    columns = Columns(table, source)
    for name in ("source", "release", "licence"):
        empty = [row for row, text in enumerate(columns.strings(name, "").tolist()) if not text]
        if empty:
            raise columns.cell_error(name, empty[0], "says where a row is from; none may be empty")
    licences = columns.strings("licence", "").tolist()
    for row, licence in enumerate(licences):
        if licence not in LICENCES:
            raise columns.cell_error("licence", row, f"only {' and '.join(sorted(LICENCES))} rows")
    records = _derived(columns)
    for name in records[0]:
        table = table.append_column(name, pa.array([record[name] for record in records]))
    return table


def _derived(columns: Columns) -> list[dict[str, Any]]:
    sizes = {name: columns.counts(name) for name in _SIZES}
    for name, values in sizes.items():
        if empty := np.flatnonzero(np.isnan(values)).tolist():
            raise InputError(
                f"{columns.place(empty[0])}: {name} is empty, and no shape is without it"
            )
    head_dim = columns.counts("head_dim")
    sizes["head_dim"] = np.where(
        np.isnan(head_dim), sizes["hidden_size"] // sizes["num_heads"], head_dim
    )
    sizes |= read_optional_parts(columns, sizes["num_layers"])
    flags = {
        "gated_mlp": columns.flags("gated_mlp", True).tolist(),
        "tied_embeddings": columns.flags("tied_embeddings", False).tolist(),
    }
    measured = ("seq_length", "global_batch_size", "world_size", "step_time_s")
    known = {name: columns.numbers(name).tolist() for name in measured}
    clusters = columns.strings("cluster", "").tolist()
    records = []
    for row, cluster in enumerate(clusters):
        facts: dict[str, Any] = {name: int(values[row]) for name, values in sizes.items()}
        shape = ModelShape(**facts, **{name: values[row] for name, values in flags.items()})
        length, batch, world_size, step_time_s = (known[name][row] for name in measured)
        flops = model_flops_per_token(shape, int(length))
        tokens_per_s_per_gpu = batch * length / step_time_s / world_size
        records.append(
            {
                "gpu": gpu_of_cluster(cluster, {}),
                "total_params": shape.total_params,
                "active_params": shape.active_params,
                "model_flops_per_token": flops,
                "tokens_per_s_per_gpu": tokens_per_s_per_gpu,
                "model_flop_per_s_per_gpu": tokens_per_s_per_gpu * flops,
            }
        )
    return records


if __name__ == "__main__":
    rows = build()
    print(f"{rows.num_rows} rows, {TABLE.stat().st_size / 1000:.0f} kB -> {TABLE}")  # noqa: T201
