"""Sections about the whole study: pairs of engines, and a paper's findings."""

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scaling.analyse.replication import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, SCHEMA
from scaling.analyse.series import firmest
from scaling.errors import InputError
from scaling.report.tables import Record, Tables
from scaling.report.text import listed, ratio, with_series
from scaling.study.paths import StudyPaths

MOST_PAIRS = 12  # layouts of a size in the table of engines, the fastest first
IN_PART = "in part"
_TAG = {REPRODUCED: "measured", IN_PART: "published", NOT_REPRODUCED: "failed"}  # CSS classes


def engine_section(tables: Tables) -> dict[str, Any] | None:
    """The same layouts under two engines; None where no layout was asked of two.

    `headline`; `pairs`: of each size the fastest, with `model` and `says`, which is the ratio and
    its interval or why there is none; `more`: the number of pairs that only the table has.
    """
    rows = tables["engines"]
    if not rows:
        return None
    models = {row["setting_id"]: row["model"] for row in tables["settings"]}
    count: Counter[tuple[Any, ...]] = Counter()
    pairs = []
    for row in rows:
        size = row["setting_id"], row["series"], row["world_size"], row["from_engine"]
        count[size] += 1
        if count[size] <= MOST_PAIRS:
            pairs.append({**row, "says": _pair_words(row), "model": models[row["setting_id"]]})
    return {"headline": _engine_headline(rows), "pairs": pairs, "more": len(rows) - len(pairs)}


def _pair_words(row: Record) -> str:
    if row["ratio"] is None:
        side = "from" if row["from_outcome"] != "ok" else "to"
        failure = f"{row[f'{side}_engine']}: {row[f'{side}_outcome']}"
        return failure + (f", {row['reason']}" if row["reason"] else "")
    return ratio(row["ratio"], row["ratio_low"], row["ratio_high"])


def _engine_headline(rows: list[Record]) -> str:
    """What one series says of the engines, the firmest there is: series are never mixed."""
    first, second = rows[0]["from_engine"], rows[0]["to_engine"]
    series = firmest(rows)
    rows = [row for row in rows if row["series"] == series]
    both = [row for row in rows if row["ratio"] is not None]
    alone = {
        engine: sum(row[f"{side}_outcome"] == "ok" and row["ratio"] is None for row in rows)
        for side, engine in (("from", first), ("to", second))
    }
    only = ", ".join(f"{number} under {engine} alone" for engine, number in alone.items() if number)
    ran = "fit" if series == "predicted" else "ran"
    if not both:
        title = f"No layout {ran} under {first} and {second}" + (f": {only}" if only else "")
        return with_series(title, series)
    faster = sum(row["ratio_low"] > 1 for row in both)
    slower = sum(row["ratio_high"] < 1 for row in both)
    verdict = f"{second} is faster in {faster} and {first} in {slower}"
    if not faster and not slower:
        verdict = f"{first} and {second} are told apart in none"
    title = (
        f"Of {len(both)} layouts that {ran} under both engines, {verdict}"
        + ("; the others are within the noise" if 0 < faster + slower < len(both) else "")
        + (f" ({only})" if only else "")
    )
    return with_series(title, series)


def replication_section(study_dir: Path) -> dict[str, Any] | None:
    """The findings of a paper and what this study says to them; None where it repeats no paper.

    `headline`; `findings`, most reproduced first. A finding's `verdict` is that of all its answers,
    or 'in part'; its `answers` have series, subject, what was observed and a verdict each.
    """
    path = StudyPaths(study_dir).table("replication")
    if not path.exists():
        return None
    rows = _read_replication(path)
    findings = [_finding(list(group)) for _, group in groupby(rows, lambda row: row["finding"])]
    counts = Counter(finding["verdict"] for finding in findings)
    order = (REPRODUCED, IN_PART, NOT_REPRODUCED, NOT_TESTABLE)
    findings.sort(key=lambda finding: order.index(finding["verdict"]))
    only_predicted = {row["series"] for row in rows if row["series"]} == {"predicted"}
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
    measured = {row["series"] for row in answered} != {"predicted"}
    reproduced = sum(row["verdict"] == REPRODUCED for row in answered)
    return {
        "claim": rows[0]["claim"],
        "source": rows[0]["source"],
        "criterion": rows[0]["criterion"],
        "verdict": verdict,
        "class": _TAG.get(verdict, "waiting") if measured else "predicted",
        "count": f"{reproduced} of {len(answered)}" if verdict == IN_PART else None,
        "answers": rows,
    }


def _replication_headline(counts: Counter[str]) -> str:
    """`Of 8 findings of the paper 6 are reproduced, 1 in part and 1 is not`."""
    parts = []
    if number := counts[REPRODUCED]:
        parts.append(f"{number} {'is' if number == 1 else 'are'} reproduced")
    if number := counts[IN_PART]:
        parts.append(f"{number} in part")
    if number := counts[NOT_REPRODUCED]:
        parts.append(f"{number} {'is' if number == 1 else 'are'} not")
    if number := counts[NOT_TESTABLE]:
        parts.append(f"{number} cannot be tested here")
    findings = "finding" if counts.total() == 1 else "findings"
    return f"Of {counts.total()} {findings} of the paper {listed(parts)}"
