"""The charts of the report. Each has rows, a specification, a title and a caption.

To add a chart: a function that makes its rows and title from the tables of one setting, one that
draws them. It has a line in `CHARTS`, and its caption in reports/captions/<name>.md.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts import marks
from scaling.report.charts.palette import variable
from scaling.report.tables import Record, Tables
from scaling.report.text import (
    LEVELS,
    THIN,
    amount,
    digits,
    faster,
    gib,
    message_size,
    percent,
    significant,
)

MEMORY = ("weights", "gradients", "optimizer", "activations", "logits and rest", "fragmentation")
TIME = (
    "compute", "tensor parallel", "pipeline transfers", "exposed communication",
    "pipeline bubble", "idle and rest",
)  # fmt: skip
NEAR = 0.1  # a prediction within ten per cent counts as near
SPLIT_TRUSTED = 1.25  # a profiled step longer than this many timed ones says nothing of its split
_MOST_EFFECTS = 8
_LABELLED = 0.07  # share of a step below which a part has no room for its label
_HALF = 0.5
_INKS = ("t-ink", "t-ink2", "t-ink2", "t-ink", "t-ink", "ink")  # on each part of a step
_DASHES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("false", {}), ("true", {"strokeDash": [4, 3]}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart of one selection: its title, and the rows of each list that it reads.

    `panel` names one of several drawings of a chart.
    """

    title: str
    rows: dict[str, list[Record]]
    sizes: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    panel: str = ""


def rate_rows(tables: Tables) -> list[Drawing]:
    """Tokens per second per GPU of the layout advised at each size."""
    sizes = tables["sizes"]
    if len(sizes) < 2:
        return []
    rows, named, names = [], 0, _apart([row["layout_name"] for row in sizes])
    for number, row in enumerate(sizes):
        named += row["label"] is not None
        at, interval = row["world_size"], LEVELS[row["series"]]
        used = percent(row["mfu"]) if row["mfu"] is not None else ""
        said = f"{amount(row['tokens_per_s_per_gpu'])} tokens/s"
        low, high = (row[f"tokens_per_s_{end}"] / at for end in ("low", "high"))
        tip = (
            f"{tables.gpus(at)}, {row['layout_name']}, {row['series']}: {said} per "
            f"{tables.words['GPU']} ({amount(low)} to {amount(high)}, {interval}{THIN}% interval)"
        )
        tip += f", MFU {used}" * bool(used)
        rows.append(
            {
                "size": at, "rate": row["tokens_per_s_per_gpu"], "low": low, "high": high,
                "series": row["series"], "tip": tip, "used": used,
                "name": names[number] if row["label"] else "",
                "yardstick": sizes[0]["tokens_per_s_per_gpu"],
                "at": "low" if named % 2 else "high",
                "half": "left" if 2 * number < len(sizes) else "right",
                **marks.look(row["series"], row["slot"]),
            }
        )  # fmt: skip
    joined = [
        {**row, "pair": number, "dashed": "predicted" in (before["series"], after["series"])}
        for number, (before, after) in enumerate(pairwise(rows))
        for row in (before, after)
    ]
    others = [
        {"size": row["world_size"], "rate": row["tokens_per_s_per_gpu"]}
        for row in tables["estimates"]
        if row["candidate"] and not row["advised"]
    ]
    first, last = rows[0], rows[-1]
    title = (
        f"One {tables.words['GPU']} gives {amount(first['rate'])} tokens/s on {first['size']} and "
        f"{amount(last['rate'])} on {last['size']}"
    )
    if last["rate"] < first["rate"]:
        title += f": {percent(last['rate'] / first['rate'])}"
    return [
        Drawing(title, {"rows": rows, "joined": joined, "others": others}, _sizes(sizes)),
    ]


def _apart(names: list[str]) -> list[str]:
    """Each name without the choices that all of them have; whole if it has no other."""
    parts = [name.split(", ") for name in names]
    shared = set(parts[0]).intersection(*parts) if len(set(names)) > 1 else set()
    own = [", ".join(part for part in of if part not in shared) for of in parts]
    return [short or name for short, name in zip(own, names, strict=True)]


