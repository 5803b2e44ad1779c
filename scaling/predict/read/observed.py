"""What a table of rows measured, beside the points it measured."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scaling.foreign.arrays import Flags, Floats
from scaling.foreign.columns import Columns
from scaling.foreign.measured import OOM_OR_CRASH, read_outcomes
from scaling.layout.shapes import ModelShape, matmul_flops_per_token
from scaling.predict.read.features import Group, Points
from scaling.predict.read.inputs import usable_rows
from scaling.record.row import Row, fields_of


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
        return Observed(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def observed_of(columns: Columns) -> Observed:
    """The measurements of a table; a row without an outcome ran if it has a step time.

    A full step that was derived from short ones teaches what a measured one does, where that is all
    there is.

    Raises:
        InputError: an outcome is none of ours, or a time or a memory is no number.
    """
    outcome, step = read_outcomes(columns)
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
# Counts that others give as 0 where there is no such thing.
_NONE_IS_ONE = {"ep", "virtual_stages"}
# What others need not say of a row, and what is the same of all that are judged.
_OF_ALL = {"point_id": "-", "stack_fingerprint": "-", "outcome": "ok"}


def impossible_rows(columns: Columns, points: Points) -> dict[int, str]:
    """Timed rows that cannot be, by the rules of our own rows: where they stand and why, by row.

    The rules are those of scaling/record/row_checks.py. What a table does not state of the layout
    and of the FLOPs is judged as the prediction takes it.

    Raises:
        InputError: a column of a row holds what is no number.
    """
    from scaling.record.row_checks import invalid_row_reasons  # it loads duckdb

    timed = observed_of(columns).ran & np.isfinite(columns.numbers("step_time_s"))
    rows = np.flatnonzero(timed & usable_rows(points.note))
    if not rows.size:
        return {}
    numbers = {
        name: columns.numbers(name, low=-_LARGEST, high=_LARGEST)
        for name, (kind, _) in fields_of(Row).items()
        if kind in ("int", "float") and name in columns
    }
    for name in _NONE_IS_ONE & numbers.keys():
        numbers[name] = np.maximum(numbers[name], 1.0)
    taken = {
        "world_size": points.world_size,
        "seq_length": points.seq_length,
        "global_batch_size": points.global_batch_size,
        "tokens_per_step": points.tokens_per_step,
        **_flops(points),
    }
    for name, values in taken.items():
        stated = numbers.get(name, np.full(len(points), np.nan))
        numbers[name] = np.where(np.isnan(stated), values, stated)
    table = pa.table(
        {name: pa.array(values[rows], from_pandas=True) for name, values in numbers.items()}
        | {name: pa.array([text] * rows.size) for name, text in _OF_ALL.items()}
    )
    judged = zip(rows.tolist(), invalid_row_reasons(table, series="published"), strict=True)
    return {row: f"{columns.place(row)}: {reason}" for row, reason in judged if reason is not None}


def _flops(points: Points) -> dict[str, Floats]:
    """FLOPs of a token by the strict count and the GPU's peak, NaN where they are not known."""
    flops, peak = np.full(len(points), np.nan), np.full(len(points), np.nan)
    for group in points.groups:
        peak[group.rows] = group.features.stated_peak
        flops[group.rows] = _matmul_flops(group)
    return {"matmul_flops_per_token": flops, "peak_flop_per_s": peak}


_OF_SHAPE = (
    "num_layers", "hidden_size", "num_heads", "query_width", "kv_width", "ffn_hidden_size",
    "mlp_inputs", "vocab_size", "seq_length", "attentions",
)  # fmt: skip


def _matmul_flops(group: Group) -> Floats:
    """matmul_flops_per_token of each row, NaN of encoder-decoders, whose streams differ."""
    shapes = np.stack([getattr(group.features, name) for name in _OF_SHAPE])
    different, which = np.unique(shapes, axis=1, return_inverse=True)
    flops = [_flops_of_shape(dict(zip(_OF_SHAPE, s, strict=True))) for s in different.T.tolist()]
    return np.asarray(np.array(flops, dtype=np.float64)[which.reshape(-1)])


def _flops_of_shape(known: dict[str, float]) -> float:
    head_dim = known["query_width"] / known["num_heads"]
    kv_heads = known["kv_width"] / head_dim
    if known["attentions"] != 1 or head_dim % 1 or kv_heads % 1:
        return np.nan
    shape = ModelShape(
        num_layers=int(known["num_layers"]),
        hidden_size=int(known["hidden_size"]),
        num_heads=int(known["num_heads"]),
        ffn_hidden_size=int(known["ffn_hidden_size"]),
        vocab_size=int(known["vocab_size"]),
        num_kv_heads=int(kv_heads),
        head_dim=int(head_dim),
        gated_mlp=known["mlp_inputs"] > 1,
        tied_embeddings=False,
    )
    return float(matmul_flops_per_token(shape, int(known["seq_length"])))


def aside(impossible: dict[int, str]) -> str:
    """The sentence about rows that were set aside because they cannot be."""
    return f"{len(impossible)} rows are set aside because they cannot be, the first: " + next(
        iter(impossible.values())
    )
