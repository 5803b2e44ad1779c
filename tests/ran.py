"""Run studies in a checkout, and look at their output and results."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tests.processes import ended
from tests.warm import warm_python


@dataclass(frozen=True)
class Ran:
    """A checkout in which a study ran, and the command's output."""

    root: Path
    study: str
    said: str

    @property
    def results(self):
        return self.root / "results" / self.study

    def rows(self):
        return rows_of(self.results)


def rows_of(results):
    return [
        row
        for path in sorted((results / "rows").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def scaling(root, *words, python=sys.executable, timeout=1800):
    """Run a verb of `scaling` in a checkout."""
    how = {"cwd": root, "timeout": timeout, "env": {**os.environ, "COLUMNS": "200"}}
    return ended(python, "-m", "scaling", *words, **how)


def scaling_warm(root, *words):
    """`scaling`, but faster: with a Python that has already imported what the verb needs."""
    return scaling(root, *words, python=warm_python())
