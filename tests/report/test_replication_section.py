"""A paper's findings on the page."""

from pathlib import Path

import pyarrow as pa

from scaling.analyse.replication import SCHEMA
from scaling.record.files import write_table
from scaling.report.sections.replication import replication_section

Answer = tuple[str, str | None, str]  # finding, subject, verdict


def section(folder: Path, *answers: Answer) -> dict[str, object] | None:
    rows = [
        {
            "finding": finding, "claim": f"{finding} holds", "paper": "a paper",
            "criterion": "it does", "source": subject and "measured", "subject": subject,
            "observed": "x2", "verdict": verdict,
        }
        for finding, subject, verdict in answers
    ]  # fmt: skip
    path = folder / "tables" / "replication.parquet"
    write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA))
    return replication_section(folder)


def test_a_study_that_replicates_nothing_has_no_section(tmp_path: Path) -> None:
    assert replication_section(tmp_path) is None


def test_a_finding_is_reproduced_in_full_or_in_part(tmp_path: Path) -> None:
    found = section(
        tmp_path,
        ("a", None, "not testable here"),
        ("b", "one", "reproduced"),
        ("b", "two", "not reproduced"),
        ("b", "three", "not testable here"),
        ("c", "one", "not reproduced"),
        ("d", "one", "reproduced"),
        ("d", "two", "reproduced"),
    )
    assert found is not None
    assert found["headline"] == (
        "The paper has 4 findings: 1 is reproduced, 1 in part, 1 is not and 1 cannot be tested here"
    )
    assert [(f["claim"], f["verdict"], f["count"]) for f in found["findings"]] == [  # type: ignore[attr-defined]
        ("d holds", "reproduced", None),
        ("b holds", "in part", "1 of 2"),
        ("c holds", "not reproduced", None),
        ("a holds", "not testable here", None),
    ]
