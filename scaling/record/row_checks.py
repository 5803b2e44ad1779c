"""What must hold of a row, whoever wrote it: rules, each with the sentence about a breach."""

import typing
from collections.abc import Iterator, Mapping

import duckdb
import pyarrow as pa

from scaling.layout.axes import AXES
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of

Rules = Iterator[tuple[str, str]]  # what is wrong, and the sentence, both SQL

# Without these no table can place a row; what else an older version did not write stays null.
NEEDED = (
    "point_id", "outcome", "attempt", "world_size", "global_batch_size", "seq_length", "duration_s",
    "started_at", "stack_fingerprint",
)  # fmt: skip
_OWN = ("attempt", "duration_s", "started_at")  # who published a row need not say them

_SCALARS = {"str": "varchar", "int": "bigint", "float": "double", "bool": "boolean"}
SQL_TYPES = _SCALARS | {f"list[{kind}]": f"{of}[]" for kind, of in _SCALARS.items()}
COLUMNS: Mapping[str, str] = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Row).items()}

_NOT_ABOVE_0 = 'not isfinite("{0}") or "{0}" <= 0'
_TIMES = ("step_time_s", "step_time_low_s", "step_time_high_s")
_EXTENDED = ("extended_step_time_s", "extended_low_s", "extended_high_s")
# of a line through times: what it starts from may lie below 0, where noise is larger than it
_SIGNED = ("step_fixed_s", "micro_batch_s")
_AMOUNTS = tuple(  # seconds, joules, shares: whatever a version adds
    name
    for name, (kind, _) in fields_of(Row).items()
    if kind == "float" and name not in (*_TIMES, *_EXTENDED, *_SIGNED)
)
# Whole numbers of which there is always one: the axes that count, and of the rest these.
_COUNTS = (
    *(name for name, axis in AXES.items() if axis.values is None),
    "world_size", "dp", "gradient_accumulation_steps", "global_batch_size", "seq_length",
    "tokens_per_step", "attempt", "gpus_per_node", "num_layers", "hidden_size", "num_heads",
    "num_kv_heads", "vocab_size", "model_flops_per_token", "peak_memory_bytes",
)  # fmt: skip
_FROM_ZERO = tuple(
    name for name, (kind, _) in fields_of(Row).items() if kind == "int" and name not in _COUNTS
)
_PRODUCTS = (
    ("world_size", "tp", "pp", "cp", "dp"),
    ("global_batch_size", "micro_batch_size", "gradient_accumulation_steps", "dp"),
)
_BAD = "list_aggregate(list_transform({0}, lambda x: x is null or {1}), 'bool_or')"
_SENTENCES = {
    "outcome = 'ok' and step_time_s is null"
    " and (step_time_kind is distinct from 'extended' or extended_step_time_s is null)":
        "outcome=ok without a step_time_s",
    "step_time_kind = 'extended' and (step_time_s is not null or losses is not null)":
        "step_time_kind=extended with what only full steps have",
    "len(short_step_times_s) != len(short_accumulations)":
        "short_step_times_s and short_accumulations are of unequal length",
    _BAD.format("step_times_s", "not isfinite(x) or x <= 0"):
        "step_times_s: each must be a finite number above 0",
    "len(step_times_s) = 0": "step_times_s: is empty",
    _BAD.format("losses", "not isfinite(x)"):
        "losses: each must be a finite number; a training that diverged has no speed",
}  # fmt: skip


def invalid_row_reason_sql() -> str:
    """An SQL expression over a row's columns and `series`: why the row cannot be, null if it can.

    `series` is 'measured' or 'published'. What is null is not judged, but for the columns that no
    table can do without.
    """
    return _first(_rules())


def invalid_probe_reason_sql() -> str:
    """The same over a probe's columns."""
    return _first(_probe_rules())


def invalid_row_reasons(table: pa.Table, *, series: str = "measured") -> list[str | None]:
    """For each row why it cannot be, None if it can: a sentence that names column and value.

    Args:
        table: columns of the row, those that are missing taken as null; others are left alone.
        series: 'measured', or 'published' of rows that others wrote.

    Raises:
        duckdb.Error: a cell is not of its column's type.
    """
    with duckdb.connect() as connection:
        connection.register("given", table)
        typed = ", ".join(
            f'"{name}"::{kind} as "{name}"' if name in table.column_names
            else f'null::{kind} as "{name}"'
            for name, kind in COLUMNS.items()
        )  # fmt: skip
        query = f"select {invalid_row_reason_sql()} from (select {typed}, ? as series from given)"
        return [reason for (reason,) in connection.execute(query, [series]).fetchall()]


