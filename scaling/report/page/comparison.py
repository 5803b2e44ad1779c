"""Two studies side by side on the terminal."""

import json
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from scaling.errors import printable
from scaling.report.text import UNKNOWN, amount, listed, ratio

MOST_ROWS = 60  # on the terminal; --json has all


def show(records: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print what `scaling.analyse.compare` found, the largest differences first."""
    if as_json:
        Console(highlight=False, soft_wrap=True).print_json(json.dumps(records, allow_nan=False))
        return
    table = Table("model", "cluster", "GPUs", "layout", "before", "after", "ratio", "verdict")
    ranked = sorted(records, key=lambda one: -abs((one["ratio"] or 1.0) - 1))
    for one in ranked[:MOST_ROWS]:
        other = "" if one["same_stack"] in (True, None) else ", other software stack"
        table.add_row(
            printable(one["model"]),
            printable(one["cluster"]),
            str(one["world_size"]),
            printable(one["layout"]),
            _rate(one["before_outcome"], one["before_tokens_per_s"]),
            _rate(one["after_outcome"], one["after_tokens_per_s"]),
            UNKNOWN
            if one["ratio"] is None
            else ratio(one["ratio"], one["ratio_low"], one["ratio_high"], places=3),
            one["verdict"] + other,
        )
    console = Console(highlight=False, markup=False, width=max(Console().width, 150))
    console.print(table)
    if len(records) > MOST_ROWS:
        console.print(f"{MOST_ROWS} of {len(records)} layouts shown; --json has all")
    counts = Counter(one["verdict"] for one in records)
    parts = [f"{count} {verdict}" for verdict, count in counts.most_common()]
    console.print(f"{len(records)} layouts: {listed(parts)}" if records else "Nothing to compare.")


def _rate(outcome: str | None, tokens_per_s: float | None) -> str:
    if outcome is None:
        return UNKNOWN
    return f"{amount(tokens_per_s)} tokens/s" if outcome == "ok" else outcome
