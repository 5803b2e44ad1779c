"""Rounds of a study, run by Snakemake; a stand-in for training writes rows in no time."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from scaling.run import predictions
from scaling.study import grid
from scaling.study.load import load_study
from scaling.study.paths import StudyPaths
from tests.ran import rows_of, scaling_warm
from tests.workflow.conftest import stand_in
from tests.workflow.test_dag import planned_jobs

pytestmark = [pytest.mark.snakemake, pytest.mark.timeout(600)]

GUIDED = {
    "title": "Which of them?",
    "kind": "strong",
    "axes": {
        "model": "llama2_7b", "cluster": "h100-80gb-dgx", "world_size": [8, 16],
        "global_batch_size": 256, "seq_length": 4096, "micro_batch_size": [1, 2],
    },
    "layouts": [{"zero_stage": 3}, {"tp": 2, "zero_stage": 1}, {"tp": 8, "zero_stage": 1}],
    "measure": {"guided": True},
    "probe": False,
}  # fmt: skip
CONTENDERS = {
    "title": "Which of them?",
    "kind": "strong",
    "axes": {
        "model": "tiny", "cluster": "local", "world_size": 2, "global_batch_size": 32,
        "seq_length": 128, "precision": "fp32",
    },
    "layouts": [{"zero_stage": [0, 1, 2, 3]}, {"tp": 2}],
    "measure": {"repeats": {"at_most": 3, "for": "contenders"}, "seed": 5},
}  # fmt: skip
BEGIN = """
import json, sys
from pathlib import Path
from scaling.study.point import point_from_json
from scaling.record.files import write_rows
from tests.rows import row_of
point = point_from_json(Path(sys.argv[1]).read_text())
layout = point.layout
"""
# Half as fast as data sheets say, and tp slower still: the best must be learned.
SLOWER_BY_TP = """
predicted = json.loads(Path("seconds.json").read_text())[f"{layout.world_size} {layout.label}"]
seconds = predicted * 2 * layout.tp**0.2
write_rows(Path(sys.argv[2]), [row_of(point, step_time_s=seconds, step_times_s=[seconds],
    step_time_low_s=seconds, step_time_high_s=seconds, duration_s=13 * seconds, startup_s=30.0)])
"""
# Every other layout runs on n1, which is a tenth slower, until Slurm is told to leave it out.
SLOW_NODE = """
predicted = json.loads(Path("seconds.json").read_text())[f"{layout.world_size} {layout.label}"]
on_n1 = (layout.micro_batch_size + (layout.world_size > 8)) % 2 and sys.argv[3] != "--excluded=n1"
seconds = predicted * (1.1 if on_n1 else 1.0)
write_rows(Path(sys.argv[2]), [row_of(point, step_time_s=seconds, hosts=["n1" if on_n1 else "n0"],
    excluded_hosts=sys.argv[3].removeprefix("--excluded=").split(","))])
"""
# ZeRO 0 and 1 are too close to call, all else is far behind.
TWO_CLOSE = """
seconds = 1 + 0.001 * layout.zero_stage if layout.zero_stage < 2 and layout.tp == 1 else 2.0
seconds *= 1 + 0.004 * ((2 * point.repeat + layout.zero_stage) % 3 - 1)  # runs are never alike
write_rows(Path(sys.argv[2]), [row_of(point, step_time_s=seconds, step_times_s=[seconds],
    step_time_low_s=seconds, step_time_high_s=seconds, hosts=[f"n{point.repeat}"])])
with Path("order.txt").open("a") as file:
    file.write(point.point_id + "\\n")
