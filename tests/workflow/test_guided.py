"""A guided sweep, run by Snakemake; a stand-in for training writes rows in no time."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from scaling.run import predictions
from scaling.study import grid
from scaling.study.load import load_study
from tests.ran import rows_of, scaling_warm
from tests.workflow.conftest import stand_in
from tests.workflow.test_dag import planned_jobs

pytestmark = [pytest.mark.snakemake, pytest.mark.timeout(600)]

STUDY = {
    "title": "Which of them?",
    "kind": "strong",
    "axes": {
        "model": "llama2_7b",
        "cluster": "h100-80gb-dgx",
        "world_size": [8, 16],
        "global_batch_size": 256,
        "seq_length": 4096,
        "micro_batch_size": [1, 2],
    },
    "layouts": [
        {"zero_stage": 3},
        {"tp": 2, "zero_stage": 1},
        {"tp": 8, "zero_stage": 1},
    ],
    "measure": {"keep": 0.05, "spread": 0.2},
    "probe": False,
}

STAND_IN = """
import json, sys
from pathlib import Path
from scaling.study.point import point_from_json
from scaling.record.files import write_rows
from tests.rows import row_of
point = point_from_json(Path(sys.argv[1]).read_text())
layout = point.layout
predicted = json.loads(Path("seconds.json").read_text())[f"{layout.world_size} {layout.label}"]
# half as fast as data sheets say, and tp slower still: what is near the best must be learned
seconds = predicted * 2 * layout.tp**0.2
write_rows(Path(sys.argv[2]), [row_of(point, step_time_s=seconds, step_times_s=[seconds],
    step_time_low_s=seconds, step_time_high_s=seconds, duration_s=13 * seconds, startup_s=30.0)])
"""


# Every other layout runs on n1, which is a tenth slower, until Slurm is told to leave it out.
SLOW_NODE = """
on_n1 = (layout.micro_batch_size + (layout.world_size > 8)) % 2 and sys.argv[3] != "--excluded=n1"
seconds = predicted * (1.1 if on_n1 else 1.0)
write_rows(Path(sys.argv[2]), [row_of(point, step_time_s=seconds, hosts=["n1" if on_n1 else "n0"],
    excluded_hosts=sys.argv[3].removeprefix("--excluded=").split(","))])
