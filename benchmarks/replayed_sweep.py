"""Replay a guided sweep on fully measured tables: what it saves, and what it misses.

    python benchmarks/replayed_sweep.py ROWS.csv ... --exact [--keep 0.3] [--spread 0.03]
    python benchmarks/replayed_sweep.py ROWS.csv ... [--sigma 0.007] [--replays 20]

Each round takes the points of `next_points`. They are "measured" by looking them up, which
calibrates the prediction of the next round. The table counts as the truth. With --exact a point
runs 13 full steps, measures the truth and is not repeated. Otherwise points run short steps and
have noise between runs (--sigma, standard deviation of ln time) and from the extension to full
steps (--extension); contenders are repeated, and the fastest on average wins. Regret is how much
slower the winner truly is than the best of its size and setting. GPU-hours include warm-up steps
and one start per point.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling.analyse.next_points import Plan, estimate, next_points
from scaling.analyse.posterior import Runs
from scaling.cluster.hardware import Cluster
from scaling.importing.reader import Table, read_rows
from scaling.layout.axes import AXES
from scaling.layout.layout import Layout
from scaling.layout.shapes import ModelShape
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.validation import rows_by_setting
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.run.rounds import contest_of
from scaling.study.load import load_clusters, load_models
from scaling.study.short_steps import short_step_rounds, short_step_sizes
from scaling.study.time_limits import TYPICAL_STARTUP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The points, GPU-hours and regrets of a guided sweep at one size, or at all.

    `regrets`: per setting with a timed layout, how much slower the layout with the fastest mean is
    than the best of all, as a ratio; None if no measured layout ran.
    """

    world_size: int | None
    points: int
    measured: int
    runs: int
    gpu_hours: float  # of all points, once and in full steps
    gpu_hours_spent: float
    regrets: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """How points are measured: seconds over those of a full step, runs, noise of ln time."""

    steps: float | np.ndarray = 13.0
    keep: float = 0.3
    spread: float = 0.03
    budget_gpu_s: float = math.inf
    startup_s: float = TYPICAL_STARTUP_S
    repeats: int = 1
    sigma: float = 0.0
    full_steps: float = 13.0


def play(
    table: Table,
    sweep: Sweep,
    *,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
    seed: int = 0,
) -> list[Replay]:
    """Measure what `next_points` takes, round by round, and calibrate on everything so far.

    A row that ran costs its steps and a start, any other row a start. A failure of unknown reason
    is measured but does not calibrate. `models`, `clusters`: by name; by default the shipped ones.
    """
    points = points_of(table, models=models, clusters=clusters)
    observed, random = observed_of(table), np.random.default_rng(seed)
    truth = np.where(observed.timed, observed.step_time_s, np.nan)
    cost = points.world_size * (np.nan_to_num(sweep.steps * truth) + sweep.startup_s)
    left, runs, calibration = np.full(len(points), sweep.repeats), np.zeros(len(points), int), None
    row, log_s = np.empty(0, dtype=int), np.empty(0)
    names = [name for name in table.rows.column_names if name in AXES]
    labels = [str(list(one.values())) for one in table.rows.select(names).to_pylist()]
    while True:
        contest, prediction = contest_of(points, calibration, labels)
        run_s = np.nan_to_num(sweep.steps * prediction.step_time_s)
        expected = points.world_size * (run_s + sweep.startup_s)
        plan = Plan(np.where(runs, cost, expected), left, sweep.keep, sweep.spread)
        none = np.full(len(row), -1)
        seen = Runs(
            np.log(points.tokens_per_step[row]) - log_s, np.full(len(row), np.nan), row, none
        )
        estimates = estimate(contest, seen, runs > 0)
        spent = float((runs * cost).sum())
        chosen = np.array(next_points(estimates, plan, sweep.budget_gpu_s - spent).cells, dtype=int)
        if not len(chosen):
            break
        new = chosen[runs[chosen] == 0]
        runs[chosen] += 1
        left[chosen] -= 1
        timed = chosen[observed.timed[chosen]]
        row = np.append(row, timed)
        noise = sweep.sigma * random.standard_normal(len(timed))
        log_s = np.append(log_s, np.log(truth[timed]) + noise)
        if len(new) and ((runs > 0) & (observed.timed | observed.out_of_memory)).any():
            part = table.filter(runs > 0)
            some = points_of(part, models=models, clusters=clusters)
            calibration = calibrate(some, observed_of(part), source=table.source)
    means = np.bincount(row, log_s, len(points)) / np.maximum(
        np.bincount(row, minlength=len(points)), 1
    )
    in_full = points.world_size * (np.nan_to_num(sweep.full_steps * truth) + sweep.startup_s)
    replays = []
    for size in [*sorted({int(size) for size in points.world_size}), None]:
        here = np.ones(len(points), dtype=bool) if size is None else points.world_size == size
        regrets: list[float | None] = []
        for of_setting in rows_by_setting(points, np.flatnonzero(here & observed.timed)).values():
            at = np.array(of_setting)
            ran = at[runs[at] > 0]
            pick = ran[means[ran].argmin()] if len(ran) else None
            regrets.append(None if pick is None else float(truth[pick] / truth[at].min()) - 1)
        replays.append(
            Replay(
                world_size=size,
                points=int(here.sum()),
                measured=int((here & (runs > 0)).sum()),
                runs=int(runs[here].sum()),
                gpu_hours=float(in_full[here].sum()) / 3600,
                gpu_hours_spent=float((runs * cost)[here].sum()) / 3600,
                regrets=tuple(regrets),
            )
        )
    return replays


