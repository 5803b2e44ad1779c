"""What a model-guided sweep saves and misses on tables that others measured in full.

    python benchmarks/guided_sweep.py ROWS.csv ... [--keep 0.15] [--spread 0.1] [--help]

Each table is played through size by size, small first: points are chosen by the prediction,
"measured" by looking them up, and what they say calibrates the prediction of the next size.
"""

import argparse
from pathlib import Path

from guided_trial import play

from scaling.foreign.reading import read_rows
from scaling.predict.advise.guide import Guide
from scaling.study.catalogues import load_clusters, load_models


def main() -> None:
    """Print a line per size and a total per table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--keep", type=float, default=0.15)
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--budget-gpu-hours", type=float)
    parser.add_argument("--steps", type=int, default=13, help="optimizer steps of a point")
    given = parser.parse_args()
    budget = given.budget_gpu_hours
    guide = Guide(
        keep=given.keep,
        spread=given.spread,
        budget_gpu_s=None if budget is None else budget * 3600,
        steps=given.steps,
    )
    for path in given.rows:
        sizes = play(
            read_rows(path), str(path), guide, models=load_models(), clusters=load_clusters()
        )
        print(path.name)
        for one in sizes:
            print(f"  {one.world_size:5} GPUs", line([one]))
        print("  all       ", line(sizes))


def line(sizes: list) -> str:
    """Points, GPU-hours and regret of these sizes."""
    regrets = [regret for one in sizes for regret in one.regrets]
    known = [regret for regret in regrets if regret is not None]
    points, measured = sum(s.points for s in sizes), sum(s.measured for s in sizes)
    hours, spent = sum(s.gpu_hours for s in sizes), sum(s.gpu_hours_spent for s in sizes)
    said = f"{measured:5} of {points:5} points ({measured / points:4.0%})"
    said += f", {spent:7.1f} of {hours:7.1f} GPU-hours ({spent / hours:4.0%})"
    if known:
        missed = len(regrets) - len(known)
        said += f", regret mean {sum(known) / len(known):5.1%} max {max(known):5.1%}"
        said += f" over {len(known)} settings" + (f", {missed} without a row" if missed else "")
    return said


if __name__ == "__main__":
    main()
