"""Measurements of a table's rows, and which of them are physically impossible."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.foreign.arrays import Flags, Floats
from scaling.foreign.columns import Columns
from scaling.foreign.layouts import ZERO_MEANS_ONE
from scaling.foreign.measured import OOM_OR_CRASH, read_outcomes
from scaling.predict.read.features import Group, Points
from scaling.predict.read.inputs import predictable_rows
from scaling.record.row import Row, fields_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measurements, (n,) each, NaN where there is none.

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

    def take(self, rows: npt.NDArray[np.int64] | Flags) -> "Observed":
        """These rows only."""
        return Observed(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def observed_of(columns: Columns, points: Points | None = None) -> Observed:
    """The measurements of a table; a row without an outcome ran if it has a step time.

    A step's time follows from a rate, with the sizes of `points` where the table leaves them open.
    A full step derived from short ones counts as measured where no full step was.

    Raises:
        InputError: an outcome is none of ours, or a time or a memory is no number.
    """
    names = () if points is None else ("world_size", "global_batch_size")
    outcome, step = read_outcomes(columns, {name: getattr(points, name) for name in names})
    if "extended_step_time_s" in columns:
        missing = ~np.isfinite(step)
        step = np.where(missing, columns.numbers("extended_step_time_s"), step)
        outcome = np.where((outcome == "") & missing & np.isfinite(step), "ok", outcome)
    return Observed(
        step_time_s=step,
        peak_memory_bytes=columns.numbers("peak_memory_bytes"),
        ran=outcome == "ok",
        out_of_memory=outcome == "oom",
        ambiguous=outcome == OOM_OR_CRASH,
    )


_LARGEST = 1e18


def impossible_rows(columns: Columns, points: Points) -> dict[int, str]:
    """Timed rows that are physically impossible: their place in the file and why, by row number.

    The rules are those for our own rows (scaling/record/row_checks.py). Sizes and FLOPs that a
    table does not state are those of the prediction.

    Raises:
        InputError: a numeric column holds what is no number.
    """
    from scaling.record.row_checks import invalid_row_reasons  # it loads duckdb

    observed, step = observed_of(columns, points), columns.numbers("step_time_s")
    step = np.where(np.isnan(step), observed.step_time_s, step)
    rows = np.flatnonzero(observed.ran & np.isfinite(step) & predictable_rows(points.note))
    if not rows.size:
        return {}
    numbers = {
        name: columns.numbers(name, low=-_LARGEST, high=_LARGEST)
        for name, (kind, _) in fields_of(Row).items()
        if kind in ("int", "float") and name in columns
    }
    for name in numbers.keys() & ZERO_MEANS_ONE:
        numbers[name] = np.maximum(numbers[name], 1.0)
    derived = {
        "step_time_s": step,
        "world_size": points.world_size,
        "seq_length": points.seq_length,
        "global_batch_size": points.global_batch_size,
        "tokens_per_step": points.tokens_per_step,
        **_flops(points),
    }
    for name, values in derived.items():
        stated = numbers.get(name, np.full(len(points), np.nan))
        numbers[name] = np.where(np.isnan(stated), values, stated)
    table = pa.table(
        {name: pa.array(values[rows], from_pandas=True) for name, values in numbers.items()}
        | {"outcome": pa.array(["ok"] * rows.size)}
    )
    reasons = invalid_row_reasons(table, series="published", needed=False)
    checked = zip(rows.tolist(), reasons, strict=True)
    return {row: f"{columns.place(row)}: {reason}" for row, reason in checked if reason is not None}


def impossible_sentence(impossible: dict[int, str]) -> str:
    """A sentence on the rows left out because they are impossible."""
    first = next(iter(impossible.values()))
    return f"{len(impossible)} rows are set aside because they cannot be, the first: {first}"


def _flops(points: Points) -> dict[str, Floats]:
    """Matmul FLOPs per token and peak FLOP/s of each row, (n,) each, NaN where unknown."""
    flops, peak = np.full(len(points), np.nan), np.full(len(points), np.nan)
    for group in points.groups:
        peak[group.rows] = group.features.stated_peak
        flops[group.rows] = _matmul_flops(group)
    return {"matmul_flops_per_token": flops, "peak_flop_per_s": peak}


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
