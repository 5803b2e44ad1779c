"""The findings of a paper that a study repeats, and what the study says to them."""

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.replication import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, SCHEMA
from scaling.errors import InputError, counted
from scaling.report.tables import Record
from scaling.report.text import listed
from scaling.study.paths import StudyPaths

IN_PART = "in part"
_TAG = {REPRODUCED: "measured", IN_PART: "published", NOT_REPRODUCED: "failed"}  # CSS classes


def replication_section(study_dir: Path) -> dict[str, Any] | None:
    """The findings of a paper and what this study says to them; None where it repeats no paper.

    `headline`; `findings`, most reproduced first. A finding's `verdict` is that of all its answers,
    or 'in part'; its `answers` have source, subject, what was observed and a verdict each.
    """
    path = StudyPaths(study_dir).table("replication")
    if not path.exists():
        return None
    rows = _read_replication(path)
    findings = [_finding(list(group)) for _, group in groupby(rows, lambda row: row["finding"])]
    counts = Counter(finding["verdict"] for finding in findings)
    order = (REPRODUCED, IN_PART, NOT_REPRODUCED, NOT_TESTABLE)
    findings.sort(key=lambda finding: order.index(finding["verdict"]))
    only_predicted = {row["source"] for row in rows if row["source"]} == {"predicted"}
    alone = ", by the prediction alone" if only_predicted else ""
    return {"headline": _replication_headline(counts) + alone, "findings": findings}


def _read_replication(path: Path) -> list[Record]:
    try:
        table = pq.ParquetFile(path).read().select(SCHEMA.names).cast(SCHEMA)
        table.validate(full=True)
        rows: list[Record] = table.to_pylist()
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: is no table of this project: {reason}") from error
    verdicts = {REPRODUCED, NOT_REPRODUCED, NOT_TESTABLE}
    if any(row["verdict"] not in verdicts for row in rows):
        raise InputError(f"{path}: is no table of this project; `scaling tabulate` writes it")
    return rows


def _finding(rows: list[Record]) -> dict[str, Any]:
    answered = [row for row in rows if row["verdict"] != NOT_TESTABLE]
    verdicts = {row["verdict"] for row in answered}
    verdict = NOT_TESTABLE if not verdicts else verdicts.pop() if len(verdicts) == 1 else IN_PART
    measured = {row["source"] for row in answered} != {"predicted"}
    reproduced = sum(row["verdict"] == REPRODUCED for row in answered)
    return {
        "claim": rows[0]["claim"],
        "paper": rows[0]["paper"],
        "criterion": rows[0]["criterion"],
        "verdict": verdict,
        "class": _TAG.get(verdict, "waiting") if measured else "predicted",
        "count": f"{reproduced} of {len(answered)}" if verdict == IN_PART else None,
        "answers": rows,
    }


def _replication_headline(counts: Counter[str]) -> str:
    """`The paper has 8 findings: 6 are reproduced, 1 in part and 1 is not`."""
    parts = []
    if number := counts[REPRODUCED]:
        parts.append(f"{number} {'is' if number == 1 else 'are'} reproduced")
    if number := counts[IN_PART]:
        parts.append(f"{number} in part")
    if number := counts[NOT_REPRODUCED]:
        parts.append(f"{number} {'is' if number == 1 else 'are'} not")
    if number := counts[NOT_TESTABLE]:
        parts.append(f"{number} cannot be tested here")
    return f"The paper has {counted(counts.total(), 'finding')}: {listed(parts)}"
