"""What the terminal shows of a plan."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from scaling.grid import Plan
from scaling.progress import duration
from scaling.study import Study


def plan(study: Study, planned: Plan) -> None:
    """Print points and refusals by model and world size, and the most time they can take."""
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
    for reason, count in Counter(refusal.reason for refusal in planned.refusals).most_common():
        console.print(f"  refused {count}: {reason}", markup=False, soft_wrap=True)
    most = sum(point.time_limit_s for point in planned.points)
    hours = sum(p.time_limit_s * p.layout.world_size for p in planned.points) / 3600
    console.print(
        f"{len(planned.points)} points, {study.kind} scaling; one after another at most "
        f"{duration(most)}, {hours:.1f} {unit[:-1]}-hours, if every point reached its limit",
        soft_wrap=True,
    )
