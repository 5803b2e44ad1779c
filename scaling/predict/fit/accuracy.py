"""The accuracy table: scores on tasks of published rows, beside those of simpler baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.cluster.hardware import Cluster
from scaling.errors import InputError
from scaling.foreign.arrays import Flags, Floats
from scaling.foreign.reading import read_table
from scaling.layout.shapes import ModelShape
from scaling.predict.cost.model import predict
from scaling.predict.fit.baselines import (
    boosted_trees,
    neighbour_scaled,
    rule_regrets,
    trees_available,
)
from scaling.predict.fit.coverage import Expected
from scaling.predict.fit.rivals import regrets_of
from scaling.predict.fit.trial import trial
from scaling.predict.fit.validation import Scores, Validation
from scaling.published.table import published_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Rows to predict, and rows to calibrate on first (None: data sheets alone)."""

    name: str
    table: str
    calibrate_where: str | None = None
    test_where: str | None = None


# Tasks on the shipped rows, by their column `table`.
SHIPPED = (
    Task(name="DGX Cloud, H100, data sheets", table="dgxc"),
    Task(name="DGX Cloud, to 128 GPUs -> from 1,024", table="dgxc",
         calibrate_where="world_size <= 128", test_where="world_size >= 1024"),
    Task(name="MLPerf, data sheets", table="mlperf"),
    Task(name="Megatron-Bridge, dense, data sheets", table="megatron_bridge",
         test_where="num_experts = 0"),
    Task(name="Megatron-Bridge, experts, data sheets", table="megatron_bridge",
         test_where="num_experts > 0"),
    Task(name="Megatron-Bridge, releases to 26.04.01 -> later", table="megatron_bridge",
         calibrate_where="release < '26.06'"),
    Task(name="Automodel FSDP2, H100, data sheets", table="fsdp2"),
    Task(name="MoE ModelZoo, H100, data sheets", table="moe_zoo"),
)  # fmt: skip

# Conditions to calibrate on for the tables of a folder, by file name; None: data sheets.
FOLDER_TASKS = {
    "llama_layouts_a100": (
        None, "hash(row_index) % 2 = 0", "hash(row_index) % 2 = 1", "world_size < 128",
        "seq_length = 2048", "seq_length = 8192",
    ),
    "gpt_layouts_a100": (
        None, "hash(row_index) % 19 = 0", "hash(row_index) % 19 = 1", "hash(row_index) % 19 = 2",
        "world_size < 8", "hidden_size = 1024",
    ),
    "llama_layouts_h100": (
        None, "hash(row_index) % 2 = 0", "world_size <= 32", "world_size <= 16",
        "model != 'nanotron-llama-3b'", "model != 'nanotron-llama-8b'",
        "model != 'nanotron-llama-80b'",
    ),
    "mpt_zero3": (None, "world_size <= 16", "cluster = 'a100-40gb-dgx'"),
    "modern_dgxc": (None, "world_size <= 128"),
    "modern_megatron_bridge": (None, "release < '26.06'", "cluster like 'h100%'"),
    "modern_mlperf": (None, "cluster like 'h100%'"),
    "megatron_papers": (None,),
}  # fmt: skip
# For other tables: data sheets, and one half from the other if there are enough rows.
_ANY: tuple[str | None, ...] = (None, "hash(row_index) % 2 = 0")
_FEWEST_TO_HALVE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Errors of a simpler method on the same rows, None where it predicts nothing."""

    mape: float | None
    regret: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One line of the table."""

    task: Task
    scores: Scores
    expected_80: Expected
    calibrated_rows: int
    set_aside: int  # rows that cannot be predicted
    baselines: Mapping[str, Baseline]

    def to_dict(self) -> dict[str, Any]:
        """The JSON record."""
        return {
            "task": self.task.name,
            "table": self.task.table,
            "calibrate_where": self.task.calibrate_where,
            "test_where": self.task.test_where,
            "calibrated_rows": self.calibrated_rows,
            "set_aside": self.set_aside,
            **asdict(self.scores),
            "expected_80": self.expected_80,
            "baselines": {name: asdict(one) for name, one in self.baselines.items()},
        }


def shipped_tasks() -> list[tuple[Task, pa.Table]]:
    """The tasks on shipped rows, with their rows."""
    table = published_table()
    names = np.array(table["table"].to_pylist())
    return [(task, table.filter(pa.array(names == task.table))) for task in SHIPPED]


def tasks_of(path: Path) -> list[tuple[Task, pa.Table]]:
    """The tasks on a table, or on every CSV of a folder that uses the project's column names.

    Raises:
        InputError: a file is no table, or a folder has none.
    """
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: holds no *.csv; give a table, or a folder of tables")
    tasks = []
    for file in files:
        table = read_table(file)
        if path.is_dir() and not {"step_time_s", "cluster"} <= set(table.column_names):
            continue  # raw exports, in their own column names
        any_table = _ANY if table.num_rows >= _FEWEST_TO_HALVE else _ANY[:1]
        for where in FOLDER_TASKS.get(file.stem, any_table):
            name = f"{file.stem}: " + (f"calibrated on {where}" if where else "data sheets")
            tasks.append((Task(name=name, table=file.name, calibrate_where=where), table))
    return tasks


