"""A study as somebody decides from: two clusters, three models, every outcome, predictions."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.warehouse import tabulate
from scaling.cluster.hardware import Cluster
from scaling.predict.cost.model import predict
from scaling.predict.cost.prediction_tables import prediction_table
from scaling.predict.read.points import points_of
from scaling.record.files import write_points, write_rows, write_table
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of
from scaling.report.page.page import write_report
from scaling.study.grid import Plan
from tests.predict.conftest import as_table
from tests.report.synthetic_study import cpu_plan, gpu_plan, measured

CLUSTERS = {
    "h100-80gb-dgx": Cluster(
        gpu="h100-80gb", gpus_per_node=8, nodes=64, usd_per_gpu_hour=2.5, source="made up",
        node_link_bytes_per_s=4e11,
    ),
    "a100-80gb-dgx": Cluster(
        gpu="a100-80gb", gpus_per_node=8, nodes=64, usd_per_gpu_hour=1.4, source="made up",
        node_link_bytes_per_s=2e11,
    ),
}  # fmt: skip
AXES = {"tp": (1, 2, 4), "pp": (1, 2), "zero_stage": (1, 3), "micro_batch_size": (1, 2)}


def plans() -> list[tuple[Plan, float]]:
    """Plans, each with the share of its points that ran; what did not is only predicted."""
    h100 = {"cluster": "h100-80gb-dgx", "axes": AXES, "repeats": 1}
    a100 = {
        **h100, "cluster": "a100-80gb-dgx", "gpu": "a100-80gb", "repeats": 2,
        "axes": {**AXES, "activation_checkpointing": ("none", "full")},
    }  # fmt: skip
    return [
        (gpu_plan(**h100, sizes=(1, 2, 4, 8, 16)), 1.0),
        (gpu_plan(**h100, sizes=(32, 64)), 0.0),
        (gpu_plan(**a100, sizes=(4, 8), models=("llama-8b",)), 0.9),
        (cpu_plan(cluster="local", sizes=(1, 2, 4)), 1.0),
    ]


def write_large_study(folder: Path, reports: Path, *, charts: bool = True) -> Path:
    """Write, predict, tabulate and report it; the path of the page."""
    points, refusals = [], []
    for number, (plan, ran) in enumerate(plans()):
        points += plan.points
        refusals += plan.refusals
        rows = [profiled(row) for row in measured(plan.points, ran=ran)]
        if rows:
            write_rows(folder / "rows" / f"{number}.parquet", rows)
    write_points(folder, Plan(points=tuple(points), refusals=tuple(refusals)))
    predict_all(folder)
    write_table(folder / "probes.parquet", probes())
    tabulate(folder, reports / "sql", clusters=CLUSTERS)
    return write_report(folder, reports, charts=charts)


def predict_all(folder: Path) -> None:
    """Write predictions.parquet of a study's points on GPUs, from data sheets alone."""
    on_gpus = pq.read_table(folder / "points.parquet")
    on_gpus = on_gpus.filter([one != "cpu" for one in on_gpus["gpu"].to_pylist()])
    checked = points_of(as_table(on_gpus, "points"), clusters=CLUSTERS)
    write_table(folder / "predictions.parquet", prediction_table(checked, predict(checked)))


def profiled(row: Row) -> Row:
    """The row as a GPU with a meter and a profiler leaves it: made-up shares of its step."""
    if row.step_time_s is None or row.gpu == "cpu" or row.cluster != "h100-80gb-dgx":
        return row
    step, apart = row.step_time_s, 0.02 * math.log2(row.world_size)
    tp, pp, dp = (0.06 * math.log2(n) for n in (row.tp, row.pp, row.dp))
    shares = {
        "compute_s": 0.9 - apart, "exposed_comm_s": apart, "idle_s": 0.1, "comm_s": tp + pp + dp,
        "tp_comm_s": tp, "pp_comm_s": pp, "dp_comm_s": dp, "all_reduce_s": tp + 0.3 * dp,
        "all_gather_s": 0.4 * dp, "reduce_scatter_s": 0.3 * dp, "send_recv_s": pp,
        "pipeline_bubble_s": 0.3 * apart if row.pp > 1 else 0.0,
    }  # fmt: skip
    watts = row.world_size * (650 - 15 * math.log2(row.world_size))
    seconds = {name: share * step for name, share in shares.items()}
    return dataclasses.replace(row, **seconds, energy_j=watts * step, mean_power_w=watts)


def probes(cluster: str = "h100-80gb-dgx") -> pa.Table:
    """Probes of three hosts, one of them slow, and of groups on one and on two nodes."""
    records: list[dict[str, Any]] = []
    common = {"cluster": cluster, "gpu": "h100-80gb", "gpus_per_node": 8, "outcome": "ok"}
    for kind, nodes in itertools.product(("all_reduce", "all_gather", "send_recv"), (1, 2)):
        for power in range(10, 33):
            seconds = (1e-5 + 2**power / 3e11) * (1 + 0.6 * (nodes - 1))
            records.append(
                common
                | {
                    "kind": kind, "nodes": nodes, "ranks": 8 * nodes, "groups": 1,
                    "message_bytes": 2**power, "precision": "fp32", "seconds": seconds,
                    "seconds_low": 0.97 * seconds, "seconds_high": 1.04 * seconds,
                }
            )  # fmt: skip
    for host, precision, size in itertools.product(
        ("node-1", "node-2", "node-3"), ("bf16", "fp32"), (512, 1024, 2048, 4096, 8192)
    ):
        slowdown = 1.4 if host == "node-3" else 1.0
        rate = (6e14 if precision == "bf16" else 5e13) / (1 + (900 / size) ** 2)
        records.append(
            common
            | {
                "kind": "gemm", "host": host, "precision": precision, "m": size, "n": size,
                "k": size, "seconds": 2 * size**3 / rate * slowdown, "slowdown": slowdown,
            }
        )  # fmt: skip
    columns = {name: [one.get(name) for one in records] for name in fields_of(Probe)}
    return pa.table({name: values for name, values in columns.items() if any(values)})
