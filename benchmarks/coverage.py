"""How often 80 % intervals and odds hold, hold-out by hold-out, and what would hold more often.

    python -m benchmarks.coverage FOLDER [--write]

Of the tables in FOLDER that `scaling validate FOLDER --published` knows, in Markdown, and with
--write between the marks of docs/prediction.md:

- every hold-out: the share of step times and of ratios inside, and between what right intervals of
  as many rows, as much alike, would lie 8 times in 10;
- pairs by how sure it was said that one is faster, and how many were;
- tables predicted as if their software were unheard of;
- a judgement that no table has of itself: intervals times what the other tables would have needed
  to hold 80 % (of all their hold-outs, or of those of the same kind), on these hold-outs and more
  of the same tables.

Five minutes on a quiet core, half an hour on a busy one.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.accuracy import Marked, markdown_of
from benchmarks.held_out import unnamed
from scaling.foreign.reading import read_table
from scaling.predict.cost.ratios import ratio_sigma
from scaling.predict.fit.accuracy import Task, covered, tasks_of
from scaling.predict.fit.coverage import odds_held
from scaling.predict.fit.trial import trial
from scaling.predict.fit.validation import Validation
from scaling.predict.read.calibration import EIGHTY
from scaling.study.catalogues import load_clusters

TABLES = Marked("<!-- coverage of the tables of others -->", "<!-- end of coverage -->")

# More hold-outs of the same tables, for the last judgement alone.
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
        "zero_stage = 0", "pp = 1", "tp = 1",
    ),
    "mpt_zero3": (
        "world_size <= 8", "cluster = 'a100-80gb-dgx'", "hash(row_index) % 4 = 0",
        "hash(row_index) % 8 = 0", "seq_length <= 2048", "activation_checkpointing = 'full'",
        "model = 'mpt-3b'", "model = 'mpt-760m'",
    ),
    "modern_dgxc": (
        "world_size <= 64", "hash(row_index) % 2 = 0", "hash(row_index) % 4 = 0",
        "precision = 'bf16'", "model like '%8b%'",
    ),
    "modern_megatron_bridge": ("num_experts = 0", "hash(row_index) % 2 = 0"),
}  # fmt: skip
KINDS = {"hash": "sample", "world": "size", "seq": "length", "model": "model", "hidden": "width"}


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """One hold-out: what its errors are of their intervals' half widths, (n,) each."""

    task: Task
    validation: Validation
    steps: np.ndarray
    ratios: np.ndarray
    weight: np.ndarray  # of each ratio

    @property
    def table(self) -> str:
        """The table's name."""
        return self.task.table.removesuffix(".csv")

    @property
    def kind(self) -> str:
        """What is new in the rows tested."""
        where = self.task.calibrate_where or ""
        return next((kind for start, kind in KINDS.items() if where.startswith(start)), "layout")

    @property
    def factors(self) -> tuple[float, float]:
        """By what intervals of steps and of ratios would have to be multiplied to hold 80 %."""
        if not self.ratios.size:
            return float(np.quantile(self.steps, 0.8)), np.nan
        ratios = np.quantile(self.ratios, 0.8, weights=self.weight, method="inverted_cdf")
        return float(np.quantile(self.steps, 0.8)), float(ratios)

    def coverage(self, factors: tuple[float, float] = (1.0, 1.0)) -> tuple[float, float]:
        """Shares of steps and of ratios inside intervals times `factors`."""
        ratios = (self.weight * (self.ratios <= factors[1])).sum() / max(self.weight.sum(), 1e-9)
        return float((self.steps <= factors[0]).mean()), ratios if self.ratios.size else np.nan


def hold_out(task: Task, table: pa.Table) -> HoldOut:
    """Run one."""
    v = trial(table, task.table, calibrate_where=task.calibrate_where, clusters=load_clusters())
    rows = v.tested & v.prediction.predicted & v.observed.timed
    off = np.log(v.observed.step_time_s / v.prediction.step_time_s)
    ends = np.where(off > 0, v.prediction.high, v.prediction.low)
    a, b, own = v.pairs.a, v.pairs.b, v.prediction.own_sigma
    return HoldOut(
        task=task,
        validation=v,
        steps=(off / np.log(ends / v.prediction.step_time_s))[rows],
        ratios=np.abs(off[a] - off[b]) / (EIGHTY * ratio_sigma(own[a], own[b])),
        weight=v.pairs.weight,
    )


