"""Print plans and probes on the terminal."""

from collections import Counter
from collections.abc import Sequence

import typer
import yaml

from scaling.analyse.hosts import SLOW_FROM, SlowHost
from scaling.cli.options import print_table
from scaling.cluster.hardware import Cluster
from scaling.errors import counted, grouped_reasons, printable
from scaling.probe.plan import ProbePlan
from scaling.record.probe_row import Probe
from scaling.run.price import CHEAPEST, Price
from scaling.run.status import duration
from scaling.run.sweep import KEEP
from scaling.study.grid import Plan, Refusal
from scaling.study.plan_file import Allocation
from scaling.study.point import STARTUP_MINUTES, Point
from scaling.study.study import Study

MOST_SIZES = 7  # that fit as columns of an 80-column terminal; more sizes become lines
MOST_REASONS = 6  # why probes failed


def show_plan(
    study: Study,
    planned: Plan,
    probe_plan: ProbePlan | None,
    price: Price | None = None,
    cheapest: Price | None = None,
) -> None:
    """Print points and refusals by model and world size, and what they will cost."""
    say, measure = typer.echo, study.measure
    wanted = [p for p in planned.points if not (measure.repeats.only and p.repeat)]
    unit = "rank" if all(p.gpu == "cpu" for p in wanted) else "GPU"
    say(printable(f"{study.name}: {study.title}"))
    _show_counts(wanted, planned.refusals, unit)
    for model in study.model_files:
        for what in model.left_out:
            say(f"  {model.name} without {printable(what)}")
    for count, reason in grouped_reasons(refusal.reason for refusal in planned.refusals):
        say(f"  refused {count}: {printable(reason)}")
    points = counted(len(wanted), "point")
    if study.mode == "predict":
        say(f"{points}, {study.kind} scaling, predicted only")
        return
    if price is not None and cheapest is not None and 2 * cheapest.gpu_hours <= price.gpu_hours:
        text = yaml.safe_dump(dict(CHEAPEST), default_flow_style=True, sort_keys=False, width=1000)
        hours = [f"{h:,.{int(h < 10)}f}" for h in (cheapest.gpu_hours, price.gpu_hours)]
        prices = f"about {hours[0]} GPU-hours instead of {hours[1]}"
        say(f"measuring takes {prices} if {study.path} says")
        say(f"  measure: {text.strip()}")  # to be copied
    cluster = study.clusters[wanted[0].cluster]  # a study that measures has only one
    allocations = [point.allocation for point in wanted]
    longest = duration(60 * sum(one.minutes for one in allocations))
    most = sum(_allocated_gpu_hours(one, cluster) for one in allocations)
    nodes = f" of whole nodes of {cluster.gpus_per_node}" if cluster.slurm.exclusive else ""
    say(
        f"{points}, {study.kind} scaling; one after another they take at most "
        f"{longest}, {most:,.1f} {unit}-hours{nodes}, if every point reaches its time limit "
        f"and needs all {STARTUP_MINUTES} minutes allowed for its start and end"
    )
    if price is not None:
        _show_prices(price, cheapest)
        for count, reason in grouped_reasons(price.unpredicted):
            say(f"  not predicted {count}: {printable(reason)}")
    if measure.is_guided:
        say(_describe_guidance(study))
    if measure.repeats.only and (runs := measure.repeats.at_most) > 1:
        say(f"repeats of contenders come on top: up to {runs} runs of a layout")
    if probe_plan is not None:
        allocation = probe_plan.allocation
        probe_hours = _allocated_gpu_hours(allocation, cluster)
        say(
            f"probes come first: {len(probe_plan.tasks)} on {probe_plan.world_size} {unit}s, "
            f"at most {duration(60 * allocation.minutes)}, {probe_hours:.1f} {unit}-hours "
            "(probe: false skips them)"
        )


def _show_counts(planned: Sequence[Point], refusals: Sequence[Refusal], unit: str) -> None:
    sizes = sorted({point.world_size for point in planned})
    points = Counter((point.model, point.world_size) for point in planned)
    refused = Counter(refusal.model for refusal in refusals)
    models = list(dict.fromkeys(point.model for point in planned))
    lines: list[Sequence[object]] = [
        ["model", *(f"{size} {unit}{'s' * (size > 1)}" for size in sizes), "refused"],
        *([model, *(points[model, size] for size in sizes), refused[model]] for model in models),
    ]
    if len(sizes) > MOST_SIZES:
        lines = list(zip(*lines, strict=True))
    print_table([str(head) for head in lines[0]], lines[1:])


def _allocated_gpu_hours(allocation: Allocation, cluster: Cluster) -> float:
    """GPU-hours (rank-hours on a CPU) of an allocation that uses all of its minutes.

    If the site's jobs are exclusive, whole nodes count, however few of their GPUs a point uses.
    """
    exclusive = cluster.slurm.exclusive
    gpus = allocation.nodes * cluster.gpus_per_node if exclusive else allocation.world_size
    return gpus * allocation.minutes / 60


def _show_prices(price: Price, cheapest: Price | None) -> None:
    """Print the price of the study as it is written, and with the keys that make it cheapest."""
    lines = []
    for words, one in (("as written", price), ("cheapest", cheapest)):
        if one is not None:
            hours = (one.step_gpu_hours, one.startup_gpu_hours, one.gpu_hours)
            usd = "–" if one.usd is None else f"{one.usd:,.0f}"
            lines.append((words, f"{one.points:,}", *(f"{each:,.1f}" for each in hours), usd))
    print_table(("predicted GPU-hours", "points", "steps", "start-up", "all", "USD"), lines)


def _describe_guidance(study: Study) -> str:
    budget = study.measure.budget_gpu_hours
    most = "" if budget is None else f", as much as {budget:g} GPU-hours allow"
    return (
        "guided: measures what is expected to gain most, until nothing is to gain 1 %, of points "
        f"predicted within {KEEP:.0%} of the best of their size{most}"
    )


def show_probes(rows: Sequence[Probe], slow: Sequence[SlowHost]) -> None:
    """Print the best rate of each kind of probe, what failed, and slow hosts."""
    say, lines = typer.echo, []
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        rates = [_rate(row) for row in of_kind if row.outcome == "ok"]
        rate, unit = max(rates, key=lambda item: item[0], default=(None, ""))
        best = "–" if rate is None else f"{rate:.3g} {unit}"
        lines.append((kind, best, len(rates), len(of_kind) - len(rates)))
    print_table(("probe", "best", "done", "failed"), lines)
    reasons = Counter(f"{row.outcome}: {row.error_message}" for row in rows if row.outcome != "ok")
    for reason, count in reasons.most_common(MOST_REASONS):
        say(f"  {count} {printable(reason)}")
    for host in slow:
        say(
            f"  {printable(host.host)} takes {host.slowdown:.2f} times as long as the median host "
            f"for {printable(host.kind)} ({counted(host.count, 'probe')})"
        )
    if not slow and any(row.slowdown is not None for row in rows):
        say(f"no host takes {SLOW_FROM:g} times as long as the median host, or longer")


def _rate(row: Probe) -> tuple[float, str]:
    """The rate by which a probe is usually quoted, and its unit."""
    if row.flop_per_s is not None:
        return row.flop_per_s / 1e12, f"TFLOP/s {row.precision}"
    if row.copy_bytes_per_s is not None:
        return row.copy_bytes_per_s / 1e9, "GB/s read and written"
    return (row.bus_bytes_per_s or 0) / 1e9, "GB/s bus bandwidth"