def throughput_per_gpu() -> alt.LayerChart:
    """The rate of one GPU at each size, with the other layouts in grey."""
    y = alt.Y(
        "rate:Q", title="Tokens per second per {GPU}", scale=marks.FROM_ZERO, axis=marks.AMOUNTS
    )
    base = marks.rows().encode(x=marks.over_gpus())
    line = marks.rows("joined").encode(x=marks.over_gpus(), y=y, detail=alt.Detail("pair:N"))
    return marks.finish(
        marks.rows("others").mark_circle(size=16, color=marks.OTHER, opacity=0.45, aria=False)
        .encode(x=marks.over_gpus(), y=y),
        base.mark_rule(color=marks.FAINT, aria=False).encode(
            y=alt.Y("yardstick:Q"), **marks.ACROSS
        ),
        *marks.intervals(base, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        line.transform_filter("!datum.dashed").mark_line(color=marks.SOFT, aria=False),
        line.transform_filter("datum.dashed").mark_line(
            color=marks.SOFT, strokeDash=[4, 3], aria=False
        ),
        marks.points(base.encode(y=y)),
        *marks.halo_text(
            base.encode(y=alt.Y("high:Q")), "used", colour=marks.SOFT, dy=-12, fontSize=11
        ),
        *(
            layer
            for place, at, dy in (("low", "low:Q", 16), ("high", "high:Q", -27))
            for align, dx, of in (("left", -5, "left"), ("right", 5, "right"))
            for layer in marks.halo_text(
                base.transform_filter(
                    f"datum.name && datum.at === '{place}' && datum.half === '{of}'"
                ).encode(y=alt.Y(at)),
                "name", dy=dy, dx=dx, align=align, fontSize=11,
            )
        ),
        height=250,
    )  # fmt: skip


def return_rows(tables: Tables) -> list[Drawing]:
    """The return of each step between two sizes over its cost."""
    steps = tables["returns"]
    if not steps:
        return []
    rows = [
        {
            "size": step["from_world_size"], "to": step["to_world_size"],
            "middle": (step["from_world_size"] * step["to_world_size"]) ** 0.5,
            "value": step["step_return"], "low": step["step_return_low"],
            "high": step["step_return_high"], "series": step["series"],
            "number": digits(step["step_return"], 2),
            "tip": f"{step['from_world_size']} to {tables.gpus(step['to_world_size'])}, "
            f"{step['series']}: trains {step_words(step)}",
        }
        for step in steps
    ]  # fmt: skip
    least = [{"least": 2 * knee["knee_share"] - 1} for knee in tables["knees"]]
    return [Drawing(_returns_title(tables), {"rows": rows, "least": least}, _sizes(steps, "to_"))]


def step_words(step: Record) -> str:
    """`64 % faster (45–70 %, 95 % interval)`."""
    return faster(step["faster"], step["faster_low"], step["faster_high"], step["level"])


def _returns_title(tables: Tables) -> str:
    """The first step that is not worth its cost, else the last one."""
    steps = tables["returns"]
    knee = next((row["knee_world_size"] for row in tables["knees"]), None)
    short = next((one for one in steps if one["from_world_size"] == knee), steps[-1])
    return (
        f"{short['from_world_size']} to {tables.gpus(short['to_world_size'])} trains "
        + (step_words(short).split(" (")[0])
    )


def marginal_return() -> alt.LayerChart:
    """A segment for each step at what it returned, with its interval."""
    y = alt.Y(
        "value:Q", title="Return of the step, share of its cost", scale=alt.Scale(nice=True),
        axis=alt.Axis(format=".1f", tickCount=5),
    )  # fmt: skip
    base = marks.rows().encode(x=marks.over_gpus(padding=14), x2=alt.X2("to:Q"))
    middle = marks.rows().encode(x=marks.over_gpus("middle:Q", padding=14), y=y)
    predicted = "datum.series === 'predicted'"
    return marks.finish(
        *(
            marks.rows("least").mark_rule(color=marks.FAINT, aria=False).encode(
                y=marks.fixed("YDatum", at), **marks.ACROSS
            )
            for at in (0, 1)
        ),
        marks.rows("least").mark_rule(color=marks.WARN, strokeDash=[2, 3], aria=False).encode(
            y=alt.Y("least:Q"), **marks.ACROSS
        ),
        base.mark_rect(opacity=0.16, color=marks.ACCENT, aria=False).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
        ),
        *(
            base.transform_filter(f"({predicted}) === {dashed}")
            .mark_rule(color=marks.ACCENT, strokeWidth=3, **dash)
            .encode(y=y, description=alt.Description("tip:N"))
            for dashed, dash in _DASHES
        ),
        *marks.halo_text(middle, "number", dy=13),
        height=250,
    )  # fmt: skip


