"""The charts of the report. Each has rows, a specification, a title and a caption.

A chart has two functions in sizes.py or comparisons.py: one makes its rows and title from the
tables of one group, one draws them. It has a line in `CHARTS`, and its caption stands in
reports/captions/<name>.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt

from scaling.report.charts import comparisons, sizes
from scaling.report.charts.marks import Drawing
from scaling.report.tables import Tables


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `rows` makes its drawings of one group, none without data; `build` draws them.

    `missing` says why it is not shown where it has nothing to draw.
    """

    build: Callable[[], alt.LayerChart]
    rows: Callable[[Tables], list[Drawing]]
    missing: str


CHARTS: dict[str, Chart] = {
    one.build.__name__: one  # the name of its caption and files too
    for one in (
        Chart(sizes.throughput_per_gpu, sizes.rate_rows, "it needs two sizes."),
        Chart(sizes.marginal_return, sizes.return_rows, "it needs two sizes."),
        Chart(sizes.memory, sizes.memory_rows, "no memory was measured or predicted."),
        Chart(sizes.step_bounds, sizes.bound_rows, "no step was profiled closely or predicted."),
        Chart(comparisons.factor_effects, comparisons.effect_rows, "no choice has three pairs."),
        Chart(comparisons.prediction_error, comparisons.accuracy_rows, "nothing predicted ran."),
        Chart(comparisons.collectives, comparisons.collective_rows, "no link was probed."),
    )
}
