"""Findings of a paper, asked of hand-written tables."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse.replication import replicate
from scaling.errors import InputError

HEADER = (
    "-- Claim: more is more\n-- Source: a paper\n-- Holds: it rises,\n--   always\n-- Reads: best\n"
)
RISES = """
select series, 'tiny' as subject, format('x{:.1f}', max(rate) / min(rate)) as observed,
    case when count(*) > 1 then arg_max(rate, size) > arg_min(rate, size) end as holds
from best group by series
"""
Records = list[dict[str, object]]


def asked(folder: Path, query: str, best: Records, *, header: str = HEADER) -> Records:
    (folder / "tables").mkdir()
    pq.write_table(pa.Table.from_pylist(best), folder / "tables" / "best.parquet")
    findings = folder / "findings"
    findings.mkdir()
    (findings / "it_rises.sql").write_text(header + query)
    replicate(folder, findings)
    return pq.read_table(folder / "tables" / "replication.parquet").to_pylist()


def test_each_series_has_its_verdict_with_the_numbers(tmp_path: Path) -> None:
    best: Records = [
        {"series": "measured", "size": 1, "rate": 1.0},
        {"series": "measured", "size": 2, "rate": 3.0},
        {"series": "predicted", "size": 1, "rate": 2.0},
        {"series": "predicted", "size": 2, "rate": 1.0},
        {"series": "published", "size": 1, "rate": 1.0},
    ]
    found = asked(tmp_path, RISES, best)
    assert [(row["series"], row["verdict"], row["observed"]) for row in found] == [
        ("measured", "reproduced", "x3.0"),
        ("predicted", "not reproduced", "x2.0"),
        ("published", "not testable here", "x1.0"),
    ]
    assert {row["claim"] for row in found} == {"more is more"}
    assert {row["criterion"] for row in found} == {"it rises, always"}


def test_without_data_it_says_why_it_cannot_be_tested(tmp_path: Path) -> None:
    (row,) = asked(tmp_path, RISES + "having false", [{"series": "m", "size": 1, "rate": 1.0}])
    assert row["verdict"] == "not testable here"
    assert "no points of this study" in str(row["observed"])


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    header = HEADER.replace("Reads: best", "Reads: best, collectives")
    (row,) = asked(tmp_path, "select 1", [{"series": "m"}], header=header)
    assert (row["verdict"], row["observed"]) == (
        "not testable here",
        "there is no table collectives",
    )


@pytest.mark.parametrize(
    ("header", "query", "said"),
    [
        (HEADER.replace("-- Source: a paper\n", ""), RISES, "has no line '-- Source: ...'"),
        (HEADER, "select series from best", "gives the columns \\['series'\\]"),
        (HEADER, "from nowhere at all", "it_rises.sql: .*"),
    ],
)
def test_a_finding_that_is_written_wrongly_is_said(
    tmp_path: Path, header: str, query: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        asked(tmp_path, query, [{"series": "m", "size": 1, "rate": 1.0}], header=header)
