"""Findings of a paper, asked of hand-written tables."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaling.analyse.replication import replicate
from scaling.errors import InputError
from tests.conftest import PROJECT

REPLICATION = PROJECT / "reports" / "replication"
HEADER = "-- Claim: more is more\n-- Source: a paper\n-- Holds: it rises,\n--   always\n"
RISES = """
select source, 'tiny' as subject, format('x{:.1f}', max(rate) / min(rate)) as observed,
    case when count(*) > 1 then arg_max(rate, size) > arg_min(rate, size) end as holds
from best group by source
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


def test_each_source_has_its_verdict_with_the_numbers(tmp_path: Path) -> None:
    best: Records = [
        {"source": "measured", "size": 1, "rate": 1.0},
        {"source": "measured", "size": 2, "rate": 3.0},
        {"source": "predicted", "size": 1, "rate": 2.0},
        {"source": "predicted", "size": 2, "rate": 1.0},
        {"source": "published", "size": 1, "rate": 1.0},
    ]
    found = asked(tmp_path, RISES, best)
    assert [(row["source"], row["verdict"], row["observed"]) for row in found] == [
        ("measured", "reproduced", "x3.0"),
        ("predicted", "not reproduced", "x2.0"),
        ("published", "not testable here", "x1.0"),
    ]
    assert {row["claim"] for row in found} == {"more is more"}
    assert {row["criterion"] for row in found} == {"it rises, always"}


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    (row,) = asked(tmp_path, "select * from best, collectives", [{"source": "m"}])
    said = "not testable here", "there is no table collectives"
    assert (row["verdict"], row["observed"]) == said


@pytest.mark.parametrize(
    ("header", "query", "said"),
    [
        (HEADER.replace("-- Source: a paper\n", ""), RISES, "has no line '-- Source: ...'"),
        (HEADER, "select source from best", "gives the columns \\['source'\\]"),
        (HEADER, "from nowhere at all", "it_rises.sql: .*"),
    ],
)
def test_a_finding_that_is_written_wrongly_is_said(
    tmp_path: Path, header: str, query: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        asked(tmp_path, query, [{"source": "m", "size": 1, "rate": 1.0}], header=header)


def answers(folder: Path, finding: str, **tables: Records) -> Records:
    """The answers of a finding of reports/replication to hand-written tables."""
    (folder / "tables").mkdir()
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / "tables" / f"{name}.parquet")
    findings = folder / "findings"
    findings.mkdir()
    (findings / "one.sql").write_bytes((REPLICATION / f"{finding}.sql").read_bytes())
    replicate(folder, findings)
    return pq.read_table(folder / "tables" / "replication.parquet").to_pylist()


GROUP: dict[str, object] = {
    "group_id": 1, "model": "m", "cluster": "c", "seq_length": 128, "study_kind": "weak",
    "total_params": 13e9,
}  # fmt: skip
RAN: dict[str, object] = {
    "group_id": 1, "source": "measured", "layout": "a", "stack_fingerprint": "s", "tp": 1,
    "pp": 1, "cp": 1, "zero_stage": 3, "zero_shard_size": pa.scalar(None, pa.int64()),
    "activation_checkpointing": "none", "outcome": "ok", "tokens_per_s": 1.0,
}  # fmt: skip


def test_power_and_rate_are_those_of_one_layout_the_fastest_of_its_size(tmp_path: Path) -> None:
    layouts = [
        RAN | {"world_size": size, "tokens_per_s_per_gpu": rate, "mean_power_w": size * watts}
        for size, rate, watts in ((8, 50.0, 100.0), (8, 100.0, 500.0), (16, 40.0, 90.0),
                                  (16, 63.0, 470.0), (16, 30.0, 900.0))
    ]  # fmt: skip
    (row,) = answers(
        tmp_path,
        "hardware_scaling/power_hardly_falls",
        estimates=layouts,
        comparison_groups=[GROUP],
    )
    assert row["observed"] == "power x0.94, throughput x0.63 per GPU from 8 to 16"
    assert row["verdict"] == "reproduced"


@pytest.mark.parametrize(
    ("stages", "verdict"),
    [
        ({2: "oom", 3: "ok"}, "reproduced"),
        ({2: "ok", 3: "ok"}, "not reproduced"),
        ({3: "ok"}, "not testable here"),
        ({2: "node_failed", 3: "ok"}, "not testable here"),
    ],
)
def test_the_only_stage_that_fits_is_one_of_several_of_which_that_is_known(
    tmp_path: Path, stages: dict[int, str], verdict: str
) -> None:
    layouts = [
        RAN | {"world_size": 8, "zero_stage": stage, "outcome": outcome}
        for stage, outcome in stages.items()
    ]
    finding = "zero_stages/the_largest_needs_stage_3"
    (row,) = answers(tmp_path, finding, estimates=layouts, comparison_groups=[GROUP])
    assert row["verdict"] == verdict


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [("oom", "reproduced"), (None, "not testable here")],
)
def test_an_untried_layout_does_not_lose_at_the_largest_size(
    tmp_path: Path, outcome: str | None, verdict: str
) -> None:
    where = [RAN | {"world_size": size, "layout": name} for size, name in ((8, "a"), (16, "b"))]
    where = [row | {"layout_name": row["layout"], "p_best": 1.0} for row in where]
    failed = {"world_size": 16, "outcome": outcome, "tokens_per_s": None, "p_best": None}
    tried = [*where, *([where[0] | failed] if outcome else [])]
    (row,) = answers(
        tmp_path, "hardware_scaling/one_layout_does_not_fit_all_sizes",
        estimates=tried, comparison_groups=[GROUP],
    )  # fmt: skip
    assert row["verdict"] == verdict
