"""What the terminal shows of a plan."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaling.analyse.slow_hosts import SLOW_FROM, SlowHost
from scaling.errors import plain
from scaling.predict.advise.spend import Spend
from scaling.probe.plan import ProbePlan
from scaling.record.probe_row import Probe
from scaling.run import planning
from scaling.run.price import KEEP, Price
from scaling.run.progress import duration
from scaling.study.grid import Plan
from scaling.study.study import Study

_NUMBER = re.compile(r"\d[\d.,]*")
MOST_SIZES = 7  # beside each other in 80 columns; with more, a line for each
MOST_REASONS = 6  # on the terminal; refused.parquet and the report have all


def show_plan(
    study: Study,
    planned: Plan,
    spend: Spend | None,
    probing: ProbePlan | None,
    ways: Sequence[Price] = (),
    affordable: tuple[Mapping[str, object], Price] | None = None,
    elsewhere: float = 0.0,
) -> None:
    """Print points and refusals by model and world size, and what they will take.

    Args:
        study: of the plan.
        planned: its points.
        spend: predicted, None where nothing is.
        probing: what is probed first.
        ways: prices of the ways to measure it.
        affordable: keys of `measure` that make it cheap, and the price with them.
        elsewhere: points that each slow node is expected to send elsewhere.
    """
    console = Console(highlight=False)
    sizes = sorted({point.layout.world_size for point in planned.points})
    points = Counter((point.model, point.layout.world_size) for point in planned.points)
    refused = Counter(refusal.model for refusal in planned.refusals)
    unit = "ranks" if all(p.gpu == "cpu" for p in planned.points) else "GPUs"
    models = list(dict.fromkeys(point.model for point in planned.points))
    heads = ["model", *(f"{size} {unit if size > 1 else unit[:-1]}" for size in sizes), "refused"]
    lines: list[Sequence[object]] = [
        heads,
        *([model, *(points[model, size] for size in sizes), refused[model]] for model in models),
    ]
    if len(sizes) > MOST_SIZES:
        lines = list(zip(*lines, strict=True))
    table = Table()
    for column, head in enumerate(lines[0]):
        table.add_column(Text(str(head)), justify="right" if column else "left")
    for line in lines[1:]:
        table.add_row(*(Text(str(cell)) for cell in line))
    console.print(Text(f"{study.name}: {study.title}", style="italic"), soft_wrap=True)
    console.print(table)
    reasons = _alike([refusal.reason for refusal in planned.refusals])
    for reason, count, exactly in reasons[:MOST_REASONS]:
        such = "" if exactly else "such as "
        console.print(f"  refused {count}: {such}{plain(reason)}", markup=False, soft_wrap=True)
    if len(reasons) > MOST_REASONS:
        rest = sum(count for _, count, _ in reasons[MOST_REASONS:])
        console.print(
            f"  refused {rest}: for {len(reasons) - MOST_REASONS} other reasons", markup=False
        )
    if study.mode == "predict":
        console.print(f"{len(planned.points)} points, {study.kind} scaling, predicted only")
        return
    if affordable is not None and 2 * affordable[1].gpu_hours <= ways[0].gpu_hours:
        console.print(_affordable(study, ways, *affordable), soft_wrap=True, markup=False)
    cluster = study.clusters[planned.points[0].cluster]  # a study that measures runs on one
    asked = [planning.allocation(point) for point in planned.points]
    most = 60 * sum(one.minutes for one in asked)
    hours = sum(planning.hours(one, cluster) for one in asked)
    whole = f" of whole nodes of {cluster.gpus_per_node}" if cluster.slurm.exclusive else ""
    console.print(
        f"{len(planned.points)} points, {study.kind} scaling; one after another at most "
        f"{duration(most)}, {hours:,.1f} {unit[:-1]}-hours{whole}, if every point reached its "
        f"limit and took the {planning.STARTUP_MINUTES} minutes it has to start and end",
        soft_wrap=True,
        markup=False,
    )
    if spend is not None:
        console.print(_spending(spend), soft_wrap=True)
    if ways:
        console.print(_ways(study, ways))
    if study.measure.guided:
        console.print(_guidance(study), soft_wrap=True)
    own = next((one for one in ways if one.way == _own_way(study)), None)
    if study.measure.guided and own is not None:
        console.print(
            f"as its rows make more worth measuring, it adds at most {own.surprise_points} points, "
            f"{own.surprise_gpu_hours:,.1f} {unit[:-1]}-hours",
            soft_wrap=True,
        )
    if elsewhere:
        price = "" if own is None else f", about {own.slow_node_gpu_hours:,.1f} {unit[:-1]}-hours"
        console.print(
            f"each node that turns out to be slow sends about {elsewhere:,.1f} points elsewhere, "
            f"once more{price} (exclude_slow_nodes: false forbids it)",
            soft_wrap=True,
        )
    if study.measure.repeats.only:
        console.print(
            f"repeats of contenders come on top, at most {study.measure.repeats.at_most} runs of a "
            "layout",
            soft_wrap=True,
        )
    if probing is not None:
        probe = planning.probe_allocation(probing)
        hours = planning.hours(probe, cluster)
        console.print(
            f"probes come first: {len(probing.tasks)} on {probing.world_size} {unit}, at most "
            f"{duration(60 * probe.minutes)}, {hours:.1f} {unit[:-1]}-hours (probe: false leaves "
            "them out)",
            soft_wrap=True,
        )


def _affordable(
    study: Study, ways: Sequence[Price], keys: Mapping[str, object], cheap: Price
) -> str:
    """The keys that make a sweep affordable, as they are written, and what it takes with them."""
    text = yaml.safe_dump(dict(keys), default_flow_style=True, sort_keys=False, width=1000).strip()
    full = ways[0].gpu_hours
    return (
        f"measured for about {cheap.gpu_hours:,.0f} GPU-hours instead of {full:,.0f} if "
        f"{study.path} says\n  measure: {text}"
    )


def _ways(study: Study, ways: Sequence[Price]) -> Table:
    """Full, guided, short and both; the study's own is marked."""
    measure = study.measure
    table = Table(title="predicted GPU-hours, by what `measure:` says", title_justify="left")
    for name in ("", "points", "steps", "start-up", "all", "USD"):
        table.add_column(name, justify="right" if name else "left")
    keep = f"keep: {KEEP if measure.keep is None else measure.keep:g}"
    words = {
        "full": "full",
        "guided": f"guided ({keep if not measure.guided or measure.keep else 'budget'})",
        "short": "accumulation: short",
        "both": "guided and short",
    }
    for one in ways:
        mark = " *" if one.way == _own_way(study) else ""
        numbers = [f"{one.points:,}", *(
            f"{hours:,.1f}" for hours in (one.step_gpu_hours, one.startup_gpu_hours, one.gpu_hours)
        )]  # fmt: skip
        usd = "–" if one.usd is None else f"{one.usd:,.0f}"
        table.add_row(Text(words[one.way] + mark), *numbers, usd)
    return table


