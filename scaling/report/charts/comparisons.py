"""Charts that compare: choices, predictions against what was measured, collectives."""

import re
import statistics
from itertools import groupby

import altair as alt

from scaling.report.charts import marks
from scaling.report.charts.marks import Drawing
from scaling.report.charts.palette import variable
from scaling.report.tables import Record, Tables
from scaling.report.text import amount, digits, message_size, percent

NEAR = 0.1  # a prediction within ten per cent counts as near
_MOST_EFFECTS = 8
_HALF = 0.5


def effect_rows(tables: Tables) -> list[Drawing]:
    """The effect of one choice, all else equal: the mean over pairs near the fastest layouts."""
    shown = [row for row in tables["effects"] if row["shown"]]
    rows: list[Record] = []
    for row in shown:
        near = row["near_ratio"] is not None
        worth = row["near_ratio"] if near else row["mean_ratio"]
        pairs = row["near_pairs"] if near else row["pairs"]
        low, high, level = row["near_low"], row["near_high"], row["level"]
        interval = ""
        if low is not None:
            interval = f" ({digits(low, 2)}–{digits(high, 2)}, {percent(level)} interval)"
        ends = (row["lowest"], row["highest"]) if low is None else (low, high)
        counted = f"{pairs} pair{'s' * (pairs != 1)}"
        ratio = row["memory_ratio"]
        memory = "" if ratio is None else f", memory ×{digits(ratio, 2)}"
        rows.append(
            {
                "name": _choice(row), "factor": row["factor"], "worth": worth,
                "low": low, "high": high,
                "lowest": row["lowest"], "highest": row["highest"],
                "clear": not ends[0] <= 1 <= ends[1],
                "words": f"×{digits(worth, 2)}{memory}, {counted}",
                "tip": f"{_choice(row)}: {digits(worth, 2)} times the rate{interval}, {counted}; "
                f"all pairs {digits(row['lowest'], 2)} to {digits(row['highest'], 2)}{memory}",
            }
        )  # fmt: skip
    rows.sort(key=lambda row: -abs(float(row["worth"]) - 1))
    first = {str(row["factor"]): row for row in reversed(rows)}.values()  # the largest of each
    rows.sort(key=lambda row: row not in first)  # so that no factor that was varied is missing
    if not rows:
        return []
    clear = [row for row in rows if row["clear"]]
    title = "No choice changes the rate clearly"
    if clear:
        top = clear[0]
        higher = "higher" if top["worth"] > 1 else "lower"
        title = f"With {top['name']} the rate is {percent(abs(top['worth'] - 1))} {higher}"
    return [Drawing(title, {"rows": rows[:_MOST_EFFECTS]})]


def _choice(row: Record) -> str:
    """An effect in words: `tp 2 instead of 1`."""
    name = str(row["name"]).replace(", against ", " instead of ")
    return re.sub(r"ZeRO (?=\d)", "ZeRO-", name)  # as layouts are named


def factor_effects() -> alt.LayerChart:
    """Mean ratios with their intervals, and the range of all pairs as a thin line."""
    order = alt.EncodingSortField("worth", op="max", order="descending")
    base = marks.rows().encode(y=alt.Y("name:N", axis=None, sort=order))
    x = alt.X(
        "worth:Q", title="Tokens per second, ratio (log scale)", scale=marks.log(24),
        axis=alt.Axis(tickCount=5, format="~g", labelOverlap="greedy", labelSeparation=8),
    )  # fmt: skip
    return marks.finish(
        base.mark_tick(size=20, thickness=1, color=marks.OTHER, yOffset=7, aria=False).encode(
            x=marks.fixed("XDatum", 1)
        ),
        base.mark_rule(strokeWidth=1.25, color=marks.ACCENT, yOffset=7, aria=False).encode(
            x=alt.X("lowest:Q"), x2=alt.X2("highest:Q")
        ),
        base.mark_rule(
            strokeWidth=6, color=marks.ACCENT, strokeOpacity=0.45, yOffset=7, aria=False
        ).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        base.mark_point(
            shape="circle", filled=True, size=64, opacity=1, color=marks.ACCENT, yOffset=7
        ).encode(x=x, description=alt.Description("tip:N")),
        *marks.halo_text(base.encode(x=marks.LEFT), "name", align="left", dy=-8),
        *marks.halo_text(
            base.encode(x=marks.RIGHT), "words", colour=marks.SOFT, align="right", dy=-8
        ),
        height=alt.Step(34),
    )  # fmt: skip


def accuracy_rows(tables: Tables) -> list[Drawing]:
    """Predicted over actual rate of every point that ran."""
    compared = next((row for row in tables["accuracy"] if row["compared"]), None)
    rows = []
    for row in tables["statistics"]:
        if row["predicted_tokens_per_s"] is None or row["tokens_per_s"] is None:
            continue
        ratio = row["predicted_tokens_per_s"] / row["tokens_per_s"]
        rows.append(
            {
                "size": row["world_size"], "ratio": ratio,
                "colour": marks.ACCENT if abs(ratio - 1) <= NEAR else marks.WARN,
                "tip": f"{tables.gpus(row['world_size'])}, {row['layout_name']}: predicted "
                f"{digits(ratio, 2)} times the rate",
            }
        )  # fmt: skip
    if compared is None or not rows:
        return []
    sizes = sorted({row["size"] for row in rows})
    middles = []
    for size in sizes:
        ratios = [row["ratio"] for row in rows if row["size"] == size]
        middle = statistics.median(ratios)
        middles.append({"size": size, "middle": middle, "number": digits(middle, 2)})
    half = percent(compared["median_error"], 1)
    points = "point is" if compared["compared"] == 1 else "points are"
    fitted = {*compared["predicted_from"]} - {"data sheet", "prediction"}
    calibrated = " after calibration" if fitted else ""
    title = (
        f"{compared['near']} of {compared['compared']} {points} predicted within "
        f"{percent(NEAR)}{calibrated}, half within {half}"
    )
    band = [{"low": 1 - NEAR, "high": 1 + NEAR}]
    return [Drawing(title, {"rows": rows, "middles": middles, "band": band}, sizes)]


