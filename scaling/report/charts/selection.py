"""Which charts a selection has something to draw for: the one table that page and files read."""

from collections.abc import Iterable
from typing import Any

from scaling.report.charts.charts import CHARTS, Chart
from scaling.report.tables import Record, Tables

ALL = "all"  # of the values a reader can choose: every series together


def drawn(tables: Tables) -> dict[str, Any]:
    """What can be drawn for one setting, by the series chosen, chart and size.

    Returns:
        `{series: {chart: {size: [panels]}}}`: series as the page offers them, `all` among them;
        size as text, empty for a chart of all sizes; panels the values of the chart's column
        `panel`, null for a chart without one. A chart that is not named has nothing to draw.
    """
    series = sorted({row["series"] for row in tables["contenders"]})
    return {
        chosen: {
            chart.name: sizes
            for chart in CHARTS.values()
            if (sizes := _sizes(chart, tables, None if chosen == ALL else chosen))
        }
        for chosen in (ALL, *series)
    }


def _sizes(chart: Chart, tables: Tables, series: str | None) -> dict[str, list[Any]]:
    kept = [
        row
        for row in tables[chart.table]
        if any(row[column] is not None for column in chart.needs)
        and row.get("series") in (None, series or row.get("series"))
        and all(row[column] in values for column, values in chart.where.items())
    ]
    by_size: dict[str, list[Record]] = {}
    for row in kept:
        by_size.setdefault(str(row["world_size"]) if chart.per_size else "", []).append(row)
    return {size: panels for size, rows in by_size.items() if (panels := _panels(chart, rows))}


def _panels(chart: Chart, rows: Iterable[Record]) -> list[Any]:
    by_panel: dict[Any, list[Record]] = {}
    for row in rows:
        by_panel.setdefault(row[chart.panel] if chart.panel else None, []).append(row)
    return [
        panel
        for panel, mine in sorted(by_panel.items(), key=lambda item: str(item[0]))
        if not chart.over or len({tuple(row[column] for column in chart.over) for row in mine}) > 1
    ]


def rows_for(tables: Tables, name: str, chart: Chart, size: str, panel: Any) -> list[Record]:
    """The rows of a table that one drawing of a chart is given; page.js gives the same."""
    return [
        row
        for row in tables[name]
        if (not size or str(row.get("world_size", size)) == size)
        and (panel is None or row.get(chart.panel or "", panel) == panel)
    ]