"""


@pytest.fixture
def guided(project):
    """A checkout in which measuring is looking up."""
    stand_in(project, measure=STAND_IN)
    write(project, STUDY)
    study = load_study(project / "config/studies/guided.yaml", project / "config")
    points = grid.expand_grid(study).points
    _, predicted = predictions.predict_points(study, points)
    seconds = {
        f"{point.layout.world_size} {point.layout.label}": float(step_time_s)
        for point, step_time_s in zip(points, predicted.step_time_s, strict=True)
    }
    (project / "seconds.json").write_text(json.dumps(seconds))
    return project


def write(project, study):
    (project / "config" / "studies" / "guided.yaml").write_text(yaml.safe_dump(study))


def chosen(project):
    files = (project / "results" / "guided" / "chosen").glob("*.parquet")
    return [one for path in files for one in pq.read_table(path).to_pylist()]


def test_a_guided_sweep_measures_what_it_chose_size_by_size_and_says_what_it_skipped(guided):
    ran = scaling_warm(guided, "run", "guided")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = guided / "results" / "guided"
    choices = chosen(guided)
    taken = {one["point_id"] for one in choices if one["chosen"]}
    assert 4 <= len(taken) < len(choices)
    assert {row["point_id"] for row in rows_of(results)} == taken
    skipped = [one for one in choices if one["point_id"] not in taken]
    assert all(one["reason"] for one in skipped)
    assert "more than the best of its size" in " ".join(one["reason"] for one in skipped)

    # the larger size was chosen after all the rows of the smaller one, and knew them
    logs = guided / "logs" / "guided" / "choose"
    assert "data-sheet numbers" in (logs / "8.log").read_text()
    smaller = [one["point_id"] for one in choices if one["chosen"] and one["world_size"] == 8]
    assert f"calibrated on {len(smaller)} rows of smaller sizes" in (logs / "16.log").read_text()
    # all ran twice as long as predicted, and what was left may have been the better choice
    assert "points are measured too" in (logs / "8.again1.log").read_text()
    folder = results / "chosen"
    first = [
        one for size in (8, 16) for one in pq.read_table(folder / f"{size}.parquet").to_pylist()
    ]
    turns = [folder / f"{size}.again{turn}.parquet" for size in (8, 16) for turn in (1, 2)]
    added = {one["point_id"] for turn in turns for one in pq.read_table(turn).to_pylist()}
    skipped_at_first = {one["point_id"] for one in first if not one["chosen"]}
    assert added
    assert added == skipped_at_first & taken
    rows = {path.stem: path.stat().st_mtime for path in (results / "rows").glob("*.parquet")}
    decided = (results / "chosen" / "16.parquet").stat().st_mtime
    assert max(rows[point_id] for point_id in smaller) <= decided

    # what was skipped is a table, no missing point, and stands among the refusals of the report
    table = pq.read_table(results / "tables" / "skipped.parquet").to_pylist()
    assert {one["point_id"] for one in table} == {one["point_id"] for one in skipped}
    refused = pq.read_table(results / "tables" / "refused.parquet").to_pylist()
    assert {one["reason"] for one in refused} == {one["reason"] for one in skipped}
    (progress,) = pq.read_table(results / "tables" / "progress.parquet").to_pylist()
    assert (progress["refusals"], progress["skipped"]) == (0, len(refused))
    status = scaling_warm(guided, "status", "guided").stdout
    assert status == f"{len(taken)} done · 0 running · 0 left of {len(taken)}\n"
    # interrupted before a size was chosen for again: the same points are added, none runs twice
    for name in added:
        (results / "rows" / f"{name}.parquet").unlink()
    for turn in turns:
        turn.unlink()
    assert f"{len(turns)} choices to make" in scaling_warm(guided, "status", "guided").stdout
    assert scaling_warm(guided, "run", "guided").returncode == 0
    assert {one["point_id"] for one in chosen(guided) if one["chosen"]} == taken
    newer = {path.stem: path.stat().st_mtime for path in (results / "rows").glob("*.parquet")}
    assert {name for name in newer if newer[name] != rows[name]} == added

    # a row set aside is wanted again, and nothing else
    next((results / "rows").glob("*.parquet")).unlink()
    assert planned_jobs(guided, "guided")["measure"] == 1
    # without the guide all the others are measured too
    write(guided, STUDY | {"measure": {}})
    every = {one["point_id"] for one in choices}
    assert planned_jobs(guided, "guided")["measure"] == len(every - taken) + 1


def test_what_ran_on_a_slow_node_runs_once_more_elsewhere_and_both_rows_stay(guided):
    begin = STAND_IN[: STAND_IN.index("# half")]
    (guided / "stand_in_measure.py").write_text(begin + SLOW_NODE)
    write(guided, STUDY | {"measure": {}})
    ran = scaling_warm(guided, "run", "guided")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = guided / "results" / "guided"
    rows = rows_of(results)
    slow = {row["layout"] for row in rows if row["hosts"] == ["n1"]}
    # six runs of a size are too few to name a node: the larger size sends both sizes' points on
    assert len([row for row in rows if not row["repeat"]]) == 12
    again = [row for row in rows if row["repeat"]]
    assert len(again) == 6
    assert {row["layout"] for row in again} == slow
    assert {(*row["hosts"], row["world_size"]) for row in again} == {("n0", 8), ("n0", 16)}
    repeats = pq.read_table(results / "tables" / "measurements.parquet").to_pylist()
    assert sum(one["repeat"] for one in repeats) == 6
    assert scaling_warm(guided, "status", "guided").stdout.startswith(
        "18 done · 0 running · 0 left of"
    )
    # interrupted before they ran: they run, and no other
    for row in again[:2]:
        (results / "rows" / f"{row['point_id']}.parquet").unlink()
    assert planned_jobs(guided, "guided")["measure"] == 2
    (results / "chosen" / "16.elsewhere.parquet").unlink()
    assert scaling_warm(guided, "run", "guided").returncode == 0
    assert {row["point_id"] for row in rows_of(results)} == {row["point_id"] for row in rows}
