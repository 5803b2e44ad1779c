"""A guided sweep in short steps, with repeats of contenders, replayed on tables measured in full.

    python benchmarks/replayed_sweep.py ROWS.csv ... [--keep 0.1] [--sigma 0.007] [--replays 20]

What a table says is taken for the truth. A replay measures it with noise: of a run (--sigma, the
standard deviation of ln time between runs) and of the extension from short steps (--extension).
Points are chosen size by size by the prediction, which learns from the noisy values; then
contenders are repeated; the winner is whoever is fastest on average. Regret is how much slower it
truly is than the best of all that the table has. GPU-hours are of the steps, warm-up included, and
of a start each.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
from guided_trial import play

from scaling.analyse.being_best import Runs, odds_of
from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_rows
from scaling.layout.layout import Layout
from scaling.predict.advise.guide import Guide
from scaling.predict.fit.validation import settings_of
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.study.catalogues import load_clusters, load_models
from scaling.study.short_steps import accumulations, rounds


def main() -> None:
    """Print a line per table."""
    given = _given()
    for path in given.rows:
        print(path.name, replayed(path, given))


def replayed(path: Path, given: argparse.Namespace) -> str:
    """All replays of a table in one line."""
    table, models, clusters = read_rows(path), load_models(), load_clusters()
    columns = Columns(table, str(path))
    points = points_of(columns, models=models, clusters=clusters)
    truth = observed_of(columns)
    full = (given.warmup + given.steps) * truth.step_time_s
    short = full if not given.short else truth.step_time_s * _shares(columns, given)
    guide = Guide(
        keep=given.keep, spread=given.spread, budget_gpu_s=None, steps=given.warmup + given.steps
    )
    regrets, spent, repeats, missed = [], [], [], 0
    for replay in range(given.replays):
        random = np.random.default_rng(replay)

        def runs(times: np.ndarray, random: np.random.Generator = random) -> np.ndarray:
            extension = given.extension if given.short else 0.0
            off = math.hypot(given.sigma, extension)
            return times * np.exp(off * random.standard_normal(np.shape(times)))

        seen = runs(truth.step_time_s)
        place = table.column_names.index("step_time_s")
        noisy = table.set_column(place, "step_time_s", pa.array(seen, from_pandas=True))
        sizes = play(noisy, str(path), guide, models=models, clusters=clusters)
        measured = np.zeros(len(points), dtype=bool)
        measured[[row for size in sizes for row in size.rows]] = True
        cost = points.world_size * (np.where(truth.timed, short, 0.0) + guide.startup_s)
        hours, again = float(cost[measured].sum()), 0
        for rows in settings_of(points, truth.timed).values():
            for size in sorted(set(points.world_size[rows].tolist())):
                at = np.array([row for row in rows if points.world_size[row] == size])
                tried = at[measured[at]]
                if not len(tried):
                    missed += 1
                    continue
                times = {int(row): [float(seen[row])] for row in tried}
                for _ in range(given.repeats - 1):
                    order = list(times)
                    odds = odds_of(Runs.of([[(s, 0.0) for s in times[row]] for row in order]))
                    for place_of in odds.contenders:
                        row = order[place_of]
                        times[row].append(float(runs(truth.step_time_s[row])))
                        hours, again = hours + float(cost[row]), again + 1
                pick = min(times, key=lambda row: float(np.mean(np.log(times[row]))))
                regrets.append(float(truth.step_time_s[pick] / truth.step_time_s[at].min()) - 1)
        spent.append(hours / 3600)
        repeats.append(again)
    everything = float(
        (points.world_size * (np.where(truth.timed, full, 0.0) + guide.startup_s)).sum() / 3600
    )
    points_measured = int(measured.sum())
    return (
        f"{points_measured} of {len(points)} points and {np.mean(repeats):.0f} repeats, "
        f"{np.mean(spent):,.0f} of {everything:,.0f} GPU-hours "
        f"({np.mean(spent) / everything:.0%}), "
        f"regret mean {np.mean(regrets):.2%}, nine in ten below {np.quantile(regrets, 0.9):.2%}, "
        f"max {max(regrets):.1%} over {len(regrets) // given.replays} settings x {given.replays}"
        + (f", {missed} without a row" if missed else "")
    )


def _shares(columns: Columns, given: argparse.Namespace) -> np.ndarray:
    """Seconds of all steps of a short point over those of one full step, by slots of 1F1B."""
    records = columns.table.select(
        ["pp", "dp", "micro_batch_size", "global_batch_size"]
    ).to_pylist()
    shares = []
    for one in records:
        whole = one["global_batch_size"] // (one["dp"] * one["micro_batch_size"])
        layout = Layout(pp=one["pp"], gradient_accumulation_steps=max(1, whole), seq_length=1)
        counts, bubble = accumulations(layout), one["pp"] - 1
        if not counts:
            shares.append(given.warmup + given.steps)
            continue
        slots = given.warmup * (counts[0] + bubble)
        slots += rounds(given.steps) * sum(count + bubble for count in counts)
        shares.append(slots / (whole + bubble))
    return np.array(shares, dtype=float)


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--keep", type=float, default=0.1)
    parser.add_argument("--spread", type=float, default=0.05)
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
