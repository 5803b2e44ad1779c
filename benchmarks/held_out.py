"""Prediction errors for unknown software, and for GPUs known from their data sheet only.

    python benchmarks/held_out.py [FOLDER]

For the shipped rows and the tables of FOLDER it prints

- the errors of each table with its software known, and as if the software were unknown;
- for each number in STACKS the tables and GPUs that use it, and each table's error with that number
  and with the number of other software;
- for each GPU the share of its peak that each table alone would choose. If tables disagree, the
  share belongs to them and not to the GPU.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scaling.foreign.columns import Columns
from scaling.foreign.reading import read_table
from scaling.predict.cost.model import predict
from scaling.predict.fit.trial import trial
from scaling.predict.read.features import Features, Points
from scaling.predict.read.observed import Observed, observed_of
from scaling.predict.read.parameters import LOSSY_TRANSPORT, defaults_for
from scaling.predict.read.points import points_of
from scaling.predict.read.stacks import stack_of
from scaling.published.table import published_table

UNHEARD_OF = "unheard of"
FEWEST = 3


def tables(folder: Path | None) -> dict[str, pa.Table]:
    """Rows by file; the shipped rows by their column `table`."""
    shipped = published_table()
    split = {
        name: shipped.filter(pc.equal(shipped["table"], name))
        for name in pc.unique(shipped["table"]).to_pylist()
    }
    files = {f.stem: read_table(f) for f in sorted(folder.glob("*.csv"))} if folder else {}
    return split | {
        name: table
        for name, table in files.items()
        if {"step_time_s", "cluster"} <= set(table.column_names)
        and name.removeprefix("modern_") not in split
    }


def off(points: Points, observed: Observed) -> np.ndarray:
    """ln(predicted / measured) of every row, NaN where either is missing."""
    step_s = np.where(observed.timed, observed.step_time_s, np.nan)
    return np.log(predict(points).step_time_s / step_s)


def percent(errors: np.ndarray) -> str:
    """Mean absolute error and signed mean."""
    relative = np.expm1(errors[np.isfinite(errors)])
    if not relative.size:
        return "-"
    return f"{100 * np.abs(relative).mean():.1f} ({100 * relative.mean():+.0f})"


def unnamed(table: pa.Table) -> pa.Table:
    """The table without the columns that name its software."""
    kept = table.drop_columns([n for n in ("framework", "release") if n in table.column_names])
    return kept.append_column("framework", pa.array([UNHEARD_OF] * table.num_rows))


def software(by_file: dict[str, pa.Table]) -> Iterator[tuple[str, ...]]:
    """Per file: rows, errors with known and unknown software, false out-of-memory calls."""
    yield "file", "software", "rows", "known", "unheard of", "false OOM", "unheard of"
    for name, table in by_file.items():
        for framework in pc.unique(table["framework"]).to_pylist():
            part = table.filter(pc.equal(table["framework"], framework))
            scores = [trial(t, name).overall for t in (part, unnamed(part))]
            known, unheard = (s.step_time for s in scores)
            if known["rows"] and unheard["rows"]:
                yield (
                    name, framework, f"{known['rows']:.0f}",
                    *(f"{100 * s['mape']:.1f} ({100 * s['bias']:+.0f})" for s in (known, unheard)),
                    *(f"{100 * s.memory['false_oom_rate']:.0f}" for s in scores),
                )  # fmt: skip


def numbers(by_file: dict[str, pa.Table]) -> Iterator[tuple[str, ...]]:
    """Per number in STACKS and file that uses it: the error with and without the number."""
    yield "software", "number", "files", "GPUs", "value", "others have", "file: with, without"
    uses: dict[tuple[str, str], list[tuple[str, str, float, float, str]]] = {}
    for name, table in by_file.items():
        columns = Columns(table, name)
        points, observed = points_of(columns), observed_of(columns)
        before = off(points, observed)
        for place, group in enumerate(points.groups):
            transport = LOSSY_TRANSPORT if group.cluster.lossy_transport else {}
            usual = defaults_for({**transport, **stack_of(UNHEARD_OF, group.gpu).defaults})
            for number in group.stack.defaults:
                start = {**group.start, number: usual[number]}
                groups = list(points.groups)
                groups[place] = dataclasses.replace(group, start=start)
                after = off(dataclasses.replace(points, groups=tuple(groups)), observed)
                errors = f"{percent(before[group.rows])}, {percent(after[group.rows])}"
                uses.setdefault((group.stack.name, number), []).append(
                    (name, group.gpu.name, group.start[number], usual[number], errors)
                )
    for (stack, number), used in sorted(uses.items()):
        files, gpus, values, others, errors = zip(*used, strict=True)
        yield (
            stack, number, str(len(set(files))), str(len(set(gpus))), f"{values[0]:g}",
            f"{others[0]:g}", "; ".join(f"{f}: {e}" for f, e in zip(files, errors, strict=True)),
        )  # fmt: skip


def peaks(by_file: dict[str, pa.Table]) -> Iterator[tuple[str, ...]]:
    """Per file and precision: the share of the GPU's peak that leaves its rows without bias."""
    yield "GPU", "precision", "assumed", "file", "rows", "its own share"
    for name, table in by_file.items():
        for precision in pc.unique(table["precision"]).to_pylist():
            columns = Columns(table.filter(pc.equal(table["precision"], precision)), name)
            points, observed = points_of(columns), observed_of(columns)
            for gpu in sorted({group.gpu.name for group in points.groups}):
                mine = tuple(group for group in points.groups if group.gpu.name == gpu)
                of_gpu = dataclasses.replace(points, groups=mine)
                rows = int(np.isfinite(off(of_gpu, observed)).sum())
                if rows >= FEWEST:
                    assumed = mine[0].gpu.sustained(precision) / mine[0].gpu.peaks.get(precision)
                    factor = _without_bias(of_gpu, observed)
                    yield (
                        gpu, precision, f"{assumed:.2f}", name, str(rows), f"{assumed * factor:.2f}"
                    )  # fmt: skip


def _without_bias(points: Points, observed: Observed) -> float:
    """The factor on the rate of the layers' GEMMs at which the median error is 0, by bisection."""
    low, high = 0.4, 2.5
    while high / low > 1.01:
        factor = np.sqrt(low * high)
        groups = tuple(
            dataclasses.replace(group, features=_faster(group.features, factor))
            for group in points.groups
        )
        slow = np.nanmedian(off(dataclasses.replace(points, groups=groups), observed)) > 0
        low, high = (factor, high) if slow else (low, factor)
    return float(np.sqrt(low * high))


def _faster(features: Features, factor: float) -> Features:
    return dataclasses.replace(features, gemm_peak=features.gemm_peak * factor)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="tables of others, as CSV")
    by_file = tables(parser.parse_args().folder)
    for view in (software, numbers, peaks):
        print(f"\n{view.__doc__}")
        rows = list(view(by_file))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
