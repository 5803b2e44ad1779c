"""Rules that every row must satisfy, whoever wrote it, each with a sentence for a violation."""

import functools
import typing
from collections.abc import Iterator, Mapping

import duckdb
import pyarrow as pa

from scaling.layout.axes import AXES
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of

Rules = Iterator[tuple[str, str]]  # SQL: the condition of a violation, and the sentence about it

# Columns that no table can do without; others may be null in rows of an older version.
NEEDED = (
    "point_id", "outcome", "attempt", "world_size", "global_batch_size", "seq_length", "duration_s",
    "started_at", "stack_fingerprint",
)  # fmt: skip
_OWN = ("attempt", "duration_s", "started_at")  # not needed in published rows

_SCALARS = {"str": "varchar", "int": "bigint", "float": "double", "bool": "boolean"}
SQL_TYPES = _SCALARS | {f"list[{kind}]": f"{of}[]" for kind, of in _SCALARS.items()}
COLUMNS: Mapping[str, str] = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Row).items()}
PROBE_COLUMNS = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Probe).items()}

_NOT_ABOVE_0 = 'not isfinite("{0}") or "{0}" <= 0'
_TIMES = ("step_time_s", "step_time_low_s", "step_time_high_s")
_EXTENDED = ("extended_step_time_s", "extended_low_s", "extended_high_s")
# coefficients of a line through noisy times, which may be negative
_SIGNED = ("step_fixed_s", "micro_batch_s")
_AMOUNTS = tuple(  # seconds, joules, shares, ...
    name
    for name, (kind, _) in fields_of(Row).items()
    if kind == "float" and name not in (*_TIMES, *_EXTENDED, *_SIGNED)
)
# Whole numbers that are at least 1: the axes without a list of values, and these.
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
_ANY_BAD = "list_aggregate(list_transform({0}, lambda x: x is null or {1}), 'bool_or')"
_OTHER_RULES = {
    "outcome = 'ok' and step_time_s is null"
    " and (step_time_kind is distinct from 'extended' or extended_step_time_s is null)":
        "outcome=ok without a step_time_s",
    "step_time_kind = 'extended' and (step_time_s is not null or losses is not null)":
        "step_time_kind=extended with what only full steps have",
    "len(short_step_times_s) != len(short_accumulations)":
        "short_step_times_s and short_accumulations are of unequal length",
    _ANY_BAD.format("step_times_s", "not isfinite(x) or x <= 0"):
        "step_times_s: each must be a finite number above 0",
    "len(step_times_s) = 0": "step_times_s: is empty",
    _ANY_BAD.format("losses", "not isfinite(x)"):
        "losses: each must be a finite number; a training that diverged has no speed",
}  # fmt: skip


@functools.cache
def invalid_row_reason_sql() -> str:
    """An SQL expression over a row's columns and `series`: why the row is invalid, else null.

    `series` is 'measured' or 'published'. Null columns are not judged, except those in NEEDED.
    """
    return _first_violation(_rules())


@functools.cache
def invalid_probe_reason_sql() -> str:
    """The same over the columns of a probe."""
    return _first_violation(_probe_rules())


def invalid_row_reasons(table: pa.Table, *, series: str = "measured") -> list[str | None]:
    """Say why each row is invalid, in a sentence that names column and value; None if it is valid.

    Args:
        table: rows; missing columns count as null, unknown ones are ignored.
        series: 'measured', or 'published' for rows that others published.

    Raises:
        duckdb.Error: a cell is not of its column's type.
    """
    with duckdb.cursor() as connection:  # a database of its own would take as long again
        connection.register("given", table)
        typed = ", ".join(
            f'"{name}"::{kind} as "{name}"' if name in table.column_names
            else f'null::{kind} as "{name}"'
            for name, kind in COLUMNS.items()
        )  # fmt: skip
        query = f"select {invalid_row_reason_sql()} from (select {typed}, ? as series from given)"
        return [reason for (reason,) in connection.execute(query, [series]).fetchall()]