def accuracy_of(
    task: Task,
    table: pa.Table,
    *,
    models: Mapping[str, ModelShape] | None = None,
    clusters: Mapping[str, Cluster] | None = None,
) -> Accuracy:
    """Score one task, and the baselines on the same rows.

    Raises:
        InputError: the table is none, or a condition leaves nothing to test.
    """
    validation = trial(
        table,
        task.table,
        calibrate_where=task.calibrate_where,
        test_where=task.test_where,
        models=models,
        clusters=clusters,
    )
    wanted = validation.tested & validation.prediction.predicted
    return Accuracy(
        task=task,
        scores=validation.overall,
        expected_80=validation.expected_80,
        calibrated_rows=validation.calibrated_rows,
        set_aside=int((validation.tested & ~validation.prediction.predicted).sum()),
        baselines=_baselines(validation, wanted & validation.observed.timed),
    )


def _baselines(validation: Validation, timed: Flags) -> dict[str, Baseline]:
    points, observed, settings = validation.points, validation.observed, validation.settings
    sheets = predict(points, None)
    order = np.where(sheets.likely_oom, np.inf, sheets.risk_adjusted_s)

    def scored(step_s: Floats, ranked: Floats) -> Baseline:
        if not np.isfinite(step_s[timed]).any():
            return Baseline(mape=None, regret=None)
        off = np.abs(step_s[timed] / observed.step_time_s[timed] - 1)
        regrets = regrets_of(settings, lambda rows: np.argsort(ranked[rows], kind="stable")[:1])
        return Baseline(
            mape=float(np.nanmean(off)), regret=float(np.mean(regrets)) if regrets else None
        )

    baselines = {"data sheet": scored(sheets.step_time_s, order)}
    neighbour = neighbour_scaled(points, observed, validation.fitted, timed)
    baselines["nearest neighbour"] = scored(neighbour, neighbour)
    if trees_available():
        trees = boosted_trees(points, observed, validation.fitted, timed)
        baselines["trees"] = scored(trees, trees)
    rule = rule_regrets(points, settings)
    baselines["rule"] = Baseline(mape=None, regret=float(np.mean(rule)) if rule else None)
    return baselines


def table_of(lines: Sequence[Accuracy]) -> list[list[str]]:
    """The table as text, headings first: what the terminal and docs/prediction_accuracy.md show."""
    heads = [
        "task", "rows", "MAPE", "median", "RMS", "bias", "rank", "regret", "top 3",
        "false fits", "false OOM", "fit accuracy", "steps covered", "ratios covered",
    ]  # fmt: skip
    body = []
    for line in lines:
        s, m, r = line.scores.step_time, line.scores.memory, line.scores.regret
        rank = s["rank_correlation"]
        body.append(
            [
                line.task.name,
                f"{s['rows']:.0f}",
                *(_percent(s[name]) for name in ("mape", "median_ape", "rms", "bias")),
                "–" if rank is None else f"{rank:.2f}",
                *(_percent(r[name]) for name in ("mean", "top3_mean")),
                *(
                    _percent(m[name])
                    for name in ("false_fit_rate", "false_oom_rate", "balanced_accuracy")
                ),
                covered(line.scores.coverage_80, line.expected_80["steps"]),
                covered(line.scores.coverage_80_ratios, line.expected_80["ratios"]),
            ]
        )
    return [heads, *body]


def baseline_table_of(lines: Sequence[Accuracy]) -> list[list[str]]:
    """MAPE / regret of the model and of each baseline."""
    names = list(dict.fromkeys(name for line in lines for name in line.baselines))
    rows = []
    for line in lines:
        own = Baseline(
            mape=line.scores.step_time["mape"],
            regret=None if (mean := line.scores.regret["mean"]) is None else float(mean),
        )
        cells = [own, *(line.baselines.get(name) for name in names)]
        rows.append([line.task.name, *(_both(cell) for cell in cells)])
    return [["MAPE / regret", "this model", *names], *rows]


def _both(one: Baseline | None) -> str:
    if one is None:
        return "–"
    return f"{_percent(one.mape)} / {_percent(one.regret)}"


def covered(share: float | None, expected: list[float] | None) -> str:
    """A covered share, with the range that correct intervals would have 8 times in 10."""
    if share is None or expected is None:
        return "–"
    low, high = (f"{100 * end:.0f}" for end in expected)
    return f"{_percent(share, 0)} ({low} to {high})"


def _percent(value: float | int | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"
