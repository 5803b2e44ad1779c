"""Select rows of a table by an SQL condition that somebody has typed."""

from typing import Any

import numpy as np
import pyarrow as pa

from scaling.arrays import Flags
from scaling.errors import InputError, printable, shortened

# No access to files or network, and no way to change that.
_SANDBOX: dict[str, Any] = {
    "enable_external_access": False, "lock_configuration": True, "memory_limit": "500MB",
    "threads": 1,
}  # fmt: skip


def rows_where(table: pa.Table, condition: str | None, source: str, option: str) -> Flags:
    """The rows where an SQL condition holds, bool (n,); all rows without a condition.

    The condition may use the table's columns and `row_index`, which counts from 0. A sample of the
    rows is `hash(row_index) % 10 = 0`.

    Raises:
        InputError: the condition is not one SQL expression over the table's columns that is true or
        false.
    """
    import duckdb  # late: predictions do without it

    mask = np.full(table.num_rows, condition is None)
    if condition is None:
        return mask
    names = [name for name in table.column_names if name.lower() != "row_index"]
    numbered = table.select(names).append_column("row_index", pa.array(np.arange(table.num_rows)))
    try:
        with duckdb.connect(config=_SANDBOX) as connection:
            connection.execute("select setseed(0.5)").fetchall()  # random() is the same each time
            relation, chosen = connection.from_arrow(numbered), duckdb.SQLExpression(condition)
            (kind,) = map(str, relation.select(chosen).types)
            problem = f"gives {kind}, where true or false is needed"  # a number would choose a row
            if kind == "BOOLEAN":
                rows = relation.filter(chosen).select("row_index").fetchnumpy()["row_index"]
                mask[rows] = True
                return mask
    except (duckdb.Error, RuntimeError, UnicodeError) as error:
        problem = printable(shortened(str(error).splitlines()[0], 300))
        if "Referenced column" in problem:
            problem += f" The columns are {shortened(', '.join(numbered.column_names), 400)}"
    raise InputError(f"{source}: {option} {shortened(condition, 200)!r}: {problem}")
