"""What the terminal shows of a plan."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from scaling.grid import Plan
from scaling.predict.spend import Spend
from scaling.progress import duration
from scaling.study import Study

MOST_REASONS = 6  # on the terminal; refused.parquet and the report have all


def plan(study: Study, planned: Plan, spend: Spend | None) -> None:
    """Print points and refusals by model and world size, and what they will take."""
    console = Console(highlight=False)
    sizes = sorted({point.layout.world_size for point in planned.points})
    points = Counter((point.model, point.layout.world_size) for point in planned.points)
    refused = Counter(refusal.model for refusal in planned.refusals)
    unit = "ranks" if all(p.gpu == "cpu" for p in planned.points) else "GPUs"
    table = Table(title=f"{study.name}: {study.title}", title_justify="left")
    table.add_column("model")
    for size in sizes:
        table.add_column(f"{size} {unit if size > 1 else unit[:-1]}", justify="right")
    table.add_column("refused", justify="right")
    for model in dict.fromkeys(point.model for point in planned.points):
        counts = [str(points[model, size]) for size in sizes]
        table.add_row(model, *counts, str(refused[model]))
    console.print(table)
    reasons = Counter(refusal.reason for refusal in planned.refusals).most_common()
    for reason, count in reasons[:MOST_REASONS]:
        console.print(f"  refused {count}: {reason}", markup=False, soft_wrap=True)
    if len(reasons) > MOST_REASONS:
        rest = sum(count for _, count in reasons[MOST_REASONS:])
        console.print(
            f"  refused {rest}: for {len(reasons) - MOST_REASONS} other reasons", markup=False
        )
    if study.mode == "predict":
        console.print(f"{len(planned.points)} points, {study.kind} scaling, predicted only")
        return
    most = sum(point.time_limit_s for point in planned.points)
    hours = sum(p.time_limit_s * p.layout.world_size for p in planned.points) / 3600
    console.print(
        f"{len(planned.points)} points, {study.kind} scaling; one after another at most "
        f"{duration(most)}, {hours:.1f} {unit[:-1]}-hours, if every point reached its limit",
        soft_wrap=True,
    )
    if spend is not None:
        console.print(_spending(spend), soft_wrap=True)


def _spending(spend: Spend) -> str:
    """What is about to be spent, with the basis of each number."""
    said = [f"predicted {spend.gpu_hours:,.1f} GPU-hours of training steps"]
    if spend.energy_j is not None:
        said.append(f"at most {spend.energy_j / 3.6e6:,.1f} kWh (every GPU at its TDP)")
    if spend.usd is not None:
        said.append(f"{spend.usd:,.0f} USD at the cluster's price")
    unknown = f"; {spend.unpredicted} points cannot be predicted" if spend.unpredicted else ""
    return ", ".join(said) + f"; start-up of each point comes on top{unknown}"
