"""What the decision's template asks: shades of cells, steps by size, a line for each selection."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scaling.report.text.numbers import THIN, UNKNOWN, amount, digits, percent, significant

Story = Mapping[str, Any]

# from which share of the fastest on a cell has which step of the ramp (as in the map of tp and pp)
_SHADES = ((0.97, "s6"), (0.9, "s5"), (0.8, "s4"), (0.7, "s3"), (0.5, "s2"), (0.0, "s1"))
_UNITS = (("h", 1), ("min", 60), ("s", 3600))  # below two days, and how many an hour has
MOST_ON_PAPER = 12  # selections printed whole; of more each is a line of the overview
DEFAULT_TOKENS = 1e12  # of a run where the model's parameters are not known


def tokens_of(advice: Mapping[str, Any]) -> float:
    """The tokens of a run until the reader says otherwise."""
    return float(advice["tokens"] or DEFAULT_TOKENS)


def opening(stories: Sequence[Story]) -> int:
    """The setting that the page opens with: what ran before what is predicted, then most sizes."""

    def fullness(one: Story) -> tuple[bool, int]:
        sizes = len(one["advice"]["at_size"])
        return sizes > 0 and one["basis"] != "predicted", sizes

    return int(max(stories, key=fullness)["setting_id"])


def shade(share: float | None) -> str:
    """The class of a cell by its share of the fastest, a ratio; empty where nothing ran."""
    if share is None:
        return ""
    return next((name for least, name in _SHADES if share >= least), _SHADES[-1][1])


def cell_words(cell: Mapping[str, Any]) -> str:
    """A cell in words, with the interval of its share: `not told apart, 98 % [95 %–101 %]`."""
    state = "not told apart" if cell["state"] == "tied" else str(cell["state"]).replace("_", " ")
    if cell["share"] is None:
        return state
    words = f"{state}, {percent(cell['share'])} of the fastest"
    if cell["low"] is None:
        return words
    return f"{words} [{percent(cell['low'])}–{percent(cell['high'])}]"


def duration(hours: float) -> str:
    """A time in the unit that suits it: `35.8 d`, `9.1 h`, `12 min`; budget.js writes the same."""
    if hours >= 48:
        return f"{amount(hours / 24)}{THIN}d"
    unit, per_hour = next((one for one in _UNITS if hours * one[1] >= 1), _UNITS[-1])
    return f"{significant(hours * per_hour)}{THIN}{unit}"


def steps(advice: Mapping[str, Any]) -> dict[int, Mapping[str, Any] | None]:
    """The step that ends at each size, where there is one."""
    ending = {step["to_size"]: step for step in advice["steps"]}
    return {size: ending.get(size) for size in advice["sizes"]}


def summary(story: Story) -> list[str]:
    """One selection in a line: where the layout changes, last return, largest size, its cost."""
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
