"""What the terminal shows of a plan."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaling.analyse.slow_hosts import SLOW_FROM, SlowHost
from scaling.errors import printable
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

    `affordable` are keys of `measure` that make the study cheap, and the price with them;
    `elsewhere` is how many points each slow node is expected to send elsewhere.
    """
    console = Console(highlight=False)
    say = _speaker(console)
    unit = "rank" if all(p.gpu == "cpu" for p in planned.points) else "GPU"
    console.print(Text(f"{study.name}: {study.title}", style="italic"), soft_wrap=True)
    console.print(_counts(study, planned, unit))
    reasons = _alike([refusal.reason for refusal in planned.refusals])
    for reason, count, exactly in reasons[:MOST_REASONS]:
        say(f"  refused {count}: {'' if exactly else 'such as '}{printable(reason)}")
    if others := reasons[MOST_REASONS:]:
        rest = sum(count for _, count, _ in others)
        say(f"  refused {rest}: for {len(others)} other reasons")
    if study.mode == "predict":
        say(f"{len(planned.points)} points, {study.kind} scaling, predicted only")
        return
    measure = study.measure
    if affordable is not None and 2 * affordable[1].gpu_hours <= (full := ways[0].gpu_hours):
        keys, cheap = affordable
        text = yaml.safe_dump(dict(keys), default_flow_style=True, sort_keys=False, width=1000)
        less, whole = (f"{hours:,.{int(hours < 10)}f}" for hours in (cheap.gpu_hours, full))
        say(f"measured for about {less} GPU-hours instead of {whole} if {study.path} says")
        console.print(f"  measure: {text.strip()}", markup=False, soft_wrap=True)  # to be copied
    cluster = study.clusters[planned.points[0].cluster]  # a study that measures runs on one
    allocations = [planning.allocation(point) for point in planned.points]
    most = duration(60 * sum(one.minutes for one in allocations))
    hours = sum(planning.hours(one, cluster) for one in allocations)
    whole = f" of whole nodes of {cluster.gpus_per_node}" if cluster.slurm.exclusive else ""
    say(
        f"{len(planned.points)} points, {study.kind} scaling; one after another at most "
        f"{most}, {hours:,.1f} {unit}-hours{whole}, if every point reached its limit "
        f"and took the {planning.STARTUP_MINUTES} minutes it has to start and end"
    )
    if spend is not None:
        say(_spending(spend))
    if ways:
        console.print(_ways(study, ways))
    own = next((one for one in ways if one.way == _own_way(study)), None)
    if measure.guided:
        say(_guidance(study))
        if own is not None:
            say(
                f"as its rows make more worth measuring, it adds at most {own.surprise_points} "
                f"points, {own.surprise_gpu_hours:,.1f} {unit}-hours"
            )
    if elsewhere:
        price = "" if own is None else f", about {own.slow_node_gpu_hours:,.1f} {unit}-hours"
        say(
            f"each node that turns out to be slow sends about {elsewhere:,.1f} points elsewhere, "
            f"once more{price} (exclude_slow_nodes: false forbids it)"
        )
    if measure.repeats.only:
        most_runs = measure.repeats.at_most
        say(f"repeats of contenders come on top, at most {most_runs} runs of a layout")
    if probing is not None:
        probe = planning.allocation(probing)
        say(
            f"probes come first: {len(probing.tasks)} on {probing.world_size} {unit}s, at most "
            f"{duration(60 * probe.minutes)}, {planning.hours(probe, cluster):.1f} {unit}-hours "
            "(probe: false leaves them out)"
        )


def _speaker(console: Console) -> Callable[[str], None]:
    """Prints a sentence: a line of its own into a file, wrapped between words on a terminal."""
    return partial(console.print, markup=False, soft_wrap=not console.is_terminal)


def _counts(study: Study, planned: Plan, unit: str) -> Table:
    """Points by model and world size."""
    sizes = sorted({point.world_size for point in planned.points})
    points = Counter((point.model, point.world_size) for point in planned.points)
    refused = Counter(refusal.model for refusal in planned.refusals)
    models = list(dict.fromkeys(point.model for point in planned.points))
    lines: list[Sequence[object]] = [
        ["model", *(f"{size} {unit}{'s' * (size > 1)}" for size in sizes), "refused"],
        *([model, *(points[model, size] for size in sizes), refused[model]] for model in models),
    ]
    if len(sizes) > MOST_SIZES:
        lines = list(zip(*lines, strict=True))
    table = Table()
    for column, head in enumerate(lines[0]):
        table.add_column(Text(str(head)), justify="right" if column else "left")
    for line in lines[1:]:
        table.add_row(*(Text(str(cell)) for cell in line))
    return table


def _ways(study: Study, ways: Sequence[Price]) -> Table:
    """Full, guided, short and both; the study's own is marked."""
    measure = study.measure
    table = Table("", title="predicted GPU-hours, by what `measure:` says", title_justify="left")
    for name in ("points", "steps", "start-up", "all", "USD"):
        table.add_column(name, justify="right")
    keep = f"keep: {KEEP if measure.keep is None else measure.keep:g}"
    words = {
        "full": "full",
        "guided": f"guided ({keep if not measure.guided or measure.keep else 'budget'})",
        "short": "accumulation: short",
        "both": "guided and short",
    }
    for one in ways:
        mark = " *" if one.way == _own_way(study) else ""
        hours = (one.step_gpu_hours, one.startup_gpu_hours, one.gpu_hours)
        usd = "–" if one.usd is None else f"{one.usd:,.0f}"
        numbers = (f"{one.points:,}", *(f"{each:,.1f}" for each in hours), usd)
        table.add_row(Text(words[one.way] + mark), *numbers)
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
    say = _speaker(console)
    table = Table("probe", "best", "done", "failed")
    for kind in dict.fromkeys(row.kind for row in rows):
        here = [row for row in rows if row.kind == kind]
        rates = [_rate(row) for row in here if row.outcome == "ok"]
        rate, unit = max(rates, key=lambda each: each[0], default=(None, ""))
        best = "–" if rate is None else f"{rate:.3g} {unit}"
        table.add_row(Text(printable(kind)), best, str(len(rates)), str(len(here) - len(rates)))
    console.print(table)
    reasons = Counter(f"{row.outcome}: {row.error_message}" for row in rows if row.outcome != "ok")
    for reason, count in reasons.most_common(MOST_REASONS):
        say(f"  {count} {printable(reason)}")
    for one in slow:
        say(
            f"  {printable(one.host)} is {one.slowdown:.2f} times slower than the median host at "
            f"{printable(one.kind)} ({one.probes} probes)"
        )
    if not slow and any(row.slowdown is not None for row in rows):
        say(f"no host is {SLOW_FROM:g} times slower than the median host or more")


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
