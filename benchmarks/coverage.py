"""How often 80 % intervals and odds hold in each hold-out, and what a calibration improves.

    python -m benchmarks.coverage FOLDER [--write | --narrow]

Prints Markdown tables for the files of FOLDER that `scaling validate FOLDER --published` knows;
--write puts them into docs/prediction_accuracy.md:

- each hold-out: its error, the data sheet's error, the share of step times and of ratios inside
  their intervals, and the range in which right intervals of such rows lie 8 times in 10;
- pairs of layouts by the stated odds that one is faster, and how often it was;
- each table predicted as if its software were unknown.

Two minutes on a quiet core. --narrow prints what calibrations on a single value of an axis, and on
one to seven rows, give instead: five minutes.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.accuracy import Marked, markdown_of
from benchmarks.held_out import unnamed
from scaling.predict.cost.model import predict
from scaling.predict.fit.accuracy import Task, covered, tasks_of
from scaling.predict.fit.coverage import odds_calibration
from scaling.predict.fit.trial import trial
from scaling.predict.fit.validation import Validation
from scaling.study.load import load_clusters

TABLES = Marked("<!-- coverage of the tables of others -->", "<!-- end of coverage -->")

# More hold-outs of the same tables.
MORE = {
    "llama_layouts_a100": (
        "hash(row_index) % 4 = 0", "hash(row_index) % 8 = 1", "world_size = 32", "tp = 1", "pp = 1",
        "micro_batch_size <= 2", "activation_checkpointing = 'full'",
        "activation_checkpointing != 'full'",
    ),
    "gpt_layouts_a100": (
        "hash(row_index) % 60 = 0", "world_size = 2", "hidden_size = 2048", "tp = 1", "pp = 1",
        "pp <= 2", "micro_batch_size <= 2", "tp <= 2",
    ),
    "llama_layouts_h100": (
        "hash(row_index) % 8 = 0", "world_size <= 8", "model != 'nanotron-llama-1b'",
        "model = 'nanotron-llama-1b'", "model = 'nanotron-llama-3b'", "model = 'nanotron-llama-8b'",
        "model = 'nanotron-llama-80b'", "zero_stage = 0", "pp = 1", "tp = 1",
    ),
    "mpt_zero3": (
        "world_size <= 8", "cluster = 'a100-80gb-dgx'", "hash(row_index) % 4 = 0",
        "hash(row_index) % 8 = 0", "seq_length <= 2048", "activation_checkpointing = 'full'",
        "model = 'mpt-3b'", "model = 'mpt-760m'",
    ),
    "modern_dgxc": (
        "world_size <= 64", "hash(row_index) % 2 = 0", "hash(row_index) % 4 = 0",
        "precision = 'bf16'", "model like '%8b%'", "model like '%405b%'", "hidden_size >= 16384",
        "precision like '%fp8%'",
    ),
    "modern_megatron_bridge": ("num_experts = 0", "hash(row_index) % 2 = 0"),
    "megatron_papers": ("world_size < 512", "world_size <= 64"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """One hold-out: its validation, and the mean relative error of data sheets on its rows."""

    task: Task
    validation: Validation
    sheet_mape: float

    @property
    def table(self) -> str:
        """The table's name."""
        return self.task.table.removesuffix(".csv")

    @property
    def coverage(self) -> tuple[float, float]:
        """Shares of step times and of ratios inside their intervals; NaN without any."""
        scores = self.validation.overall
        steps, ratios = scores.coverage_80, scores.coverage_80_ratios
        return np.nan if steps is None else steps, np.nan if ratios is None else ratios


def hold_out(task: Task, table: pa.Table) -> HoldOut:
    """Run one hold-out."""
    v = trial(table, task.table, calibrate_where=task.calibrate_where, clusters=load_clusters())
    rows = v.tested & v.prediction.predicted & v.observed.timed
    off = predict(v.points).step_time_s[rows] / v.observed.step_time_s[rows] - 1
    return HoldOut(task=task, validation=v, sheet_mape=float(np.abs(off).mean()))


def coverage_table(held: Sequence[HoldOut]) -> list[list[str]]:
    """One row per hold-out, header first."""
    heads = [
        "rows", "calibrated on", "n", "MAPE", "data sheet", "step times covered",
        "ratios covered",
    ]  # fmt: skip
    body = []
    for each in held:
        where, scores = each.task.calibrate_where, each.validation.overall
        expected, mape = each.validation.expected_80, scores.step_time["mape"]
        body.append([
            each.table, f"`{where}`" if where else "data sheets", f"{scores.step_time['rows']:.0f}",
            "–" if mape is None else f"{100 * mape:.1f} %", f"{100 * each.sheet_mape:.1f} %",
            covered(scores.coverage_80, expected["steps"]),
            covered(scores.coverage_80_ratios, expected["ratios"]),
        ])  # fmt: skip
    return [heads, *body]


def tally(kinds: Mapping[str, Sequence[HoldOut]]) -> list[list[str]]:
    """Count the hold-outs of each kind inside the goal, and inside the expected range."""
    heads = ["hold-outs", "mean", "in 75 to 85 %", "in the expected range"]
    body = []
    for name, some in kinds.items():
        for place, part in enumerate(("steps", "ratios")):
            shares = np.array([each.coverage[place] for each in some])
            ends = [each.validation.expected_80[part] for each in some]
            pairs = [(s, e) for s, e in zip(shares, ends, strict=True) if e is not None]
            inside = sum(e[0] <= s <= e[1] for s, e in pairs)
            goal = sum(0.745 <= s <= 0.855 for s, _ in pairs)
            body.append([
                f"{part}, {name}", f"{100 * np.nanmean(shares):.0f} %",
                f"{goal} of {len(pairs)}", f"{inside} of {len(pairs)}",
            ])  # fmt: skip
    return [heads, *body]


