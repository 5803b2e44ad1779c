"""Select rows of a table by an SQL condition, in a process that is killed if it takes too much.

python -m scaling.record.conditions < table.arrow > answer.json
"""

import json
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.arrays import Flags
from scaling.errors import InputError, printable, shortened

TIME_LIMIT_S = 5.0
_START_UP_S = 10.0  # for a machine that is busy with other work
_MEMORY_BYTES = 2 << 30  # of addresses
_CONDITION = b"condition"  # key of the table's metadata
# No access to files or network, and no way to change that.
_SANDBOX: dict[str, Any] = {
    "enable_external_access": False,
    "lock_configuration": True,
    "memory_limit": "500MB",
    "threads": 1,
}


def rows_where(table: pa.Table, condition: str | None, source: str, option: str) -> Flags:
    """The rows where an SQL condition holds, bool (n,); all rows without a condition.

    The condition may use the table's columns and `row_index`, which counts from 0. A sample of the
    rows is `hash(row_index) % 10 = 0`.

    Raises:
        InputError: the condition is not one SQL expression over the table's columns that is true or
        false; or it takes too long or too much memory.
    """
    if condition is None:
        return np.ones(table.num_rows, dtype=bool)
    place = f"{source}: {option} {shortened(condition, 200)!r}"
    names = [name for name in table.column_names if name.lower() != "row_index"]
    numbered = table.select(names).append_column("row_index", pa.array(np.arange(table.num_rows)))
    numbered = numbered.replace_schema_metadata({_CONDITION: condition.encode("utf-8", "replace")})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, numbered.schema) as stream:
        stream.write_table(numbered)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "scaling.record.conditions"],
            input=sink.getvalue().to_pybytes(),
            capture_output=True,
            timeout=TIME_LIMIT_S + _START_UP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{place}: takes longer than {TIME_LIMIT_S:g} s") from None
    if process.returncode < 0 or not process.stdout:
        raise InputError(f"{place}: takes longer than {TIME_LIMIT_S:g} s or too much memory")
    answer = json.loads(process.stdout)
    if "error" in answer:
        reason = printable(shortened(answer["error"], 300))
        if "Referenced column" in reason:
            reason += f" The columns are {shortened(', '.join(numbered.column_names), 400)}"
        raise InputError(f"{place}: {reason}")
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[answer["rows"]] = True
    return mask


def _answer(table: pa.Table) -> dict[str, Any]:
    """`rows`: the numbers of the rows that the condition chooses; or `error`: a sentence."""
    import duckdb

    try:
        with duckdb.connect(config=_SANDBOX) as connection:
            connection.execute(
                "select setseed(0.5)"
            ).fetchall()  # random() chooses the same rows each time
            relation = connection.from_arrow(table)
            chosen = duckdb.SQLExpression((table.schema.metadata or {})[_CONDITION].decode())
            (kind,) = map(str, relation.select(chosen).types)
            if kind != "BOOLEAN":  # a number other than 0 would choose a row
                return {"error": f"gives {kind}, where true or false is needed"}
            rows = relation.filter(chosen).select("row_index").fetchall()
            return {"rows": [row for (row,) in rows]}
    except (duckdb.Error, RuntimeError, UnicodeError, MemoryError) as error:
        return {"error": (str(error).splitlines() or ["takes too much memory"])[0]}


if __name__ == "__main__":
    given = pa.ipc.open_stream(sys.stdin.buffer).read_all()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    cpu = int(TIME_LIMIT_S)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    print(json.dumps(_answer(given)))  # noqa: T201
