"""Published layouts that a study would have refused for memory, rightly and wrongly.

    python benchmarks/refusals.py ROWS.csv ... [--above 1.05 1.3]

A study refuses layouts whose uncalibrated predicted memory exceeds a multiple of the GPU's.
"""

import argparse
from pathlib import Path

from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_rows
from scaling.predict.advise.spend import memory_refusals
from scaling.predict.cost.model import REFUSE_ABOVE, predict
from scaling.predict.read.observed import observed_of
from scaling.predict.read.points import points_of
from scaling.study.load import load_clusters, load_models


def main() -> None:
    """Print a line per table and multiple."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--above", nargs="+", type=float, default=[REFUSE_ABOVE])
    given = parser.parse_args()
    for path in given.rows:
        columns = Columns(read_rows(path), str(path))
        points = points_of(columns, models=load_models(), clusters=load_clusters())
        observed, prediction = observed_of(columns), predict(points)
        did_not = observed.out_of_memory | observed.ambiguous
        for above in given.above:
            refused = set(memory_refusals(points, prediction, above=above))
            wrongly = sum(row in refused for row in observed.ran.nonzero()[0].tolist())
            rightly = sum(row in refused for row in did_not.nonzero()[0].tolist())
            print(
                f"{path.name}, above {above:g}: refuses {wrongly} of {int(observed.ran.sum())} "
                f"that ran and {rightly} of {int(did_not.sum())} that did not"
            )


if __name__ == "__main__":
    main()
