"""Two studies side by side on the terminal."""

import json
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from scaling.errors import printable
from scaling.report.text import UNKNOWN, amount, digits, listed

MOST_ROWS = 60  # on the terminal; --json prints all
SIZE = (
    "model", "cluster", "world_size", "study_kind", "seq_length", "kept_batch_size", "kept_choices",
)  # fmt: skip


def show(records: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the records of `scaling.analyse.compare`, the largest differences first."""
    if as_json:
        Console(highlight=False, soft_wrap=True).print_json(json.dumps(records, allow_nan=False))
        return
    table = Table("model", "cluster", "GPUs", "layout", "before", "after", "ratio", "verdict")
    ranked = sorted(records, key=lambda record: -abs((record["ratio"] or 1.0) - 1))
    for record in ranked[:MOST_ROWS]:
        remark = "" if record["same_stack"] in (True, None) else ", other software stack"
        table.add_row(
            printable(record["model"]),
            printable(record["cluster"]),
            str(record["world_size"]),
            printable(record["layout"]),
            _rate(record["before_outcome"], record["before_tokens_per_s"]),
            _rate(record["after_outcome"], record["after_tokens_per_s"]),
            _ratio(*(record[name] for name in ("ratio", "ratio_low", "ratio_high"))),
            record["verdict"] + remark,
        )
    console = Console(highlight=False, markup=False, width=max(Console().width, 150))
    console.print(table)
    if len(records) > MOST_ROWS:
        console.print(f"{MOST_ROWS} of {len(records)} layouts shown; --json has all")
    for line in _advice(records):
        console.print(line)
    counts = Counter(record["verdict"] for record in records)
    parts = [f"{count} {verdict}" for verdict, count in counts.most_common()]
    console.print(f"{len(records)} layouts: {listed(parts)}")


def _advice(records: list[dict[str, Any]]) -> list[str]:
    """A line for each size at which the layout to use changed."""
    advised: dict[tuple[Any, ...], dict[str, str]] = {}
    for record in records:
        for side in ("before", "after"):
            if record[f"{side}_advised"]:
                size = tuple(record[key] for key in SIZE)
                advised.setdefault(size, {})[side] = printable(record["layout"])
    return [
        f"advised for {printable(model)} on {size} of {printable(cluster)}: {sides['after']}, "
        f"before {sides['before']}"
        for (model, cluster, size, *_), sides in advised.items()
        if len(sides) == 2 and sides["before"] != sides["after"]
    ]


def _ratio(*of: float | None) -> str:
    """A ratio with its interval: `×1.314 [1.302–1.326]`."""
    middle, low, high = (UNKNOWN if one is None else digits(one, 3) for one in of)
    return UNKNOWN if middle == UNKNOWN else f"×{middle} [{low}–{high}]"


def _rate(outcome: str | None, tokens_per_s: float | None) -> str:
    if outcome is None:
        return UNKNOWN
    return f"{amount(tokens_per_s)} tokens/s" if outcome == "ok" else outcome
