"""Read the outcome and the step time of each row, in whatever form a table states them."""

import re
from collections.abc import Mapping
from typing import get_args

import numpy as np
import pyarrow as pa

from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import complete_layout, read_layout
from scaling.foreign.spellings import MEASURED, RATES, failure_of
from scaling.record.row import Outcome

# The outcome in published sweeps that do not tell the two apart.
OOM_OR_CRASH = "oom_or_crash"
OUTCOMES = (*get_args(Outcome), OOM_OR_CRASH)
_MEASURED_TOO = re.compile(
    r"flop|[mh]fu|utili[sz]ation|mem(ory)?(?![a-z])"
)  # headers that are not read
_ADAPTERS = re.compile(r"(?i)(?<![a-z])(q?lora|peft)(?![a-z])")


def skip_adapter_training(columns: Columns) -> None:
    """Skip rows that trained adapters only, which is not the step that we predict.

    Raises:
        InputError: all rows did.
    """
    for name in columns.table.column_names:
        column = columns.table.column(name)
        if pa.types.is_string(column.type):
            for text in column.unique().to_pylist():
                if text and _ADAPTERS.search(text):
                    rows = np.flatnonzero(columns.strings(name, "") == text.strip()).tolist()
                    why = "tunes a few weights, which is another step than training's"
                    columns.skip_cells(name, rows, why)


def read_outcomes(
    columns: Columns, assumed: Mapping[str, Floats] | None = None
) -> tuple[Strings, Floats]:
    """Outcome ('' if not stated) and seconds per step (NaN if not known), each (n,).

    A row without an outcome is ok if it has a step time; `OOM` or `crashed` may stand in place of
    what it measured. The step time follows from tokens or sequences per second too, but not from
    FLOP/s, which people count in different ways.

    Args:
        columns: the table.
        assumed: `world_size` and `global_batch_size`, (n,), where they do not follow from it.

    Raises:
        InputError: a time or a rate is not a number, or no row has a valid outcome.
    """
    stated = columns.numbers("step_time_s")
    step = np.where(stated == 0, np.nan, stated)
    step = np.where(np.isnan(stated), _step_from_rate(columns, assumed or {}), step)
    outcome = columns.strings("outcome", "", OUTCOMES, silent=True)
    for name in columns.table.column_names:
        is_text = pa.types.is_string(columns.table[name].type)
        if is_text and (name in MEASURED or _MEASURED_TOO.search(name)):
            cells = columns.strings(name, "").tolist()
            said = {cell: failure_of(cell) or "" for cell in {*cells}}
            outcome = np.where((outcome == "") & np.isnan(step), [said[c] for c in cells], outcome)
    ran = (outcome == "") & np.isfinite(step)
    ran[list(columns.skipped)] = False
    return np.where(ran, "ok", outcome), step


def _step_from_rate(columns: Columns, assumed: Mapping[str, Floats]) -> Floats:
    """Seconds per step from a throughput, (n,); NaN where the table has none."""
    step = np.full(len(columns), np.nan)
    rates = [name for name in RATES if name in columns]
    if rates:
        layout = complete_layout(read_layout(columns))
        for name, values in assumed.items():
            layout[name] = np.where(np.isnan(layout[name]), values, layout[name])
        batch, tokens = layout["global_batch_size"], columns.counts("seq_length")
        amount_per_step = {
            "tokens_per_s": batch * tokens,
            "tokens_per_s_per_gpu": batch * tokens / layout["world_size"],
            "samples_per_s": batch,
            "steps_per_s": np.ones(len(columns)),
        }
        for name in rates:
            rate = columns.numbers(name)
            seconds = amount_per_step[name] / np.where(rate > 0, rate, np.nan)
            step = np.where(np.isnan(step), seconds, step)
    return step
