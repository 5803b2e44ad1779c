"""The tools whose logs we parse, and the table that the logs become."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from scaling.errors import InputError, shortened
from scaling.foreign.logs import megatron, mllog, nccl_tests, nemo, plain, torchtitan
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of

TOOLS: Mapping[str, Callable[[str], list[dict[str, Any]]]] = {
    "megatron": megatron.parse_log,
    "nemo": nemo.parse_log,
    "mlperf": mllog.parse_log,
    "torchtitan": torchtitan.parse_log,
    "nccl-tests": nccl_tests.parse_log,
}
_TOO_LARGE = 2**63
_PARSERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "text"),
}


def read_logs(paths: list[Path], tool: str, stated: Mapping[str, str]) -> pa.Table:
    """Logs as one table with our column names: a row per log, or a probe per message size.

    Args:
        paths: logs of one tool.
        tool: one of TOOLS.
        stated: columns that logs lack, such as `cluster`, or state wrongly; they replace the log's.

    Raises:
        InputError: a log cannot be read or lacks something, or a stated column is invalid.
    """
    columns = {name: _parse_stated(name, text, tool) for name, text in stated.items()}
    records = []
    for path in paths:
        try:
            rows = TOOLS[tool](plain(path.read_text(encoding="utf-8", errors="replace")))
            _refuse_huge_numbers(rows)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{path}: is no log of {tool}: {error}") from error
        records += [{"source": path.name, **row, **columns} for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    return pa.table({name: pa.array([record.get(name) for record in records]) for name in names})


def _refuse_huge_numbers(rows: list[dict[str, Any]]) -> None:
    """Refuse whole numbers that no table holds, with a ValueError."""
    for name, value in (cell for row in rows for cell in row.items()):
        if isinstance(value, int) and value >= _TOO_LARGE:
            raise ValueError(f"{name}={shortened(value)} is larger than a table holds")


def _parse_stated(name: str, text: str, tool: str) -> Any:
    """The value of `--column name=text` in the column's type."""
    row_type = Probe if tool == "nccl-tests" else Row
    types = {known: kind for known, (kind, _) in fields_of(row_type).items()}
    types |= dict.fromkeys(("framework", "release", "source"), "str")
    option = f"--column {shortened(name)}={shortened(text)}"
    if name not in types:
        raise InputError(f"{option}: no column of a {row_type.__name__.lower()} has that name")
    if types[name] == "bool":
        if text not in ("true", "false"):
            raise InputError(f"{option}: must be true or false")
        return text == "true"
    if types[name] not in _PARSERS:
        raise InputError(f"{option}: the column holds lists, which cannot be stated")
    parse, wanted = _PARSERS[types[name]]
    try:
        value = parse(text)
        if types[name] != "str" and not abs(value) < _TOO_LARGE:  # nor nan
            raise ValueError
    except ValueError:
        raise InputError(f"{option}: must be {wanted}") from None
    return value