def prediction_error() -> alt.LayerChart:
    """Predicted over actual rate, with the median of each size."""
    y = alt.Y(
        "ratio:Q", title="Predicted over actual rate (log scale)", scale=marks.log(16),
        axis=alt.Axis(
            values=[0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.7, 2, 3, 5, 10],
            format="~g", labelOverlap="greedy", labelSeparation=4,
        ),
    )  # fmt: skip
    middle = marks.rows("middles").encode(x=marks.over_gpus(), y=alt.Y("middle:Q"))
    return marks.finish(
        marks.rows("band").mark_rect(color=marks.ACCENT, opacity=0.1, aria=False).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), **marks.ACROSS
        ),
        marks.rows("band").mark_rule(color=marks.INK, aria=False).encode(
            y=marks.fixed("YDatum", 1), **marks.ACROSS
        ),
        marks.rows().mark_point(
            shape="diamond", size=34, strokeWidth=1.25, fill=marks.SURFACE, opacity=0.8
        ).encode(
            x=marks.over_gpus(), y=y, stroke=alt.Stroke("colour:N", **marks.AS_STATED),
            description=alt.Description("tip:N"),
        ),
        middle.mark_tick(
            color=marks.INK, thickness=2.5, width=22, orient="horizontal", aria=False
        ),
        *marks.halo_text(middle, "number", align="left", dx=14),
        height=250,
    )  # fmt: skip


def collective_rows(tables: Tables) -> list[Drawing]:
    """Bus bandwidth against message size: one drawing for each collective that was probed."""
    drawn = []
    probes = sorted(tables["collectives"], key=lambda row: str(row["kind"]))
    for kind, group in groupby(probes, key=lambda row: str(row["kind"])):
        rows = [_probe(row, tables) for row in group]
        if len({row["bytes"] for row in rows}) > 1:
            drawn.append(Drawing(_bandwidth(kind, rows), {"rows": rows}, panel=kind))
    return drawn


def _probe(row: Record, tables: Tables) -> Record:
    shape = [f"{row['nodes']} nodes"] if (row["nodes"] or 1) > 1 else []
    shape.append(tables.gpus(row["ranks"]))
    shape += [f"{row['stride']} apart"] if (row["stride"] or 1) > 1 else []
    shape += [f"{row['at_once']} at once"] if (row["at_once"] or 1) > 1 else []
    group, rate = ", ".join(shape), row["bus_bytes_per_s"]
    return {
        "bytes": row["message_bytes"], "rate": rate / 1e9, "group": group,
        "low": row["bus_low"] and row["bus_low"] / 1e9,
        "high": row["bus_high"] and row["bus_high"] / 1e9,
        "tip": f"{group}: {amount(rate, 'B/s')} at {message_size(row['message_bytes'])}",
    }  # fmt: skip


def _bandwidth(kind: str, rows: list[Record]) -> str:
    top = max(rows, key=lambda row: float(row["rate"]))
    half = min(
        row["bytes"]
        for row in rows
        if row["group"] == top["group"] and row["rate"] >= _HALF * top["rate"]
    )
    name = kind.replace("_", "-").capitalize()
    reaches = f"{name} reaches {amount(1e9 * top['rate'], 'B/s')}"
    return f"{reaches}, half of it from {message_size(half)} messages on"


def collectives() -> alt.LayerChart:
    """One line for each shape of group."""
    base = marks.rows().encode(
        x=alt.X(
            "bytes:Q", title="Message (bytes of one rank, log scale)", scale=marks.log(8, base=2),
            axis=alt.Axis(
                values=[2**power for power in range(0, 41, 5)], grid=False, labelOverlap="greedy",
                labelExpr="datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? "
                "datum.value / 1024 + ' KiB' : datum.value < 1073741824 ? datum.value / 1048576 + "
                "' MiB' : datum.value / 1073741824 + ' GiB'",
            ),
        ),
        y=alt.Y(
            "rate:Q", title="Bus bandwidth (GB/s)", scale=marks.FROM_ZERO,
            axis=alt.Axis(format=",~r", tickCount=5),
        ),
        color=alt.Color(
            "group:N", scale=alt.Scale(range=[variable(f"c{slot}") for slot in range(1, 7)]),
            legend=alt.Legend(
                title=None, orient="top", columns=2, columnPadding=34, labelLimit=220,
                symbolOpacity=1,
            ),
        ),
    )  # fmt: skip
    return marks.finish(
        base.mark_rule(strokeWidth=1.25, opacity=0.5, aria=False).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
        ),
        base.mark_line(strokeWidth=1.75, aria=False),
        base.mark_point(shape="circle", filled=True, size=36, opacity=1).encode(
            description=alt.Description("tip:N")
        ),
        height=210,
    )
