"""Tables people hand us, CSV or Parquet, as checked numpy columns."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from scaling.errors import InputError, did_you_mean

Floats = npt.NDArray[np.floating[Any]]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.object_]

_TRUE, _FALSE = {"true", "1", "1.0", "yes"}, {"false", "0", "0.0", "no"}


def read_table(path: Path) -> pa.Table:
    """A CSV or Parquet file as it is.

    Raises:
        InputError: the file is missing, or is neither.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a CSV or Parquet table of points")
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
        return pyarrow.csv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a readable CSV or Parquet table: {reason}") from error


class Columns:
    """The columns of one table by name, each read once and checked.

    Missing columns and cells take the default the caller states; `assumptions` collects a sentence
    for each, so that nothing is assumed in silence.
    """

    def __init__(self, table: pa.Table, source: str) -> None:
        self.table = table
        self.source = source
        self.assumptions: list[str] = []
        self._present = set(table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self._present

    def numbers(
        self,
        name: str,
        default: float | Floats | None = None,
        *,
        low: float = 0,
        plain: bool = False,
    ) -> Floats:
        """A numeric column, float64 (n,); NaN where a cell is empty and there is no default.

        `plain` says that the default is what everybody means, not an assumption worth a sentence.

        Raises:
            InputError: a cell is no number, or is below `low`.
        """
        values = self._raw_numbers(name)
        missing = np.isnan(values)
        bad = np.flatnonzero(~missing & ~((values >= low) & np.isfinite(values)))
        if bad.size:
            raise self._cell_error(name, int(bad[0]), f"a finite number of at least {low:g}")
        if default is not None and missing.any():
            if not plain:
                self._assume(name, int(missing.sum()), default)
            values = np.where(missing, default, values)
        return values

    def _raw_numbers(self, name: str) -> Floats:
        if name not in self:
            return np.full(len(self), np.nan)
        column = self.table.column(name)
        if pa.types.is_null(column.type):
            return np.full(len(self), np.nan)
        try:
            cast = pc.cast(column, pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._cell_error(name, self._first_non_number(name), "a number") from None
        return np.array(pc.fill_null(cast, np.nan).to_numpy(), dtype=np.float64)

    def _first_non_number(self, name: str) -> int:
        for row, value in enumerate(self.table.column(name).to_pylist()):
            try:
                float(value if value is not None else 0)
            except (TypeError, ValueError):
                return row
        return 0

    def words(
        self, name: str, default: str, allowed: Iterable[str] | None = None, *, plain: bool = False
    ) -> Words:
        """A text column, object (n,), empty cells at the default.

        `plain` says that the default is what everybody means, not an assumption worth a sentence.

        Raises:
            InputError: a cell is not one of `allowed`.
        """
        if name not in self:
            if allowed is not None and not plain:
                self._assume(name, len(self), default)
            return np.full(len(self), default, dtype=object)
        codes, names = self._encoded(name, default)
        if allowed is not None:
            known = set(allowed)
            for code, value in enumerate(names):
                if value not in known and (codes == code).any():
                    row = int(np.flatnonzero(codes == code)[0])
                    raise self._cell_error(name, row, did_you_mean(value, known))
        return np.array(names, dtype=object)[codes] if len(self) else np.empty(0, dtype=object)

    def _encoded(self, name: str, default: str) -> tuple[npt.NDArray[np.int64], list[str]]:
        column = self.table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        filled = pc.fill_null(pc.cast(column, pa.string()), default)
        encoded = filled.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()

    def flags(self, name: str, default: bool | Flags, *, plain: bool = False) -> Flags:
        """A true/false column, bool (n,).

        `plain` says that the default is what everybody means, not an assumption worth a sentence.

        Raises:
            InputError: a cell is neither.
        """
        if name not in self:
            if not plain:
                self._assume(name, len(self), default)
            return np.broadcast_to(np.asarray(default, dtype=bool), (len(self),)).copy()
        codes, names = self._encoded(name, "")
        truth = [value.lower() for value in names]
        unknown = [v for v in truth if v and v not in _TRUE | _FALSE]
        for code, value in enumerate(truth):
            if value in unknown and (codes == code).any():
                raise self._cell_error(name, int(np.flatnonzero(codes == code)[0]), "true or false")
        if not len(self):
            return np.empty(0, dtype=bool)
        values = np.array([value in _TRUE for value in truth])[codes]
        missing = np.array([value == "" for value in truth])[codes]
        if missing.any() and not plain:
            self._assume(name, int(missing.sum()), default)
        return np.where(missing, default, values)

    def _cell_error(self, name: str, row: int, wanted: str) -> InputError:
        value = self.table.column(name)[row].as_py()
        return InputError(f"{self.source}: {name}={value!r} in row {row + 1}: {wanted}")

    def _assume(self, name: str, rows: int, default: object) -> None:
        if not rows:
            return
        said = default if np.ndim(default) == 0 else "what the other columns imply"  # type: ignore[arg-type]
        self.assumptions.append(f"{name} is not given in {rows} rows: taken as {said}")
