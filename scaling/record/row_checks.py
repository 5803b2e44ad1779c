"""Rules that every row must satisfy, whoever wrote it, each with a sentence for a violation."""

import functools
import itertools
import typing
from collections.abc import Iterable, Mapping

import duckdb
import pyarrow as pa

from scaling.layout.axes import AXES
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of
from scaling.study.problems import SAFE

Rules = Iterable[tuple[str, str]]  # SQL: the condition of a violation, and the sentence about it

# Columns that no row can do without; others may be null in rows of an older version.
NEEDED = (
    "point_id",
    "outcome",
    "world_size",
    "global_batch_size",
    "seq_length",
    "stack_fingerprint",
)
# Columns that no row of ours can do without: axes that every version had, and these.
OWN_NEEDED = (
    "attempt", "duration_s", "started_at", "model", "cluster", "layout",
    *(name for name, axis in AXES.items() if not axis.added_later),
)  # fmt: skip
OOM_OR_CRASH = "oom_or_crash"  # the outcome in published sweeps that do not tell the two apart

_SCALARS = {"str": "varchar", "int": "bigint", "float": "double", "bool": "boolean"}
SQL_TYPES = _SCALARS | {f"list[{kind}]": f"{of}[]" for kind, of in _SCALARS.items()}
COLUMNS: Mapping[str, str] = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Row).items()}
PROBE_COLUMNS = {name: SQL_TYPES[kind] for name, (kind, _) in fields_of(Probe).items()}

_TIMES = ("step_time_s", "step_time_low_s", "step_time_high_s")
_EXTENDED = ("extended_step_time_s", "extended_low_s", "extended_high_s")
_POSITIVE = (*_TIMES, *_EXTENDED, "peak_flop_per_s")
# coefficients of a line through noisy times, which may be negative
_SIGNED = ("step_fixed_s", "micro_batch_s")
# Whole numbers that are at least 1: the axes without a list of values, and these.
_COUNTS = {
    *(name for name, axis in AXES.items() if axis.values is None),
    "world_size", "dp", "gradient_accumulation_steps", "global_batch_size", "seq_length",
    "tokens_per_step", "attempt", "gpus_per_node", "num_layers", "hidden_size", "num_heads",
    "num_kv_heads", "head_dim", "vocab_size", "model_flops_per_token", "peak_memory_bytes",
}  # fmt: skip
MAX_COUNT = 10_000_000  # the largest size or degree, as in a study file
_MAX_EXACT = 2**53  # exact in double precision: bytes, parameters, FLOPs, tokens
_MAX_SECONDS, _MAX_AMOUNT = 1e9, 1e18
_EXACT = ("_bytes", "_params", "_per_token", "_per_step", "global_batch_size", "seed")
_LONGEST_NAME = 200  # of a model or cluster
_ID = "[A-Za-z0-9][A-Za-z0-9._+:-]*"
# Words of other software, which our engines do not have.
_OF_OTHERS = {"precision": ("mxfp8", "nvfp4"), "outcome": (OOM_OR_CRASH,)}
_ANY_BAD = "list_aggregate(list_transform({0}, lambda x: x is null or {1}), 'bool_or')"
_ABOVE_0, _AT_LEAST_0 = "must be a finite number above 0", "must be a finite number of at least 0"
_NOT_ABOVE_0, _BELOW_0 = 'not isfinite("{0}") or "{0}" <= 0', 'not isfinite("{0}") or "{0}" < 0'
# Condition of a violation, the column whose value the sentence shows (None: none), the sentence.
_RULES: tuple[tuple[str, str | None, str], ...] = (
    # as doubles, which are exact here and do not overflow
    ("world_size::double != tp::double * pp * cp * dp", "world_size", "is not tp x pp x cp x dp"),
    ("global_batch_size::double != micro_batch_size::double * gradient_accumulation_steps * dp",
     "global_batch_size", "is not micro_batch_size x gradient_accumulation_steps x dp"),
    ("tokens_per_step != global_batch_size::double * seq_length * if(family = 't5', 2, 1)"
     " and (family is not null or source = 'measured')",
     "tokens_per_step", "is not global_batch_size x seq_length"),
    *(
        (f"outcome != 'ok' and {name} is not null", None,
         f"outcome=' || outcome || ' with {name}: only ok has numbers")
        for name in (*_TIMES, *_EXTENDED, "step_times_s", "short_step_times_s", "losses")
    ),
    ("step_time_kind = 'extended' and (step_time_s is not null or losses is not null)",
     None, "step_time_kind=extended with what only full steps have"),
    ("len(short_step_times_s) != len(short_accumulations)",
     None, "short_step_times_s and short_accumulations are of unequal length"),
    (_ANY_BAD.format("step_times_s", "not isfinite(x) or x <= 0"),
     None, "step_times_s: each must be a finite number above 0"),
    ("len(step_times_s) = 0", None, "step_times_s: is empty"),
    (_ANY_BAD.format("losses", "not isfinite(x)"),
     None, "losses: each must be a finite number; a training that diverged has no speed"),
    (_ANY_BAD.format("grad_norms", "not isfinite(x) or x < 0"),
     None, "grad_norms: each must be a finite number of at least 0"),
    *(
        (f"{name} < {low} * 0.999999 or {name} > {high} * 1.000001",
         name, f"lies outside its own {whose}")
        for name, low, high, whose in (
            (*_TIMES, "interval"),
            (*_EXTENDED, "interval"),
            ("step_time_s", "list_min(step_times_s)", "list_max(step_times_s)", "step_times_s"),
        )
    ),
    # By the strict count of FLOPs: mfu counts causal attention in full and may rightly exceed 1 at
    # long sequences.
    *(
        (f"matmul_flops_per_token::double * tokens_per_step / {name}"
         " > peak_flop_per_s * world_size",
         name, "would take more FLOP/s than peak_flop_per_s of every GPU")
        for name in ("step_time_s", "extended_step_time_s")
    ),
)  # fmt: skip


