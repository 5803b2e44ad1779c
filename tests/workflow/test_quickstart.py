"""The quickstart, really run: every row, and what the second run does."""

import json
import math
from itertools import groupby

import pytest

from scaling.study import grid
from scaling.study.load import load_study
from tests.ran import scaling_warm

pytestmark = [pytest.mark.ranks, pytest.mark.snakemake, pytest.mark.timeout(2000)]


def test_every_point_was_trained_and_every_loss_is_finite(quickstart):
    rows = quickstart.rows()
    points = grid.expand_grid(
        load_study(quickstart.root / "config/studies/quickstart.yaml", quickstart.root / "config")
    ).points
    assert {row["point_id"] for row in rows} == {point.point_id for point in points}
    assert {row["outcome"] for row in rows} == {"ok"}
    for row in rows:
        assert all(math.isfinite(loss) for loss in row["losses"])
        # at this rate a few steps teach a model next to nothing
        assert row["losses"] == pytest.approx(
            [math.log(row["vocab_size"])] * len(row["losses"]), rel=0.05
        )
        assert len(row["step_times_s"]) >= 5
        assert row["step_time_low_s"] <= row["step_time_s"] <= row["step_time_high_s"]
        assert row["peak_memory_bytes"] > 0


def test_all_layouts_of_one_model_and_batch_have_the_same_losses(quickstart):
    def same_training(row):
        return (row["model"], row["global_batch_size"], row["seq_length"])

    rows = [row for row in quickstart.rows() if row["precision"] == "fp32"]
    for key, group in groupby(sorted(rows, key=same_training), same_training):
        first, *others = group
        assert len(others) >= 8, key
        for other in others:
            assert other["losses"][:5] == pytest.approx(first["losses"][:5], rel=1e-4), (
                first["layout"],
                other["layout"],
                other["world_size"],
            )


def test_bf16_follows_fp32_as_far_as_its_eight_bits_go(quickstart):
    rows = [row for row in quickstart.rows() if row["model"] == "tiny"]
    (bf16,) = [row for row in rows if row["precision"] == "bf16"]
    fp32 = next(row for row in rows if row["precision"] == "fp32")
    assert bf16["losses"][:5] == pytest.approx(fp32["losses"][:5], rel=1e-2)
    assert bf16["losses"][:5] != fp32["losses"][:5]


def test_it_leaves_the_files_the_readme_promises(quickstart):
    results = quickstart.results
    for name in ("points.parquet", "refused.parquet", "report.html"):
        assert (results / name).stat().st_size > 0
    assert list((results / "points").glob("*.json"))
    assert list((results / "tables").glob("*.parquet"))
    assert list((results / "charts").glob("*.svg"))
    assert (quickstart.root / "logs" / "quickstart" / "snakemake.log").exists()
    assert not list(results.rglob("*.part"))
    assert not list(results.rglob("*.running"))


def test_a_second_run_does_nothing_and_says_so(quickstart):
    before = {
        path: path.stat().st_mtime_ns for path in quickstart.results.rglob("*") if path.is_file()
    }
    again = scaling_warm(quickstart.root, "run", "quickstart")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Nothing to do: all 24 points are measured." in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_row_says_what_it_stands_on(quickstart):
    for row in quickstart.rows():
        assert row["torch_version"]
        assert row["deepspeed_version"]
        assert row["hosts"]
        assert row["started_at"].endswith(("Z", "+00:00"))
        point = json.loads((quickstart.results / "points" / f"{row['point_id']}.json").read_text())
        assert row["seed"] == point["seed"]
        assert row["peak_flop_per_s"] is None  # nobody publishes one for a rank on a CPU
        assert row["energy_j"] is None
