"""Repeats where they decide, run by Snakemake; a stand-in for training writes rows in no time."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from tests.ran import rows_of, scaling_warm
from tests.workflow.conftest import stand_in

pytestmark = [pytest.mark.snakemake, pytest.mark.timeout(600)]

STUDY = {
    "title": "Which of them?",
    "kind": "strong",
    "axes": {
        "model": "tiny",
        "cluster": "local",
        "world_size": 2,
        "global_batch_size": 32,
        "seq_length": 128,
        "precision": "fp32",
    },
    "layouts": [{"zero_stage": [0, 1, 2, 3]}, {"tp": 2}],
    "measure": {"repeats": {"at_most": 3, "for": "contenders"}, "seed": 5},
}

# ZeRO 0 and 1 cannot be told apart, all else is far behind.
STAND_IN = """
import sys, time
from pathlib import Path
from scaling.study.point import point_from_json
from scaling.record.files import write_rows
from tests.rows import row_of
point = point_from_json(Path(sys.argv[1]).read_text())
layout = point.layout
seconds = 1 + 0.001 * layout.zero_stage if layout.zero_stage < 2 and layout.tp == 1 else 2.0
write_rows(Path(sys.argv[2]), [row_of(point, step_time_s=seconds, step_times_s=[seconds],
    step_time_low_s=seconds, step_time_high_s=seconds, hosts=[f"n{point.repeat}"])])
with Path("order.txt").open("a") as file:
    file.write(point.point_id + "\\n")
"""


def test_only_layouts_whose_order_is_open_are_repeated_and_all_run_in_the_seeds_order(project):
    stand_in(project, measure=STAND_IN)
    (project / "config" / "studies" / "open.yaml").write_text(yaml.safe_dump(STUDY))
    ran = scaling_warm(project, "run", "open")
    assert ran.returncode == 0, ran.stdout + ran.stderr

    results = project / "results" / "open"
    rows = rows_of(results)
    again = {row["layout"] for row in rows if row["repeat"]}
    assert sorted(row["repeat"] for row in rows) == [0] * 5 + [1, 1, 2, 2]
    assert again == {row["layout"] for row in rows if row["zero_stage"] < 2 and row["tp"] == 1}
    choice = pq.read_table(results / "chosen" / "2.repeat2.parquet").to_pylist()
    assert {tuple(one["hosts"]) for one in choice if one["chosen"]} == {("n0", "n1")}
    assert all("probability" in one["reason"] for one in choice if not one["chosen"])

    # what is not repeated is no point that waits, and no refusal
    assert scaling_warm(project, "status", "open").stdout.startswith(
        "9 done · 0 running · 0 left of 9"
    )
    assert pq.read_table(results / "tables" / "refused.parquet").num_rows == 0
    estimates = pq.read_table(results / "tables" / "estimates.parquet").to_pylist()
    assert {one["layout"] for one in estimates if one["close"]} == again

    # a random order of the seed's, not that of the grid; a round of repeats after another
    planned = json.loads((results / "plan.json").read_text())["points"]
    done = (project / "order.txt").read_text().split()
    assert done == [name for name in planned if name in done]
    assert [planned[name]["repeat"] for name in done] == [0] * 5 + [1, 1, 2, 2]
    assert done[:5] != sorted(done[:5])