@functools.cache
def invalid_row_reason_sql(*, needed: bool = True) -> str:
    """An SQL expression over a row's columns and `source`: why the row is invalid, else null.

    `source` is 'measured' or 'published'. Null columns are not judged, except needed ones.
    """
    return _first_violation(itertools.chain(_needed() if needed else (), _rules()))


@functools.cache
def invalid_probe_reason_sql() -> str:
    """The same over the columns of a probe."""
    return _first_violation(_probe_rules())


def invalid_row_reasons(
    table: pa.Table, *, source: str = "measured", needed: bool = True
) -> list[str | None]:
    """Say why each row is invalid, in a sentence that names column and value; None if it is valid.

    Args:
        table: rows; missing columns count as null, unknown ones are ignored.
        source: 'measured', or 'published' for rows that others published.
        needed: whether a row must have what no row can do without.

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
        reason = invalid_row_reason_sql(needed=needed)
        query = f"select {reason} from (select {typed}, ? as source from given)"
        return [reason for (reason,) in connection.execute(query, [source]).fetchall()]


def _needed() -> Rules:
    for name in NEEDED:
        yield f'"{name}" is null', f"'{name} is missing'"
    for name in OWN_NEEDED:
        yield f"\"{name}\" is null and source = 'measured'", f"'{name} is missing'"
    yield (
        "outcome = 'ok' and step_time_s is null"
        " and (step_time_kind is distinct from 'extended' or extended_step_time_s is null)",
        "'outcome=ok without a step_time_s'",
    )


def _rules() -> Rules:
    """The rules for a row; the sentence of the first one it violates is reported."""
    yield (
        f"not regexp_full_match(point_id, '{_ID}') and source = 'measured'",
        _sentence("point_id", "must be letters, digits and . _ + : -", quoted=True),
    )
    for name in ("model", "cluster", "layout"):
        yield f"\"{name}\" = ''", f"'{name} is empty'"
        control = f"regexp_matches(\"{name}\", '\\p{{C}}') and source = 'published'"
        yield control, _sentence(name, "must be without control characters", quoted=True)
    for name in ("model", "cluster"):
        wanted = f"must have at most {_LONGEST_NAME} letters"
        long = f"length(\"{name}\") > {_LONGEST_NAME} and source = 'published'"
        yield long, _sentence(name, wanted, quoted=True)
    yield (
        "coalesce(year(try_cast(started_at as timestamptz)), 0) not between 1970 and 2199"
        " and source = 'measured'",
        _sentence("started_at", "must be a time in UTC, ISO 8601", quoted=True),
    )
    yield from _word_rules(Row)
    for name in (name for name, axis in AXES.items() if axis.other_names):
        wanted = f"must be one of {', '.join(AXES[name].values or ())}, or a name of trainers.yaml"
        yield f"not regexp_full_match(\"{name}\", '{SAFE}')", _sentence(name, wanted, quoted=True)
    yield "zero_stage not between 0 and 3", _sentence("zero_stage", "must be 0, 1, 2 or 3")
    for name, (kind, _) in fields_of(Row).items():
        if kind == "int" and name != "zero_stage":
            least = 1 if name in _COUNTS else 0
            most = _MAX_EXACT if name.endswith(_EXACT) else MAX_COUNT
            yield f'"{name}" < {least}', _sentence(name, f"must be at least {least}")
            yield f'"{name}" > {most}', _sentence(name, f"must be at most {most:,}")
        if kind == "float":
            if name in _POSITIVE:
                yield _NOT_ABOVE_0.format(name), _sentence(name, _ABOVE_0)
            elif name in _SIGNED:
                yield f'not isfinite("{name}")', _sentence(name, "must be a finite number")
            else:
                yield _BELOW_0.format(name), _sentence(name, _AT_LEAST_0)
            is_time = name.endswith("_s") and "_per_" not in name
            limit = _MAX_SECONDS if is_time else _MAX_AMOUNT
            yield f'abs("{name}") > {limit}', _sentence(name, f"must be at most {limit:.0e}")
    for wrong, shown, wanted in _RULES:
        yield wrong, f"'{wanted}'" if shown is None else _sentence(shown, wanted)


def _probe_rules() -> Rules:
    for name in ("cluster", "kind", "outcome"):
        yield f"{name} is null", f"'{name} is missing'"
    yield from _word_rules(Probe)
    for name, kind in PROBE_COLUMNS.items():
        if kind == "double":
            yield _NOT_ABOVE_0.format(name), _sentence(name, _ABOVE_0)
        if kind == "bigint":
            yield f'"{name}" < 0', _sentence(name, "must be at least 0")


def _first_violation(rules: Rules) -> str:
    cases = " ".join(f"when {wrong} then {sentence}" for wrong, sentence in rules)
    return f"case {cases} end"


def _word_rules(row_type: type) -> Rules:
    """Columns whose axis or type lists their words hold one of these."""
    listing = {name: axis for name, axis in AXES.items() if not axis.other_names}
    words = {
        name: axis.values for name, axis in listing.items() if axis.kind is str and axis.values
    }
    hints = typing.get_type_hints(row_type)
    for name, hint in hints.items():
        for part in (hint, *typing.get_args(hint)):
            if typing.get_origin(part) is typing.Literal and isinstance(part.__args__[0], str):
                words[name] = typing.get_args(part)
    for name, allowed in words.items():
        if name in hints:
            others = _OF_OTHERS.get(name, ()) if row_type is Row else ()
            for texts, whose in ((allowed, "measured"), ((*allowed, *others), "published")):
                listed = ", ".join(f"'{word}'" for word in texts)  # `in` would join tables
                source = f" and source = '{whose}'" if others else ""
                wanted = f"must be one of {', '.join(texts)}"
                yield (
                    f'not list_contains([{listed}], "{name}"){source}',
                    _sentence(name, wanted, quoted=True),
                )
                if not others:
                    break


def _sentence(name: str, wanted: str, *, quoted: bool = False) -> str:
    """`name=value: what would be right`, in SQL; a text value is shortened and made printable."""
    column = f'"{name}"'  # quoted, because `window` is an SQL keyword
    shown = f"regexp_replace(left({column}, 40), '[[:cntrl:]]', '?', 'g')"
    value = f"'''' || {shown} || ''''" if quoted else column
    return f"'{name}=' || {value} || ': {wanted}'"