def memory_rows(tables: Tables) -> list[Drawing]:
    """The memory of the layout advised at each size, part by part, against the capacity."""
    known = [
        row for row in tables["sizes"] if row["peak_memory_bytes"] or row["predicted_memory_bytes"]
    ]
    if not known:
        return []
    rows, capacity = [], tables["settings"][0]["gpu_memory_bytes"]
    for row in known:
        needed = row["peak_memory_bytes"] or row["predicted_memory_bytes"]
        chance = row["fits_probability"]
        fits = "ran" if row["series"] != "predicted" else f"fits {percent(chance)}"
        of = f" of {gib(capacity)}" if capacity else ""
        rows.append(
            {
                "size": row["world_size"], "needed": needed / GIB, "zero": 0,
                "peak": row["peak_memory_bytes"] and row["peak_memory_bytes"] / GIB,
                "words": f"{significant(needed / GIB)} GiB, {fits}",
                "tip": f"{tables.gpus(row['world_size'])}, {row['layout_name']}: "
                f"{gib(needed)}{of}, {fits}",
            }
        )  # fmt: skip
    parts = [
        {
            "size": part["world_size"], "part": part["part"],
            "start": part["from_bytes"] / GIB, "end": part["to_bytes"] / GIB,
            "tip": f"{tables.gpus(part['world_size'])}, {part['layout_name']}, predicted: "
            f"{part['part']} {gib(part['to_bytes'] - part['from_bytes'])}"
            + (f", fullest in {part['peak_phase']}" if part["peak_phase"] else ""),
        }
        for part in tables["memory_parts"]
        if part["world_size"] in {row["size"] for row in rows}
    ]  # fmt: skip
    edge = [{"edge": capacity / GIB}] if capacity else []
    last = rows[-1]
    of = f" of {gib(capacity)}" if capacity else ""
    needs = "needs" if known[-1]["series"] != "predicted" else "is predicted to need"
    needed = f"{significant(last['needed'])}{THIN}GiB{of}"
    title = f"On {tables.gpus(last['size'])} the layout {needs} {needed} per {tables.words['GPU']}"
    drawn = {"rows": rows, "parts": parts, "edge": edge}
    return [Drawing(title, drawn, parts=_present(MEMORY, parts))]


def memory() -> alt.LayerChart:
    """Predicted parts as a bar, the measured peak as a tick, the capacity as a line."""
    x = alt.X(
        "needed:Q", title="Memory per {GPU}, fullest rank (GiB)", scale=marks.FROM_ZERO,
        axis=alt.Axis(tickCount=5),
    )  # fmt: skip
    base = marks.rows().encode(y=marks.of_sizes())
    return marks.finish(
        base.mark_bar(height=9, color=marks.OTHER, opacity=0.3, yOffset=7).encode(
            x=x, description=alt.Description("tip:N")
        ),
        marks.rows("parts").mark_bar(height=9, yOffset=7).encode(
            y=marks.of_sizes(), x=alt.X("start:Q"), x2=alt.X2("end:Q"),
            color=marks.parts(MEMORY, "p"), description=alt.Description("tip:N"),
        ),
        base.transform_filter("isValid(datum.peak)")
        .mark_tick(thickness=3, height=15, yOffset=7, color=marks.INK, aria=False)
        .encode(x=alt.X("peak:Q")),
        marks.rows("edge").mark_rule(color=marks.BAD, strokeWidth=1.5, aria=False).encode(
            x=alt.X("edge:Q"), **marks.UPRIGHT
        ),
        *marks.halo_text(base.encode(x=marks.LEFT), "words", align="left", dx=3, dy=-6),
        height=alt.Step(32),
    )  # fmt: skip


