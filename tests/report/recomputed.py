"""The sentences of a page and the numbers of its rows, both without the product's own code."""

import html
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]
_SCALE = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# What a title leaves out: axes that came later, where they are as before.
UNSAID = {
    "engine": "deepspeed", "compile": False, "fused_rope": False, "fused_mlp": False,
    "fused_cross_entropy": False, "optimizer_precision": "fp32", "optimizer_offload": "none",
}  # fmt: skip
_HOURS = {"days": 24, "hours": 1, "minutes": 1 / 60, "seconds": 1 / 3600}
TIME = r"[\d. ]+ k? ?(?:days|hours|minutes|seconds)"


def page_text(path: Path) -> str:
    """The page with plain spaces and hyphens."""
    text = html.unescape(path.read_text(encoding="utf-8"))
    for wide, plain in (("\u202f", " "), ("\u00a0", " "), ("\u2011", "-"), ("\u2212", "-")):
        text = text.replace(wide, plain)
    return text


def number(text: str) -> float:
    found = re.fullmatch(r"\$?([\d. ]+?) ?([kMGT]?)", text.strip())
    assert found, text
    return float(found[1].replace(" ", "")) * _SCALE[found[2]]


def hours(text: str) -> float:
    value, unit = text.rsplit(" ", 1)
    return number(value) * _HOURS[unit]


def read_rows(path: Path) -> list[Row]:
    rows: list[Row] = []
    for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
        rows += pq.read_table(file).to_pylist()
    return rows


def selections(text: str) -> Iterator[tuple[str, str, str]]:
    """The answer of each selection, its evidence and its row of the matrix."""
    parts = re.findall(
        r'<article class="selection" data-id="(\d+)"[^>]*>(.*?)</article>', text, re.S
    )
    by_id: dict[str, list[str]] = {}
    for name, part in parts:
        by_id.setdefault(name, []).append(part)
    for name, (answer, evidence) in by_id.items():
        found = re.search(rf'<tr data-id="{name}">(.*?)</tr>', text, re.S)
        yield answer, evidence, found[1] if found else ""


def axes_of(exact: str) -> Row:
    """The axes that a layout's title states."""
    said = dict(part.split("=", 1) for part in exact.split(" "))
    return UNSAID | {name: _value(text) for name, text in said.items()}


def _value(text: str) -> Any:
    named = {"yes": True, "no": False, "true": True, "false": False, "–": None}
    return int(text) if text.isdigit() else named.get(text, text)


def plain(cell: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", cell).split())


def table_rows(evidence: str, size: int) -> list[tuple[Row, list[str]]]:
    """Axes and cells of each layout of a size, in the order of the page."""
    found = re.search(rf'data-size="{size}".*?<tbody>(.*?)</tbody>', evidence, re.S)
    assert found
    lines = re.findall(r"<tr[^>]*>(.*?)</tr>", found[1], re.S)
    told = []
    for line in lines:
        title = re.search(r'<span title="([^"]+)">', line)
        assert title
        told.append((axes_of(title[1]), [plain(one) for one in re.findall(r"<td.*?</td>", line)]))
    return told


def of_layout(rows: list[Row], axes: Mapping[str, Any]) -> list[Row]:
    """The rows of a layout; an axis that a row does not state agrees with any value."""
    return [
        row
        for row in rows
        if all(row.get(name) in (None, value) for name, value in axes.items() if name in row)
    ]


def rate(rows: list[Row]) -> float:
    """Tokens per second: the median of the runs."""
    return statistics.median(
        row["global_batch_size"] * row["seq_length"] / row["step_time_s"] for row in rows
    )
