"""The charts of the report, and what of a selection each of them draws.

To add a chart: a function that builds it, its line in `CHARTS` and its caption,
reports/captions/<name>.md. docs/report.md says which question each answers that no other does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from scaling.analyse.series import SERIES
from scaling.report.charts.comparisons import factor_effects, prediction_error
from scaling.report.charts.layouts import layout_ranking
from scaling.report.charts.probes import collectives
from scaling.report.charts.sizes import marginal_return, throughput_per_gpu
from scaling.report.charts.steps import memory, step_bounds
from scaling.report.tables import Record, Tables

_NO_PROBE = "no probe of this cluster has left data in this study."
_ONE_SIZE = "it needs two sizes that ran."


@dataclass(frozen=True, slots=True)
class Chart:
    """What the page must know about a chart.

    Attributes:
        build: makes the chart without data: it names the tables it reads (`alt.NamedData`).
        section: place on the page, whose sentence is the chart's title.
        table: the table behind it; the page shows it beneath the chart.
        needs: a row counts if one of these columns has a value.
        per_size: it shows one GPU count, which the reader chooses.
        over: columns that must differ between rows, or the chart would have one tick.
        where: a row counts if these columns have one of these values.
        panel: the chart is drawn once for each value of this column.
        missing: why it is not shown where it has nothing to draw.
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
        """The name of the chart, its caption and its SVG file."""
        return self.build.__name__


# In the order of the page.
CHARTS: dict[str, Chart] = {
    one.name: one
    for one in (
        Chart(
            throughput_per_gpu, "throughput", "best", ("tokens_per_s",), over=("world_size",),
            missing=_ONE_SIZE,
        ),
        Chart(
            marginal_return, "returns", "returns", ("marginal_tokens_per_s",),
            over=("to_world_size",),
            missing="it needs two steps; the decision has what one step returns.",
        ),
        Chart(
            memory, "memory", "contenders", ("peak_memory_bytes", "predicted_memory_bytes"),
            per_size=True, missing="no memory was measured or predicted.",
        ),
        Chart(
            step_bounds, "time", "time_split", ("seconds",),
            missing="the step of the layout advised was not profiled or predicted.",
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
            prediction_error, "accuracy", "statistics", ("predicted_tokens_per_s",),
            where={"outcome": ("ok",)}, missing="no point that ran has a prediction.",
        ),
        Chart(
            collectives, "collectives", "collectives", ("bus_bytes_per_s",), panel="kind",
            over=("message_bytes",), missing=_NO_PROBE,
        ),
    )
}  # fmt: skip


ALL = "all"  # the choice of every series together
# Short steps rank the layouts that full ones only check, so the two are shown together.
OFFERED_AS: dict[str | None, str] = {
    one: "measured" if one == "extended" else one for one in SERIES
}


def drawable(tables: Tables) -> dict[str, Any]:
    """What can be drawn for one setting; page and files both follow it.

    Returns:
        `{series: {chart: {size: [panels]}}}`: series as the page offers them, `all` among them,
        extended ones among the measured; size as text, empty for a chart of all sizes; panels the
        values of the chart's column `panel`, null for a chart without one. A chart that is left
        out has nothing to draw.
    """
    series = sorted({OFFERED_AS[row["series"]] for row in tables["contenders"]})
    return {
        chosen: {
            chart.name: sizes
            for chart in CHARTS.values()
            if (sizes := _drawable_sizes(chart, tables, chosen))
        }
        for chosen in (ALL, *series)
    }


def _drawable_sizes(chart: Chart, tables: Tables, series: str) -> dict[str, list[Any]]:
    groups: dict[str, dict[Any, list[Record]]] = {}  # rows by size and panel
    for row in tables[chart.table]:
        if (
            any(row[column] is not None for column in chart.needs)
            and (series == ALL or OFFERED_AS.get(row.get("series")) in (None, series))
            and all(row[column] in values for column, values in chart.where.items())
        ):
            size = str(row["world_size"]) if chart.per_size else ""
            panel = row[chart.panel] if chart.panel else None
            groups.setdefault(size, {}).setdefault(panel, []).append(row)
    panels = {
        size: [panel for panel in sorted(by_panel, key=str) if _varies(chart, by_panel[panel])]
        for size, by_panel in groups.items()
    }
    return {size: names for size, names in panels.items() if names}


def _varies(chart: Chart, rows: list[Record]) -> bool:
    return not chart.over or len({tuple(row[column] for column in chart.over) for row in rows}) > 1
