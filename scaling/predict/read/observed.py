"""Measurements of a table's rows, and which of them are physically impossible."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scaling.arrays import Flags, Floats
from scaling.predict.read.features import Group, Points
from scaling.predict.read.given import Cells

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measurements, (n,) each, NaN without one.

    `ambiguous`: the row failed, out of memory or otherwise. Calibration ignores it; validation of
    what fits counts it as out of memory.
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

    @property
    def tells(self) -> Flags:
        """Rows that tell a fit something: they ran, were out of memory, or state a peak."""
        return self.ran | self.out_of_memory | np.isfinite(self.peak_memory_bytes)

    def only(self, rows: Flags) -> "Observed":
        """The same rows, where those that are not in the mask, (n,), measured nothing."""
        return Observed(
            step_time_s=np.where(rows, self.step_time_s, np.nan),
            peak_memory_bytes=np.where(rows, self.peak_memory_bytes, np.nan),
            ran=self.ran & rows,
            out_of_memory=self.out_of_memory & rows,
            ambiguous=self.ambiguous & rows,
        )

    def take(self, rows: npt.NDArray[np.int64] | Flags) -> "Observed":
        """These rows only."""
        return Observed(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def observed_of(table: "Table") -> Observed:
    """The measurements of a table; a row without an outcome ran if it has a step time.

    A full step derived from short ones counts as measured where no full step was.
    """
    from scaling.record.row_checks import OOM_OR_CRASH  # it loads duckdb

    cells = Cells(table)
    step = cells.numbers("step_time_s", cells.numbers("extended_step_time_s"))
    outcome = cells.words("outcome", np.where(np.isfinite(step), "ok", "").astype(object))
    return Observed(
        step_time_s=step,
        peak_memory_bytes=cells.numbers("peak_memory_bytes"),
        ran=outcome == "ok",
        out_of_memory=outcome == "oom",
        ambiguous=outcome == OOM_OR_CRASH,
    )


def impossible_rows(table: "Table", points: Points, observed: Observed) -> tuple[Flags, str]:
    """Mask of timed rows that took more FLOP/s than their GPUs' peak, (n,), and a sentence on them.

    The sentence is empty without such rows.
    """
    rate = np.full(len(points), np.nan)
    for group in points.groups:
        flops = _matmul_flops(group) * points.tokens_per_step[group.rows]
        peak = group.features.world_size * group.features.stated_peak
        rate[group.rows] = flops / peak / observed.step_time_s[group.rows]
    impossible = observed.timed & (rate > 1)
    if not impossible.any():
        return impossible, ""
    first = int(np.argmax(impossible))
    return impossible, (
        f"{int(impossible.sum())} rows are set aside because they cannot be, the first: "
        f"{table.place(first)}: step_time_s={observed.step_time_s[first]:g}: would take more "
        "FLOP/s than peak"
    )


def _matmul_flops(group: Group) -> Floats:
    """FLOPs of the matmuls that a token surely takes (shapes.py), (n,), without routed experts.

    NaN for encoder-decoders, whose streams differ.
    """
    f = group.features
    attention = 2 * f.hidden_size * (f.query_width + f.kv_width) * f.attention_weights
    layer = attention + (f.mlp_inputs + 1) * f.hidden_size * f.ffn_hidden_size
    scores = 2 * f.causal * f.query_width * f.seq_length
    flops = 6 * (f.num_layers * (layer + scores) + f.hidden_size * f.vocab_size)
    return np.where(f.attentions == 1, flops, np.nan)
