"""Charts over sizes: rate, return, memory and what bounds a step of the layout advised at each."""

from itertools import groupby, pairwise

import altair as alt

from scaling.cluster.hardware import GIB
from scaling.report.charts import marks
from scaling.report.charts.marks import Drawing
from scaling.report.charts.palette import variable
from scaling.report.tables import Record, Tables
from scaling.report.text import THIN, amount, digits, gib, percent, significant, step_words

MEMORY = ("weights", "gradients", "optimizer", "activations", "logits and rest", "fragmentation")
TIME = (
    "compute", "tensor parallel", "pipeline transfers", "exposed communication",
    "pipeline bubble", "idle and rest",
)  # fmt: skip
SPLIT_TRUSTED = 1.25  # a profiled step longer than this many timed ones says nothing of its split
_LEGEND_LINE = 16  # px
_LABELLED = 0.07  # share of a step below which a part has no room for its label
_INKS = ("t-ink", "t-ink2", "t-ink2", "t-ink", "t-ink", "ink")  # on each part of a step


def rate_rows(tables: Tables) -> list[Drawing]:
    """Tokens per second per GPU of the layout advised at each size."""
    sizes = tables["sizes"]
    if len(sizes) < 2:
        return []
    rows = []
    for number, row in enumerate(sizes):
        at, interval = row["world_size"], percent(row["level"])
        used = percent(row["mfu"]) if row["mfu"] is not None else ""
        said = f"{amount(row['tokens_per_s_per_gpu'])} tokens/s"
        low, high = (row[f"tokens_per_s_{end}"] / at for end in ("low", "high"))
        tip = (
            f"{tables.gpus(at)}, {row['layout_name']}, {row['source']}: {said} per "
            f"{tables.words['GPU']} ({amount(low)} to {amount(high)}, {interval} interval)"
        )
        tip += f", MFU {used}" * bool(used)
        rows.append(
            {
                "size": at, "rate": row["tokens_per_s_per_gpu"], "low": low, "high": high,
                "source": row["source"], "tip": tip, "used": used,
                "yardstick": None if number else row["tokens_per_s_per_gpu"],
                **marks.look(row["source"], row["slot"]),
            }
        )  # fmt: skip
    joined = [
        {**row, "pair": number, "dash": marks.dash(before["source"], after["source"])}
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
        Drawing(
            title,
            {"rows": rows, "joined": joined, "others": others, "names": _legend(sizes)},
            _sizes(sizes),
        )
    ]


def _legend(sizes: list[Record]) -> list[Record]:
    """A line over the plot for each advised layout, the last one lowest.

    Its name lacks the choices that all of them have; it is whole if it has no other.
    """
    names = {row["layout_name"]: marks.look("measured", row["slot"])["colour"] for row in sizes}
    parts = [name.split(", ") for name in names]
    shared = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    return [
        {
            "name": ", ".join(part for part in own if part not in shared) or ", ".join(own),
            "colour": colour, "above": len(names) - number,
        }
        for number, (own, colour) in enumerate(zip(parts, names.values(), strict=True))
    ]  # fmt: skip


