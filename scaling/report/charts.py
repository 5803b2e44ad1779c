"""The charts of the report, by name.

A chart names the tables it reads (`alt.NamedData`); the page and the SVG export hand them over. The
caption of chart `name` is reports/captions/<name>.md. To add one: a function, its line here, its
caption, and a `<figure data-chart="name">` in the page.
"""

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt

from scaling.report.cost_charts import cost_hours, cost_money, factor_effects
from scaling.report.layout_charts import layout_ranking, memory
from scaling.report.order_charts import crossovers, layout_map
from scaling.report.part_charts import (
    memory_fit,
    memory_parts,
    predicted_against_measured,
    time_split,
)
from scaling.report.return_charts import (
    efficiency,
    marginal_dollar,
    marginal_return,
    marginal_watt,
    scaling_law,
)
from scaling.report.size_charts import flop_rate, mfu, throughput, throughput_per_gpu

_NO_PREDICTION = "scaling predict has written no predictions.parquet for this study."


@dataclass(frozen=True, slots=True)
class Chart:
    """What the page must know about a chart.

    `table` is the one behind it, in which `needs` names the column without whose values the chart
    is empty. A chart `per_size` shows one GPU count, which the reader chooses. Of two charts that
    say the same in two ways, one is drawn `unless` the table has the other's column. `missing` is
    the line that says why it is left out where it is empty.
    """

    build: Callable[[], alt.LayerChart]
    table: str
    needs: str
    per_size: bool = False
    unless: str | None = None
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
        Chart(memory_fit, "statistics", "predicted_memory_bytes", missing=_NO_PREDICTION),
        Chart(
            time_split, "time_split", "seconds",
            missing="no step was profiled, and there is no prediction of it.",
        ),
        Chart(
            predicted_against_measured, "statistics", "predicted_tokens_per_s",
            missing=_NO_PREDICTION,
        ),
        Chart(cost_money, "costs", "usd_per_token"),
        Chart(cost_hours, "costs", "gpu_hours_per_token", unless="usd_per_token"),
        Chart(
            factor_effects, "effects", "mean_ratio",
            missing="no two layouts that ran differ in one choice only.",
        ),
    )
}  # fmt: skip
