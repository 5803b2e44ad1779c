"""The charts of the report, by name.

A chart names the tables it reads (`alt.NamedData`); the page and the SVG export hand them over. The
caption of chart `name` is reports/captions/<name>.md. To add one: a function, its line here and its
caption; docs/report.md says which question each answers that no other does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from scaling.report.charts.effects import factor_effects
from scaling.report.charts.layouts import layout_map, layout_ranking
from scaling.report.charts.memory import memory, memory_time
from scaling.report.charts.returns import cost, marginal_return, marginal_watt, scaling_law
from scaling.report.charts.sizes import (
    generations,
    prediction_error,
    throughput,
    throughput_per_gpu,
)
from scaling.report.charts.steps import collectives, communication, gemm_rates, step_bounds

_NO_PROBE = "no probe of this cluster has left data in this study."
_ONE_SIZE = "it needs two sizes that ran."


@dataclass(frozen=True, slots=True)
class Chart:
    """What the page must know about a chart.

    `section` is the place on the page that shows it, whose sentence is its title. `table` is the
    one behind it; a row counts if one of the columns `needs` has a value and the columns of `where`
    have one of theirs. Of the columns `over` together there must be two different values, or the
    chart has one tick. A chart `per_size` shows one GPU count, which the reader chooses. A chart
    with `panel` is drawn once for each value of that column. `missing` says why a chart that has
    nothing to draw is not shown.
    """

    build: Callable[[], alt.LayerChart]
    section: str
    table: str
    needs: tuple[str, ...]
    per_size: bool = False
    over: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    panel: str | None = None
    missing: str = "no point of this selection has this value."

    @property
    def name(self) -> str:
        """Of the chart, its caption, its SVG file."""
        return self.build.__name__


CHARTS: dict[str, Chart] = {
    one.name: one
    for one in (
        Chart(
            throughput, "throughput", "best", ("tokens_per_s",), over=("world_size",),
            missing=_ONE_SIZE,
        ),
        Chart(
            throughput_per_gpu, "throughput", "best", ("tokens_per_s",), over=("world_size",),
            missing=_ONE_SIZE,
        ),
        Chart(
            marginal_return, "returns", "returns", ("marginal_tokens_per_s",),
            over=("to_world_size",),
            missing="it needs two steps; what one step returns stands in the decision.",
        ),
        Chart(
            scaling_law, "returns", "law_curves", ("tokens_per_s",),
            missing="a law is fitted where at least four sizes ran.",
        ),
        Chart(
            marginal_watt, "returns", "returns", ("per_watt",), where={"watt_from": ("measured",)},
            missing="energy was not measured at two sizes.",
        ),
        Chart(
            memory_time, "memory", "contenders", ("peak_memory_bytes", "predicted_memory_bytes"),
            per_size=True, where={"outcome": ("ok",)}, over=("step_time_s",),
            missing="it needs two layouts of a size with a time and a memory.",
        ),
        Chart(
            memory, "memory", "contenders", ("peak_memory_bytes", "predicted_memory_bytes"),
            per_size=True, missing="no memory was measured or predicted.",
        ),
        Chart(
            step_bounds, "time", "time_split", ("seconds",),
            missing="no step was profiled, and there is no prediction of it.",
        ),
        Chart(
            communication, "time", "communication", ("seconds",), where={"split": ("axis",)},
            missing="no step was profiled with communication in it.",
        ),
        Chart(
            layout_map, "layouts", "map", ("tp",), per_size=True, over=("tp", "pp"),
            missing="tp and pp have one value each.",
        ),
        Chart(
            layout_ranking, "layouts", "contenders", ("layout_name",), per_size=True,
            over=("layout_name",), missing="no size has two layouts.",
        ),
        Chart(
            factor_effects, "effects", "effects", ("mean_ratio",), where={"shown": (True,)},
            missing="no two layouts that ran differ in one choice only.",
        ),
        Chart(
            cost, "cost", "costs", ("gpu_hours_per_token",), over=("world_size",),
            missing=_ONE_SIZE,
        ),
        Chart(
            prediction_error, "accuracy", "statistics", ("predicted_tokens_per_s",),
            where={"outcome": ("ok",)}, missing="no point that ran has a prediction.",
        ),
        Chart(
            generations, "peers", "peers", ("tokens_per_s_per_gpu",), over=("cluster",),
            where={"dimension": ("cluster",)},
            missing="no layout of this model and batch ran on two clusters.",
        ),
        Chart(
            collectives, "collectives", "collectives", ("bus_bytes_per_s",), panel="kind",
            over=("message_bytes",), missing=_NO_PROBE,
        ),
        Chart(
            gemm_rates, "collectives", "gemms", ("flop_per_s",), over=("flops",), missing=_NO_PROBE
        ),
    )
}  # fmt: skip


def charts_of(section: str) -> list[Chart]:
    """The charts of one place of the page, in the order of the table."""
    return [chart for chart in CHARTS.values() if chart.section == section]
