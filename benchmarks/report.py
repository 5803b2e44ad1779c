"""Time and memory of a report on a million rows or twenty thousand files, with two threads.

Usage: python benchmarks/report.py [ROWS] [--files] [--keep FOLDER]

With --files every row is a file of its own, as points write them: 20,000 by default, one of them
truncated.

DuckDB makes up the rows: ten models, ten sizes, layouts that differ in every axis, five repeats,
one row in ten failed, ten step times each. For comparison it also runs a single DuckDB query for
the best layout per model and size, as one would by hand.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from scaling.analyse.sources import POINT, ROW
from scaling.analyse.warehouse import tabulate
from scaling.record.files import write_table
from scaling.report.page.page import write_report

REPORTS = Path(__file__).parents[1] / "reports"
KNOWN = """
select
    'synthetic' as study, 'strong' as study_kind, concat('p', n) as point_id,
    (n % 5)::bigint as repeat, 1 as attempt, concat('model-', model) as model, 'llama' as family,
    16 * (model + 1) as num_layers, 2048 as hidden_size, 32 as num_heads, 8 as num_kv_heads,
    64 as head_dim, 8192 as ffn_hidden_size, true as gated_mlp, 32000 as vocab_size,
    false as tied_embeddings, (model + 1) * 1000000000::bigint as total_params,
    'h100-80gb-dgx' as cluster, 'h100-80gb' as gpu, 8 as gpus_per_node, 989.4e12 as peak_flop_per_s,
    concat('tp', tp, ' pp', pp, ' zero', zero_stage, ' mbs', mbs, ' ', ckpt, ' ', att, ' ', sp, fn)
        as layout,
    size as world_size, tp, pp, 1 as cp, size // (tp * pp) as dp, zero_stage,
    sp as sequence_parallel, mbs as micro_batch_size, 262144 as global_batch_size,
    262144 // (mbs * dp) as gradient_accumulation_steps, 4096 as seq_length,
    ckpt as activation_checkpointing, att as attention, fn as fused_norm, 'bf16' as precision,
    1 as seed, 2 as warmup_steps,
    600.0 as time_limit_s, 1073741824 as tokens_per_step, 6e8::bigint as model_flops_per_token,
    8e8::bigint as hardware_flops_per_token, 5e8::bigint as matmul_flops_per_token, n, noise
from (
    select
        n, hash(n) % 1000 / 1000 as noise, (n // 100000 % 10)::int as model,
        (64 * 2 ** (n // 10000 % 10))::bigint as size, 2 ** (n // 5 % 4) as tp,
        2 ** (n // 20 % 4) as pp, n // 80 % 4 as zero_stage, 2 ** (n // 320 % 4) as mbs,
        ['none', 'full'][1 + n // 1280 % 2] as ckpt, ['flash2', 'math'][1 + n // 2560 % 2] as att,
        n // 5120 % 2 = 1 as sp, n // 10240 % 2 = 1 as fn
    from range({rows}) as numbers(n)
)
"""
MEASURED = """
select
    *, if(n % 10 = 9, 'oom', 'ok') as outcome,
    if(n % 10 = 9, 'CUDA out of memory', null) as error_message, 'cuda_event' as clock,
    if(n % 10 = 9, null, seconds) as step_time_s,
    if(n % 10 = 9, null, seconds * 0.99) as step_time_low_s,
    if(n % 10 = 9, null, seconds * 1.01) as step_time_high_s,
    if(n % 10 = 9, null, list_transform(range(10), lambda i: seconds * (0.98 + i / 225)))
        as step_times_s,
    if(n % 10 = 9, null, list_transform(range(12), lambda i: 7 - i / 10)) as losses,
    40000000000 as peak_memory_bytes, 'cuda_allocator' as memory_meter, 30.0 as duration_s,
    '0.1.0' as scaling_version, ['node-1'] as hosts, '2026-11-20T10:00:00Z' as started_at,
    concat('stack-', 'a') as stack_fingerprint
from (
    select *, 1000 / world_size * (1 + 0.1 * log2(tp) + 0.05 * log2(world_size) + noise) as seconds
    from ({known})
)
"""


def write_rows(study: Path, rows: int) -> None:
    """points.parquet and rows/*.parquet in the study's schema, eight files."""
    (study / "rows").mkdir(parents=True)
    known = KNOWN.format(rows=rows)
    with duckdb.connect() as connection:
        connection.execute(f"create table made as {MEASURED.format(known=known)}")
        have = {row[0] for row in connection.execute("describe made").fetchall()}

        def columns(types: dict[str, str]) -> str:
            named = [f"{c if c in have else 'null'}::{t} as {c}" for c, t in types.items()]
            return ", ".join(named)

        connection.table("made").query("made", f"select {columns(POINT)} from made").write_parquet(
            str(study / "points.parquet")
        )
        for part in range(8):
            query = f"select {columns(ROW)} from made where n % 8 = {part}"
            connection.sql(query).write_parquet(str(study / "rows" / f"{part}.parquet"))
        refused = connection.sql("select 'none' as study limit 0")
        refused.write_parquet(str(study / "refused.parquet"))


def split(study: Path) -> None:
    """Write every row to a file of its own, as a point does; one is truncated."""
    for path in list((study / "rows").iterdir()):
        table = pq.read_table(path)
        for number, point_id in enumerate(table["point_id"].to_pylist()):
            write_table(study / "rows" / f"{point_id}.parquet", table.slice(number, 1))
        path.unlink()
    spoiled = study / "rows" / "p0.parquet"
    spoiled.write_bytes(spoiled.read_bytes()[:-100])


def timed(what: str, run: object) -> float:
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    print(f"{what:<44}{seconds:6.1f} s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", type=int)
    parser.add_argument("--files", action="store_true", help="every row a file of its own")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        study = options.keep or Path(scratch) / "synthetic"
        if not study.exists():
            write_rows(study, options.rows or (20_000 if options.files else 1_000_000))
            if options.files:
                split(study)
        cpu = os.times()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        total = timed("tabulate", lambda: tabulate(study, REPORTS / "sql"))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{'most memory of all until then':<44}{after / 2**20:6.2f} GiB")
        print(f"{'of that, before tabulating':<44}{before / 2**20:6.2f} GiB")
        total += timed("draw the page", lambda: write_report(study, REPORTS, charts=False))
        spent = os.times()
        print(f"{'together':<44}{total:6.1f} s")
        print(f"{'processor time':<44}{spent.user + spent.system - cpu.user - cpu.system:6.1f} s")
        query = (
            "select model, world_size, arg_max(layout, tokens_per_step / step_time_s) from "
            f"read_parquet('{study}/rows/*.parquet') where outcome = 'ok' group by all"
        )
        if not options.files:
            timed("one query by hand: best layout, no interval", duckdb.sql(query).fetchall)
        print(f"{'page':<44}{(study / 'report.html').stat().st_size / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