def _rules() -> Rules:
    """The rules for a row; the sentence of the first one it violates is reported."""
    for name in NEEDED:
        others = " and series = 'measured'" if name in _OWN else ""
        yield f"{name} is null{others}", f"'{name} is missing'"
    yield (
        "try_cast(started_at as timestamptz) is null and series = 'measured'",
        _sentence("started_at", "must be a time in UTC, ISO 8601", quoted=True),
    )
    yield from _word_rules(Row)
    yield "zero_stage not between 0 and 3", _sentence("zero_stage", "must be 0, 1, 2 or 3")
    for names, wrong, wanted in (
        (_COUNTS, '"{}" < 1', "at least 1"),
        (_FROM_ZERO, '"{}" < 0', "at least 0"),
        (_AMOUNTS, 'not isfinite("{0}") or "{0}" < 0', "a finite number of at least 0"),
        (_SIGNED, 'not isfinite("{}")', "a finite number"),
        ((*_TIMES, *_EXTENDED, "peak_flop_per_s"), _NOT_ABOVE_0, "a finite number above 0"),
    ):
        for name in names:
            yield wrong.format(name), _sentence(name, f"must be {wanted}")
    for whole, *parts in _PRODUCTS:  # as doubles, which are exact here and do not overflow
        product = " * ".join(f"{part}::double" for part in parts)
        yield f"{whole}::double != {product}", _sentence(whole, f"is not {' x '.join(parts)}")
    yield (
        "tokens_per_step != global_batch_size::double * seq_length * if(family = 't5', 2, 1)"
        " and (family is not null or series = 'measured')",
        _sentence("tokens_per_step", "is not global_batch_size x seq_length"),
    )
    for name in (*_TIMES, *_EXTENDED, "step_times_s", "short_step_times_s", "losses"):
        yield (
            f"outcome != 'ok' and {name} is not null",
            f"'outcome=' || outcome || ' with {name}: only ok has numbers'",
        )
    yield from ((wrong, f"'{sentence}'") for wrong, sentence in _OTHER_RULES.items())
    for name, low, high, whose in (
        ("step_time_s", "step_time_low_s", "step_time_high_s", "interval"),
        ("extended_step_time_s", "extended_low_s", "extended_high_s", "interval"),
        ("step_time_s", "list_min(step_times_s)", "list_max(step_times_s)", "step_times_s"),
    ):
        yield (
            f"{name} < {low} * 0.999999 or {name} > {high} * 1.000001",
            _sentence(name, f"lies outside its own {whose}"),
        )
    # By the strict count of FLOPs: mfu counts causal attention in full and may rightly exceed 1 at
    # long sequences.
    for name in ("step_time_s", "extended_step_time_s"):
        yield (
            f"matmul_flops_per_token::double * tokens_per_step / {name}"
            " > peak_flop_per_s * world_size",
            _sentence(name, "would take more FLOP/s than peak_flop_per_s of every GPU"),
        )


def _probe_rules() -> Rules:
    for name in ("cluster", "kind", "outcome"):
        yield f"{name} is null", f"'{name} is missing'"
    yield from _word_rules(Probe)
    for name, kind in PROBE_COLUMNS.items():
        if kind == "double":
            yield _NOT_ABOVE_0.format(name), _sentence(name, "must be a finite number above 0")
        if kind == "bigint":
            yield f'"{name}" < 0', _sentence(name, "must be at least 0")


def _first_violation(rules: Rules) -> str:
    cases = " ".join(f"when {wrong} then {sentence}" for wrong, sentence in rules)
    return f"case {cases} end"


def _word_rules(row_type: type) -> Rules:
    """Columns whose type lists their words hold one of these."""
    for name, hint in typing.get_type_hints(row_type).items():
        for part in (hint, *typing.get_args(hint)):
            words = typing.get_args(part)
            if typing.get_origin(part) is typing.Literal and isinstance(words[0], str):
                allowed = ", ".join(f"'{word}'" for word in words)
                wanted = f"must be one of {', '.join(words)}"
                # published rows may use formats and schedules that this project does not run
                whose = " and series = 'measured'" if row_type is Row and name in AXES else ""
                yield f"{name} not in ({allowed}){whose}", _sentence(name, wanted, quoted=True)


def _sentence(name: str, wanted: str, *, quoted: bool = False) -> str:
    """`name=value: what would be right`, in SQL; a text value is shortened and made printable."""
    column = f'"{name}"'  # quoted, because `window` is an SQL keyword
    shown = f"regexp_replace(left({column}, 40), '[[:cntrl:]]', '?', 'g')"
    value = f"'''' || {shown} || ''''" if quoted else column
    return f"'{name}=' || {value} || ': {wanted}'"
