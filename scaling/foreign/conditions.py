"""Select rows of a table by an SQL condition that can read nothing but the table."""

from threading import Timer

import numpy as np
import pyarrow as pa

from scaling.errors import InputError, shortened
from scaling.foreign.arrays import Flags
from scaling.foreign.renaming import headers_of

TIME_LIMIT_S = 5.0
# The parser cannot be interrupted, and its time grows with the square of open brackets.
_MAX_LENGTH, _MAX_BRACKETS = 10_000, 200
# No access to files or network, and no way to change that.
_SANDBOX: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "lock_configuration": True,
    "memory_limit": "500MB",
}


def rows_where(table: pa.Table, condition: str | None, source: str, option: str) -> Flags:
    """The rows where an SQL condition holds, bool (n,); all rows without a condition.

    The condition may use the table's columns, by our names or by headers that need no other unit,
    and `row_index`, which counts from 0. A sample of the rows is `hash(row_index) % 10 = 0`.

    Raises:
        InputError: the condition is not one SQL expression over the table's columns that is true or
            false, or takes longer than TIME_LIMIT_S.
    """
    if condition is None:
        return np.ones(table.num_rows, dtype=bool)
    place = f"{source}: {option} {shortened(condition, 200)!r}"
    if len(condition) > _MAX_LENGTH or condition.count("(") > _MAX_BRACKETS:
        raise InputError(
            f"{place}: a condition has at most {_MAX_LENGTH:,} characters and "
            f"{_MAX_BRACKETS} brackets"
        )
    import duckdb

    names = [name for name in table.column_names if name.lower() != "row_index"]
    numbered = table.select(names).append_column("row_index", pa.array(np.arange(table.num_rows)))
    taken = {name.lower() for name in numbered.column_names}
    for header, name in headers_of(table).items():  # the file's own words serve as well
        if header.lower() not in taken and name in names:
            numbered = numbered.append_column(header, table[name])
            taken.add(header.lower())
    with duckdb.connect(config=_SANDBOX) as connection:
        timer = Timer(TIME_LIMIT_S, connection.interrupt)
        timer.start()
        try:
            relation, chosen = connection.from_arrow(numbered), duckdb.SQLExpression(condition)
            rows = relation.filter(chosen).select("row_index").fetchall()
            kinds = [*map(str, relation.select(chosen).types)]
        except duckdb.InterruptException as error:
            raise InputError(f"{place}: takes longer than {TIME_LIMIT_S:g} s") from error
        except (duckdb.Error, RuntimeError, UnicodeError) as error:
            reason = shortened((str(error).splitlines() or [type(error).__name__])[0], 200)
            if "Referenced column" in reason:
                reason += f" The columns are {shortened(', '.join(numbered.column_names), 400)}"
            raise InputError(f"{place}: {reason}") from error
        finally:
            timer.cancel()
    if kinds != ["BOOLEAN"]:  # a number other than 0 would choose a row
        raise InputError(f"{place}: gives {', '.join(kinds)}, where true or false is needed")
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[[row for (row,) in rows]] = True
    return mask
