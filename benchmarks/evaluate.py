"""The accuracy of predictions on published tables, and what each mechanism is worth.

    python -m benchmarks.evaluate FOLDER [--ablate | --errors]
    python -m benchmarks.evaluate FOLDER --validation "WHY I LOOK"

Rules and constants are chosen on the development tables. The validation tables show whether they
hold on rows that nobody tuned to: each look is written into benchmarks/looks.md with its date,
commit, reason and result, and there are at most ten. Both lists were fixed before any change.

A task calibrates on some rows and predicts others. `unknown` predicts a table from data sheets as
if its software were unknown. Errors are percentages of |predicted / measured - 1|; regret is how
much slower the chosen layout is than the best of its setting.
"""

import argparse
import dataclasses
import datetime
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from scaling.cluster.hardware import Cluster
from scaling.importing.reader import Table, read_table
from scaling.predict.cost import communication, compute, links, risk, step
from scaling.predict.cost.interval import DATA_SHEETS
from scaling.predict.cost.model import predict
from scaling.predict.cost.stages import Stages
from scaling.predict.fit.calibrate import calibrate
from scaling.predict.fit.validation import Scores, validate
from scaling.predict.read.calibration import PARTS
from scaling.predict.read.features import Features, Group, Points
from scaling.predict.read.observed import Observed, observed_of
from scaling.predict.read.points import points_of
from scaling.record.conditions import rows_where
from scaling.study.load import load_clusters

LOOKS = Path(__file__).with_name("looks.md")
MOST_LOOKS = 10
CLUSTERS_OF_TABLES = "clusters_of_new_rows.yaml"
UNHEARD_OF = "unheard of"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Rows of `table` where `test`, predicted by a fit to the rows of `learn_from` where `fit`.

    Without `fit` data sheets predict. `learn_from` is the same table unless stated.
    """

    table: str
    fit: str | None = None
    test: str | None = None
    learn_from: str | None = None
    unknown: bool = False

    @property
    def name(self) -> str:
        """The name of its line."""
        by = "unknown software" if self.unknown else "data sheet"
        if self.fit is not None:
            by = f"{self.learn_from or ''} {'all rows' if self.fit == 'true' else self.fit}".strip()
        return f"{self.table}{f' ({self.test})' if self.test else ''}: {by}"


def _tasks(table: str, *fits: str | None, test: str | None = None) -> list[Task]:
    sheets = [Task(table=table, test=test), Task(table=table, test=test, unknown=True)]
    return sheets + [Task(table=table, fit=fit, test=test) for fit in fits]


_H100 = "cluster like 'h100%'"
DEVELOPMENT = (
    *_tasks(
        "llama_layouts_a100", "hash(row_index) % 2 = 0", "hash(row_index) % 8 = 1",
        "world_size < 128", "seq_length = 2048", "seq_length = 8192",
    ),
    *_tasks(
        "llama_layouts_h100", "hash(row_index) % 2 = 0", "world_size <= 32", "world_size <= 8",
        "model != 'nanotron-llama-3b'", "model != 'nanotron-llama-80b'",
    ),
    *_tasks(
        "gpt_layouts_a100", "hash(row_index) % 19 = 0", "world_size < 8", "hidden_size = 1024",
    ),
    *_tasks("mpt_zero3", "world_size <= 16", "cluster = 'a100-40gb-dgx'", "seq_length <= 2048"),
    *_tasks("modern_dgxc", "world_size <= 128", "hidden_size < 8000", "hash(row_index) % 4 = 0"),
    *_tasks("modern_megatron_bridge", test=_H100),
)  # fmt: skip
VALIDATION = (
    *_tasks("llama_layouts_h100_128"),
    Task(table="llama_layouts_h100_128", learn_from="llama_layouts_h100", fit="true"),
    *_tasks("gpt_layouts_a100_64"),
    Task(table="gpt_layouts_a100_64", learn_from="gpt_layouts_a100", fit="true"),
    *_tasks("modalities_fsdp_leonardo", "world_size <= 64"),
    *_tasks("internevo_7b_a100", "world_size <= 64"),
    *_tasks("kempner_h200_mfu"),
    *_tasks("modern_mlperf"),
    *_tasks("modern_megatron_bridge", test="cluster not like 'h100%'"),
)


class Tables:
    """The tables of a folder, read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clusters: dict[str, Cluster] = load_clusters()
        if (more := folder / CLUSTERS_OF_TABLES).is_file():
            self.clusters |= load_clusters(more)
        self._read: dict[tuple[str, bool], tuple[Table, Points, Observed]] = {}

    def points(self, name: str, unknown: bool) -> tuple[Table, Points, Observed]:
        """The rows, and what is known of them; of unknown software if asked."""
        if (name, unknown) not in self._read:
            table = read_table(self.folder / f"{name}.csv")
            if unknown:
                names = pa.array([UNHEARD_OF] * table.rows.num_rows)
                rows = table.rows.drop_columns(["framework"]).append_column("framework", names)
                table = dataclasses.replace(table, rows=rows)
            points = points_of(table, clusters=self.clusters)
            self._read[name, unknown] = table, points, observed_of(table)
        return self._read[name, unknown]

    def scores(self, task: Task) -> Scores:
        """Run a task."""
        table, points, observed = self.points(task.table, task.unknown)
        tested = rows_where(table.rows, task.test, task.table, "test")
        fitted, source = None, task.learn_from or task.table
        if task.fit is not None:
            from_table, *_ = self.points(source, unknown=False)
            fitted = rows_where(from_table.rows, task.fit, source, "fit")
            part = from_table.filter(fitted)
            of_part = points_of(part, clusters=self.clusters)
            calibration = calibrate(of_part, observed_of(part), source=source)
            if task.learn_from is None:
                tested = tested & ~fitted
        prediction = predict(points, None if task.fit is None else calibration)
        return validate(points, observed, prediction, tested)[0]


