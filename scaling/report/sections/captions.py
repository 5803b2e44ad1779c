"""What captions say of marks that not every selection, or not every size of it, has.

A caption names a mark only where it is drawn. Its words in braces are the keys below.
"""

from itertools import pairwise

from scaling.report.charts.marks import SHOWN_LAYOUTS
from scaling.report.tables import Record, Tables

_HIDDEN = 0.97  # a layout this close to the fastest lies under its mark


def caption_words(tables: Tables, interval: str) -> dict[str, str]:
    """Of the charts that show all sizes of a selection."""
    contenders, mfu = tables["contenders"], [row["mfu"] for row in tables["best"]]
    flops = [row["model_flop_per_s_per_gpu"] for row in tables["best"]]
    capacity, marks, used = "", [], []
    if tables["settings"][0]["gpu_memory_bytes"]:
        capacity = f"Red line: the memory of one {tables.words['GPU']}."
    if tables["memory_parts"]:
        marks.append(
            "Bars are predicted, part by part, at the fullest moment of a step (point at one for "
            "its phase)."
        )
    if any(row["peak_memory_bytes"] for row in contenders):
        marks.append("A tick is the measured peak of the fullest rank.")
    if any(mfu):
        used.append("MFU")
    if any(flop for flop, known in zip(flops, mfu, strict=True) if not known):
        used.append("FLOP/s")
    return {
        "capacity": capacity,
        "memory_marks": " ".join(filter(None, [*marks, capacity])),
        "shaded": f"; shaded: its {interval}" if interval else "",
        "band": f"The shaded band is the fastest's {interval}. " if interval else "",
        "used": f"{' or '.join(used)}, then its " if used else "",
        "changes": _changes(tables["best"]),
        "grey": _grey(tables),
        "split": _split(tables["time_split"]),
        "circles": " Open circles: means at the levels of the choice that changes it most."
        if any(row["shown"] for row in tables["interactions"])
        else "",
    }


def _changes(best: list[Record]) -> str:
    """How the curve of throughput shows which layout it is."""
    steps = [
        before["advised_layout_name"] == after["advised_layout_name"]
        for before, after in pairwise(sorted(best, key=lambda row: int(row["world_size"])))
        if before["world_size"] < after["world_size"]
    ]
    if all(steps):
        return " and with its name"
    dotted = "a dotted one leads" if any(steps) else "a dotted line leads from each"
    joined = "a line joins points of one layout, " if any(steps) else ""
    return f" and with its name where it changes; {joined}{dotted} to the next"


def _grey(tables: Tables) -> str:
    """The layouts beside the advised ones."""
    kept = any((row["share_of_best"] or 1) < _HIDDEN for row in tables["fixed_layout"])
    others = any((row["position"] or 0) > 1 for row in tables["contenders"])
    squares = "grey squares: the layout advised at the smallest size, kept" if kept else ""
    names = "; ".join(filter(None, ["grey dots: other layouts" if others else "", squares]))
    return f" G{names[1:]}." if names else ""


def _split(rows: list[Record]) -> str:
    """The marks of a step's parts beyond its bar."""
    paler = " Paler: predicted." if len({row["series"] for row in rows}) > 1 else ""
    if not any(row["hidden_share"] for row in rows):
        return paler
    return (
        f"{paler} A thin line below is communication hidden behind compute, which is not part of "
        "the step."
    )


def caption_words_at(tables: Tables, size: int) -> dict[str, str]:
    """Of the charts that show one size."""
    contenders, cells = (
        [row for row in tables[name] if row["world_size"] == size] for name in ("contenders", "map")
    )
    failed = any(
        row["outcome"] != "ok" and (row["place"] or 0) <= SHOWN_LAYOUTS for row in contenders
    )
    return {
        "cells": _cells(cells),
        "failed": " Hatched: tried and failed." if failed else "",
        "front": " The line joins the layouts that no other beats in both."
        if _has_front(contenders)
        else "",
    }


def _cells(cells: list[Record]) -> str:
    """What stands in the cells of the map."""
    ran = [cell for cell in cells if cell["status"] == "ok"]
    columns, rows = ({cell[axis] for cell in cells} for axis in ("pp", "tp"))
    said = [
        (ran, "Each cell is the best of all other choices, written in it."),
        (ran, "Darker is closer to the best cell, which is outlined."),
        (ran != cells, "Hatched: everything there failed, was refused or skipped."),
        (any(cell["series"] == "predicted" for cell in ran), "Dashed: predicted."),
        (len(cells) < len(columns) * len(rows), "Empty: not tried."),
    ]
    return " ".join(words for there, words in said if there)


def _has_front(contenders: list[Record]) -> bool:
    """Whether a slower layout needs less memory than all faster ones, as in `memory_time`."""
    known = sorted(
        (row["step_time_s"], taken)
        for row in contenders
        if row["outcome"] == "ok" and row["step_time_s"]
        if (taken := row["peak_memory_bytes"] or row["predicted_memory_bytes"])
    )
    return bool(known) and min(taken for _, taken in known) < known[0][1]