def _own_way(study: Study) -> str:
    own = {(False, "full"): "full", (True, "full"): "guided", (False, "short"): "short"}
    return own.get((study.measure.guided, study.measure.accumulation), "both")


def _alike(reasons: Sequence[str]) -> list[tuple[str, int, bool]]:
    """Reasons that differ in numbers only, as one of them, how many, and whether all are equal."""
    groups: dict[str, Counter[str]] = {}
    for reason in reasons:
        groups.setdefault(_NUMBER.sub("#", reason), Counter())[reason] += 1
    counted = [
        (same.most_common(1)[0][0], same.total(), len(same) == 1) for same in groups.values()
    ]
    return sorted(counted, key=lambda one: -one[1])


def _guidance(study: Study) -> str:
    """What a guided sweep will leave out, size by size."""
    measure = study.measure
    words = ["guided: of these only"]
    if measure.keep is not None:
        words.append(
            f"what is predicted within {measure.keep:.0%} of the best of its size and "
            f"{measure.spread:.0%} of the others,"
        )
    if measure.budget_gpu_hours is not None:
        words.append(f"as far as {measure.budget_gpu_hours:g} GPU-hours go,")
    if measure.budget_usd is not None:
        words.append(f"as far as {measure.budget_usd:,.0f} USD go,")
    return " ".join([*words, "small sizes first"])


def show_probes(rows: Sequence[Probe], slow: Sequence[SlowHost]) -> None:
    """Print the best rate of each kind, what failed, and the hosts that lag behind."""
    console = Console(highlight=False)
    table = Table("probe", "best", "done", "failed")
    for kind in dict.fromkeys(row.kind for row in rows):
        here = [row for row in rows if row.kind == kind]
        rates = [(_rate(row), row) for row in here if row.outcome == "ok"]
        best = max(rates, key=lambda pair: pair[0][0], default=None)
        best_rate = "–" if best is None else f"{best[0][0]:.3g} {best[0][1]}"
        table.add_row(Text(plain(kind)), best_rate, str(len(rates)), str(len(here) - len(rates)))
    console.print(table)
    failed = [row for row in rows if row.outcome != "ok"]
    reasons = Counter(f"{row.outcome}: {row.error_message}" for row in failed).most_common()
    for reason, count in reasons[:MOST_REASONS]:
        console.print(f"  {count} {plain(reason)}", markup=False, soft_wrap=True)
    for one in slow:
        console.print(
            f"  {plain(one.host)} is {one.slowdown:.2f} times slower than the median host at "
            f"{plain(one.kind)} ({one.probes} probes)",
            markup=False,
            soft_wrap=True,
        )
    if not slow and any(row.slowdown is not None for row in rows):
        console.print(f"no host is {SLOW_FROM:g} times slower than the median host or more")


def _rate(row: Probe) -> tuple[float, str]:
    """What people quote of a probe, and its unit."""
    if row.flop_per_s is not None:
        return row.flop_per_s / 1e12, f"TFLOP/s {row.precision}"
    if row.copy_bytes_per_s is not None:
        return row.copy_bytes_per_s / 1e9, "GB/s read and written"
    return (row.bus_bytes_per_s or 0) / 1e9, "GB/s bus bandwidth"


def _spending(spend: Spend) -> str:
    """What is about to be spent, with the basis of each number."""
    words = [f"predicted {spend.gpu_hours:,.1f} GPU-hours of training steps"]
    if spend.energy_j is not None:
        words.append(f"at most {spend.energy_j / 3.6e6:,.1f} kWh (every GPU at its TDP)")
    if spend.usd is not None:
        words.append(f"{spend.usd:,.0f} USD at the cluster's price")
    unknown = f"; {spend.unpredicted} points cannot be predicted" if spend.unpredicted else ""
    return ", ".join(words) + f"; start-up of each point comes on top{unknown}"
