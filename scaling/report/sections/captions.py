"""What captions say of marks that not every selection, or not every size of it, has.

A caption names a mark only where it is drawn. Its words in braces are the keys below.
"""

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
        "grey": _grey(tables),
        "split": _split(tables["time_split"]),
    }


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
    failed = any(
        row["outcome"] != "ok" and (row["place"] or 0) <= SHOWN_LAYOUTS
        for row in tables["contenders"]
        if row["world_size"] == size
    )
    return {"failed": " Hatched: tried and failed." if failed else ""}
