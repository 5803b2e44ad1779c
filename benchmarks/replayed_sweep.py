"""Replay a guided sweep on fully measured tables: what it saves, and what it misses.

    python benchmarks/replayed_sweep.py ROWS.csv ... --exact [--keep 0.15] [--spread 0.1]
    python benchmarks/replayed_sweep.py ROWS.csv ... [--keep 0.1] [--sigma 0.007] [--replays 20]

The prediction chooses points of each size, small sizes first. They are "measured" by looking them
up, which calibrates the prediction of the next size. The table counts as the truth. With --exact a
point runs 13 full steps, measures the truth and is not repeated. Otherwise points run short steps
and have noise between runs (--sigma, standard deviation of ln time) and from the extension to full
steps (--extension); contenders are repeated, and the fastest on average wins. Regret is how much
slower the winner truly is than the best of its size and setting. GPU-hours include warm-up steps
and one start per point.
"""

import argparse
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from scaling.analyse.posterior import CLOSE, Cells, Runs, best_of, posterior
from scaling.cluster.hardware import Cluster
from scaling.importing.reader import Table, read_rows
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.advise.guide import Guide, choose
from scaling.predict.advise.surprise import TURNS, Progress, choose_again
from scaling.predict.cost.model import Prediction, predict
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.rivals import rows_by_setting
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.study.load import load_clusters, load_models
from scaling.study.short_steps import short_step_rounds, short_step_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The guided sweep at one size.

    `regrets`: per setting with a timed layout, how much slower the best measured layout is than the
    best of all, as a ratio; None if no measured layout ran.
    """

    world_size: int
    points: int
    measured: int
    gpu_hours: float  # of all points
    gpu_hours_spent: float
    regrets: tuple[float | None, ...]
    rows: tuple[int, ...]  # measured rows of the table


def play(
    table: Table,
    guide: Guide,
    *,
    full_steps: np.ndarray | None = None,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> list[Size]:
    """Measure what `choose` selects, size by size, and calibrate on everything measured so far.

    Within a size it chooses again, at most twice. A row that ran costs its measured steps and a
    start, any other row a start. A failure of unknown reason is measured but does not calibrate.

    Args:
        table: the measurements.
        guide: parameters of the guided sweep.
        full_steps: seconds of all the steps of a run over those of one full step, (rows,); by
            default the guide's steps.
        models: by name; by default the shipped ones.
        clusters: the same.
    """
    points = points_of(table, models=models, clusters=clusters)
    observed = observed_of(table)
    steps = np.full(len(points), float(guide.steps)) if full_steps is None else full_steps
    run_s = np.where(observed.timed, steps * observed.step_time_s, 0.0)
    cost = points.world_size * (run_s + guide.startup_s)
    measured = np.zeros(len(points), dtype=bool)
    sizes = []

    def learned() -> tuple[Prediction, Guide]:
        """Prediction and price of all rows, given those measured so far."""
        calibration = None
        if (measured & (observed.timed | observed.out_of_memory)).any():
            part = table.filter(measured)
            some = points_of(part, models=models, clusters=clusters)
            calibration = calibrate(some, observed_of(part), source=table.source)
        prediction = predict(points, calibration)
        return prediction, dataclasses.replace(guide, run_s=steps * prediction.step_time_s)

    for size in sorted(set(points.world_size.tolist())):
        prediction, priced = learned()
        spent = float(cost[measured].sum())
        choices = choose(points, prediction, size, priced, spent_gpu_s=spent)
        rows = [choice.row for choice in choices if choice.chosen]
        for _ in range(1 + TURNS):
            if not rows:
                break
            measured[rows] = True
            seen = Progress(
                measured=measured,
                step_time_s=np.where(observed.timed, observed.step_time_s, np.nan),
            )
            prediction, priced = learned()
            spent = float(cost[measured].sum())
            rows = choose_again(points, prediction, seen, size, priced, spent_gpu_s=spent)
        here = points.world_size == size
        regrets = []
        for rows in rows_by_setting(points, here & observed.timed).values():
            at = np.array(rows)
            times = observed.step_time_s[at]
            best = float(times[measured[at]].min(initial=math.inf))
            regrets.append(best / float(times.min()) - 1 if math.isfinite(best) else None)
        sizes.append(
            Size(
                world_size=int(size),
                points=int(here.sum()),
                measured=int((here & measured).sum()),
                gpu_hours=float(cost[here].sum()) / 3600,
                gpu_hours_spent=float(cost[here & measured].sum()) / 3600,
                regrets=tuple(regrets),
                rows=tuple(np.flatnonzero(here & measured).tolist()),
            )
        )
    return sizes


def main() -> None:
    """Print the result for each table."""
    options = _options()
    for path in options.rows:
        print(path.name)
        print(_exact(path, options) if options.exact else _replayed(path, options), flush=True)


def _exact(path: Path, options: argparse.Namespace) -> str:
    """A line per size and a total."""
    catalogues = {"models": load_models(), "clusters": load_clusters()}
    sizes = play(read_rows(path), _guide(options), **catalogues)
    lines = [f"  {one.world_size:5} GPUs{_exact_line([one])}" for one in sizes]
    return "\n".join([*lines, f"  all       {_exact_line(sizes)}"])


def _exact_line(sizes: list[Size]) -> str:
    """Points, GPU-hours and regret of these sizes."""
    regrets = [regret for one in sizes for regret in one.regrets]
    known = [regret for regret in regrets if regret is not None]
    points, measured = sum(s.points for s in sizes), sum(s.measured for s in sizes)
    hours, spent = sum(s.gpu_hours for s in sizes), sum(s.gpu_hours_spent for s in sizes)
    text = f" {measured:5} of {points:5} points ({measured / points:4.0%})"
    text += f", {spent:7.1f} of {hours:7.1f} GPU-hours ({spent / hours:4.0%})"
    if known:
        missed = len(regrets) - len(known)
        text += f", regret mean {sum(known) / len(known):5.1%} max {max(known):5.1%}"
        text += f" over {len(known)} settings" + (f", {missed} without a row" if missed else "")
    return text


def _replayed(path: Path, options: argparse.Namespace) -> str:
    """All replays of a table: a line per setting and a total."""
    table, models, clusters = read_rows(path), load_models(), load_clusters()
    points = points_of(table, models=models, clusters=clusters)
    truth = observed_of(table)
    steps = options.warmup + options.steps
    full_steps = np.full(len(points), float(steps))
    if options.short:
        full_steps = _in_full_steps(table, options)
    guide = _guide(options)
    off = math.hypot(options.sigma, options.extension if options.short else 0.0)
    cost = points.world_size * (
        np.where(truth.timed, full_steps * truth.step_time_s, 0.0) + guide.startup_s
    )
    in_full = points.world_size * (
        np.where(truth.timed, steps * truth.step_time_s, 0.0) + guide.startup_s
    )
    settings = [
        (f"{setting[1]}, {size:.0f} GPUs, {setting[4]:.0f} tokens", np.array(rows))
        for size in sorted(set(points.world_size.tolist()))
        for setting, rows in rows_by_setting(
            points, truth.timed & (points.world_size == size)
        ).items()
    ]
    regrets: list[list[float]] = [[] for _ in settings]
    hours, again, measured_points = [], [], []
    for replay in range(options.replays):
        random = np.random.default_rng(replay)
        seen = truth.step_time_s * np.exp(off * random.standard_normal(len(points)))
        place = table.rows.column_names.index("step_time_s")
        noisy = dataclasses.replace(
            table,
            rows=table.rows.set_column(place, "step_time_s", pa.array(seen, from_pandas=True)),
        )
        sizes = play(noisy, guide, full_steps=full_steps, models=models, clusters=clusters)
        runs = np.zeros(len(points), dtype=int)
        runs[[row for size in sizes for row in size.rows]] = 1
        measured_points.append(int(runs.sum()))
        for (_, at), of_setting in zip(settings, regrets, strict=True):
            times = {int(row): [float(seen[row])] for row in at[runs[at] > 0]}
            for _ in range(options.repeats - 1 if times else 0):
                order = list(times)
                flat = [(cell, seconds) for cell, row in enumerate(order) for seconds in times[row]]
                cell, log_s = np.array([(cell, math.log(seconds)) for cell, seconds in flat]).T
                none = np.full(len(cell), -1)
                ran = Runs(-log_s, np.zeros(len(cell)), cell.astype(int), none)
                drawn = posterior(ran, Cells.without_predictions(len(order)))
                close = np.flatnonzero(best_of(drawn.rates) >= CLOSE).tolist()
                for row in [order[number] for number in close if len(close) > 1]:
                    noise = math.exp(off * random.standard_normal())
                    times[row].append(float(truth.step_time_s[row]) * noise)
                    runs[row] += 1
            if times:
                pick = min(times, key=lambda row: float(np.mean(np.log(times[row]))))
                of_setting.append(float(truth.step_time_s[pick] / truth.step_time_s[at].min()) - 1)
        hours.append(float((runs * cost).sum()) / 3600)
        again.append(int(runs.sum()) - measured_points[-1])
    lines = [f"  {name}: {_regret(of)}" for (name, _), of in zip(settings, regrets, strict=True)]
    every = [regret for of_setting in regrets for regret in of_setting]
    everything = float(in_full.sum()) / 3600
    missed = options.replays * len(settings) - len(every)
    total = (
        f"  all: {np.mean(measured_points):.0f} of {len(points)} points and {np.mean(again):.0f} "
        f"repeats, {np.mean(hours):,.0f} of {everything:,.0f} GPU-hours "
        f"({np.mean(hours) / everything:.0%}), {_regret(every)} over {len(settings)} settings x "
        f"{options.replays}" + (f", {missed} without a row" if missed else "")
    )
    return "\n".join([*lines, total])


def _regret(regrets: list[float]) -> str:
    if not regrets:
        return "no row"
    return (
        f"regret mean {np.mean(regrets):.2%}, nine in ten below {np.quantile(regrets, 0.9):.2%}, "
        f"max {max(regrets):.1%}"
    )


def _guide(options: argparse.Namespace) -> Guide:
    budget = options.budget_gpu_hours
    return Guide(
        keep=options.keep,
        spread=options.spread,
        budget_gpu_s=None if budget is None else budget * 3600,
        steps=13 if options.exact else options.warmup + options.steps,
    )


def _in_full_steps(table: Table, options: argparse.Namespace) -> np.ndarray:
    """Seconds of all steps of a short point over those of one full step, by slots of 1F1B."""
    records = table.rows.select(["pp", "dp", "micro_batch_size", "global_batch_size"]).to_pylist()
    shares = []
    for one in records:
        whole = one["global_batch_size"] // (one["dp"] * one["micro_batch_size"])
        layout = Layout(pp=one["pp"], gradient_accumulation_steps=max(1, whole), seq_length=1)
        counts, bubble = short_step_sizes(layout), one["pp"] - 1
        if not counts:
            shares.append(options.warmup + options.steps)
            continue
        slots = options.warmup * (counts[0] + bubble)
        slots += short_step_rounds(options.steps) * sum(count + bubble for count in counts)
        shares.append(slots / (whole + bubble))
    return np.array(shares, dtype=float)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--exact", action="store_true", help="no noise, no repeats, 13 full steps")
    parser.add_argument("--keep", type=float, default=0.1)
    parser.add_argument("--spread", type=float, default=0.05)
    parser.add_argument("--budget-gpu-hours", type=float)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="runs of a layout at the most")
    parser.add_argument("--sigma", type=float, default=0.007)
    parser.add_argument("--extension", type=float, default=0.01)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--full", dest="short", action="store_false", help="no short steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