"""


@pytest.fixture
def swept(project):
    """Runs a study in a checkout in which measuring is looking up."""

    def sweep(study, measure):
        if not (project / "stand_in_measure.py").exists():
            stand_in(project, measure=BEGIN + measure)
        path = project / "config/studies/swept.yaml"
        path.write_text(yaml.safe_dump(study))
        loaded = load_study(path, project / "config")
        points = grid.expand_grid(loaded).points
        seconds = predictions.predict_points(loaded, points)[1].step_time_s
        names = [f"{point.layout.world_size} {point.layout.label}" for point in points]
        expected = dict(zip(names, seconds.tolist(), strict=True))
        (project / "seconds.json").write_text(json.dumps(expected))
        ran = scaling_warm(project, "run", "swept")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return StudyPaths(project / "results" / "swept")

    return sweep


def read(paths):
    """The records of each round."""
    return [pq.read_table(path).to_pylist() for path in paths.rounds()]


def times_of(paths):
    return {path.stem: path.stat().st_mtime for path in paths.rows.glob("*.parquet")}


def test_a_guided_sweep_measures_its_rounds_and_says_what_it_skipped(swept, project):
    paths = swept(GUIDED, SLOWER_BY_TP)
    rounds = read(paths)
    new = [{p["point_id"] for p in one if p["chosen"] and not p["measured"]} for one in rounds]
    taken = set().union(*new)
    assert len(rounds) > 2
    assert not new[-1]
    assert all(new[:-1])
    assert {row["point_id"] for row in rows_of(paths.folder)} == taken
    skipped = {one["point_id"]: one["reason"] for one in rounds[-1] if not one["chosen"]}
    assert len(skipped) == 12 - len(taken) > 2
    assert all("expected to gain" in reason or "memory" in reason for reason in skipped.values())
    # the second round came after the rows of the first, and knew them
    logs = project / "logs" / "swept" / "rounds"
    assert "data-sheet numbers" in (logs / "1.log").read_text()
    assert f"calibrated on {len(new[0])} rows" in (logs / "2.log").read_text()
    rows = times_of(paths)
    assert max(rows[name] for name in new[0]) <= paths.round(2).stat().st_mtime

    # a skipped point is no missing point, and stands among the refusals of the report
    table = pq.read_table(paths.table("skipped")).to_pylist()
    assert {one["point_id"]: one["reason"] for one in table} == skipped
    refused = pq.read_table(paths.table("refused")).to_pylist()
    assert {one["reason"] for one in refused} == set(skipped.values())
    (progress,) = pq.read_table(paths.table("progress")).to_pylist()
    assert (progress["refusals"], progress["skipped"]) == (0, len(skipped))
    status = scaling_warm(project, "status", "swept").stdout
    assert status == f"{len(taken)} done · 0 running · 0 left of {len(taken)}\n"

    # interrupted after the first round: the same points are added, none runs twice
    added = taken - new[0]
    for name in added:
        paths.row(name).unlink()
    for path in paths.rounds()[1:]:
        path.unlink()
    assert "a further round may add points" in scaling_warm(project, "status", "swept").stdout
    swept(GUIDED, SLOWER_BY_TP)
    now = times_of(paths)
    assert {name for name in now if now[name] != rows.get(name)} == added
    assert now.keys() == taken

    # measured by a version that knew no rounds: nothing runs
    for path in paths.rounds():
        path.unlink()
    plan = json.loads(paths.plan.read_text())
    for name in ("rounds", "fixed_repeats", "stands"):
        del plan[name]
    paths.plan.write_text(json.dumps(plan))
    swept(GUIDED, SLOWER_BY_TP)
    assert times_of(paths) == now
    assert len(read(paths)) == 1

    # a row set aside is wanted again, and nothing else
    next(paths.rows.glob("*.parquet")).unlink()
    assert planned_jobs(project, "swept")["measure"] == 1
    # without the guide all the others are measured too
    study = project / "config/studies/swept.yaml"
    study.write_text(yaml.safe_dump(GUIDED | {"measure": {}}))
    assert planned_jobs(project, "swept")["measure"] == len(skipped) + 1


def test_a_contender_that_only_ran_on_a_slow_node_runs_once_more_elsewhere(swept, project):
    paths = swept(GUIDED | {"measure": {}}, SLOW_NODE)
    rows = rows_of(paths.folder)
    assert len([row for row in rows if not row["repeat"]]) == 12
    again = [row for row in rows if row["repeat"]]
    # of the six that ran on n1 those that may be the best of their size
    assert 0 < len(again) < 6
    assert {(*row["hosts"], row["world_size"]) for row in again} <= {("n0", 8), ("n0", 16)}
    slow = {row["layout"] for row in rows if row["hosts"] == ["n1"]}
    assert {row["layout"] for row in again} <= slow
    repeats = pq.read_table(paths.table("measurements")).to_pylist()
    assert sum(one["repeat"] for one in repeats) == len(again)
    status = scaling_warm(project, "status", "swept").stdout
    assert status.startswith(f"{len(rows)} done · 0 running · 0 left of {len(rows)}")
    # interrupted before they ran: they run, and no other
    for row in again[:2]:
        paths.row(row["point_id"]).unlink()
    assert planned_jobs(project, "swept")["measure"] == len(again[:2])


def test_only_contenders_are_repeated_and_all_run_in_the_seeds_order(swept, project):
    paths = swept(CONTENDERS, TWO_CLOSE)
    rows = rows_of(paths.folder)
    again = {row["layout"] for row in rows if row["repeat"]}
    assert sorted(row["repeat"] for row in rows) == [0] * 5 + [1, 1, 2, 2]
    assert again == {row["layout"] for row in rows if row["zero_stage"] < 2 and row["tp"] == 1}
    second = read(paths)[1]
    assert {tuple(one["hosts"]) for one in second if one["chosen"]} == {("n0", "n1")}
    assert all("probability" in one["reason"] for one in second if not one["chosen"])

    # a layout that is not repeated is no point that waits, and no refusal
    assert scaling_warm(project, "status", "swept").stdout.startswith(
        "9 done · 0 running · 0 left of 9"
    )
    assert pq.read_table(paths.table("refused")).num_rows == 0
    estimates = pq.read_table(paths.table("estimates")).to_pylist()
    assert {one["layout"] for one in estimates if one["close"]} == again

    # a random order of the seed's, not that of the grid; a round of repeats after another
    planned = json.loads(paths.plan.read_text())["points"]
    done = (project / "order.txt").read_text().split()
    assert done == [name for name in planned if name in done]
    assert [planned[name]["repeat"] for name in done] == [0] * 5 + [1, 1, 2, 2]
    assert done[:5] != sorted(done[:5])
