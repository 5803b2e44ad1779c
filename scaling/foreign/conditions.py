"""SQL conditions that choose rows of a table: one expression, without a way out of the table."""

from threading import Timer

import numpy as np
import pyarrow as pa

from scaling.errors import InputError, shortened
from scaling.foreign.arrays import Flags

TIME_LIMIT_S = 5.0
# The parser cannot be interrupted, and takes the square of open brackets.
_LONGEST, _MOST_BRACKETS = 10_000, 200
# Nothing but the table can be read, nothing written, and no setting changed back.
_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "lock_configuration": True,
    "memory_limit": "500MB",
}


def rows_where(table: pa.Table, condition: str | None, source: str, option: str) -> Flags:
    """Rows for which an SQL condition holds, bool (n,); all without a condition.

    Beside the table's columns the condition can use `row_index`, which counts from 0: for a sample,
    `hash(row_index) % 10 = 0`.

    Raises:
        InputError: the condition is not one SQL expression over the table's columns, or takes
            longer than TIME_LIMIT_S.
    """
    if condition is None:
        return np.ones(table.num_rows, dtype=bool)
    said = shortened(condition, 200)
    if len(condition) > _LONGEST or condition.count("(") > _MOST_BRACKETS:
        raise InputError(
            f"{source}: {option} {said!r}: a condition has at most {_LONGEST:,} characters and "
            f"{_MOST_BRACKETS} brackets"
        )
    import duckdb

    names = [name for name in table.column_names if name.lower() != "row_index"]
    numbered = table.select(names).append_column("row_index", pa.array(np.arange(table.num_rows)))
    with duckdb.connect(config=_CLOSED) as connection:
        timer = Timer(TIME_LIMIT_S, connection.interrupt)
        timer.start()
        try:
            chosen = (
                connection.from_arrow(numbered)
                .filter(duckdb.SQLExpression(condition))
                .select("row_index")
                .fetchall()
            )
        except duckdb.InterruptException as error:
            raise InputError(
                f"{source}: {option} {said!r}: takes longer than {TIME_LIMIT_S:g} s"
            ) from error
        except (duckdb.Error, RuntimeError, UnicodeError) as error:
            reason = shortened((str(error).splitlines() or [type(error).__name__])[0], 200)
            raise InputError(f"{source}: {option} {said!r}: {reason}") from error
        finally:
            timer.cancel()
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[[row for (row,) in chosen]] = True
    return mask
