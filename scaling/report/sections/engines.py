"""The same layouts under two engines: which is faster and by how much, and what only one runs."""

from collections import Counter
from typing import Any

from scaling.analyse.ties import NOISE_FLOOR
from scaling.report.tables import Record, Tables
from scaling.report.text.numbers import ratio
from scaling.report.text.words import called

_MOST = 12  # layouts of a size, the fastest first


def engines(tables: Tables) -> dict[str, Any] | None:
    """What the page says of pairs of engines; None where no layout was asked of two.

    `headline`, `pairs` (of each size the fastest, with its `model` and `says`: the ratio and its
    interval, or why there is none), and `more`, how many pairs are in the table alone.
    """
    rows = tables["engines"]
    if not rows:
        return None
    models = {row["setting_id"]: row["model"] for row in tables["settings"]}
    seen: Counter[tuple[Any, ...]] = Counter()
    shown = []
    for row in rows:
        size = row["setting_id"], row["series"], row["world_size"], row["from_engine"]
        seen[size] += 1
        if seen[size] <= _MOST:
            shown.append({**row, "says": _says(row), "model": models[row["setting_id"]]})
    return {"headline": _headline(rows), "pairs": shown, "more": len(rows) - len(shown)}


def _says(row: Record) -> str:
    if row["ratio"] is None:
        declined = "from" if row["from_outcome"] != "ok" else "to"
        engine, outcome = row[f"{declined}_engine"], row[f"{declined}_outcome"]
        return f"{engine}: {outcome}" + (f", {row['reason']}" if row["reason"] else "")
    return ratio(row["ratio"], row["ratio_low"], row["ratio_high"])


def _headline(rows: list[Record]) -> str:
    both = [row for row in rows if row["ratio"] is not None]
    first, second = rows[0]["from_engine"], rows[0]["to_engine"]
    alone = {
        engine: sum(row[f"{side}_outcome"] == "ok" and row["ratio"] is None for row in rows)
        for side, engine in (("from", first), ("to", second))
    }
    only = ", ".join(f"{count} under {name} alone" for name, count in alone.items() if count)
    predicted = {row["series"] for row in rows} - {None} == {"predicted"}
    series = "predicted" if predicted else "measured"
    ran = "fit" if predicted else "ran"
    if not both:
        title = f"No layout {ran} under {first} and {second}" + (f": {only}" if only else "")
        return called(title, series)
    lead = 1 + NOISE_FLOOR
    sure = [row for row in both if row["ratio_low"] and not 1 / lead < row["ratio"] < lead]
    faster = sum(row["ratio_low"] > 1 for row in sure)
    slower = sum(row["ratio_high"] < 1 for row in sure)
    verdict = f"{second} is faster in {faster} and {first} in {slower}"
    if not faster and not slower:
        verdict = f"{first} and {second} are told apart in none"
    title = (
        f"Of {len(both)} layouts that {ran} under both engines, {verdict}"
        + ("; the others are within the noise" if 0 < faster + slower < len(both) else "")
        + (f" ({only})" if only else "")
    )
    return called(title, series)