def main() -> None:
    """Print the result for each table: a line per size, and one of all sizes."""
    options = _options()
    for path in options.rows:
        print(path.name)
        table, catalogues = read_rows(path), {"models": load_models(), "clusters": load_clusters()}
        played = [
            play(table, _sweep(table, options), **catalogues, seed=replay)
            for replay in range(1 if options.exact else options.replays)
        ]
        for of_size in zip(*played, strict=True):
            print(_line(of_size), flush=True)


def _line(replays: tuple[Replay, ...]) -> str:
    """Points, GPU-hours and regret at one size, in the mean of the replays."""
    first = replays[0]
    regrets = [regret for one in replays for regret in one.regrets]
    known = [regret for regret in regrets if regret is not None]
    measured = np.mean([one.measured for one in replays])
    runs, spent = (
        np.mean([getattr(one, name) for one in replays]) for name in ("runs", "gpu_hours_spent")
    )
    text = "  all       " if first.world_size is None else f"  {first.world_size:5} GPUs"
    text += f" {measured:5.0f} of {first.points:5} points ({measured / first.points:4.0%})"
    text += f", {runs:.0f} runs, {spent:7.1f} of {first.gpu_hours:7.1f} GPU-hours"
    text += f" ({spent / first.gpu_hours:4.0%})"
    if known:
        text += f", regret mean {np.mean(known):6.2%} max {max(known):5.1%} of {len(known)}"
        text += f", {missed} without a row" if (missed := len(regrets) - len(known)) else ""
    return text


def _sweep(table: Table, options: argparse.Namespace) -> Sweep:
    budget = math.inf if options.budget_gpu_hours is None else options.budget_gpu_hours * 3600
    guided = {"keep": options.keep, "spread": options.spread, "budget_gpu_s": budget}
    if options.exact:
        return Sweep(**guided)
    steps = options.warmup + options.steps
    return Sweep(
        **guided,
        steps=_in_full_steps(table, options) if options.short else float(steps),
        full_steps=steps,
        repeats=options.repeats,
        sigma=math.hypot(options.sigma, options.extension if options.short else 0.0),
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
    parser.add_argument("--keep", type=float, default=0.3)
    parser.add_argument("--spread", type=float, default=0.03)
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