def bound_rows(tables: Tables) -> list[Drawing]:
    """The parts of the step of the layout advised at each size, of one profile or prediction."""
    rows: list[Record] = []
    for (size, series), group in groupby(
        sorted(tables["time_split"], key=lambda row: (row["world_size"], row["series"])),
        key=lambda row: (row["world_size"], row["series"]),
    ):
        parts = list(group)
        timed = sum(part["seconds"] for part in parts)
        if (parts[0]["profiled_s"] or 0) > SPLIT_TRUSTED * timed:
            continue
        for number, part in enumerate(parts):
            share = part["share_to"] - part["share_from"]
            took = f"{significant(1000 * timed)} ms" if timed < 1 else f"{significant(timed)} s"
            rows.append(
                {
                    "size": size, "part": part["part"], "series": series, "share": share,
                    "start": part["share_from"], "end": part["share_to"],
                    "middle": (part["share_from"] + part["share_to"]) / 2,
                    "number": percent(share) if share > _LABELLED else "",
                    "ink": variable(_INKS[part["part_order"]]),
                    "pale": 0.75 if series == "predicted" else 1,
                    "took": "" if number else took,
                    "tip": f"{tables.gpus(size)}, {part['layout_name']}, {series}: {part['part']} "
                    f"{percent(share)} of {took}",
                }
            )  # fmt: skip
    if not rows:
        return []
    seen = [row for row in rows if row["series"] != "predicted"] or rows
    last = [row for row in seen if row["size"] == max(one["size"] for one in seen)]
    losses = [row for row in last if row["part"] != "compute"]
    title = f"On {tables.gpus(last[0]['size'])} the whole step is compute"
    if losses:
        most = max(losses, key=lambda row: float(row["share"]))
        share = percent(most["share"])
        title = f"On {tables.gpus(most['size'])} {most['part']} takes {share} of a step"
    return [Drawing(title, {"rows": rows}, parts=_present(TIME, rows))]


