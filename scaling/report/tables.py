"""The tables of a study, read with the columns, rows and plain values that the report needs."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from scaling.analyse.series import Series
from scaling.errors import InputError
from scaling.layout.axes import AXES
from scaling.report.columns import COLUMNS as COLUMNS
from scaling.report.columns import SENTENCE_COLUMNS
from scaling.report.text import GPU_WORDS, device_words, gpu_count
from scaling.study.paths import StudyPaths

Record = dict[str, Any]

LISTS = ("statistics", "refused")  # tables whose rows may be cut; no sentence stands on them
MOST_ROWS = 2000  # of a list, in each setting
MOST_ROWS_IN_ALL = 4000  # of a list, in all settings together
FEWEST_ROWS = 100  # of a list, in each setting, however many settings there are
MOST_LAYOUTS = 40  # contenders of a setting and size; those with a colour are always kept

_FILTERS = {
    "best": "where drawn",
    "contenders": f"where drawn and (least(place, position) <= {MOST_LAYOUTS} or slot < 7)",
    "returns": "where drawn",
    "fixed_layout": "where drawn",
    "costs": "where drawn",
    "losses": "where not agrees",
}
_ORDER = {
    "statistics": "setting_id, tokens_per_s desc nulls last, world_size, layout_name, repeat, "
    "series, point_id",
    "contenders": "setting_id, world_size, place",
    "refused": f"setting_id, world_size, {', '.join(AXES)}, reason",
}
_LEADING = {"statistics": "tokens_per_s"}  # the column that decides the order of a long list

# Unicode categories printed as numbers: controls, formats (text direction), surrogates, private
# and unassigned characters, line and paragraph separators.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the report by name, and the names of the lists that were cut.

    Those of one setting have its `words` for GPUs; those of one series are of `series`.
    """

    records: Mapping[str, list[Record]]
    cut: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=lambda: GPU_WORDS)
    series: Series = "measured"

    def of(self, setting_id: int, series: Series | None = None) -> "Tables":
        """The rows of one setting, in tables by cluster those of its cluster, all other rows.

        Of tables with series those of one, where it is given.
        """
        settings = self.records.get("settings", [])
        setting = next((one for one in settings if one["setting_id"] == setting_id), Record())
        cluster = setting.get("cluster")

        def belongs(row: Record) -> bool:
            if series is not None and row.get("series", series) not in (series, None):
                return False
            if "setting_id" in row:
                return bool(row["setting_id"] == setting_id)
            return bool(row.get("cluster", cluster) == cluster)

        chosen = {name: [*filter(belongs, rows)] for name, rows in self.records.items()}
        return Tables(chosen, self.cut, device_words(setting.get("vendor")), series or self.series)

    def gpus(self, number: int) -> str:
        """`1 rank`, `8 GPUs`."""
        return gpu_count(number, self.words)

    def __getitem__(self, name: str) -> list[Record]:
        return self.records[name]


def read_tables(study_dir: Path) -> Tables:
    """Read the report's columns and rows of tables/*.parquet.

    Raises:
        InputError: a table is missing, unreadable or without a column that the report needs.
    """
    records: dict[str, list[Record]] = {}
    cut: list[str] = []
    with duckdb.cursor() as connection:
        for name, columns in (COLUMNS | SENTENCE_COLUMNS).items():
            path = StudyPaths(study_dir).table(name)
            try:
                _check_columns(connection, path, columns)
                rows, is_cut = _read(connection, path, name, columns)
            except (duckdb.Error, UnicodeDecodeError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"{path}: is no table of this project: {reason}") from error
            cells = [_plain(column) for column in zip(*rows, strict=True)]
            records[name] = [
                dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)
            ]
            if is_cut:
                cut.append(name)
    return Tables(records, tuple(cut))


def _check_columns(
    connection: duckdb.DuckDBPyConnection, path: Path, columns: tuple[str, ...]
) -> None:
    if not path.exists():
        raise InputError(f"{path}: is missing; `scaling tabulate` writes it")
    described = connection.execute("describe from read_parquet(?)", [str(path)]).fetchall()
    if missing := set(columns) - {row[0] for row in described}:
        raise InputError(f"{path}: has no column {min(missing)!r}; run `scaling tabulate` again")


def _read(
    connection: duckdb.DuckDBPyConnection, path: Path, name: str, columns: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows of a table, and whether the file has more."""
    selected = ", ".join(f'"{column}"' for column in columns)
    order = f" order by {_ORDER[name]}" if name in _ORDER else ""
    query = f"select {selected} from read_parquet(?) {_FILTERS.get(name, '')}"
    if name not in LISTS:
        return connection.execute(query + order, [str(path)]).fetchall(), False
    whole, settings = connection.execute(
        "select count(*), count(distinct setting_id) from read_parquet(?)", [str(path)]
    ).fetchall()[0]
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_ROWS_IN_ALL // max(1, settings)))
    rank = f"row_number() over (partition by setting_id order by {_ORDER[name]})"
    prefilter = _prefilter(_LEADING[name], most) if name in _LEADING else ""
    listed = f"{query}{prefilter} qualify {rank} <= {most}{order}"
    rows = connection.execute(listed, [str(path)] * listed.count("?")).fetchall()
    return rows, whole > len(rows)


def _prefilter(column: str, most: int) -> str:
    """SQL that drops rows below the `most`-th largest `column` of their setting.

    It comes before the ranking, because ranking a million wide rows to keep a few takes ten times
    as long.
    """
    least = f"if(count({column}) < {most}, null, list_min(max({column}, {most})))"
    thresholds = f"select setting_id, {least} as least from read_parquet(?) group by setting_id"
    return f" join ({thresholds}) using (setting_id) where least is null or {column} >= least"


def _plain(column: Sequence[Any]) -> Sequence[Any]:
    """Values that JSON can hold: six digits, printable text, null for NaN and infinity."""
    kind = next((type(value) for value in column if value is not None), None)
    if kind is float:
        return [
            float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
            for value in column
        ]
    if kind is list:
        column = [
            None if cell is None else ", ".join(str(part) for part in cell if part is not None)
            for cell in column
        ]
    if kind in (list, str):
        texts = {text: None if text is None else page_text(text) for text in set(column)}
        return [texts[text] for text in column]
    return column


def page_text(text: str) -> str:
    """Text from outside: unprintable characters as their numbers, line ends and tabs as spaces."""
    if text.isprintable():
        return text
    text = " ".join(text.split("\n")).replace("\t", " ").replace("\r", " ")
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in _UNPRINTABLE else char
        for char in text
    )