def coverage_table(held: Sequence[HoldOut]) -> list[list[str]]:
    """Every hold-out, and how many lie where they should."""
    heads = ["rows", "calibrated on", "n", "step times covered", "ratios covered"]
    body = []
    for each in held:
        where, scores = each.task.calibrate_where, each.validation.overall
        expected = each.validation.expected_80
        body.append([
            each.table, f"`{where}`" if where else "data sheets", str(len(each.steps)),
            covered(scores.coverage_80, expected["steps"]),
            covered(scores.coverage_80_ratios, expected["ratios"]),
        ])  # fmt: skip
    return [heads, *body]


def tally(held: Sequence[HoldOut]) -> list[list[str]]:
    """How many hold-outs lie in the goal, and where right intervals would."""
    heads = ["of hold-outs", "mean", "75 to 85 %", "where right ones are 8 times in 10"]
    body = []
    for name, which in (("calibrated", True), ("data sheets", False)):
        some = [each for each in held if (each.task.calibrate_where is not None) == which]
        for place, part in enumerate(("steps", "ratios")):
            shares = np.array([each.coverage()[place] for each in some])
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
    """Pairs of all hold-outs by how sure it was said that one is faster."""
    by_start: dict[float, list[dict[str, float]]] = {}
    for each in held:
        v = each.validation
        for line in odds_held(v.observed, v.prediction, v.pairs):
            by_start.setdefault(line["from"], []).append(line)
    body = []
    for start, lines in sorted(by_start.items()):
        pairs = np.array([line["pairs"] for line in lines])
        said, was = (np.average([x[k] for x in lines], weights=pairs) for k in ("said", "held"))
        body.append([
            f"from {100 * start:.0f} %", f"{pairs.sum():,}", f"{100 * said:.1f} %",
            f"{100 * was:.1f} %",
        ])  # fmt: skip
    return [["said that one is faster", "pairs", "said, mean", "was faster"], *body]


def unheard_of(tasks: Sequence[tuple[Task, pa.Table]]) -> list[list[str]]:
    """Tables from data sheets as if nothing were known of their software."""
    body = []
    for task, table in tasks:
        if task.calibrate_where is None:
            each = hold_out(task, unnamed(table))
            body.append([each.table, *coverage_table([each])[1][2:]])
    return [["rows", "n", "step times covered", "ratios covered"], *body]


def judged_by_others(held: Sequence[HoldOut]) -> list[list[str]]:
    """Intervals times what hold-outs of other tables would have needed."""

    def middle(those: Sequence[HoldOut]) -> tuple[float, float]:
        every = np.array([each.factors for each in those]).reshape(-1, 2)
        return tuple(
            float(np.median(c[np.isfinite(c)])) if np.isfinite(c).any() else 1.0 for c in every.T
        )

    def half_way(those: Sequence[HoldOut]) -> tuple[float, float]:
        steps, ratios = middle(those)
        return steps**0.5, ratios**0.5

    def others(each: HoldOut, same_kind: bool) -> list[HoldOut]:
        return [o for o in held if o.table != each.table and (o.kind == each.kind or not same_kind)]

    ways: dict[str, Callable[[HoldOut], tuple[float, float]]] = {
        "as they are": lambda each: (1.0, 1.0),
        "times the middle of other tables": lambda each: middle(others(each, False)),
        "of their hold-outs of the same kind": lambda each: middle(others(each, True)),
        "the root of that": lambda each: half_way(others(each, True)),
    }
    body = []
    for name, way in ways.items():
        shares = np.array([each.coverage(way(each)) for each in held])
        off = np.abs(shares - 0.8)
        body.append([
            name,
            *(f"{100 * np.nanmean(c):.0f} %, {100 * np.nanmean(o):.1f}, "
              f"{(o <= 0.055).sum()} of {np.isfinite(o).sum()}"
              for c, o in zip(shares.T, off.T, strict=True)),
        ])  # fmt: skip
    return [["intervals", "steps: mean, points off 80, in the goal", "ratios"], *body]


def main() -> None:
    """Print the tables; put them between the marks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    tasks = tasks_of(arguments.folder)
    held = []
    for task, table in tasks:
        held.append(hold_out(task, table))
        print(*coverage_table(held[-1:])[1], flush=True)
    calibrated = [each for each in held if each.task.calibrate_where is not None]
    more = []
    for name, conditions in MORE.items():
        table = read_table(arguments.folder / f"{name}.csv")
        for where in conditions:
            more.append(hold_out(Task(name=name, table=name, calibrate_where=where), table))
            print(*coverage_table(more[-1:])[1], flush=True)
    text = "\n\n".join(
        markdown_of(cells)
        for cells in (
            coverage_table(held), tally(held), odds_table(calibrated), unheard_of(tasks),
            judged_by_others([*calibrated, *more]),
        )
    )  # fmt: skip
    print(text)
    if arguments.write:
        TABLES.write(text)


if __name__ == "__main__":
    main()