def step_bounds() -> alt.LayerChart:
    """Shares of a step at each size; predicted bars are paler."""
    base = marks.rows().encode(y=marks.of_sizes())
    numbers = base.encode(x=alt.X("middle:Q"), text=alt.Text("number:N"))
    return marks.finish(
        base.mark_bar(height=19, stroke=marks.SURFACE, strokeWidth=1).encode(
            x=alt.X(
                "start:Q", title="Share of the step",
                scale=alt.Scale(domain=[0, 1], range=[0, marks.WIDTH - 56]),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            x2=alt.X2("end:Q"), color=marks.parts(TIME, "t"), description=alt.Description("tip:N"),
            opacity=alt.Opacity("pale:Q", **marks.AS_STATED),
        ),
        numbers.mark_text(aria=False).encode(color=alt.Color("ink:N", **marks.AS_STATED)),
        base.mark_text(align="right", color=marks.SOFT, aria=False).encode(
            x=marks.RIGHT, text=alt.Text("took:N")
        ),
        height=alt.Step(28),
    )  # fmt: skip


def effect_rows(tables: Tables) -> list[Drawing]:
    """The effect of one choice, all else equal: the mean over pairs near the fastest layouts."""
    shown = [row for row in tables["effects"] if row["shown"]]
    rows = []
    for row in shown:
        near = row["near_ratio"] is not None
        worth = row["near_ratio"] if near else row["mean_ratio"]
        pairs = row["near_pairs"] if near else row["pairs"]
        low, high, level = row["near_low"], row["near_high"], row["level"]
        interval = ""
        if low is not None:
            interval = f" ({digits(low, 2)}–{digits(high, 2)}, {percent(level)} interval)"
        counted = f"{pairs} pair{'s' * (pairs != 1)}"
        rows.append(
            {
                "name": _choice(row), "worth": worth, "low": low, "high": high,
                "lowest": row["lowest"], "highest": row["highest"],
                "words": f"×{digits(worth, 2)}, {counted}",
                "tip": f"{_choice(row)}: {digits(worth, 2)} times the rate{interval}, {counted}; "
                f"all pairs {digits(row['lowest'], 2)} to {digits(row['highest'], 2)}",
            }
        )  # fmt: skip
    rows.sort(key=lambda row: -abs(float(row["worth"]) - 1))
    if not rows:
        return []
    clear = [row for row in rows if row["low"] is not None and not row["low"] <= 1 <= row["high"]]
    title = "No choice changes the rate clearly"
    if clear:
        top = clear[0]
        higher = "higher" if top["worth"] > 1 else "lower"
        title = f"With {top['name']} the rate is {percent(abs(top['worth'] - 1))} {higher}"
    return [Drawing(title, {"rows": rows[:_MOST_EFFECTS]})]


def _choice(row: Record) -> str:
    """An effect in words: `tp 2 instead of 1`."""
    name = str(row["name"]).replace(", against ", " instead of ")
    return name.replace("ZeRO ", "ZeRO-")  # as layouts are named


def factor_effects() -> alt.LayerChart:
    """Mean ratios with their intervals, and the range of all pairs as a thin line."""
    order = alt.EncodingSortField("worth", op="max", order="descending")
    base = marks.rows().encode(y=alt.Y("name:N", axis=None, sort=order))
    x = alt.X(
        "worth:Q", title="Tokens per second, ratio (log scale)", scale=marks.log(24),
        axis=alt.Axis(tickCount=5, format="~g", labelOverlap="greedy", labelSeparation=8),
    )  # fmt: skip
    return marks.finish(
        base.mark_rule(color=marks.OTHER, aria=False).encode(
            x=marks.fixed("XDatum", 1), **marks.UPRIGHT
        ),
        base.mark_rule(strokeWidth=1.25, color=marks.ACCENT, yOffset=7, aria=False).encode(
            x=alt.X("lowest:Q"), x2=alt.X2("highest:Q")
        ),
        base.mark_rule(
            strokeWidth=6, color=marks.ACCENT, opacity=0.45, yOffset=7, aria=False
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
    title = (
        f"{compared['near']} of {compared['compared']} {points} predicted within "
        f"{percent(NEAR)}, half within {half}"
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
                title=None, orient="top", columns=2, columnPadding=34, labelLimit=220
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


def _sizes(rows: list[Record], prefix: str = "") -> list[int]:
    """The ticks of an axis of sizes; of steps both ends."""
    column = f"{prefix}world_size"
    first = [rows[0]["from_world_size"]] if prefix else []
    return sorted({*first, *(row[column] for row in rows)})


def _present(names: tuple[str, ...], rows: list[Record]) -> list[str]:
    there = {row["part"] for row in rows}
    return [name for name in names if name in there]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `rows` makes its drawings of one setting, none without data; `build` draws them.

    `missing` says why it is not shown where it has nothing to draw.
    """

    build: Callable[[], alt.LayerChart]
    rows: Callable[[Tables], list[Drawing]]
    missing: str

    @property
    def name(self) -> str:
        """The name of the chart, its caption and its files."""
        return self.build.__name__


CHARTS: dict[str, Chart] = {
    one.name: one
    for one in (
        Chart(throughput_per_gpu, rate_rows, "it needs two sizes."),
        Chart(marginal_return, return_rows, "it needs two sizes."),
        Chart(memory, memory_rows, "no memory was measured or predicted."),
        Chart(
            step_bounds, bound_rows,
            "no step was profiled within 1.25 times its timed length, or predicted.",
        ),
        Chart(factor_effects, effect_rows, "no two layouts differ in one choice only."),
        Chart(prediction_error, accuracy_rows, "no point that ran has a prediction."),
        Chart(collectives, collective_rows, "no links of this cluster were probed."),
    )
}  # fmt: skip
