"""One object per selection says what to use where; headline, charts and sentences come from it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from scaling.analyse.series import Series
from scaling.report.sections.headline import headline
from scaling.report.tables import Record, Tables
from scaling.report.text.layouts import phrases
from scaling.report.text.words import opening

Role = Literal["advised", "contender", "simplest"]
State = Literal["advised", "tied", "slower", "does_not_fit", "failed", "not_tried"]

TOKENS_PER_PARAMETER = 20  # of a run whose tokens nobody states (Hoffmann et al., arXiv 2203.15556)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceLayout:
    """A row of the decision. `name`: the layout by the choices that differ in the selection."""

    id: str
    label: str  # in words, by what differs between the rows
    name: str  # as every table of the page says it
    role: Role
    slot: int  # of the palette


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A layout at a size. Shares are ratios of tokens/s to the fastest there, null if none ran.

    `low` and `high` bound the ratio; null at the fastest itself.
    """

    state: State
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the fastest layout gives at a size. Costs are per token of training.

    `hours_per_token` is wall clock.
    """

    tokens_per_s: float
    tokens_per_step: int
    hours_per_token: float
    gpu_hours_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step between neighbouring sizes returns, a share of what it costs: 1 is all of it."""

    from_size: int
    to_size: int
    returned: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An advised layout and the sizes it is advised for, both ends included."""

    layout: str
    from_size: int
    to_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """At most 30 words, and the exact layouts beneath it: name and sizes.

    `layouts` is the part of `text` that says what to use where.
    """

    text: str
    layouts: str
    tags: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All that is advised of one selection. Ids of layouts are those of `layouts`."""

    headline: Headline
    tokens: float | None  # of a run: 20 per parameter
    usd_per_gpu_hour: float | None
    sizes: tuple[int, ...]
    shared: str  # the degrees of all rows, where their labels leave them out
    layouts: tuple[AdviceLayout, ...]
    cells: Mapping[str, Mapping[int, Cell]]
    stretches: tuple[Stretch, ...]
    at_size: Mapping[int, Size]  # sizes at which something ran
    steps: tuple[Step, ...]
    warning: str  # what the budget must say; empty where nothing

    def json(self) -> dict[str, Any]:
        """Plain values for the page; sizes that are keys become text."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


def advice(tables: Tables, kind: Series, words: Mapping[str, str]) -> Advice:
    """The advice of one selection, from its tables of one series (`sentences.evidence`)."""
    setting = tables["settings"][0]
    rows = tables["decision"]
    best = {row["world_size"]: row for row in tables["best"]}
    costs = {row["world_size"]: row for row in tables["costs"]}
    tokens = TOKENS_PER_PARAMETER * setting["total_params"] if setting["total_params"] else None
    by_layout = {
        layout: list(cells) for layout, cells in groupby(rows, key=lambda row: str(row["layout"]))
    }
    choices = {layout: cells[0] for layout, cells in by_layout.items()}
    stretches = _stretches(rows)
    at_size = {
        size: Size(
            tokens_per_s=row["tokens_per_s"],
            tokens_per_step=row["tokens_per_step"],
            hours_per_token=costs[size]["hours_per_token"],
            gpu_hours_per_token=costs[size]["gpu_hours_per_token"],
        )
        for size, row in best.items()
        if size in costs
    }
    shared, labels = phrases(list(choices.values()), setting["gpus_per_node"])
    layouts = tuple(
        AdviceLayout(
            id=layout,
            label=label,
            name=row["layout_name"],
            role=row["role"],
            slot=row["slot"],
        )
        for (layout, row), label in zip(choices.items(), labels, strict=True)
    )
    steps = tuple(
        Step(
            from_size=row["from_world_size"],
            to_size=row["to_world_size"],
            returned=row["step_return"],
            low=row["step_return_low"],
            high=row["step_return_high"],
        )
        for row in tables["returns"]
    )
    what, worth = headline(tables, stretches, steps, choices, kind, words)
    return Advice(
        headline=Headline(
            text=f"{opening(kind)} {what}. {worth}" if what else "",
            layouts=what,
            tags=tuple(
                (choices[one.layout]["layout_name"], _where(one, words)) for one in stretches
            ),
        ),
        tokens=tokens,
        usd_per_gpu_hour=setting["usd_per_gpu_hour"],
        sizes=tuple(sorted({row["world_size"] for row in rows})),
        shared=shared,
        layouts=layouts,
        cells={
            layout: {row["world_size"]: _cell(row) for row in cells}
            for layout, cells in by_layout.items()
        },
        stretches=stretches,
        at_size=at_size,
        steps=steps,
        warning=_warning(at_size, setting["study_kind"]),
    )


def _stretches(rows: Sequence[Record]) -> tuple[Stretch, ...]:
    advised = sorted((row["world_size"], row["layout"]) for row in rows if row["advised"])
    groups = [list(group) for _, group in groupby(advised, key=lambda one: one[1])]
    return tuple(
        Stretch(layout=group[0][1], from_size=group[0][0], to_size=group[-1][0]) for group in groups
    )


def _cell(row: Record) -> Cell:
    share = row["share_of_best"]
    if share is None:
        failed: State = "does_not_fit" if row["outcome"] == "oom" else "failed"
        return Cell(
            state=failed if row["outcome"] else "not_tried", share=None, low=None, high=None
        )
    state: State = "advised" if row["advised"] else "tied" if row["within_noise"] else "slower"
    low, high = (None, None) if share == 1 else (row["share_low"], row["share_high"])
    return Cell(state=state, share=share, low=low, high=high)


def _where(stretch: Stretch, words: Mapping[str, str]) -> str:
    if stretch.from_size == stretch.to_size:
        return f"{stretch.from_size} {words['GPU'] if stretch.to_size == 1 else words['GPUs']}"
    return f"{stretch.from_size}–{stretch.to_size} {words['GPUs']}"


def _warning(at_size: Mapping[int, Size], study_kind: str) -> str:
    """Under weak scaling the same tokens are fewer steps on more GPUs."""
    steps = sorted({size.tokens_per_step for size in at_size.values()})
    if study_kind != "weak" or len(steps) < 2:
        return ""
    return (
        f"Weak scaling: a step takes {steps[0]:_} to {steps[-1]:_} tokens, so that the same number "
        "of tokens is fewer steps on more GPUs, which does not train the same model."
    ).replace("_", "\u202f")
