"""A study as somebody decides from: two clusters, three models, every outcome, predictions."""

from pathlib import Path

import pyarrow.parquet as pq

from scaling.analyse.warehouse import tabulate
from scaling.grid import Plan
from scaling.hardware import Cluster
from scaling.predict.columns import Columns
from scaling.predict.features import points_of
from scaling.predict.model import predict
from scaling.predict.tables import prediction_table
from scaling.report.page import write_report
from scaling.store import write_plan, write_rows, write_table
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
        rows = list(measured(plan.points, ran=ran))
        if rows:
            write_rows(folder / "rows" / f"{number}.parquet", rows)
    write_plan(folder, Plan(points=tuple(points), refusals=tuple(refusals)))
    predict_all(folder)
    tabulate(folder, reports / "sql", clusters=CLUSTERS)
    return write_report(folder, reports, charts=charts)


def predict_all(folder: Path) -> None:
    """Write predictions.parquet of a study's points on GPUs, from data sheets alone."""
    on_gpus = pq.read_table(folder / "points.parquet")
    on_gpus = on_gpus.filter([one != "cpu" for one in on_gpus["gpu"].to_pylist()])
    checked = points_of(Columns(on_gpus, "points"), clusters=CLUSTERS)
    write_table(folder / "predictions.parquet", prediction_table(checked, predict(checked)))
