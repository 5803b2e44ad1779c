"""A study with probes, from its YAML to its tables."""

import pyarrow.parquet as pq
import pytest
import yaml

from tests.ran import scaling_warm
from tests.workflow.conftest import stand_in

pytestmark = [pytest.mark.ranks, pytest.mark.snakemake, pytest.mark.timeout(300)]


def test_probes_come_before_the_points_and_a_second_run_repeats_neither(small):
    path = small / "config" / "studies" / "small.yaml"
    study = yaml.safe_load(path.read_text())
    study |= {"layouts": [{"world_size": 2, "pp": 2, "zero_stage": 1}], "probe": {"enabled": True}}
    path.write_text(yaml.safe_dump(study))
    stand_in(small)
    ran = scaling_warm(small, "run", "small")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = small / "results" / "small"
    rows = pq.read_table(results / "probes.parquet").to_pylist()
    assert {row["outcome"] for row in rows} == {"ok"}
    assert {row["ranks"] for row in rows} == {None, 2}
    (measured,) = (results / "rows").glob("*.parquet")
    assert (results / "probes.parquet").stat().st_mtime < measured.stat().st_mtime
    assert "bus bandwidth" in (small / "logs" / "small" / "probe.log").read_text()
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*") if path.is_file()}
    again = scaling_warm(small, "run", "small")
    assert "Nothing to do: all 1 points are measured." in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}
