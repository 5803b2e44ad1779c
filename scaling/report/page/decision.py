"""What the template of the decision asks for: shades of cells, times, a line for each selection."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scaling.report.text import SERIES_LABELS, THIN, UNKNOWN, amount, digits, percent, significant

Story = Mapping[str, Any]

# CSS class of a cell by its least share of the fastest; the map of tp by pp has the same steps
_SHADES = ((0.97, "s6"), (0.9, "s5"), (0.8, "s4"), (0.7, "s3"), (0.5, "s2"), (0.0, "s1"))
_UNITS = (("h", 1), ("min", 60), ("s", 3600))  # below two days: unit, and how many an hour has
# CSS class of a mark in the legend, the states that it stands for, and what it means
_MARKS = (
    ("advised", {"advised"}, "advised"),
    ("tied", {"tied"}, "not told apart"),
    ("nofit", {"does_not_fit", "failed"}, "does not fit or failed"),
    ("none", {"not_tried"}, "not tried"),
)
MOST_ON_PAPER = 12  # selections printed whole; of more, each is a line of the overview


def shade(share: float | None) -> str:
    """The CSS class of a cell by its share of the fastest; empty where nothing ran."""
    if share is None:
        return ""
    return next(name for least, name in _SHADES if share >= least)


def legend(advice: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The marks that the decision has, each with its CSS class and what it means."""
    states = {cell["state"] for cells in advice["cells"].values() for cell in cells.values()}
    return [(look, meaning) for look, marked, meaning in _MARKS if states & marked]


def cell_words(cell: Mapping[str, Any]) -> str:
    """A cell in words: `not told apart, 98 % of the fastest [95 %–101 %]`."""
    state = "not told apart" if cell["state"] == "tied" else str(cell["state"]).replace("_", " ")
    if cell["share"] is None:
        return state
    words = f"{state}, {percent(cell['share'])} of the fastest"
    if cell["low"] is None:
        return words
    return f"{words} [{percent(cell['low'])}–{percent(cell['high'])}]"


def duration(hours: float) -> str:
    """A time in a fitting unit: `35.8 d`, `9.1 h`, `12 min`; budget.js does the same."""
    if hours >= 48:
        return f"{amount(hours / 24)}{THIN}d"
    unit, per_hour = next((unit for unit in _UNITS if hours * unit[1] >= 1), _UNITS[-1])
    return f"{significant(hours * per_hour)}{THIN}{unit}"


def steps_by_size(advice: Mapping[str, Any]) -> dict[int, Mapping[str, Any] | None]:
    """The step that leads to each size, None where there is none."""
    steps = {step["to_size"]: step for step in advice["steps"]}
    return {size: steps.get(size) for size in advice["sizes"]}


def kinds(stories: Sequence[Story]) -> set[str]:
    """Which values the answers stand on; a selection without an answer has none."""
    return {story["basis"] for story in stories if story["advice"]["at_size"]}


def overview_title(stories: Sequence[Story]) -> str:
    """What the overview lists; which values its answers stand on, where all have the same."""
    selections, of = f"{len(stories)} selections", kinds(stories)
    if not of:
        return f"{selections}, none with a layout to use"
    if len(of) == 1 and all(story["advice"]["at_size"] for story in stories):
        label = SERIES_LABELS[of.pop()].rstrip(":")
        selections += f", all {label.lower()}"
    return f"{selections}: what to use, where it changes, what the last step returns"


def summary(story: Story) -> list[str]:
    """A selection's line: where the layout changes, last return, largest size, its GPU-hours."""
    advice = story["advice"]
    if not advice["at_size"]:
        return ["", "", "", ""]
    changes = ", ".join(
        f"{before['to_size']}→{after['from_size']}"
        for before, after in pairwise(advice["stretches"])
    )
    last = advice["steps"][-1]["returned"] if advice["steps"] else None
    largest = max(advice["at_size"], key=int)
    hours = story["tokens"] * advice["at_size"][largest]["gpu_hours_per_token"]
    return [changes, UNKNOWN if last is None else digits(last, 2), largest, amount(hours)]
