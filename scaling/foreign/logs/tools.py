"""The tools whose logs are read, by name, and what a log becomes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from scaling.errors import InputError, shortened
from scaling.foreign.logs import megatron, mllog, nccl_tests, nemo, torchtitan
from scaling.record.probe_row import Probe
from scaling.record.row import Row, fields_of

TOOLS: Mapping[str, Callable[[str], list[dict[str, Any]]]] = {
    "megatron": megatron.parse_log,
    "nemo": nemo.parse_log,
    "mlperf": mllog.parse_log,
    "torchtitan": torchtitan.parse_log,
    "nccl-tests": nccl_tests.parse_log,
}
_KINDS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "text"),
}


def read_logs(paths: list[Path], tool: str, stated: Mapping[str, str]) -> pa.Table:
    """Logs as one table in the project's names, a row a log, or a probe a message size.

    Args:
        paths: logs of one tool.
        tool: one of TOOLS.
        stated: columns that no log says, `cluster` among them, or that it says otherwise: they win.

    Raises:
        InputError: a log cannot be read or says too little, or a stated column cannot be.
    """
    columns = {name: _stated(name, text, tool) for name, text in stated.items()}
    records = []
    for path in paths:
        try:
            found = TOOLS[tool](path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{path}: is no log of {tool}: {error}") from error
        records += [{"source": path.name, **row, **columns} for row in found]
    names = list(dict.fromkeys(name for record in records for name in record))
    return pa.table({name: pa.array([one.get(name) for one in records]) for name in names})


def _stated(name: str, text: str, tool: str) -> Any:
    """A stated column in its own type."""
    row_type = Probe if tool == "nccl-tests" else Row
    kinds = {known: kind for known, (kind, _) in fields_of(row_type).items()}
    kinds |= {"framework": "str", "source": "str"}
    given = f"--column {shortened(name)}={shortened(text)}"
    if name not in kinds:
        raise InputError(f"{given}: no column of a {row_type.__name__.lower()} has that name")
    if kinds[name] == "bool":
        if text not in ("true", "false"):
            raise InputError(f"{given}: must be true or false")
        return text == "true"
    if kinds[name] not in _KINDS:
        raise InputError(f"{given}: the column holds lists, which cannot be stated")
    read, wanted = _KINDS[kinds[name]]
    try:
        return read(text)
    except ValueError:
        raise InputError(f"{given}: must be {wanted}") from None
