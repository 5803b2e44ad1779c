"""The charts of the report, by name.

A chart names the tables it reads (`alt.NamedData`); the page and the SVG export hand them over. The
caption of chart `name` is reports/captions/<name>.md. To add one: a function, its line here, its
caption, and a `<figure data-chart="name">` in the page.
"""

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt

from scaling.report.layout_charts import layout_ranking, memory
from scaling.report.size_charts import (
    flop_rate,
    marginal_return,
    mfu,
    throughput,
    throughput_per_gpu,
)


@dataclass(frozen=True, slots=True)
class Chart:
    """What the page must know about a chart.

    `table` is the one behind it, in which `needs` names the column without whose values the chart
    is empty. A chart `per_size` shows one GPU count, which the reader chooses. Of two charts that
    say the same in two ways, one is drawn `unless` the table has the other's column.
    """

    build: Callable[[], alt.LayerChart]
    table: str
    needs: str
    per_size: bool = False
    unless: str | None = None

    @property
    def name(self) -> str:
        """Of the chart, its caption, its SVG file."""
        return self.build.__name__


CHARTS: dict[str, Chart] = {
    one.name: one
    for one in (
        Chart(throughput, "best", "tokens_per_s"),
        Chart(throughput_per_gpu, "best", "tokens_per_s"),
        Chart(mfu, "contenders", "mfu"),
        Chart(flop_rate, "contenders", "model_flop_per_s_per_gpu", unless="mfu"),
        Chart(marginal_return, "returns", "marginal_tokens_per_s"),
        Chart(layout_ranking, "contenders", "layout_name", per_size=True),
        Chart(memory, "contenders", "peak_memory_bytes", per_size=True),
    )
}
