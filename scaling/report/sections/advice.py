"""The advice of a selection: one object that feeds the headline, the decision and the budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from scaling.analyse.series import Series
from scaling.report.sections.headline import Step, Stretch, headline, layout_phrases
from scaling.report.tables import Record, Tables
from scaling.report.text import SERIES_LABELS, gpu_count

Role = Literal["advised", "contender", "simplest"]
State = Literal["advised", "tied", "slower", "does_not_fit", "failed", "not_tried"]

TOKENS_PER_PARAMETER = (
    20  # of a run, unless the reader says otherwise (Hoffmann et al., 2203.15556)
)
DEFAULT_TOKENS = 1e12  # where the model's parameters are not known


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceLayout:
    """A row of the decision."""

    id: str
    label: str  # in words, by what differs between the rows
    name: str  # as all tables of the page name it
    role: Role
    slot: int  # of the palette


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A layout at a size: its tokens/s over those of the fastest, null if it did not run.

    `low` and `high` bound the share; null at the fastest itself.
    """

    state: State
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the fastest layout gives at a size. Costs are per token of training."""

    tokens_per_s: float
    tokens_per_step: int
    hours_per_token: float  # wall clock
    gpu_hours_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The headline, of at most 30 words, and the exact layouts beneath it."""

    text: str
    layouts: str  # the part of `text` that names layouts and sizes
    tags: tuple[tuple[str, str], ...]  # name of the layout, its sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is advised for one selection. Layouts are named by the ids of `layouts`."""

    headline: Headline
    tokens: float | None  # of a run: 20 per parameter
    usd_per_gpu_hour: float | None
    sizes: tuple[int, ...]
    shared: str  # the degrees that all rows share; their labels leave them out
    layouts: tuple[AdviceLayout, ...]
    cells: Mapping[str, Mapping[int, Cell]]
    stretches: tuple[Stretch, ...]
    at_size: Mapping[int, Size]  # sizes at which something ran
    steps: tuple[Step, ...]
    warning: str  # beside the budget; often empty


def advice(tables: Tables, series: Series, words: Mapping[str, str]) -> Advice:
    """The advice of one selection from its tables, which hold one series (`story.evidence`)."""
    setting = tables["settings"][0]
    rows = tables["decision"]
    rows_of = {
        layout: list(group) for layout, group in groupby(rows, key=lambda row: str(row["layout"]))
    }
    choices = {layout: layout_rows[0] for layout, layout_rows in rows_of.items()}
    stretches = _stretches(rows)
    at_size = _at_size(tables)
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
    cells = {
        layout: {row["world_size"]: _cell(row) for row in layout_rows}
        for layout, layout_rows in rows_of.items()
    }
    warning = _warning(at_size, setting["study_kind"])
    tags = tuple(
        (choices[stretch.layout]["layout_name"], _sizes(stretch, words)) for stretch in stretches
    )
    shared, labels = layout_phrases(list(choices.values()), setting["gpus_per_node"])
    layouts, last_step = headline(tables, stretches, steps, choices, series, words)
    return Advice(
        headline=Headline(
            text=f"{SERIES_LABELS[series]} {layouts}. {last_step}" if layouts else "",
            layouts=layouts,
            tags=tags,
        ),
        tokens=TOKENS_PER_PARAMETER * setting["total_params"] if setting["total_params"] else None,
        usd_per_gpu_hour=setting["usd_per_gpu_hour"],
        sizes=tuple(sorted({row["world_size"] for row in rows})),
        shared=shared,
        layouts=tuple(
            AdviceLayout(
                id=layout, label=label, name=row["layout_name"], role=row["role"], slot=row["slot"]
            )
            for (layout, row), label in zip(choices.items(), labels, strict=True)
        ),
        cells=cells,
        stretches=stretches,
        at_size=at_size,
        steps=steps,
        warning=warning,
    )


def _stretches(rows: Sequence[Record]) -> tuple[Stretch, ...]:
    advised = sorted((row["world_size"], row["layout"]) for row in rows if row["advised"])
    groups = [list(group) for _, group in groupby(advised, key=lambda pair: pair[1])]
    return tuple(
        Stretch(layout=group[0][1], from_size=group[0][0], to_size=group[-1][0]) for group in groups
    )


def _at_size(tables: Tables) -> dict[int, Size]:
    costs = {row["world_size"]: row for row in tables["costs"]}
    return {
        row["world_size"]: Size(
            tokens_per_s=row["tokens_per_s"],
            tokens_per_step=row["tokens_per_step"],
            hours_per_token=costs[row["world_size"]]["hours_per_token"],
            gpu_hours_per_token=costs[row["world_size"]]["gpu_hours_per_token"],
        )
        for row in tables["best"]
        if row["world_size"] in costs
    }


def _sizes(stretch: Stretch, words: Mapping[str, str]) -> str:
    if stretch.from_size == stretch.to_size:
        return gpu_count(stretch.to_size, words)
    return f"{stretch.from_size}–{stretch.to_size} {words['GPUs']}"


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


def _warning(at_size: Mapping[int, Size], study_kind: str) -> str:
    """Under weak scaling the same tokens take fewer steps on more GPUs."""
    steps = sorted({size.tokens_per_step for size in at_size.values()})
    if study_kind != "weak" or len(steps) < 2:
        return ""
    return (
        f"Weak scaling: a step takes {steps[0]:_} to {steps[-1]:_} tokens. The same number of "
        "tokens is then fewer steps on more GPUs, which does not train the same model."
    ).replace("_", "\u202f")
