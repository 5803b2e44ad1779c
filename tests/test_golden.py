"""Whole texts that other people read, so that they change only on purpose."""

import sys

from scaling.record.row import Row, fields_of
from scaling.study import grid
from scaling.study.load import load_study
from tests.conftest import PROJECT
from tests.processes import ended


def test_the_plan_as_the_terminal_shows_it(golden, project):
    asked = ended(sys.executable, "-m", "scaling", "plan", "quickstart", cwd=project, check=True)
    golden("plan_quickstart.txt", asked.stdout)


def test_the_file_a_job_is_given(golden):
    study = load_study(PROJECT / "config" / "studies" / "quickstart.yaml", PROJECT / "config")
    (point,) = [p for p in grid.expand_grid(study).points if p.layout.sequence_parallel]
    golden("point.json", point.to_json())


def test_the_columns_of_a_row(golden):
    lines = [
        f"{name}: {kind}{' or null' if nullable else ''}"
        for name, (kind, nullable) in fields_of(Row).items()
    ]
    golden("row_columns.txt", "\n".join(lines) + "\n")