def _rules() -> Rules:
    """The most telling first."""
    for name in NEEDED:
        others = " and series = 'measured'" if name in _OWN else ""
        yield f"{name} is null{others}", f"'{name} is missing'"
    yield from _word_rules(Row)
    yield "zero_stage not between 0 and 3", _breach("zero_stage", "must be 0, 1, 2 or 3")
    for names, wrong, wanted in (
        (_COUNTS, '"{}" < 1', "at least 1"),
        (_FROM_ZERO, '"{}" < 0', "at least 0"),
        (_AMOUNTS, 'not isfinite("{0}") or "{0}" < 0', "a finite number of at least 0"),
        (_SIGNED, 'not isfinite("{}")', "a finite number"),
        ((*_TIMES, *_EXTENDED, "peak_flop_per_s"), _NOT_ABOVE_0, "a finite number above 0"),
    ):
        for name in names:
            yield wrong.format(name), _breach(name, f"must be {wanted}")
    for whole, *parts in _PRODUCTS:  # as doubles: exact for all that can be, and nothing overflows
        product = " * ".join(f"{part}::double" for part in parts)
        yield f"{whole}::double != {product}", _breach(whole, f"is not {' x '.join(parts)}")
    yield (
        "tokens_per_step != global_batch_size::double * seq_length * if(family = 't5', 2, 1)"
        " and (family is not null or series = 'measured')",
        _breach("tokens_per_step", "is not global_batch_size x seq_length"),
    )
    for name in (*_TIMES, *_EXTENDED, "step_times_s", "short_step_times_s", "losses"):
        yield (
            f"outcome != 'ok' and {name} is not null",
            f"'outcome=' || outcome || ' with {name}: only ok has numbers'",
        )
    yield from ((wrong, f"'{sentence}'") for wrong, sentence in _SENTENCES.items())
    for name, low, high, whose in (
        ("step_time_s", "step_time_low_s", "step_time_high_s", "interval"),
        ("extended_step_time_s", "extended_low_s", "extended_high_s", "interval"),
        ("step_time_s", "list_min(step_times_s)", "list_max(step_times_s)", "step_times_s"),
    ):
        yield (
            f"{name} < {low} * 0.999999 or {name} > {high} * 1.000001",
            _breach(name, f"lies outside its own {whose}"),
        )
    # by the strict count: the convention of mfu counts all of causal attention, and so may pass 1
    # at long sequences without anything being wrong
    for name in ("step_time_s", "extended_step_time_s"):
        yield (
            f"matmul_flops_per_token::double * tokens_per_step / {name}"
            " > peak_flop_per_s * world_size",
            _breach(name, "would take more FLOP/s than peak_flop_per_s of every GPU"),
        )


def _probe_rules() -> Rules:
    for name in ("cluster", "kind", "outcome"):
        yield f"{name} is null", f"'{name} is missing'"
    yield from _word_rules(Probe)
    for name, (kind, _) in fields_of(Probe).items():
        if kind == "float":
            yield _NOT_ABOVE_0.format(name), _breach(name, "must be a finite number above 0")
        if kind == "int":
            yield f'"{name}" < 0', _breach(name, "must be at least 0")


def _first(rules: Rules) -> str:
    cases = " ".join(f"when {wrong} then {sentence}" for wrong, sentence in rules)
    return f"case {cases} end"


def _word_rules(row_type: type) -> Rules:
    """The columns of few words hold one of those that the row's type allows."""
    for name, hint in typing.get_type_hints(row_type).items():
        for part in (hint, *typing.get_args(hint)):
            words = typing.get_args(part)
            if typing.get_origin(part) is typing.Literal and isinstance(words[0], str):
                allowed = ", ".join(f"'{word}'" for word in words)
                wanted = f"must be one of {', '.join(words)}"
                # others train in formats and schedules that nothing here runs
                whose = " and series = 'measured'" if row_type is Row and name in AXES else ""
                yield f"{name} not in ({allowed}){whose}", _breach(name, wanted, quoted=True)


def _breach(name: str, wanted: str, *, quoted: bool = False) -> str:
    """`name=value: what would be right`; a word of others is cut, without control characters."""
    column = f'"{name}"'  # `window` is a word of SQL's own
    shown = f"regexp_replace(left({column}, 40), '[[:cntrl:]]', '?', 'g')"
    value = f"'''' || {shown} || ''''" if quoted else column
    return f"'{name}=' || {value} || ': {wanted}'"