def throughput_per_gpu() -> alt.LayerChart:
    """The rate of one GPU at each size, with the other layouts in grey."""
    y = alt.Y(
        "rate:Q", title="Tokens per second per {GPU}", scale=marks.FROM_ZERO, axis=marks.AMOUNTS
    )
    base = marks.rows().encode(x=marks.over_gpus())
    line = marks.rows("joined").encode(x=marks.over_gpus(), y=y, detail=alt.Detail("pair:N"))
    names = marks.rows("names").encode(x=marks.LEFT, y=marks.fixed("YValue", 0))
    over = f"{_LEGEND_LINE} * datum.above"
    return marks.finish(
        marks.rows("others").mark_circle(
            size=16, color=marks.OTHER, opacity=1, fillOpacity=0.45, aria=False
        ).encode(x=marks.over_gpus(), y=y),
        base.mark_rule(color=marks.FAINT, aria=False).encode(
            y=alt.Y("yardstick:Q"), **marks.ACROSS
        ),
        base.mark_rule(aria=False).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=alt.Color("colour:N", **marks.AS_STATED),
            strokeWidth=alt.StrokeWidth("thick:Q", **marks.AS_STATED),
            strokeOpacity=alt.StrokeOpacity("pale:Q", **marks.AS_STATED),
        ),
        line.mark_line(color=marks.SOFT, aria=False).encode(strokeDash=marks.DASHED),
        marks.points(base.encode(y=y)),
        *marks.halo_text(base.encode(y=alt.Y("high:Q")), "used", colour=marks.SOFT, dy=-12),
        names.mark_square(
            size=70, opacity=1, aria=False, xOffset=6, yOffset=alt.ExprRef(f"-8 - {over}")
        ).encode(color=alt.Color("colour:N", **marks.AS_STATED)),
        names.mark_text(
            align="left", aria=False, color=marks.INK, dx=17, dy=alt.ExprRef(f"-8 - {over}")
        ).encode(text=alt.Text("name:N")),
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
            "high": step["step_return_high"], "dash": marks.dash(step["source"]),
            "number": digits(step["step_return"], 2),
            "tip": f"{step['from_world_size']} to {tables.gpus(step['to_world_size'])}, "
            f"{step['source']}: trains {step_words(step)}",
        }
        for step in steps
    ]  # fmt: skip
    least = [{"least": 2 * knee["knee_share"] - 1} for knee in tables["knees"]]
    return [Drawing(_returns_title(tables), {"rows": rows, "least": least}, _sizes(steps, "to_"))]


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
        base.mark_rect(fillOpacity=0.16, color=marks.ACCENT, aria=False).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
        ),
        base.mark_rule(color=marks.ACCENT, strokeWidth=3).encode(
            y=y, strokeDash=marks.DASHED, description=alt.Description("tip:N")
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
    rows, capacity = [], tables["comparison_groups"][0]["gpu_memory_bytes"]
    for row in known:
        needed = row["peak_memory_bytes"] or row["predicted_memory_bytes"]
        predicted = row["source"] == "predicted"
        fits = f"fits {percent(row['fits_probability'], predicted=True)}" if predicted else "ran"
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
            "tip": f"{tables.gpus(part['world_size'])}, {part['layout_name']}, "
            f"{part['memory_from'] or 'predicted'}: "
            f"{part['part']} {gib(part['to_bytes'] - part['from_bytes'])}"
            + (f", fullest in {part['peak_phase']}" if part["peak_phase"] else ""),
        }
        for part in tables["memory_parts"]
        if part["world_size"] in {row["size"] for row in rows}
    ]  # fmt: skip
    edge = [{"edge": capacity / GIB}] if capacity else []
    last = rows[-1]
    of = f" of {gib(capacity)}" if capacity else ""
    needs = "needs" if known[-1]["source"] != "predicted" else "is predicted to need"
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
    for (size, source), group in groupby(
        sorted(tables["time_split"], key=lambda row: (row["world_size"], row["source"])),
        key=lambda row: (row["world_size"], row["source"]),
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
                    "size": size, "part": part["part"], "source": source, "share": share,
                    "start": part["share_from"], "end": part["share_to"],
                    "middle": (part["share_from"] + part["share_to"]) / 2,
                    "number": percent(share) if share > _LABELLED else "",
                    "ink": variable(_INKS[part["part_order"]]),
                    "pale": 0.75 if source == "predicted" else 1,
                    "took": "" if number else took,
                    "tip": f"{tables.gpus(size)}, {part['layout_name']}, {source}: {part['part']} "
                    f"{percent(share)} of {took}",
                }
            )  # fmt: skip
    if not rows:
        return []
    seen = [row for row in rows if row["source"] != "predicted"] or rows
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


def _sizes(rows: list[Record], prefix: str = "") -> list[int]:
    """The ticks of an axis of sizes; of steps both ends."""
    column = f"{prefix}world_size"
    first = [rows[0]["from_world_size"]] if prefix else []
    return sorted({*first, *(row[column] for row in rows)})


def _present(names: tuple[str, ...], rows: list[Record]) -> list[str]:
    there = {row["part"] for row in rows}
    return [name for name in names if name in there]
