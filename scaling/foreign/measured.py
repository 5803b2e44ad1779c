"""What a table says became of each row, and how long a step took, in whatever unit it says it."""

import re
from typing import get_args

import numpy as np
import pyarrow as pa

from scaling.foreign.arrays import Floats, Strings
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import complete_layout, read_layout
from scaling.foreign.spellings import canonical_word
from scaling.record.row import Outcome

# A published sweep that cannot tell one from the other.
OOM_OR_CRASH = "oom_or_crash"
OUTCOMES = (*get_args(Outcome), OOM_OR_CRASH)
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "steps_per_s")

# Tuning a few weights is not the training whose step is asked for.
_OTHER_WORK = re.compile(r"(?i)(?<![a-z])(q?lora|peft)(?![a-z])")


def skip_adapter_training(columns: Columns) -> None:
    """Leave out rows of which a cell says that only adapters were trained.

    Raises:
        InputError: they all are.
    """
    for name in columns.table.column_names:
        column = columns.table.column(name)
        if pa.types.is_string(column.type):
            for word in column.unique().to_pylist():
                if word and _OTHER_WORK.search(word):
                    rows = np.flatnonzero(columns.strings(name, "") == word.strip()).tolist()
                    why = "tunes a few weights, which is another step than training's"
                    for row in rows:
                        columns.skip_row(row, str(columns.cell_error(name, rows[0], why)))


def read_outcomes(columns: Columns) -> tuple[Strings, Floats]:
    """Outcome, '' where a table says nothing, and seconds a step, NaN where none is known, (n,).

    A row without an outcome ran if it has a step time; `OOM` may stand where that would. Tokens or
    sequences a second say what a step took; FLOP/s do not, for people count them differently.

    Raises:
        InputError: a time or a rate is no number, or no row has an outcome of ours.
    """
    step = columns.numbers("step_time_s")
    step = np.where(np.isnan(step), _by_throughput(columns), np.where(step == 0, np.nan, step))
    outcome = columns.strings("outcome", "", OUTCOMES, silent=True)
    if "step_time_s" in columns:
        cell = [
            canonical_word("outcome", word, {"oom"}) for word in columns.strings("step_time_s", "")
        ]
        outcome = np.where((outcome == "") & (np.array(cell, object) == "oom"), "oom", outcome)
    ran = (outcome == "") & np.isfinite(step)
    ran[list(columns.skipped)] = False
    return np.where(ran, "ok", outcome), step


def _by_throughput(columns: Columns) -> Floats:
    """Seconds a step of tables that state tokens or sequences a second, NaN elsewhere, (n,)."""
    step = np.full(len(columns), np.nan)
    rates = [name for name in RATES if name in columns]
    if rates:
        layout = complete_layout(read_layout(columns))
        batch, tokens = layout["global_batch_size"], columns.counts("seq_length")
        of = {
            "tokens_per_s": batch * tokens,
            "tokens_per_s_per_gpu": batch * tokens / layout["world_size"],
            "samples_per_s": batch,
            "steps_per_s": np.ones(len(columns)),
        }
        for name in rates:
            rate = columns.numbers(name)
            step = np.where(np.isnan(step), of[name] / np.where(rate > 0, rate, np.nan), step)
    return step