def odds_table(held: Sequence[HoldOut]) -> list[list[str]]:
    """Pairs of layouts of all hold-outs: stated odds that one is faster, and how often it was."""
    by_start: dict[float, list[dict[str, float]]] = {}
    for each in held:
        v = each.validation
        for line in odds_calibration(v.observed, v.prediction, v.pairs):
            by_start.setdefault(line["from"], []).append(line)
    body = []
    for start, lines in sorted(by_start.items()):
        pairs = np.array([line["pairs"] for line in lines])
        said, was = (np.average([x[k] for x in lines], weights=pairs) for k in ("said", "held"))
        body.append([
            f"from {100 * start:.0f} %", f"{pairs.sum():,}", f"{100 * said:.1f} %",
            f"{100 * was:.1f} %",
        ])  # fmt: skip
    return [["stated odds that one is faster", "pairs", "mean odds", "was faster"], *body]


def unheard_of(tasks: Sequence[tuple[Task, pa.Table]]) -> list[list[str]]:
    """Coverage of each table from data sheets, as if its software were unknown."""
    body = []
    for task, table in tasks:
        each = hold_out(task, unnamed(table))
        line = coverage_table([each])[1]
        body.append([line[0], *line[2:4], *line[5:]])
    return [["rows", "n", "MAPE", "step times covered", "ratios covered"], *body]


def narrow(tables: Mapping[str, pa.Table]) -> Iterator[tuple[str, Task]]:
    """Hold-outs that calibrate on one value of an axis, where others have more, and on few rows."""
    for name, table in tables.items():
        timed = np.flatnonzero(table["step_time_s"].is_valid().to_numpy())
        for axis in ("tp", "pp", "micro_batch_size"):
            values = sorted({*table[axis].take(timed).to_pylist()} - {None})
            for value in values if len(values) > 1 else ():
                task = Task(name=name, table=name, calibrate_where=f"{axis} = {value}")
                yield f"one {axis}", task
        for count in range(1, min(8, len(timed))):
            rows = np.random.default_rng(count).choice(timed, count, replace=False)
            where = f"row_index in ({', '.join(map(str, rows.tolist()))})"
            yield "1 to 7 rows", Task(name=name, table=name, calibrate_where=where)


def narrow_table(tables: Mapping[str, pa.Table]) -> list[list[str]]:
    """By kind of narrow hold-out: the mean errors, and the worst beside its data sheet."""
    by_kind: dict[str, list[tuple[float, float, str]]] = {}
    for kind, task in narrow(tables):
        each = hold_out(task, tables[task.table])
        mape = each.validation.overall.step_time["mape"]
        if mape is not None:
            where = f"{each.table}, `{task.calibrate_where}`"
            print(kind, where, f"{mape:.4f} {each.sheet_mape:.4f}", flush=True)
            by_kind.setdefault(kind, []).append((mape, each.sheet_mape, where))
    body = []
    for kind, some in by_kind.items():
        mapes, sheets = np.array([one[:2] for one in some]).T
        worst = int(np.argmax(mapes / sheets))
        body.append([
            kind, f"{len(some)}", f"{100 * mapes.mean():.1f} %", f"{100 * sheets.mean():.1f} %",
            f"{mapes[worst] / sheets[worst]:.2f}", some[worst][2],
            f"{100 * mapes[worst]:.1f} %", f"{100 * sheets[worst]:.1f} %",
        ])  # fmt: skip
    heads = ["calibrated on", "hold-outs", "MAPE", "data sheet", "worst ratio", "its rows"]
    return [[*heads, "its MAPE", "its data sheet"], *body]


def text_of(held: Sequence[HoldOut], first: int) -> str:
    """The tables in Markdown. The first `first` hold-outs are tasks of `validate`."""
    kinds = {
        "calibrated": [each for each in held[:first] if each.task.calibrate_where],
        "data sheets": [each for each in held[:first] if not each.task.calibrate_where],
        "more": held[first:],
    }
    tables = (coverage_table(held), tally(kinds), odds_table(kinds["calibrated"]))
    return "\n\n".join(map(markdown_of, tables))


def main() -> None:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--narrow", action="store_true")
    arguments = parser.parse_args()
    tasks = tasks_of(arguments.folder)
    tables = {task.table.removesuffix(".csv"): table for task, table in tasks}
    if arguments.narrow:
        print(markdown_of(narrow_table(tables)))
        return
    further = [
        (Task(name=name, table=name, calibrate_where=where), tables[name])
        for name, conditions in MORE.items()
        for where in conditions
    ]
    held = []
    for task, table in [*tasks, *further]:
        held.append(hold_out(task, table))
        print(*coverage_table(held[-1:])[1], flush=True)
    text = text_of(held, len(tasks))
    text += "\n\n" + markdown_of(unheard_of([one for one in tasks if not one[0].calibrate_where]))
    print(text)
    if arguments.write:
        TABLES.write(text)


if __name__ == "__main__":
    main()
