"""The columns of a table somebody hands us, by name, each read once and checked."""

import re
from collections.abc import Iterable
from functools import partialmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scaling.errors import InputError, did_you_mean, shortened
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.foreign.reading import row_place
from scaling.foreign.spellings import canonical_word

# The most a study file allows for sizes and degrees, and the largest whole number that is exact in
# double precision: bytes and FLOPs go up to it.
MAX_COUNT = 10_000_000
MAX_EXACT_INT = 2**53

_TRUE = {"true", "1", "1.0", "yes", "y", "on", "enabled"}
_FALSE = {"false", "0", "0.0", "no", "n", "off", "disabled"}
# A dash where there is no number, and what runs out of memory instead of having one.
NO_NUMBER = r"(?i)^\s*([-–—/]|n/a|none|(cuda )?oom|out[ -]of[ -]memory)?\s*$"
_THOUSANDS = r"(\d)[,_'’ \x{a0}\x{202f}](\d\d\d)([^\d]|$)"
_MILLISECONDS = r"(?i)^\s*([\d.]+)\s*ms\s*$"
# What may stand around a number: its unit, a stage's name.
_AROUND_NUMBERS = (
    r"(?i)^\s*(?:zero[-_ ]?|[~≈]\s*)?([-+.\deE]+)\s*(?:s|sec|seconds|tokens|gpus)?\s*(?:±.*)?$"
)
# of tokens a second
_THOUSANDS_OF = (r"(?i)^\s*([\d.]+)\s*k$", r"\1e3"), (r"(?i)^\s*([\d.]+)\s*M$", r"\1e6")


