"""Read and check the columns of a table that comes from elsewhere."""

import contextlib
from collections.abc import Collection, Iterable
from functools import partialmethod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scaling.errors import InputError, did_you_mean, shortened
from scaling.foreign.arrays import Flags, Floats, Strings
from scaling.foreign.numbers import is_word, parse_numbers
from scaling.foreign.reading import row_place
from scaling.foreign.renaming import remarks_of
from scaling.foreign.spellings import canonical_word, failure_of

MAX_COUNT = 10_000_000  # the largest size or degree that a study file allows
MAX_EXACT_INT = 2**53  # exact in double precision; the limit for bytes and FLOPs

_TRUE = {"true", "t", "1", "1.0", "yes", "y", "on", "enabled", "✓", "✔"}
_FALSE = {"false", "f", "0", "0.0", "no", "n", "off", "disabled", "✗", "✘"}
# Cells of a text column that say nothing, unless one is a word of the column.
_NOTHING = {"", "-", "–", "—", "/", "n/a", "#n/a", "na", "nan", "none", "null"}


class Columns:
    """The columns of a table by name.

    Missing columns and cells get a default that the caller states. `assumptions` collects a
    sentence about each, so that users see what was assumed.
    """

    def __init__(
        self, table: pa.Table, source: str, rows: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.table = table
        self.source = source
        self.assumptions = remarks_of(table)
        self.skipped: dict[int, str] = {}  # unusable rows -> why
        self._present = set(table.column_names)
        self._rows = np.arange(table.num_rows) if rows is None else rows  # their rows in the file

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self._present

    def filter(self, chosen: Flags) -> "Columns":
        """The rows where `chosen`, (n,), is true. Errors still name their lines in the file."""
        return Columns(self.table.filter(pa.array(chosen)), self.source, self._rows[chosen])

    def in_their_order(self) -> "Columns":
        """The rows in an order that follows from themselves, however they came into the file."""
        texts = enumerate(map(repr, self.table.to_pylist()))
        order = np.array([row for row, _ in sorted(texts, key=lambda one: one[1])], dtype=np.int64)
        return Columns(self.table.take(pa.array(order)), self.source, self._rows[order])

    def missing_column(self, name: str, why: str) -> InputError:
        """The error about a required column that the table lacks."""
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
        """A numeric column, float64 (n,); NaN for empty cells unless there is a default.

        With `silent`, the default is obvious and `assumptions` does not mention it.

        Raises:
            InputError: a cell is not a number, or not between `low` and `high`.
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
                self._assume_default(name, int(missing.sum()), default)
            values = np.where(missing, default, values)
        return values

    # whole numbers from 1 to MAX_COUNT, unless `low` or `high` is given
    counts = partialmethod(numbers, low=1, high=MAX_COUNT, whole=True)

    def _raw_numbers(self, name: str) -> Floats:
        if name not in self:
            return np.full(len(self), np.nan)
        kind = self.table.column(name).type
        if pa.types.is_duration(kind):  # which Arrow casts to a number of its unit
            raise InputError(f"{self.source}: column {name} holds {kind}, not numbers")
        if pa.types.is_boolean(kind):  # a true zero_stage may be any
            true = np.flatnonzero(pc.fill_null(self.table.column(name), False).to_numpy())
            if true.size:
                raise self.cell_error(name, int(true[0]), "must be a number")
        # Arrow casts plain numbers at once; a column with any other cell is parsed below
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            cast = pc.cast(self.table.column(name), pa.float64(), safe=False)
            return np.array(pc.fill_null(cast, np.nan).to_numpy(), dtype=np.float64)
        codes, texts = self._encoded(name, "")
        numbers, doubts = parse_numbers(texts, name)
        if None in numbers:
            row = int(np.flatnonzero(codes == numbers.index(None))[0])
            raise self.cell_error(name, row, "must be a number")
        words = [text for text in texts if is_word(text, name) and failure_of(text) is None]
        if words:
            rows = len(self._rows_with(codes, texts, words))
            doubts.append(f"{name} is read as not measured in {rows} rows: {shortened(words[0])}")
        for sentence in doubts:
            self.assume(sentence)
        return np.array(numbers, dtype=np.float64)[codes]

    def strings(
        self, name: str, default: str, allowed: Iterable[str] | None = None, *, silent: bool = False
    ) -> Strings:
        """A text column, object (n,), with the default in empty cells.

        A row whose cell is not one of `allowed` is skipped; it gets the default too.
        With `silent`, the default is obvious and `assumptions` does not mention it.

        Raises:
            InputError: no row has one of `allowed`.
        """
        if name not in self:
            if allowed is not None and not silent:
                self._assume_default(name, len(self), default)
            return np.full(len(self), default, dtype=object)
        known = {*(allowed or ()), default}
        if default and allowed is not None and not silent:
            self._assume_default(name, int((~self.is_given(name, known)).sum()), default)
        codes, texts = self._encoded(name, default)
        # a dash or `None` says nothing, unless it is a word of the column
        texts = [default if t.lower() in _NOTHING - known else t for t in texts]
        if allowed is not None:
            texts = [self._canonical(name, text, known) for text in texts]
            strange: dict[str, list[int]] = {}
            for row in self._rows_with(codes, texts, {*texts} - known):
                strange.setdefault(texts[codes[row]], []).append(row)
            for unknown, rows in strange.items():
                self.skip_cells(name, rows, did_you_mean(unknown[:60], known - {""}))
            texts = [text if text in known else default for text in texts]
        return np.array(texts, dtype=object)[codes]

    def _encoded(self, name: str, default: str) -> tuple[npt.NDArray[np.int64], list[str]]:
        """A text column as codes, (n,), into its distinct texts, which are stripped."""
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
        texts = [text.strip() for text in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy().astype(np.int64), texts

    def skip_row(self, row: int, reason: str) -> None:
        """Leave a row out; its first reason is kept.

        Raises:
            InputError: all rows are skipped now; it has the first row's reason.
        """
        self.skipped.setdefault(row, reason)
        if len(self.skipped) == len(self):
            raise InputError(next(iter(self.skipped.values())))

    def skip_cells(self, name: str, rows: list[int], wanted: str) -> None:
        """Leave rows out because of a cell; all are reported by the place of the first."""
        for row in rows:
            self.skip_row(row, str(self.cell_error(name, rows[0], wanted)))

    @staticmethod
    def _rows_with(
        codes: npt.NDArray[np.int64], texts: list[str], wanted: Collection[str]
    ) -> list[int]:
        """The rows whose text is one of `wanted`."""
        is_wanted = np.array([text in wanted for text in texts], dtype=bool)
        return np.flatnonzero(is_wanted[codes]).tolist()

    def flags(self, name: str, default: bool | Flags, *, silent: bool = False) -> Flags:
        """A true/false column, bool (n,), with the default in empty cells.

        With `silent`, the default is obvious and `assumptions` does not mention it.

        Raises:
            InputError: a cell is neither true nor false.
        """
        if name not in self:
            if not silent:
                self._assume_default(name, len(self), default)
            return np.broadcast_to(np.asarray(default, dtype=bool), (len(self),)).copy()
        codes, texts = self._encoded(name, "")
        texts = ["" if text.lower() in _NOTHING else text.lower() for text in texts]
        if unknown := {*texts} - _TRUE - _FALSE - {""}:
            row = self._rows_with(codes, texts, unknown)[0]
            raise self.cell_error(name, row, "must be true or false")
        values = np.array([text in _TRUE for text in texts], dtype=bool)[codes]
        missing = np.array([text == "" for text in texts], dtype=bool)[codes]
        if missing.any() and not silent:
            self._assume_default(name, int(missing.sum()), default)
        return np.where(missing, default, values)

    def is_given(self, name: str, words: Collection[str] = ()) -> Flags:
        """Which cells of a present column say something, bool (n,); each of `words` does."""
        codes, texts = self._encoded(name, "")
        said = [text != "" and text.lower() not in _NOTHING - {*words} for text in texts]
        return np.array(said, dtype=bool)[codes]

    def cell_error(self, name: str, row: int, wanted: str) -> InputError:
        """The error about one cell: file, line, column, value, and what would be right."""
        if name not in self:
            return InputError(f"{self.place(row)}: {wanted}")
        value = self.table.column(name)[row].as_py()
        text = repr(value) if isinstance(value, str) else str(value)
        return InputError(f"{self.place(row)}: {name}={shortened(text)}: {wanted}")

    def place(self, row: int) -> str:
        """The file and the line of a row."""
        return f"{self.source}: {row_place(self.table, int(self._rows[row]))}"

    def _canonical(self, name: str, text: str, known: set[str]) -> str:
        word = canonical_word(name, text, known)
        if word not in (text, text.lower()):
            self.assume_meaning(name, text, word)
        return word

    def assume_meaning(self, name: str, text: str, meaning: str) -> None:
        """Note that a text in a column is read as another."""
        self.assume(f"{name}: {shortened(text)} is read as {meaning}")

    def assume(self, sentence: str) -> None:
        """Note an assumption, once."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def _assume_default(self, name: str, rows: int, default: object) -> None:
        if not rows:
            return
        value = default if np.ndim(default) == 0 else "what the other columns imply"  # type: ignore[arg-type]
        self.assume(f"{name} is not given in {rows} rows: taken as {value}")
