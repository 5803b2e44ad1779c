"""The advice of a selection: one object that feeds the headline, the decision and the budget."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from scaling.report.sections.headline import Stretch, headline, layout_phrases
from scaling.report.tables import Record, Tables
from scaling.report.text import SERIES_LABELS

TOKENS_PER_PARAMETER = (
    20  # of a run, unless the reader says otherwise (Hoffmann et al., 2203.15556)
)
DEFAULT_TOKENS = 1e12  # where the model's parameters are not known


def advice(tables: Tables) -> dict[str, Any]:
    """What is advised for one selection, as plain values for the page.

    Its tables hold one series. Layouts are named by the ids of `layouts`; sizes that are keys are
    text.

    Returns:
        headline: `text`, of at most 30 words, the part of it that names `layouts` and sizes, and
            `tags`, the exact name of each layout and its sizes.
        tokens: of a run, 20 per parameter, null where these are not known.
        usd_per_gpu_hour: null where no price is known.
        sizes: in rising order.
        shared: the degrees that all rows of the decision share; their labels leave them out.
        layouts: the rows of the decision: `id`, `label` (in words, by what differs between the
            rows), `name` (as all tables of the page name it), `role` and `slot` of the palette.
        cells: by layout and size; see `_cell`.
        stretches: the layouts advised and the sizes each is advised for, both ends included.
        at_size: sizes at which something ran: what the fastest gives, costs per token of training.
        steps: what each step between neighbouring sizes returns of its cost.
        warning: beside the budget; often empty.
    """
    setting = tables["settings"][0]
    rows = tables["decision"]
    rows_of = {
        layout: list(group) for layout, group in groupby(rows, key=lambda row: str(row["layout"]))
    }
    choices = {layout: layout_rows[0] for layout, layout_rows in rows_of.items()}
    stretches = _stretches(rows)
    costs = {row["world_size"]: row for row in tables["costs"]}
    best = [row for row in tables["best"] if row["world_size"] in costs]
    cells = {
        layout: {str(row["world_size"]): _cell(row) for row in layout_rows}
        for layout, layout_rows in rows_of.items()
    }
    tags = [[choices[one.layout]["layout_name"], _sizes(one, tables)] for one in stretches]
    warning = _warning({row["tokens_per_step"] for row in best}, setting["study_kind"])
    shared, labels = layout_phrases(list(choices.values()), setting["gpus_per_node"])
    layouts, last_step = headline(tables, stretches, choices)
    return {
        "headline": {
            "text": f"{SERIES_LABELS[tables.series]} {layouts}. {last_step}" if layouts else "",
            "layouts": layouts,
            "tags": tags,
        },
        "tokens": TOKENS_PER_PARAMETER * setting["total_params"]
        if setting["total_params"]
        else None,
        "usd_per_gpu_hour": setting["usd_per_gpu_hour"],
        "sizes": sorted({row["world_size"] for row in rows}),
        "shared": shared,
        "layouts": [
            {"id": layout, "label": label, "name": row["layout_name"]}
            | {name: row[name] for name in ("role", "slot")}
            for (layout, row), label in zip(choices.items(), labels, strict=True)
        ],
        "cells": cells,
        "stretches": [stretch._asdict() for stretch in stretches],
        "at_size": {
            str(row["world_size"]): {
                "tokens_per_s": row["tokens_per_s"],
                "tokens_per_step": row["tokens_per_step"],
                "hours_per_token": costs[row["world_size"]]["hours_per_token"],
                "gpu_hours_per_token": costs[row["world_size"]]["gpu_hours_per_token"],
            }
            for row in best
        },
        "steps": [
            {
                "from_size": row["from_world_size"], "to_size": row["to_world_size"],
                "returned": row["step_return"], "low": row["step_return_low"],
                "high": row["step_return_high"],
            }
            for row in tables["returns"]
        ],
        "warning": warning,
    }  # fmt: skip


def _stretches(rows: Sequence[Record]) -> list[Stretch]:
    advised = sorted((row["world_size"], row["layout"]) for row in rows if row["advised"])
    groups = [list(group) for _, group in groupby(advised, key=lambda pair: pair[1])]
    return [
        Stretch(layout=group[0][1], from_size=group[0][0], to_size=group[-1][0]) for group in groups
    ]


def _sizes(stretch: Stretch, tables: Tables) -> str:
    if stretch.from_size == stretch.to_size:
        return tables.gpus(stretch.to_size)
    return f"{stretch.from_size}–{stretch.to_size} {tables.words['GPUs']}"


def _cell(row: Record) -> Record:
    """A layout at a size: `state`, and `share`, its tokens/s over those of the fastest.

    `low` and `high` bound the share; null at the fastest itself. All are null if it did not run.
    """
    share = row["share_of_best"]
    low, high = (None, None) if share in (None, 1) else (row["share_low"], row["share_high"])
    if share is not None:
        state = "advised" if row["advised"] else "tied" if row["within_noise"] else "slower"
    elif row["outcome"]:
        state = "does_not_fit" if row["outcome"] == "oom" else "failed"
    else:
        state = "not_tried"
    return {"state": state, "share": share, "low": low, "high": high}


def _warning(tokens_per_step: set[int], study_kind: str) -> str:
    """Under weak scaling the same tokens take fewer steps on more GPUs."""
    steps = sorted(tokens_per_step)
    if study_kind != "weak" or len(steps) < 2:
        return ""
    return (
        f"Weak scaling: a step takes {steps[0]:_} to {steps[-1]:_} tokens. The same number of "
        "tokens is then fewer steps on more GPUs, which does not train the same model."
    ).replace("_", "\u202f")
