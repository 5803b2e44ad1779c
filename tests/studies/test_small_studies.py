"""A published study's axes with a tiny model, really run on CPU ranks of this machine."""

import pyarrow.parquet as pq
import pytest

from scaling.study import grid
from scaling.study.load import load_study
from tests.conftest import FEW_STEPS, PROJECT, copy_project
from tests.ran import rows_of, scaling_warm

pytestmark = [pytest.mark.ranks, pytest.mark.snakemake, pytest.mark.timeout(900)]


STEPS = "warmup_steps: 2\n  measured_steps: 10\n"


def test_a_small_sibling_trains_its_axes_and_answers_each_finding(tmp_path):
    name = "parallel_layouts"
    root = copy_project(tmp_path)
    study = root / "config" / "studies" / f"{name}_small.yaml"
    # what is asked of it here is that it runs and answers, not how precisely
    shipped = study.read_text()
    assert STEPS in shipped
    study.write_text(shipped.replace(STEPS, FEW_STEPS))
    ran = scaling_warm(root, "run", f"{name}_small")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = root / "results" / f"{name}_small"

    points = grid.expand_grid(load_study(study, root / "config")).points
    rows = rows_of(results)
    assert {row["point_id"] for row in rows} == {point.point_id for point in points}
    failed = [row for row in rows if row["outcome"] != "ok"]
    assert all(row["fused_norm"] for row in failed), [row["error_message"] for row in failed]
    assert {row["outcome"] for row in failed} <= {"kernel_unavailable"}

    answers = pq.read_table(results / "tables" / "replication.parquet").to_pylist()
    findings = (PROJECT / "reports" / "replication" / name).glob("*.sql")
    assert {answer["finding"] for answer in answers} == {path.stem for path in findings}
    assert "measured" in {answer["source"] for answer in answers}
    assert (results / "report.html").exists()
