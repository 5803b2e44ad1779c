"""What a table of rows measured, beside the points it measured."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from scaling.foreign.arrays import Flags, Floats, Words
from scaling.foreign.columns import Columns
from scaling.record.row import Outcome

# A published sweep that cannot tell one from the other.
OOM_OR_CRASH = "oom_or_crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measurements, (n,), NaN where there is none.

    `ambiguous`: the row failed, out of memory or otherwise; never calibrated on, and counted as out
    of memory when fits are judged.
    """

    step_time_s: Floats
    peak_memory_bytes: Floats
    ran: Flags
    out_of_memory: Flags
    ambiguous: Flags

    @property
    def timed(self) -> Flags:
        """Rows that ran and have a step time."""
        return self.ran & (self.step_time_s > 0)

    def take(self, rows: npt.NDArray[np.int64] | Flags) -> "Observed":
        """These rows only."""
        return Observed(
            step_time_s=self.step_time_s[rows],
            peak_memory_bytes=self.peak_memory_bytes[rows],
            ran=self.ran[rows],
            out_of_memory=self.out_of_memory[rows],
            ambiguous=self.ambiguous[rows],
        )


def observed_of(columns: Columns) -> Observed:
    """The measurements of a table; a row without an outcome ran if it has a step time.

    Raises:
        InputError: an outcome is none of ours, or a time or a memory is no number.
    """
    step = columns.numbers("step_time_s")
    step = np.where(step == 0, np.nan, step)
    outcome: Words = columns.words("outcome", "", {*get_args(Outcome), OOM_OR_CRASH, ""})
    outcome = np.where((outcome == "") & np.isfinite(step), "ok", outcome)
    return Observed(
        step_time_s=step,
        peak_memory_bytes=columns.numbers("peak_memory_bytes"),
        ran=outcome == "ok",
        out_of_memory=outcome == "oom",
        ambiguous=outcome == OOM_OR_CRASH,
    )