def _without_k(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """8k tokens as 8192."""
    cells = [cell and re.sub(r"^(\d+) ?[kK]$", lambda m: str(1024 * int(m[1])), cell.strip())
             for cell in column.to_pylist()]  # fmt: skip
    return pa.chunked_array([cells], pa.string())


def _is_number(cell: Any) -> bool:
    try:
        float(cell or 0)
    except (TypeError, ValueError):
        return False
    return True


class Columns:
    """The columns of one table by name, each read once and checked.

    Missing columns and cells take the default the caller states; `assumptions` collects a sentence
    for each, so that nothing is assumed in silence.
    """

    def __init__(
        self, table: pa.Table, source: str, rows: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.table = table
        self.source = source
        self.assumptions: list[str] = []
        self.skipped: dict[int, str] = {}  # rows that say what nobody here knows, and the sentence
        self._present = set(table.column_names)
        self._rows = np.arange(table.num_rows) if rows is None else rows  # where the file has them

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self._present

    def filter(self, chosen: Flags) -> "Columns":
        """The chosen rows, bool (n,); sentences go on naming their places in the file."""
        return Columns(self.table.filter(pa.array(chosen)), self.source, self._rows[chosen])

    def missing_column(self, name: str, why: str) -> InputError:
        """The sentence about a column that is not there and is needed."""
        return InputError(f"{self.source}: column {name} is missing: {why}")

    def numbers(
        self,
        name: str,
        default: float | Floats | None = None,
        *,
        low: float = 0,
        high: float = MAX_EXACT_INT,
        whole: bool = False,
        silent: bool = False,
    ) -> Floats:
        """A numeric column, float64 (n,); NaN where a cell is empty and there is no default.

        `silent` says that the default is what everybody means, not an assumption worth a sentence.

        Raises:
            InputError: a cell is no number, or is not from `low` to `high`.
        """
        values = self._raw_numbers(name)
        missing = np.isnan(values)
        bad = ~missing & ~((values >= low) & (values <= high))
        if whole:
            bad |= ~missing & (np.floor(values) != values)
        if bad.any():
            kind = "a whole number" if whole else "a number"
            wanted = f"must be {kind} from {low:g} to {high:,.0f}"
            raise self.cell_error(name, int(np.flatnonzero(bad)[0]), wanted)
        if default is not None and missing.any():
            if not silent:
                self._assume(name, int(missing.sum()), default)
            values = np.where(missing, default, values)
        return values

    # a column of whole numbers, from 1 to MOST unless `low` or `high` is stated
    counts = partialmethod(numbers, low=1, high=MAX_COUNT, whole=True)

    def _raw_numbers(self, name: str) -> Floats:
        if name not in self:
            return np.full(len(self), np.nan)
        column = self.table.column(name)
        if pa.types.is_null(column.type):
            return np.full(len(self), np.nan)
        try:
            if pa.types.is_string(column.type):  # 12,040; a dash where there is none
                column = pc.replace_substring_regex(column, NO_NUMBER, "nan")
                for _ in range(2):  # 1,234,567: the second comma shares its digits with the first
                    column = pc.replace_substring_regex(column, _THOUSANDS, r"\1\2\3")
                column = pc.replace_substring_regex(column, _MILLISECONDS, r"\1e-3")
                column = pc.replace_substring_regex(column, _AROUND_NUMBERS, r"\1")
                if name.startswith("tokens_per_s"):
                    for pattern, number in _THOUSANDS_OF:
                        column = pc.replace_substring_regex(column, pattern, number)
                if name == "seq_length":
                    column = _without_k(column)
            cast = pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            cells = self.table.column(name).to_pylist()
            row = next((row for row, cell in enumerate(cells) if not _is_number(cell)), 0)
            raise self.cell_error(name, row, "must be a number") from None
        return np.array(pc.fill_null(cast, np.nan).to_numpy(), dtype=np.float64)

    def strings(
        self, name: str, default: str, allowed: Iterable[str] | None = None, *, silent: bool = False
    ) -> Strings:
        """A text column, object (n,), empty cells at the default.

        A cell that is not one of `allowed` sets its row aside and is at the default.
        `silent` says that the default is what everybody means, not an assumption worth a sentence.

        Raises:
            InputError: no row has one of `allowed`.
        """
        if name not in self:
            if allowed is not None and not silent:
                self._assume(name, len(self), default)
            return np.full(len(self), default, dtype=object)
        codes, names = self._encoded(name, default)
        if allowed is not None:
            known = {*allowed, default}
            names = [self._respelled(name, value, known) for value in names]
            for word in dict.fromkeys(names):
                if word not in known:
                    rows = self._rows_outside(codes, names, {*names} - {word})
                    # of equal words the first one's place is said
                    error = self.cell_error(name, rows[0], did_you_mean(word[:60], known))
                    for row in rows:
                        self.skip_row(row, str(error))
            names = [value if value in known else default for value in names]
        return np.array(names, dtype=object)[codes]

    def _encoded(self, name: str, default: str) -> tuple[npt.NDArray[np.int64], list[str]]:
        column = self.table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            filled = pc.fill_null(pc.cast(column, pa.string()), default)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InputError(
                f"{self.source}: column {name} holds {column.type}, not text"
            ) from None
        encoded = filled.dictionary_encode().combine_chunks()
        names = [text.strip() for text in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy().astype(np.int64), names

    def skip_row(self, row: int, sentence: str) -> None:
        """Leave a row out for the first thing that is wrong with it.

        Raises:
            InputError: it was the last: the sentence about the first of all.
        """
        self.skipped.setdefault(row, sentence)
        if len(self.skipped) == len(self):
            raise InputError(next(iter(self.skipped.values())))

    @staticmethod
    def _rows_outside(codes: npt.NDArray[np.int64], names: list[str], known: set[str]) -> list[int]:
        """The rows whose cells hold none of the known words."""
        strange = [number for number, word in enumerate(names) if word not in known]
        return np.flatnonzero(np.isin(codes, strange)).tolist() if strange else []

    def flags(self, name: str, default: bool | Flags, *, silent: bool = False) -> Flags:
        """A true/false column, bool (n,).

        `silent` says that the default is what everybody means, not an assumption worth a sentence.

        Raises:
            InputError: a cell is neither.
        """
        if name not in self:
            if not silent:
                self._assume(name, len(self), default)
            return np.broadcast_to(np.asarray(default, dtype=bool), (len(self),)).copy()
        codes, names = self._encoded(name, "")
        truth = [value.lower() for value in names]
        if wrong := self._rows_outside(codes, truth, _TRUE | _FALSE | {""}):
            raise self.cell_error(name, wrong[0], "must be true or false")
        values = np.array([value in _TRUE for value in truth], dtype=bool)[codes]
        missing = np.array([value == "" for value in truth], dtype=bool)[codes]
        if missing.any() and not silent:
            self._assume(name, int(missing.sum()), default)
        return np.where(missing, default, values)

    def is_given(self, name: str) -> Flags:
        """Which cells of a column that is there are not empty, bool (n,)."""
        codes, names = self._encoded(name, "")
        return np.array([value != "" for value in names], dtype=bool)[codes]

    def cell_error(self, name: str, row: int, wanted: str) -> InputError:
        """The sentence about one cell: file, line, column, value, and what would be right."""
        text = shortened(repr(self.table.column(name)[row].as_py()))
        return InputError(f"{self.place(row)}: {name}={text}: {wanted}")

    def place(self, row: int) -> str:
        """The file and where in it a row stands."""
        return f"{self.source}: {row_place(self.table, int(self._rows[row]))}"

    def _respelled(self, name: str, value: str, known: set[str]) -> str:
        meant = canonical_word(name, value, known)
        if meant not in (value, value.lower()):
            self.assume_meaning(name, value, meant)
        return meant

    def assume_meaning(self, name: str, value: str, meant: str) -> None:
        """Say once that a word of a column is taken for another."""
        self.assume(f"{name}: {shortened(value)} is read as {meant}")

    def assume(self, sentence: str) -> None:
        """Say once what is taken for granted."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def _assume(self, name: str, rows: int, default: object) -> None:
        if not rows:
            return
        said = default if np.ndim(default) == 0 else "what the other columns imply"  # type: ignore[arg-type]
        self.assumptions.append(f"{name} is not given in {rows} rows: taken as {said}")
