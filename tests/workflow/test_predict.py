"""A study that only predicts: a whole run with no GPU and no rank."""

import pyarrow.parquet as pq
import pytest
import yaml

from tests.ran import scaling_warm

pytestmark = pytest.mark.snakemake

STUDY = {
    "title": "Where does ZeRO-3 overtake tensor parallelism?",
    "kind": "strong",
    "mode": "predict",
    "axes": {
        "model": ["llama2_7b", "llama2_70b"], "cluster": ["h100-80gb-dgx", "a100-80gb-dgx"],
        "world_size": [8, 64], "global_batch_size": 256, "seq_length": 4096,
    },
    "layouts": [{"zero_stage": 3}, {"tp": 8, "zero_stage": 1}, {"pp": 4, "zero_stage": 3}],
}  # fmt: skip


def test_a_study_that_only_predicts_leaves_predictions_and_a_report(project):
    (project / "config" / "studies" / "what_if.yaml").write_text(yaml.safe_dump(STUDY))
    ran = scaling_warm(project, "run", "what_if")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = project / "results" / "what_if"
    predictions = pq.read_table(results / "predictions.parquet").to_pylist()
    points = pq.read_table(results / "points.parquet").to_pylist()
    # what cannot fit is an answer here, and so is a layout our engine cannot train
    assert {p["point_id"] for p in predictions} == {p["point_id"] for p in points}
    assert len(points) == 24
    assert {p["fits"] for p in predictions} == {True, False}
    assert all(p["predicted_step_time_s"] > 0 for p in predictions)
    assert not (results / "rows").exists()
    assert (results / "report.html").stat().st_size > 0
    again = scaling_warm(project, "run", "what_if")
    assert "Nothing to do: all is predicted." in again.stdout
    assert "only predicts" in scaling_warm(project, "status", "what_if").stdout


def test_one_command_asks_a_study_of_a_cluster_and_in_the_other_mode(project):
    chosen = ("--mode", "measure", "--cluster", "h100-80gb-dgx")
    planned = scaling_warm(project, "plan", "zero_stages", "--no-rehearse", *chosen)
    assert planned.returncode == 0, planned.stderr
    points = pq.read_table(project / "results/zero_stages/points.parquet").to_pylist()
    assert {point["cluster"] for point in points} == {"h100-80gb-dgx"}
    ran = scaling_warm(
        project, "run", "zero_stages", *chosen, "--", "--dry-run", "--quiet", "rules"
    )
    assert ran.returncode == 0, ran.stderr
    assert f"measure {len(points)}" in " ".join(ran.stdout.split())
    status = scaling_warm(project, "status", "zero_stages", *chosen).stdout
    assert status.startswith(f"0 done · 0 running · {len(points)} left")
