"""Test the findings of a published study on the tables of a study.

reports/replication/<study>/<finding>.sql is one select over tables, of which those of comparison
groups have the columns of `comparison_groups` too. Its header has `-- Claim:`, `-- Source:` and
`-- Holds:` (the criterion, chosen before looking). Its rows state, per source and subject, what was
observed and whether the claim holds; no row means that the claim is not testable.
"""

import itertools
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from scaling.errors import InputError
from scaling.record.files import write_table
from scaling.study.paths import StudyPaths

FOLDER = "replication"
REPRODUCED, NOT_REPRODUCED, NOT_TESTABLE = "reproduced", "not reproduced", "not testable here"
_HEADER = ("Claim", "Source", "Holds")
_NO_TABLE = re.compile(r"Table with name (\w+) does not exist")
_ROW = {"source", "subject", "observed", "holds"}
_COLUMNS = (
    "finding", "claim", "paper", "criterion", "source", "subject", "observed", "verdict",
)  # fmt: skip
SCHEMA = pa.schema([(column, pa.string()) for column in _COLUMNS])


def replicate(study_dir: Path, folder: Path) -> None:
    """Write tables/replication.parquet: one row per finding, source and subject.

    verdict: 'reproduced', 'not reproduced', or 'not testable here' with the reason in `observed`
    and null source and subject.

    Args:
        study_dir: results/<study>, tabulated.
        folder: reports/replication/<study>, the findings to test.

    Raises:
        InputError: a file without its header, one that fails, or a row of the wrong columns.
    """
    paths = StudyPaths(study_dir)
    answers: list[dict[str, Any]] = []
    with duckdb.connect() as connection:
        files = {path.stem: str(path) for path in paths.tables.glob("*.parquet")}
        files.pop(FOLDER, None)
        tables = {name: connection.read_parquet(file) for name, file in files.items()}
        for name, table in tables.items():
            if "group_id" in table.columns and "cluster" not in table.columns:
                table = table.join(tables["comparison_groups"], "group_id")
            table.create_view(name)
        for path in sorted(folder.glob("*.sql")):
            answers += _answers(connection, path)
    write_table(paths.table(FOLDER), pa.Table.from_pylist(answers, schema=SCHEMA))


def _answers(connection: duckdb.DuckDBPyConnection, path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    header = _header(text, path)
    finding = {
        "finding": path.stem, "criterion": header["Holds"], "claim": header["Claim"],
        "paper": header["Source"], "verdict": NOT_TESTABLE,
    }  # fmt: skip
    try:
        rows = connection.sql(text).to_arrow_table().to_pylist()
    except duckdb.Error as error:
        if missing := _NO_TABLE.search(str(error)):
            return [{**finding, "observed": f"there is no table {missing[1]}"}]
        raise InputError(f"{path}: {error}") from error
    if not rows:
        why = "no points of this study that ran can be set against each other for it"
        return [{**finding, "observed": why}]
    if set(rows[0]) != _ROW:
        raise InputError(f"{path}: gives the columns {sorted(rows[0])}, and not {sorted(_ROW)}")
    verdicts = {True: REPRODUCED, False: NOT_REPRODUCED, None: NOT_TESTABLE}
    rows.sort(key=lambda row: (row["source"], row["subject"], row["observed"]))
    return [finding | row | {"verdict": verdicts[row["holds"]]} for row in rows]


def _header(text: str, path: Path) -> dict[str, str]:
    """The keys of the comment before the query; a line without a key continues the one before."""
    comment = "\n".join(itertools.takewhile(lambda line: line.startswith("-- "), text.split("\n")))
    parts = re.split(rf"^-- ({'|'.join(_HEADER)}): ", comment, flags=re.MULTILINE)[1:]
    header = {
        key: " ".join(said.replace("\n-- ", " ").split())
        for key, said in zip(parts[::2], parts[1::2], strict=True)
    }
    if missing := [key for key in _HEADER if key not in header]:
        raise InputError(f"{path}: has no line '-- {missing[0]}: ...' before its query")
    return header