COLUMNS: Mapping[str, Callable[[Scores], float | int | None]] = {
    "MAPE": lambda s: s.step_time["mape"],
    "median": lambda s: s.step_time["median_ape"],
    "RMS": lambda s: s.step_time["rms"],
    "bias": lambda s: s.step_time["bias"],
    "rank": lambda s: s.step_time["rank_correlation"],
    "regret": lambda s: s.regret["mean"],
    "regret median": lambda s: s.regret["median"],
    "false fits": lambda s: s.memory["false_fit_rate"],
    "false OOM": lambda s: s.memory["false_oom_rate"],
    "fit accuracy": lambda s: s.memory["balanced_accuracy"],
    "steps covered": lambda s: s.coverage_80,
    "ratios covered": lambda s: s.coverage_80_ratios,
}


def cells_of(name: str, *scored: Scores) -> list[str]:
    """A line of the table: the means over these tasks, each with the same weight, in per cent."""
    cells = [name, str(sum(int(s.step_time["rows"] or 0) for s in scored))]
    for value_of in COLUMNS.values():
        known = [value for value in map(value_of, scored) if value is not None]
        cells.append(f"{100 * np.mean(known):.1f}" if known else "–")
    return cells


def markdown_of(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells, heads first."""
    heads, *body = cells
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *body))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Without:
    """How to turn a mechanism off: parameters, facts of the software, features, or code."""

    start: Mapping[str, float | Callable[[Mapping[str, float]], float]] = dataclasses.field(
        default_factory=dict
    )
    stack: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Mapping[str, float] = dataclasses.field(default_factory=dict)
    code: tuple[tuple[Any, str, Any], ...] = ()

    def of(self, points: Points) -> Points:
        """The same points without the mechanism."""
        return dataclasses.replace(points, groups=tuple(map(self._of_group, points.groups)))

    def _of_group(self, group: Group) -> Group:
        neutral = {
            name: value(group.start) if callable(value) else value
            for name, value in self.start.items()
        }
        arrays: dict[str, Any] = {
            name: np.full(len(group.features), value) for name, value in self.features.items()
        }
        return dataclasses.replace(
            group,
            start={**group.start, **neutral},
            stack=dataclasses.replace(group.stack, **self.stack),
            features=group.features.but(**arrays),
        )


def _none(*parts: Any, **_: Any) -> np.ndarray:
    """Zero seconds for each layout, whichever of `parts` are Features."""
    (f,) = (part for part in parts if isinstance(part, Features))
    return np.zeros(len(f))


def _data_sheet(group: Group, nodes: np.ndarray, efficiency: float) -> np.ndarray:
    """Bytes/s of a node's NICs whatever was measured."""
    return np.full(len(nodes), links.node_link(group) * efficiency)


def _equal(f: Features, _: object) -> Stages:
    each = f.num_layers / f.pp
    return Stages(each, each, each, f.pp > 1)


def _constant(module: Any, **values: float) -> Without:
    return Without(code=tuple((module, name, value) for name, value in values.items()))


MECHANISMS: Mapping[str, Without] = {
    "GEMM edge effects": Without(start={"gemm_half_size": 0.0}),
    "flash speed by GPU generation": Without(features={"flash_gain": 1.0}),
    "FlashAttention 1 slower than 2": _constant(compute, _FLASH1=1.0),
    "torch softmax slower than fused": _constant(compute, _MATH=1.0),
    "unfused norms slower than fused": Without(
        start={"norm_passes": lambda p: p["norm_passes_fused"]}
    ),
    "low-precision casts": Without(features={"cast_bytes": 0.0}),
    "passes over logits": _constant(compute, _LOGIT_PASSES=0.0),
    "optimizer update": Without(code=((step, "optimizer_seconds", _none),)),
    "kernel launches by the host": Without(
        start=dict.fromkeys(("host_layer_s", "host_collective_s"), 1e-9)
    ),
    "collective launches": Without(start={"host_collective_s": 1e-9}),
    "extra launch cost over EFA": Without(start={"host_transport_s": 0.0}),
    "host and GPU phases within a layer": _constant(step, _SHARPNESS=12.0),
    "tp overlap": Without(start={"tp_exposed": 1.0}),
    "tp latency": _constant(communication, TP_LATENCY_S=0.0),
    "tp latency across nodes": _constant(communication, _TP_NETWORK_LATENCY_S=0.0),
    "ring latency": _constant(links, RING_NODE_HOP_S=0.0, RING_LINK_HOP_S=0.0),
    "unequal pipeline stages": Without(code=((step, "stages_of", _equal),)),
    "messages between stages": Without(code=((communication, "_message", _none),)),
    "1F1B friction": _constant(step, _FRICTION=0.0),
    "jitter of nodes": _constant(step, _NODE_JITTER=0.0),
    "interleaved stages": Without(features={"virtual": 1.0}),
    "gradients reduced late": Without(stack={"reduces_late": False}),
    "gradient overlap": Without(start={"dp_exposed": 1.0}),
    "measured bus bandwidth": Without(
        code=(
            (communication, "tp_bus", _data_sheet),
            (communication, "ring_bus", _data_sheet),
            (links, "ring_bus", _data_sheet),
        )
    ),
    "pipeline stalls over EFA": _constant(risk, _EXPECTED=2.0),
    "stalls near full memory": Without(code=((step, "_allocator_stall_s", _none),)),
    "grouped GEMM edge effects": Without(start={"expert_half_size": lambda p: p["gemm_half_size"]}),
    "grouped GEMM efficiency": _constant(compute, _GROUPED=1.0),
    "token permutation": _constant(compute, _PASSES=0.0),
    "host waits for token counts": _constant(communication, _HOST_WAITS_S=0.0),
}


def worth(tables: Tables) -> Iterator[list[str]]:
    """The mean error of data sheets without each mechanism, in points above that with all."""
    yield ["without", "mean", "most", "least"]
    tasks = [task for task in DEVELOPMENT if task.fit is None]
    read = []
    for task in tasks:
        table, points, observed = tables.points(task.table, task.unknown)
        tested = rows_where(table.rows, task.test, task.table, "test") & observed.timed
        read.append((points, tested, observed.step_time_s))

    def mapes(without: Without) -> np.ndarray:
        with ExitStack() as patched:
            for place in without.code:
                patched.enter_context(mock.patch.object(*place))
            steps = [predict(without.of(points)).step_time_s for points, _, _ in read]
        return np.array([
            100 * np.nanmean(np.abs(step_s[tested] / measured[tested] - 1))
            for step_s, (_, tested, measured) in zip(steps, read, strict=True)
        ])  # fmt: skip

    before = mapes(Without())
    for name, without in MECHANISMS.items():
        change = mapes(without) - before
        ends = (f"{change[i]:+.1f} {tasks[i].name}" for i in (change.argmax(), change.argmin()))
        yield [name, f"{change.mean():+.2f}", *ends]


# Choices of a layout at any size, and what its errors are common to.
_LAYOUT = (
    "tp", "pp", "cp", "ep", "zero_stage", "micro_batch_size", "seq_length", "full", "selective",
    "math", "flash1", "sequence_parallel", "fused_norm", "virtual",
)  # fmt: skip
_MOST_ERROR = 0.5  # of ln(step time): beyond lie stalls
_MOST_ROWS = 1500  # of a table: pairs are counted


def learned_parts(tables: Tables) -> Iterator[list[str]]:
    """The four parts of the error of data sheets, of known and of unknown software.

    Moments of ln(measured / predicted), the mean over tables, each with the same weight. Errors of
    two rows of a model that share neither layout nor size have the product common^2 on average; of
    one layout at two sizes common^2 + layout^2, of one size common^2 + size^2. The rest of a
    row's square is the rest. Layout and rest are those of a plain layout (interval.py).
    """
    yield ["software", *PARTS]
    for unknown in (False, True):
        tasks = [task for task in DEVELOPMENT if task.fit is None and task.unknown == unknown]
        squares = np.nanmean([_squares(tables, task) for task in tasks], axis=0)
        yield ["unknown" if unknown else "known", *(f"{value**0.5:.3f}" for value in squares)]


def _squares(tables: Tables, task: Task) -> list[float]:
    """The squares of PARTS on one table, NaN where no two rows tell."""
    table, points, observed = tables.points(task.table, task.unknown)
    prediction = predict(points)
    tested = rows_where(table.rows, task.test, task.table, "test")
    rows = np.flatnonzero(tested & observed.timed & prediction.predicted)
    if len(rows) > _MOST_ROWS:
        rows = np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False)
    choices = np.full((len(points), len(_LAYOUT)), np.nan)
    for group in points.groups:
        features = [getattr(group.features, name) for name in _LAYOUT]
        choices[group.rows] = np.stack(features, axis=1)
    off = np.log(observed.step_time_s / prediction.step_time_s)[rows]
    off = np.clip(off, -_MOST_ERROR, _MOST_ERROR)
    sheets = DATA_SHEETS[not task.unknown]
    factor = prediction.layout_sigma[rows] / sheets["layout"]

    def same(values: np.ndarray) -> np.ndarray:
        return values[rows][:, None] == values[rows]

    alike = same(points.framework) & same(points.cluster) & same(points.model)
    layout, size = same(np.unique(choices, axis=0, return_inverse=True)[1]), same(points.world_size)

    def mean(values: np.ndarray, pairs: np.ndarray) -> float:
        return float(values[pairs].mean()) if pairs.sum() > len(rows) / 10 else np.nan

    products, factors = np.outer(off, off), np.outer(factor, factor)
    common = mean(products, alike & ~layout & ~size)
    at_sizes = alike & layout & ~size
    of_layout = (mean(products, at_sizes) - common) / mean(factors, at_sizes)
    of_size = mean(products, alike & ~layout & size) - common
    left = (off**2).mean() - np.nansum([common, of_size])
    return [common, of_layout, of_size, left / (factor**2).mean() - np.nansum(of_layout)]


