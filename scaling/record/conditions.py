"""Select rows of a table by an SQL condition, in a process that is killed if it takes too much.

python -m scaling.record.conditions < table.arrow > answer.json
"""

import json
import re
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from scaling.arrays import Flags
from scaling.errors import InputError, printable, shortened

TIME_LIMIT_S = 5.0
_START_UP_S = 120.0  # beside its time limit, which counts its own work: a machine may be busy
_MEMORY_BYTES = 2 << 30  # of addresses
_TEXT = re.compile("'[^']*'")
# In DuckDB's JSON of an expression: a function, or a column, which may stand for a function.
_NAME = re.compile(r'"(?:function_name":|column_names":\[)"([^"]+)"')
_CHANGING = {"current_timestamp", "current_time", "localtimestamp"}  # not listed as functions
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
        false and always the same; or it takes too long or too much memory.
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

    condition = (table.schema.metadata or {})[_CONDITION].decode()
    try:
        with duckdb.connect(config=_SANDBOX) as connection:
            if (wrong := _refusal(connection, condition)) is not None:
                return {"error": wrong}
            relation, chosen = connection.from_arrow(table), duckdb.SQLExpression(condition)
            (kind,) = map(str, relation.select(chosen).types)
            if kind != "BOOLEAN":  # a number other than 0 would choose a row
                return {"error": f"gives {kind}, where true or false is needed"}
            rows = relation.filter(chosen).select("row_index").fetchall()
            return {"rows": [row for (row,) in rows]}
    except (duckdb.Error, RuntimeError, UnicodeError, MemoryError) as error:
        return {"error": (str(error).splitlines() or ["takes too much memory"])[0]}


def _refusal(connection: Any, condition: str) -> str | None:
    """Why the text is not one expression that is always the same; None if it is."""
    ((parsed,),) = connection.execute(
        "select json_serialize_sql(?)", [f"select {condition}"]
    ).fetchall()
    tree = json.loads(parsed)
    if tree["error"]:
        return str(tree["error_message"])
    node = tree["statements"][0]["node"]
    has_clauses = node["modifiers"] or len(node.get("select_list", ())) != 1
    if ";" in _TEXT.sub("", condition) or has_clauses or node["from_table"]["type"] != "EMPTY":
        return "must be one condition, without ; or clauses"
    if named := re.search(r'"alias":"([^"]+)"', parsed):
        return f"names something ({named[1]}); a condition names nothing"
    if '"class":"SUBQUERY"' in parsed:
        return "must not select again"
    unsteady = "select function_name from duckdb_functions() where stability != 'CONSISTENT'"
    changing = {name for (name,) in connection.sql(unsteady).fetchall()} | _CHANGING
    for name in _NAME.findall(parsed):
        if name.lower() in changing:
            return f"{name} is not the same in each call"
    return None


if __name__ == "__main__":
    given = pa.ipc.open_stream(sys.stdin.buffer).read_all()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    cpu = int(TIME_LIMIT_S)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    print(json.dumps(_answer(given)))  # noqa: T201
