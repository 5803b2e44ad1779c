"""Columns of axes and sizes as arrays, and a table's cells in their place.

The columns follow from the tables `AXES` and `ModelShape`, so a new axis is read with no line here.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scaling.arrays import Column, Flags, Floats, Strings
from scaling.layout.shapes import ModelShape

if TYPE_CHECKING:
    from scaling.importing.reader import Table  # it loads duckdb

# Sizes of a layout that are no axes.
SIZES = ("world_size", "dp", "gradient_accumulation_steps", "seq_length")
SHAPE = tuple(each.name for each in dataclasses.fields(ModelShape) if each.type in (int, bool))


class Cells:
    """The columns of a checked table by name, (n,) each; a column that it lacks is empty."""

    def __init__(self, table: "Table") -> None:
        self.table = table
        self.assumptions: list[str] = []

    def __len__(self) -> int:
        return int(self.table.rows.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.table.rows.column_names

    def numbers(self, name: str, default: Floats | float = np.nan) -> Floats:
        """A column of numbers or flags; NaN, or the default, for empty cells."""
        if name not in self:
            return np.broadcast_to(np.asarray(default, np.float64), (len(self),)).copy()
        column = self.table.rows[name]
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(values), default, values)

    def words(self, name: str, default: Strings | str = "") -> Strings:
        """A column of words; the default for empty cells."""
        if name not in self:
            return np.broadcast_to(np.asarray(default, object), (len(self),)).copy()
        column = self.table.rows[name]
        values = np.array(column.to_pylist(), dtype=object)
        return np.where(column.is_null().to_numpy(), default, values)

    def choices(self, name: str, kind: type, default: Any) -> Column:
        """A column of an axis with values of this kind; the default for empty cells."""
        if kind is bool:
            return self.numbers(name, np.asarray(default, np.float64)) > 0
        if kind is int:
            return self.numbers(name, np.nan if default is None else default)
        return self.words(name, default)

    def assume(self, name: str, rows: Flags, taken_as: str) -> None:
        """Say what was assumed where rows leave a column empty."""
        if rows.any():
            self.assumptions.append(
                f"{name} is not given in {int(rows.sum())} rows: taken as {taken_as}"
            )


def predictable_rows(note: Strings) -> Flags:
    """Mask of rows without a note against them, (n,)."""
    return np.array([reason is None for reason in note.tolist()], dtype=bool)