def evaluated(tables: Tables, tasks: Sequence[Task], *, show: bool = True) -> str:
    """The table of all tasks and their mean, as Markdown."""
    scored, lines = [], [["task", "rows", *COLUMNS]]
    for task in tasks:
        scored.append(tables.scores(task))
        lines.append(cells_of(task.name, scored[-1]))
        if show:
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    lines.append(cells_of("mean", *scored))
    return markdown_of(lines)


def looked(tables: Tables, why: str) -> str:
    """The validation table, once it is logged that somebody looks."""
    text = LOOKS.read_text(encoding="utf-8") if LOOKS.exists() else "# Looks at validation tables\n"
    number = text.count("\n## ") + 1
    if number > MOST_LOOKS:
        sys.exit(f"{LOOKS}: {MOST_LOOKS} looks are over")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
    ).stdout.strip()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    LOOKS.write_text(f"{text}\n## {number}. {now} at {commit}: {why}\n", encoding="utf-8")
    result = evaluated(tables, VALIDATION)
    with LOOKS.open("a", encoding="utf-8") as file:
        file.write(f"\n{result}\n")
    return result


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="tables as CSV")
    parser.add_argument("--validation", metavar="WHY", help="look at the validation tables")
    parser.add_argument(
        "--errors", action="store_true", help="learn the parts of data sheets' error"
    )
    parser.add_argument("--ablate", action="store_true", help="what each mechanism is worth")
    parser.add_argument("--only", default="", help="development tables whose name contains this")
    parser.add_argument("--sheets", action="store_true", help="only tasks without a calibration")
    asked = parser.parse_args()
    tables = Tables(asked.folder)
    if asked.validation:
        print(looked(tables, asked.validation))
    elif asked.errors:
        print(markdown_of(list(learned_parts(tables))))
    elif asked.ablate:
        print(markdown_of(list(worth(tables))))
    else:
        tasks = [task for task in DEVELOPMENT if asked.only in task.table]
        tasks = [task for task in tasks if not (asked.sheets and task.fit)]
        print(evaluated(tables, tasks))


if __name__ == "__main__":
    main()
