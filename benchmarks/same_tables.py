"""Compare the tables of one study as two versions of the project made them.

    python benchmarks/same_tables.py BEFORE/tables AFTER/tables

Prints one line per table: rows, columns that are gone or new, and columns whose values differ with
their largest relative difference. Rows are matched in the order of the columns that are not floats.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def differences(before: pa.Table, after: pa.Table) -> Iterator[str]:
    """Return what differs between two tables: a phrase per difference, none if they agree."""
    gone = [name for name in before.column_names if name not in after.column_names]
    new = [name for name in after.column_names if name not in before.column_names]
    if gone:
        yield f"gone: {', '.join(gone)}"
    if new:
        yield f"new: {', '.join(new)}"
    if len(before) != len(after):
        yield f"{len(before)} rows became {len(after)}"
        return
    common = [name for name in before.column_names if name in after.column_names]
    one, other = (_sorted(table.select(common)) for table in (before, after))
    for name in common:
        a, b = one[name].to_pylist(), other[name].to_pylist()
        if a == b:
            continue
        try:
            x, y = np.array(a, dtype=float), np.array(b, dtype=float)
        except (TypeError, ValueError):
            yield f"{name} differs in {sum(p != q for p, q in zip(a, b, strict=True))} rows"
            continue
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            yield f"{name} is null in other rows"
        gap = np.nanmax(np.abs(x - y) / np.maximum(np.abs(x), 1e-300), initial=0.0)
        if gap > 1e-12:
            yield f"{name} differs by up to {gap:.2g}"


def _sorted(table: pa.Table) -> pa.Table:
    """Return the rows in the order of all columns that are neither floats nor nested."""
    keys = [
        field.name
        for field in table.schema
        if not pa.types.is_floating(field.type) and not pa.types.is_nested(field.type)
    ]
    return table.sort_by([(name, "ascending") for name in keys]) if keys else table


def main() -> None:
    """Print the differences of two folders of tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    folders = parser.parse_args()
    old, new = (
        {path.stem: path for path in sorted(folder.glob("*.parquet"))}
        for folder in (folders.before, folders.after)
    )
    for name in sorted(old | new):
        if name not in new or name not in old:
            print(f"{name}: {'gone' if name in old else 'new'}")
            continue
        found = list(differences(pq.read_table(old[name]), pq.read_table(new[name])))
        print(f"{name}: {'; '.join(found) or 'the same'}")


if __name__ == "__main__":
    main()
