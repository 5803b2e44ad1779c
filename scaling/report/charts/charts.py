"""The charts of the report, by name.

A chart names the tables it reads (`alt.NamedData`); the page and the SVG export hand them over. The
caption of chart `name` is reports/captions/<name>.md. To add one: a function, its line here, its
caption, and a `<figure data-chart="name">` in the page.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from scaling.report.charts.cost import cost_hours, cost_money
from scaling.report.charts.effects import factor_effects, interactions
from scaling.report.charts.fabric import (
    collectives,
    communication_axis,
    communication_kind,
    gemm_rates,
)
from scaling.report.charts.layouts import layout_ranking, memory
from scaling.report.charts.levels import (
    batch_precision,
    best_mfu,
    best_rate,
    model_parallel,
    model_parallel_exposed,
    tensor_parallel,
    zero_memory,
    zero_steps,
)
from scaling.report.charts.order import crossovers, layout_map
from scaling.report.charts.parts import (
    memory_fit,
    memory_parts,
    predicted_against_measured,
    time_split,
)
from scaling.report.charts.peers import (
    context_length,
    generations_mfu,
    generations_rate,
    model_sizes,
)
from scaling.report.charts.power import power, tokens_per_joule
from scaling.report.charts.returns import (
    efficiency,
    marginal_dollar,
    marginal_return,
    marginal_watt,
    scaling_law,
)
from scaling.report.charts.sizes import flop_rate, mfu, throughput, throughput_per_gpu

_NO_ENERGY = "energy was not measured."
_NOT_PROFILED = "no step was profiled with communication in it."
_NO_PROBE = "no probe of this cluster has left data in this study."
_NO_PREDICTION = "scaling predict has written no predictions.parquet for this study."


@dataclass(frozen=True, slots=True)
class Chart:
    """What the page must know about a chart.

    `table` is the one behind it, in which `needs` names the column without whose values the chart
    is empty; where a table holds the rows of several charts, those count whose columns have a value
    of `where`. A chart `per_size` shows one GPU count, which the reader chooses. Of two charts that
    say the same in two ways, one is drawn `unless` the table has the other's column. A chart with
    `panel` is drawn once for each value of that column; `model`: for each model of the study on the
    chosen cluster. `missing` is the line that says why it is left out where it is empty; one that
    is `optional` is then left out with its place, and the line stands in a list at the end.
    """

    build: Callable[[], alt.LayerChart]
    table: str
    needs: str
    per_size: bool = False
    unless: str | None = None
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    panel: str | None = None
    optional: bool = False
    missing: str = "no point of this selection has this value."

    @property
    def name(self) -> str:
        """Of the chart, its caption, its SVG file."""
        return self.build.__name__


CHARTS: dict[str, Chart] = {
    one.name: one
    for one in (
        Chart(throughput, "best", "tokens_per_s"),
        Chart(throughput_per_gpu, "best", "tokens_per_s"),
        Chart(crossovers, "contenders", "share_of_best"),
        Chart(mfu, "contenders", "mfu"),
        Chart(flop_rate, "contenders", "model_flop_per_s_per_gpu", unless="mfu"),
        Chart(marginal_return, "returns", "marginal_tokens_per_s"),
        Chart(
            marginal_watt, "returns", "per_watt",
            missing="neither energy was measured nor does a data sheet state this device's power.",
        ),
        Chart(
            marginal_dollar, "returns", "per_usd",
            missing="config/clusters.yaml gives no usd_per_gpu_hour for this cluster.",
        ),
        Chart(efficiency, "best", "efficiency"),
        Chart(
            scaling_law, "law_curves", "tokens_per_s",
            missing="a law is fitted where at least four sizes ran.",
        ),
        Chart(layout_map, "map", "tp", per_size=True),
        Chart(layout_ranking, "contenders", "layout_name", per_size=True),
        Chart(memory, "contenders", "peak_memory_bytes", per_size=True),
        Chart(memory_parts, "memory_parts", "bytes", per_size=True, missing=_NO_PREDICTION),
        Chart(
            memory_fit, "statistics", "predicted_memory_bytes", where={"outcome": ("ok", "oom")},
            missing="no point that ran, or ran out of memory, has a prediction.",
        ),
        Chart(
            time_split, "time_split", "seconds",
            missing="no step was profiled, and there is no prediction of it.",
        ),
        Chart(
            predicted_against_measured, "statistics", "predicted_tokens_per_s",
            where={"outcome": ("ok",)}, missing="no point that ran has a prediction.",
        ),
        Chart(cost_money, "costs", "usd_per_token"),
        Chart(cost_hours, "costs", "gpu_hours_per_token", unless="usd_per_token"),
        Chart(
            factor_effects, "effects", "mean_ratio",
            missing="no two layouts that ran differ in one choice only.",
        ),
        Chart(
            interactions, "interactions", "mean_ratio", where={"shown": (True,)}, optional=True,
            missing="no choice has three matched pairs at every level of another one.",
        ),
        Chart(
            best_mfu, "levels", "mfu", per_size=True, where={"compared": (True,)}, optional=True,
            missing="no axis has two levels at this size.",
        ),
        Chart(
            best_rate, "levels", "tokens_per_s_per_gpu", per_size=True, unless="mfu",
            where={"compared": (True,)}, optional=True,
            missing="no axis has two levels at this size.",
        ),
        Chart(
            tensor_parallel, "levels", "tokens_per_s", where={"axis": ("tp",)}, optional=True,
            missing="tp has one value in this study.",
        ),
        Chart(
            model_parallel, "map", "tokens_per_s_per_gpu", per_size=True, optional=True,
            missing="nothing ran at this size.",
        ),
        Chart(
            model_parallel_exposed, "map", "exposed_comm_s", per_size=True, optional=True,
            missing="no step was profiled at this size.",
        ),
        Chart(
            batch_precision, "batches", "tokens_per_s", per_size=True, optional=True,
            missing="one micro-batch in one precision is all that ran at this size.",
        ),
        Chart(
            zero_steps, "levels", "step_time_s", where={"axis": ("ZeRO",)}, panel="model",
            optional=True, missing="zero_stage has one value in this study.",
        ),
        Chart(
            zero_memory, "levels", "least_memory_bytes", where={"axis": ("ZeRO",)}, optional=True,
            missing="zero_stage has one value, or no peak of memory was measured.",
        ),
        Chart(tokens_per_joule, "best", "tokens_per_joule", optional=True, missing=_NO_ENERGY),
        Chart(power, "best", "power_per_gpu_w", optional=True, missing=_NO_ENERGY),
        Chart(
            communication_kind, "communication", "seconds", where={"split": ("kind",)},
            optional=True, missing=_NOT_PROFILED,
        ),
        Chart(
            communication_axis, "communication", "seconds", where={"split": ("axis",)},
            optional=True, missing=_NOT_PROFILED,
        ),
        Chart(
            generations_mfu, "peers", "mfu", where={"dimension": ("cluster",)}, optional=True,
            missing="no layout of this model and batch ran on two clusters.",
        ),
        Chart(
            generations_rate, "peers", "tokens_per_s_per_gpu", where={"dimension": ("cluster",)},
            optional=True, missing="no layout of this model and batch ran on two clusters.",
        ),
        Chart(
            model_sizes, "peers", "mfu", where={"dimension": ("model",)}, per_size=True,
            optional=True, missing="no two models of this cluster and batch have an MFU.",
        ),
        Chart(
            context_length, "peers", "mfu", where={"dimension": ("context",)}, per_size=True,
            optional=True, missing="this model has an MFU at one seq_length only.",
        ),
        Chart(
            collectives, "collectives", "bus_bytes_per_s", panel="kind", optional=True,
            missing=_NO_PROBE,
        ),
        Chart(gemm_rates, "gemms", "flop_per_s", optional=True, missing=_NO_PROBE),
    )
}  # fmt: skip
